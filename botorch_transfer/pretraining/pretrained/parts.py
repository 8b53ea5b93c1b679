"""The parts of a GP that pre-training learns together: mean, kernel and noise.

The means and kernels that pre-training starts from, by name.

A GP for all tasks whose mean, kernel and noise are known: nothing in it is to be fitted.

A frozen GP that can be built by name.

A frozen GP in a file: the preset that it was, or the user's own modules, handed over again.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, Literal, Self, get_args

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean, Mean, ZeroMean
from torch import Tensor
from torch.nn import Module, Parameter

from botorch_transfer.kernels.features import (
    BiasedLinearKernel,
    FeatureKernel,
    FeatureMean,
    FeatureNetwork,
)
from botorch_transfer.kernels.gaussian import nll, stationary_nll
from botorch_transfer.kernels.stationary import Stationary, dense_covariance, stationary_function
from botorch_transfer.outcome_transforms import PooledStandardize
from botorch_transfer.pretraining.pretrained.checkpoints import LearningCurve
from botorch_transfer.pretraining.prior import TransferPrior
from botorch_transfer.pretraining.tasks import OutcomeScale

logger = logging.getLogger(__name__)

MIN_NOISE = 1e-6
"""The least noise variance, in the prior's units: standardized outcomes by default."""


