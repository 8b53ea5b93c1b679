"""Means and kernels on the features of a neural network, and the GP that pre-training learns.

``FeatureKernel`` is the deep kernel of HyperBO and FSBO. With a linear kernel on the features,
``FeatureKernel`` is the kernel of ABLR. ``FeatureMean`` is linear in the features. ``GPParts`` is
the pre-trained GP: a mean, a kernel and a noise variance.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self, cast

import torch
from botorch.sampling.pathwise.features import KernelFeatureMap, gen_kernel_features
from botorch.sampling.pathwise.features.generators import GenKernelFeatures
from botorch.sampling.pathwise.features.maps import FeatureMap
from botorch.sampling.pathwise.utils import ChainedTransform
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, PolynomialKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import Mean
from torch import Tensor
from torch.nn import Identity, Module, Parameter, ParameterList
from torch.nn.functional import linear

from botorch_transfer.gp.expansion import evaluate
from botorch_transfer.gp.stationary import stationary_function

logger = logging.getLogger(__name__)

#: Lower bound of the noise variance, in the prior's units (standardized outcomes by default).
MIN_NOISE = 1e-6


class FeatureNetwork(Module):
    r"""A multilayer perceptron with ``tanh`` after every layer, including the last layer.

    Weights may have a batch shape, like the hyperparameters of GPyTorch's kernels. Each model of a
    batch then has its own network.

    Args:
        dim: The number of inputs ``d``. Inputs lie in the unit cube.
        hidden: The width of each layer; the last width is the number of features.
        seed: The seed of the initial weights.

    Raises:
        ValueError: If there are no layers, or a layer has no units.

    Example:
        >>> network = FeatureNetwork(dim=3, hidden=(16, 8))
        >>> network(torch.rand(5, 3, dtype=torch.double)).shape
        torch.Size([5, 8])
    """

    def __init__(self, dim: int, hidden: Sequence[int] = (32, 32), seed: int = 0) -> None:
        super().__init__()
        if len(hidden) == 0 or min(hidden) < 1:
            raise ValueError(f"hidden= is {tuple(hidden)}: give one or more widths of at least 1.")
        generator = torch.Generator().manual_seed(seed)
        widths = [dim, *hidden]
        self.weights, self.biases = ParameterList(), ParameterList()
        for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
            weight = torch.randn(fan_out, fan_in, generator=generator, dtype=torch.double)
            weight /= math.sqrt(fan_in)
            bias = torch.zeros(fan_out, dtype=torch.double)
            if layer == 0:
                # The first layer maps each input from [0, 1] to [-1, 1].
                weight *= 2
                bias = -weight.sum(dim=-1) / 2
            self.weights.append(Parameter(weight))
            self.biases.append(Parameter(bias))

    @property
    def num_features(self) -> int:
        """The number of features that the network computes."""
        return cast(Tensor, self.weights[-1]).shape[-2]

    def forward(self, x: Tensor) -> Tensor:
        """Computes the features of inputs.

        Args:
            x: A ``... x n x d`` tensor of inputs.

        Returns:
            A ``... x n x num_features`` tensor.
        """
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if weight.dim() == 2:
                x = torch.tanh(linear(x, weight, bias))
            else:
                x = torch.tanh(x @ weight.mT + bias.unsqueeze(-2))
        return x

    def __getitem__(self, index: Any) -> Self:
        """Returns the networks at an index into the batch shape, like ``Kernel.__getitem__``."""
        selected = type(self).__new__(type(self))
        Module.__init__(selected)
        selected.weights = ParameterList([weight[index] for weight in self.weights])
        selected.biases = ParameterList([bias[index] for bias in self.biases])
        return selected


class FeatureKernel(Kernel):
    r"""A kernel on features, ``k(φ(x), φ(x'))``, also known as deep kernel.

    Args:
        base_kernel: The kernel ``k`` on the features.
        network: The network that computes the features ``φ``. It maps a ``... x n x d`` tensor to a
            ``... x n x f`` tensor. A mean may use the same network, see :class:`FeatureMean`.

    Raises:
        ValueError: If the base kernel has ``active_dims``.

    Example:
        >>> network = FeatureNetwork(dim=3)
        >>> base = RBFKernel(ard_num_dims=network.num_features).double()
        >>> FeatureKernel(base, network)(torch.rand(5, 3, dtype=torch.double)).shape
        torch.Size([5, 5])
    """

    def __init__(self, base_kernel: Kernel, network: FeatureNetwork) -> None:
        super().__init__(batch_shape=base_kernel.batch_shape)
        if base_kernel.active_dims is not None:
            raise ValueError("The base kernel must use all features: leave out its active_dims=.")
        self.base_kernel = base_kernel
        self.network = network

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Evaluates the deep kernel ``k(φ(x1), φ(x2))``.

        Args:
            x1: A ``... x n1 x d`` tensor of inputs.
            x2: A ``... x n2 x d`` tensor of inputs.
            diag: Whether to return ``k(x1_i, x2_i)`` only.
            **params: Ignored.

        Returns:
            A ``... x n1 x n2`` tensor, or a ``... x n`` tensor if ``diag``. The tensor is twice
            differentiable in the inputs.
        """
        z1 = self.network(x1)
        z2 = z1 if x1 is x2 else self.network(x2)
        return evaluate(self.base_kernel, z1, z2, diag)

    def __getitem__(self, index: Any) -> Self:
        """Returns the kernels at an index into the batch shape."""
        if len(self.batch_shape) == 0:
            return self
        return type(self)(self.base_kernel[index], self.network[index])


class FeatureMean(Mean):
    r"""A mean ``wᵀ φ(x) + b`` that is linear in the features ``φ`` of a network.

    Before training, the mean is zero.

    Args:
        network: The network that computes the features ``φ``. Usually the kernel has the same
            network.

    Example:
        >>> mean = FeatureMean(FeatureNetwork(dim=3))
        >>> mean(torch.rand(2, 3, dtype=torch.double))
        tensor([0., 0.], dtype=torch.float64, grad_fn=<AddBackward0>)
    """

    def __init__(self, network: FeatureNetwork) -> None:
        super().__init__()
        self.network = network
        self.weight = Parameter(torch.zeros(network.num_features, dtype=torch.double))
        self.bias = Parameter(torch.zeros((), dtype=torch.double))

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the mean at ``... x n x d`` inputs."""
        return self.of_features(self.network(x))

    def of_features(self, z: Tensor) -> Tensor:
        """Evaluates the mean from precomputed ``... x n x f`` features."""
        return (z @ self.weight.unsqueeze(-1)).squeeze(-1) + self.bias.unsqueeze(-1)


@GenKernelFeatures.register(PolynomialKernel)
def linear_features(kernel: PolynomialKernel, *, num_inputs: int, **_: Any) -> FeatureMap:
    """Builds the exact features ``(√c, z)`` of the kernel ``c + zᵀz'``.

    Args:
        kernel: A ``PolynomialKernel`` with power one and without ``active_dims``.
        num_inputs: The kernel's number of inputs.
        **_: Ignored.

    Returns:
        The feature map.

    Raises:
        NotImplementedError: If the kernel's power is not one, or if the kernel has ``active_dims``.
    """
    if kernel.power != 1 or kernel.active_dims is not None:
        raise NotImplementedError(
            "A PolynomialKernel with another power than 1, or with active_dims, has no exact "
            "features: give power=1, and leave out active_dims=."
        )
    eye = torch.eye(num_inputs + 1).to(kernel.offset)
    bias = kernel.offset.sqrt().unsqueeze(-1) * eye[0]
    # BoTorch's map of a ScaleKernel calls output_transform, so output_transform must not be None.
    return KernelFeatureMap(kernel, eye[:, 1:], bias.detach(), output_transform=Identity())


@GenKernelFeatures.register(FeatureKernel)
def _gen_features_of_features(
    kernel: FeatureKernel, *, num_inputs: int, num_outputs: int
) -> FeatureMap:
    network: Any = kernel.network
    feature_map = gen_kernel_features(
        kernel.base_kernel, num_inputs=network.num_features, num_outputs=num_outputs
    )
    inner: Any = feature_map.input_transform
    feature_map.input_transform = network if inner is None else ChainedTransform(inner, network)
    return feature_map


# --------------------------------------------------------------------- mean, kernel and noise


class GPParts(Module):
    """A GP prior with Gaussian noise: a mean, a kernel and a noise variance.

    The mean and the kernel may share modules, such as a network.

    Args:
        mean_module: The mean.
        covar_module: The kernel.
        noise: The starting value of the noise variance.
    """

    def __init__(self, mean_module: Mean, covar_module: Kernel, noise: float = 1e-2) -> None:
        super().__init__()
        self.mean_module = mean_module
        self.covar_module = covar_module
        constraint = GreaterThan(MIN_NOISE, initial_value=noise)
        self.likelihood = GaussianLikelihood(noise_constraint=constraint)
        self.double()
        self.likelihood.noise = torch.tensor(noise, dtype=torch.double)  # not rounded to float32
        # Hyperpriors are deleted, because GPyTorch would add their log densities to each target
        # model's marginal likelihood.
        for module in self.modules():
            if hyperpriors := getattr(module, "_priors", None):
                names, owner = sorted(hyperpriors), type(module).__name__
                logger.info("Pre-training ignores the hyperpriors %s of %s.", names, owner)
                for name in names:
                    del module._modules[name], hyperpriors[name]

    @property
    def noise(self) -> Tensor:
        """The noise variance, a tensor with one element."""
        return self.likelihood.noise

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the prior mean and the prior covariance, without noise.

        Args:
            X: A ``... x n x d`` tensor of inputs.

        Returns:
            The mean, a ``... x n`` tensor, and the covariance, a ``... x n x n`` tensor. If the
            mean and the kernel share a network, the network is evaluated only once.
        """
        mean, kernel = self.mean_module, self.covar_module
        if type(kernel) is not FeatureKernel or kernel.active_dims is not None:
            return mean(X), evaluate(kernel, X, X)
        z = kernel.network(X)
        shared = isinstance(mean, FeatureMean) and mean.network is kernel.network
        of_mean = mean.of_features(z) if shared else mean(X)
        return of_mean, evaluate(kernel.base_kernel, z, z)


def structure(module: Module) -> list[str]:
    """Describes the means and kernels in a module, without their parameters.

    Args:
        module: The module that contains the means and kernels.

    Returns:
        A list with one line for each mean and kernel: its class, and public settings such as
        ``nu``.
    """
    lines = []
    for name, part in module.named_modules():
        if isinstance(part, Mean | Kernel):
            public = {key: value for key, value in sorted(vars(part).items()) if key[0] != "_"}
            public.pop("training")
            plain = {k: v for k, v in public.items() if isinstance(v, bool | int | float | str)}
            lines.append(f"{name}: {type(part).__qualname__} {plain}")
    return lines


def spread(module: Module, batch_shape: torch.Size) -> None:
    """Expands the parameters of a module to the batch shape of a model.

    Args:
        module: The module, changed in place. Its parameters have no batch shape yet. Afterwards,
            each model of the batch has its own parameters.
        batch_shape: The batch shape of the model.
    """
    for parameter in module.parameters():
        parameter.data = parameter.data.expand(batch_shape + parameter.shape).clone()
    for part in module.modules():
        if isinstance(part, Kernel):
            part._batch_shape = batch_shape + part._batch_shape


def scaled_stationary(dim: int, kernel: str, lengthscale: float | None = None) -> ScaleKernel:
    """Builds a scaled stationary kernel with a lengthscale for each input or feature.

    Args:
        dim: The number of inputs or features.
        kernel: The stationary kernel's name.
        lengthscale: The starting value of all lengthscales. By default ``√dim / 2``, because
            distances between features grow with the square root of the number of features.

    Returns:
        The kernel, in double precision.
    """
    base = stationary_function(kernel).make_kernel(ard_num_dims=dim).double()
    base.lengthscale = math.sqrt(dim) / 2 if lengthscale is None else lengthscale
    return ScaleKernel(base).double().initialize(outputscale=1.0)


def scaled_linear(dim: int) -> ScaleKernel:
    """Builds the kernel ``σ_0² + zᵀz' / λ²`` of Bayesian linear regression with an intercept.

    Args:
        dim: The number of features. ``σ_0²`` starts at one, and ``1 / λ²`` at ``1 / dim``.

    Returns:
        The kernel, in double precision. Its ``outputscale`` is ``1 / λ²``, and the base kernel's
        ``offset`` is ``σ_0² λ²``.
    """
    base = PolynomialKernel(power=1).double()
    base.offset = float(dim)
    return ScaleKernel(base).double().initialize(outputscale=1.0 / dim)