class GPParts(Module):
    """A mean, a kernel and a noise variance, which may share modules.

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
        self.likelihood.noise = torch.tensor(noise, dtype=torch.double)  # now in full precision
        self._drop_hyperpriors()

    def _drop_hyperpriors(self) -> None:
        # One that stayed would shift the marginal likelihood of every model of the prior.
        for module in self.modules():
            hyperpriors = getattr(module, "_priors", None)
            if hyperpriors:
                logger.info(
                    "Pre-training ignores the hyperpriors %s of %s.",
                    sorted(hyperpriors),
                    type(module).__name__,
                )
                for name in list(hyperpriors):
                    del module._modules[name], hyperpriors[name]

    @property
    def noise(self) -> Tensor:
        """The noise variance, a tensor with one element."""
        return self.likelihood.noise

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates mean and covariance, noise left out.

        Args:
            X: A ``... x n x d`` tensor of inputs.

        Returns:
            A ``... x n`` and a ``... x n x n`` tensor; features that both read are computed once.
        """
        mean, kernel, x = self._on_features(X)
        return mean, dense_covariance(kernel, x)

    def _on_features(self, X: Tensor) -> tuple[Tensor, Kernel, Tensor]:
        """The mean, and a kernel with what it is to read: features, if it is one of features."""
        mean, kernel = self.mean_module, self.covar_module
        if type(kernel) is not FeatureKernel or kernel.active_dims is not None:
            return mean(X), kernel, X
        z = kernel.network(X)
        shared = isinstance(mean, FeatureMean) and mean.network is kernel.network
        return mean.of_features(z) if shared else mean(X), kernel.base_kernel, z

    def nll(
        self, X: Tensor, Y: Tensor, mask: Tensor | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Evaluates the negative log marginal likelihood of each task, as :func:`.objectives.nll`.

        Args:
            X: A ``... x n x d`` tensor of inputs.
            Y: A ``... x n`` tensor of outcomes.
            mask: A ``... x n`` boolean tensor, ``False`` for padding.
            noise: Noise variances that expand to ``... x n``; the GP's own if omitted.

        Returns:
            A ``...`` tensor, one value a task, differentiable in the parameters.
        """
        noise = self.noise if noise is None else noise
        mean, kernel, x = self._on_features(X)
        stationary = Stationary.of(kernel)
        if stationary is not None:
            return stationary_nll(mean, x, stationary, noise, Y, mask)
        return nll(mean, dense_covariance(kernel, x), Y, mask, noise)


def structure(module: Module) -> list[str]:
    """Says what means and kernels are, besides their parameters: classes, and settings as ``nu``.

    Args:
        module: The module that holds them.

    Returns:
        A line each for them and their parts; nothing in it is GPyTorch's own business.
    """
    parts = module.named_modules()
    return [f"{name}: {_settings(part)}" for name, part in parts if isinstance(part, Mean | Kernel)]


def _settings(module: Module) -> str:
    plain = {
        name: value
        for name, value in sorted(vars(module).items())
        if isinstance(value, bool | int | float | str)
        and not name.startswith("_")
        and name != "training"
    }
    return f"{type(module).__qualname__} {plain}"


def freeze(module: Module) -> dict[str, bool]:
    """Turns a module's parameters into buffers: nothing is left to fit, and views can share them.

    Args:
        module: The module, changed in place.

    Returns:
        The names of what were parameters, and whether each was one to fit. A name that leads to a
        module registered twice is listed once.
    """
    trainable = {}
    detached: dict[int, Tensor] = {}  # one of two tied parameters is the other
    for name, owner, leaf in _owners(module, list(_parameter_names(module))):
        parameter = owner._parameters.pop(leaf, None)
        if parameter is not None:
            trainable[name] = parameter.requires_grad
            owner._buffers[leaf] = detached.setdefault(id(parameter), parameter.detach())
    return trainable


def thaw(module: Module, trainable: dict[str, bool], fit: bool = True) -> None:
    """Turns buffers back into parameters.

    Args:
        module: The module, changed in place.
        trainable: What :func:`freeze` returned.
        fit: Whether the parameters that were to be fitted are so again.
    """
    tied: dict[int, Parameter] = {}
    for name, owner, leaf in _owners(module, list(trainable)):
        buffer = owner._buffers.pop(leaf)
        assert buffer is not None
        parameter = tied.setdefault(id(buffer), Parameter(buffer, fit and trainable[name]))
        owner._parameters[leaf] = parameter


def spread(module: Module, batch_shape: torch.Size) -> None:
    """Gives each member of a batched model parameters of its own, with the same values.

    Args:
        module: The module, changed in place; its parameters have no batch shape yet.
        batch_shape: The batch shape of the model.
    """
    for parameter in module.parameters():
        parameter.data = parameter.data.expand(batch_shape + parameter.shape).clone()
    for part in module.modules():
        if isinstance(part, Kernel):
            part._batch_shape = batch_shape + part._batch_shape


def _parameter_names(module: Module) -> Iterator[str]:
    return (name for name, _ in module.named_parameters(remove_duplicate=False))


def _owners(module: Module, names: list[str]) -> Iterator[tuple[str, Module, str]]:
    for name in names:
        path, _, leaf = name.rpartition(".")
        yield name, module.get_submodule(path), leaf


Parts = tuple[Mean, Kernel]


def hyperbo(dim: int, hidden: Sequence[int], kernel: str, seed: int) -> Parts:
    """A mean that is linear in a network's features, and a stationary kernel on them."""
    network = FeatureNetwork(dim, hidden, seed)
    return FeatureMean(network), FeatureKernel(_stationary(network.num_features, kernel), network)


def fsbo(dim: int, hidden: Sequence[int], kernel: str, seed: int) -> Parts:
    """A zero mean, and a stationary kernel on a network's features."""
    network = FeatureNetwork(dim, hidden, seed)
    return ZeroMean(), FeatureKernel(_stationary(network.num_features, kernel), network)


def ablr(dim: int, hidden: Sequence[int], seed: int) -> Parts:
    """A zero mean, and a linear kernel with an intercept on a network's features."""
    network = FeatureNetwork(dim, hidden, seed)
    kernel = BiasedLinearKernel(bias_variance=1.0, weight_variance=1.0 / network.num_features)
    return ZeroMean(), FeatureKernel(kernel, network)


def stationary(dim: int, kernel: str, mean: str) -> Parts:
    """A constant or zero mean, and a stationary kernel on the inputs themselves."""
    means: dict[str, Callable[[], Mean]] = {"constant": ConstantMean, "zero": ZeroMean}
    if mean not in means:
        raise ValueError(f"Unknown mean {mean!r}: choose 'constant' or 'zero'.")
    return means[mean](), _stationary(dim, kernel, lengthscale=0.5)


PRESETS: dict[str, Callable[..., Parts]] = {
    "hyperbo": hyperbo,
    "fsbo": fsbo,
    "ablr": ablr,
    "stationary": stationary,
}
"""The presets; the name and the arguments are all that a file needs to rebuild one."""


def build_preset(name: str, arguments: dict[str, Any]) -> Parts:
    """Builds a preset's mean and kernel, at their starting values."""
    return PRESETS[name](**arguments)


def _stationary(dim: int, kernel: str, lengthscale: float | None = None) -> ScaleKernel:
    """A scaled stationary kernel with a lengthscale for each input or feature."""
    base = stationary_function(kernel).make_kernel(ard_num_dims=dim).double()
    # Distances between features grow with the root of their number.
    base.lengthscale = math.sqrt(dim) / 2 if lengthscale is None else lengthscale
    scaled = ScaleKernel(base).double()
    scaled.outputscale = 1.0
    return scaled


class FrozenGP(TransferPrior):
    """A GP as a prior: its parameters are buffers, and models take copies.

    Args:
        mean_module: The mean; may share modules with the kernel.
        covar_module: The kernel.
        dim: The number of inputs ``d``.
        noise: The noise variance, in the prior's units.

    Raises:
        ValueError: If there is no input, or the noise variance is too small.
    """

    counts: Tensor
    outcome_mean: Tensor
    outcome_spread: Tensor

    def __init__(
        self, mean_module: Mean, covar_module: Kernel, dim: int, noise: float = 1e-2
    ) -> None:
        super().__init__("raw")
        if dim < 1:
            raise ValueError(f"dim={dim} must be positive.")
        if not MIN_NOISE < noise < math.inf:
            raise ValueError(f"noise={noise} must be a variance of more than {MIN_NOISE}.")
        self.parts = GPParts(*deepcopy((mean_module, covar_module)), noise).eval()
        self.trainable = freeze(self.parts)
        self._dim = dim
        self._noise = noise
        # Which modules these are, if they are none of the user's own.
        self._preset: dict[str, Any] | None = None
        self.register_buffer("counts", torch.zeros(2, dtype=torch.long))
        self.learning_curve = LearningCurve()
        self.register_buffer("outcome_mean", torch.zeros((), dtype=torch.double))
        self.register_buffer("outcome_spread", torch.ones((), dtype=torch.double))

    def _set_units(self, outcome_scale: OutcomeScale, transform: InputTransform | None) -> None:
        self.outcome_scale, self.input_transform = outcome_scale, transform
        index = get_args(OutcomeScale).index(outcome_scale)
        self.outcome_scale_index = torch.full_like(self.outcome_scale_index, index)

    @property
    def num_tasks(self) -> int:
        """The number of source tasks."""
        return int(self.counts[0])

    @property
    def num_points(self) -> int:
        """The number of their evaluations."""
        return int(self.counts[1])

    def _set_counts(self, num_tasks: int, num_points: int) -> None:
        self.counts = torch.tensor([num_tasks, num_points], device=self.counts.device)

    @property
    def dim(self) -> int:
        """The number of input dimensions ``d``."""
        return self._dim

    @property
    def noise(self) -> Tensor:
        """The noise variance, in the prior's units, a tensor without dimensions."""
        return self.parts.noise.squeeze(-1)

    def mean(self, X: Tensor) -> Tensor:
        """Evaluates the pre-trained mean, in the prior's units.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n`` tensor, differentiable in ``X``.
        """
        return self._thawed(fit=False).to(X).mean_module(self._transformed(X))

    def covariance(self, X: Tensor) -> Tensor:
        """Evaluates the pre-trained kernel, noise left out.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n x n`` tensor, differentiable in ``X``.
        """
        return self._thawed(fit=False).to(X).covar_module(self._transformed(X)).to_dense()

    def gp(self, batch_shape: torch.Size, fit: bool) -> GPParts:
        """Copies the GP, for a model.

        Args:
            batch_shape: The batch shape of the model.
            fit: Whether the copy's parameters are to be fitted.

        Returns:
            Mean, kernel and likelihood with parameters of their own. Each member of a batched
            model has its own; a frozen mean and kernel of the user's serve all members.
        """
        parts = self._thawed(fit)
        if batch_shape and (fit or self._preset is not None):
            spread(parts, batch_shape)
        elif batch_shape:
            spread(parts.likelihood, batch_shape)
        return parts

    def _thawed(self, fit: bool = True) -> GPParts:
        parts = deepcopy(self.parts)
        thaw(parts, self.trainable, fit)
        return parts

    def _transformed(self, X: Tensor) -> Tensor:
        x = super()._transformed(X)
        if x.shape[-1] != self.dim:
            raise BotorchTensorDimensionError(
                f"The inputs have {x.shape[-1]} columns, but the prior was built for {self.dim}."
            )
        return x

    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """The outcome transform that brings a target's outcomes into the prior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            ``None`` if the prior speaks in raw units, as an untrained one does. Otherwise a
            standardization by the outcomes of the source tasks, and of the target too if each
            source task was standardized by itself.
        """
        if self.outcome_scale == "raw":
            return None
        return PooledStandardize.from_moments(
            self.num_points,
            self.outcome_mean,
            self.outcome_spread,
            include_target=self.outcome_scale == "per_task",
            batch_shape=batch_shape,
        )

    def extra_repr(self) -> str:
        """What ``print`` shows of the prior."""
        return (
            f"tasks={self.num_tasks}, points={self.num_points}, inputs={self.dim}, "
            f"outcome_scale={self.outcome_scale!r}"
        )


class PresetGP(FrozenGP):
    """A :class:`~.frozen_gp.FrozenGP` with a constructor for each preset."""

    @classmethod
    def _of_preset(cls, name: str, noise: float, **arguments: Any) -> Self:
        prior = cls(*build_preset(name, arguments), dim=arguments["dim"], noise=noise)
        prior._preset = {"name": name, "arguments": arguments}
        return prior

    @classmethod
    def hyperbo(
        cls,
        d: int,
        hidden: Sequence[int] = (32, 32),
        kernel: str = "matern52",
        noise: float = 1e-2,
        seed: int = 0,
    ) -> Self:
        """HyperBO's mean and kernel, which read the same features of a network.

        Args:
            d: The number of inputs.
            hidden: The widths of the network's layers, the last one that of the features.
            kernel: The stationary kernel on the features.
            noise: The noise variance to start from.
            seed: The seed of the initial weights.

        Returns:
            The prior, yet to be trained.

        Example:
            >>> PretrainedPrior.hyperbo(d=3).dim
            3
        """
        return cls._of_preset("hyperbo", noise, dim=d, hidden=[*hidden], kernel=kernel, seed=seed)

    @classmethod
    def fsbo(
        cls,
        d: int,
        hidden: Sequence[int] = (32, 32),
        kernel: str = "matern52",
        noise: float = 1e-2,
        seed: int = 0,
    ) -> Self:
        """Few-shot Bayesian optimization: a zero mean, and a kernel on a network's features.

        Args:
            d: The number of inputs.
            hidden: The widths of the network's layers.
            kernel: The stationary kernel on the features.
            noise: The noise variance to start from.
            seed: The seed of the initial weights.

        Returns:
            The prior, yet to be trained.

        Example:
            >>> prior = PretrainedPrior.fsbo(d=3)
        """
        return cls._of_preset("fsbo", noise, dim=d, hidden=[*hidden], kernel=kernel, seed=seed)

    @classmethod
    def ablr(
        cls, d: int, hidden: Sequence[int] = (32, 32), noise: float = 0.3, seed: int = 0
    ) -> Self:
        """Adaptive Bayesian linear regression: a zero mean, linear in a network's features.

        Args:
            d: The number of inputs.
            hidden: The widths of the network's layers.
            noise: The noise variance to start from: so much that it holds what features yet to be
                learned cannot explain. With little noise, training ends in a poor optimum.
            seed: The seed of the initial weights.

        Returns:
            The prior, yet to be trained.

        Example:
            >>> prior = PretrainedPrior.ablr(d=3)
        """
        return cls._of_preset("ablr", noise, dim=d, hidden=[*hidden], seed=seed)

    @classmethod
    def stationary(
        cls,
        d: int,
        kernel: str = "matern52",
        mean: Literal["constant", "zero"] = "constant",
        noise: float = 1e-2,
    ) -> Self:
        """An ordinary GP without a network: few parameters, for few source tasks.

        Args:
            d: The number of inputs.
            kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``, with a lengthscale
                for each input.
            mean: The mean.
            noise: The noise variance to start from.

        Returns:
            The prior, yet to be trained.

        Raises:
            ValueError: If there is no such kernel or mean.

        Example:
            >>> prior = PretrainedPrior.stationary(d=3, kernel="rbf")
        """
        return cls._of_preset("stationary", noise, dim=d, kernel=kernel, mean=mean)


_CURVE = "learning_curve."


class StoredGP(PresetGP):
    """A :class:`~.frozen_gp.FrozenGP` that can be saved and loaded."""

    def _config(self) -> dict[str, Any]:
        return {
            "dim": self._dim,
            "preset": self._preset,
            "noise": self._noise,
            "trainable": self.trainable,
            "modules": self._module_names(),
            "structure": structure(self.parts),
        }

    def _module_names(self) -> list[str]:
        modules = (self.parts.mean_module, self.parts.covar_module)
        return [type(module).__qualname__ for module in modules]

    def _tensors(self) -> dict[str, Tensor]:
        # Copies: tied tensors share memory, which the file's format does not allow.
        state = {name: tensor.clone() for name, tensor in self.named_buffers()}
        state = {n: t for n, t in state.items() if not n.startswith("input_transform.")}
        curve = self.learning_curve.tensors()
        return state | {f"{_CURVE}{name}": tensor for name, tensor in curve.items()}

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        device: torch.device | str | None = None,
        input_transform: InputTransform | None = None,
        mean_module: Mean | None = None,
        covar_module: Kernel | None = None,
    ) -> Self:
        """Loads a prior that :meth:`save` wrote. Nothing is ever unpickled.

        Args:
            path: The file.
            device: Where to put the prior; the CPU if omitted.
            input_transform: The prior's input transform, needed only where it is none of BoTorch's
                ``Normalize``, which the file holds.
            mean_module: The mean of a prior that was built of the user's own modules; its
                parameters are read from the file. Modules that mean and kernel share must be
                shared again.
            covar_module: Its kernel.

        Returns:
            The prior.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, is no prior, holds another class or an unknown
                version, or if modules are missing, of another structure, or not needed.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> prior = PretrainedPrior.ablr(2).fit([(X, X.sum(-1, keepdim=True))], steps=5)
            >>> prior.save("pretrained.safetensors")
            >>> loaded = PretrainedPrior.load("pretrained.safetensors")
            >>> torch.equal(loaded.noise, prior.noise)
            True
        """
        saved = cls._read(path, device, input_transform)
        return cls._restore(*saved, mean_module, covar_module).to(device)

    @classmethod
    def _restore(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        input_transform: InputTransform | None,
        mean_module: Mean | None = None,
        covar_module: Kernel | None = None,
    ) -> Self:
        prior = cls._untrained(config, mean_module, covar_module)
        prior._set_units(config["outcome_scale"], input_transform)
        own = dict(prior.named_buffers())
        curve = {n.removeprefix(_CURVE): t for n, t in tensors.items() if n.startswith(_CURVE)}
        state = {name: tensor for name, tensor in tensors.items() if not name.startswith(_CURVE)}
        expected = {n: t.shape for n, t in own.items() if not n.startswith("input_transform.")}
        if expected != {name: tensor.shape for name, tensor in state.items()}:
            raise ValueError(
                "The given mean_module and covar_module have other parameters than the saved ones: "
                "build them as they were built before."
            )
        if config["preset"] is None and structure(prior.parts) != config["structure"]:
            raise ValueError(
                "The given mean_module and covar_module are not of the kind of the saved ones: "
                "build them as they were built before."
            )
        for name, tensor in state.items():
            own[name].copy_(tensor)
        prior.trainable = dict(config["trainable"])
        prior.learning_curve = LearningCurve.from_tensors(curve)
        return prior

    @classmethod
    def _untrained(
        cls, config: Mapping[str, Any], mean_module: Mean | None, covar_module: Kernel | None
    ) -> Self:
        preset, given = config["preset"], (mean_module, covar_module)
        if preset is not None:
            if given != (None, None):
                raise ValueError(
                    f"The saved prior is the preset {preset['name']!r}: leave out mean_module and "
                    "covar_module."
                )
            return cls._of_preset(preset["name"], config["noise"], **preset["arguments"])
        names = [type(module).__qualname__ for module in given]
        if mean_module is None or covar_module is None or names != config["modules"]:
            mean, kernel = config["modules"]
            raise ValueError(
                f"The saved prior has the mean {mean} and the kernel {kernel}, which its file does "
                "not hold: hand them over by load(path, mean_module=..., covar_module=...)."
            )
        return cls(mean_module, covar_module, config["dim"], config["noise"])
