r"""Pathwise sampling of the models whose prior holds source posteriors, joint GPs or features.

BoTorch draws a prior function by random features and corrects it by the data (Matheron's rule,
[Wilson2020sampling]_). Here the prior is itself a posterior:

* of the modular models, given each source's data. Its functions are drawn by the same rule, one
  level below (:class:`SourcePath`).
* of the joint models, given all source data. A function of all tasks is drawn by random features of
  each data kernel, ``f(x, i) = Σ_ν φ_ν(x)ᵀ θ_ν [F_ν]_i``, and corrected by the source data
  (:class:`JointPath`).

The pre-trained models need random features of their learned features.

.. [Wilson2020sampling]
    J. T. Wilson et al. Efficiently Sampling Functions from Gaussian Process Posteriors. ICML 2020.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from botorch.sampling.pathwise.features import gen_kernel_features
from botorch.sampling.pathwise.features.generators import GenKernelFeatures
from botorch.sampling.pathwise.features.maps import FeatureMap
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths
from botorch.sampling.pathwise.utils import ChainedTransform
from botorch.utils.sampling import draw_sobol_normal_samples
from gpytorch.kernels import AdditiveKernel
from torch import Tensor
from torch.nn import ModuleList

from botorch_transfer._botorch import (
    draw_kernel_feature_paths_fallback,
    draw_matheron_paths_exact_gp,
)
from botorch_transfer.kernels.conditioned_batch import ConditionedBatch
from botorch_transfer.kernels.features import BiasedLinearKernel, FeatureKernel
from botorch_transfer.kernels.source_conditional import SourceConditional
from botorch_transfer.kernels.weights import SourceWeights
from botorch_transfer.models.joint import JointTransferGP
from botorch_transfer.models.modular import ModularTransferGP
from botorch_transfer.models.pathwise.paths import ModelPath, model_paths
from botorch_transfer.models.pretrained import PretrainedGP

MIN_FEATURES = 1024
"""The least number of random features of one kernel."""

_MATERN_SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


class SourcePath(ModelPath):
    r"""Draws of ``Σ_g w_g (f_g - μ_g)``, from the source posteriors minus their means.

    Each kernel's function is drawn by random features, and corrected by what it has at the source
    data, with noise: ``f(x) - k(x, X) solve(f(X) + ε)``.

    Args:
        gps: The source GPs.
        task_weights: Their weights; every GP counts once if omitted.
        shape: The sample shape and the batch shape of the target model.
        num_features: The number of random features of each kernel, even.
    """

    gps: ConditionedBatch
    weights: Tensor
    frequencies: Tensor
    theta: Tensor
    correction: Tensor

    def __init__(
        self,
        gps: ConditionedBatch,
        task_weights: SourceWeights | None,
        shape: torch.Size,
        num_features: int,
    ) -> None:
        super().__init__()
        self.gps = gps
        weights = (
            gps.alpha.new_ones(len(gps.alpha)) if task_weights is None else task_weights.weights
        )
        self.register_buffer("weights", weights.detach().double())
        self.register_buffer("frequencies", _draw_frequencies(gps, num_features // 2))
        num_kernels = len(gps.outputscale)
        theta = gps.alpha.new_empty(*shape, num_kernels, num_features).normal_()
        self.register_buffer("theta", theta)
        noise = gps.alpha.new_empty(*shape, *gps.alpha.shape).normal_() * gps.noise.sqrt()
        observed = gps.aggregate_at_data(self._values(gps.train_X)) + noise * gps.mask
        self.register_buffer("correction", -gps.solve(observed))

    def _values(self, x: Tensor) -> Tensor:
        """Each kernel's function at ``... x [Q] x n x d`` inputs: ``... x Q x n``."""
        phase = (x / self.gps.lengthscale.unsqueeze(-2)) @ self.frequencies.mT
        scale = (self.gps.outputscale / self.frequencies.shape[-2]).sqrt()
        features = torch.cat([phase.sin(), phase.cos()], dim=-1) * scale[:, None, None]
        return (features @ self.theta.unsqueeze(-1)).squeeze(-1)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        prior = self.gps.aggregate(self._values(x.double().unsqueeze(-3)), dim=-2)
        update = (self.gps.cross(x) @ self.correction.unsqueeze(-1)).squeeze(-1)
        return (self.weights.unsqueeze(-1) * (prior + update)).sum(dim=-2).to(x.dtype)


def _draw_frequencies(gps: ConditionedBatch, num: int) -> Tensor:
    """Draws from the spectral density of the kernel at unit lengthscale: ``M x num x d``.

    Each kernel has its own, so that their errors average out in the sum.

    That of a Matérn kernel is a multivariate t distribution with twice its smoothness as degrees of
    freedom.
    """
    # Quasi-random within a kernel, which about halves the error of the variance.
    draw = partial(draw_sobol_normal_samples, gps.dim, num, gps.alpha.device, gps.alpha.dtype)
    normal = torch.stack([draw() for _ in gps.outputscale])
    smoothness = _MATERN_SMOOTHNESS.get(gps.kernel)
    if smoothness is None:
        return normal
    rate = torch.tensor(smoothness).to(normal)
    return normal * torch.distributions.Gamma(rate, rate).sample((*normal.shape[:-1], 1)).rsqrt()


@DrawKernelFeaturePaths.register(ModularTransferGP)
def draw_prior_paths(
    model: ModularTransferGP, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    """Draws from a modular model's prior: the residual's functions, and the source posteriors'.

    Args:
        model: The model.
        sample_shape: The shape of the draws.
        num_features: The number of random features.
        **kwargs: Handed to BoTorch.

    Returns:
        Paths over the user's inputs, in the user's units.
    """
    residual = draw_kernel_feature_paths_fallback(
        num_inputs=model.num_inputs,
        mean_module=model.mean_module,
        covar_module=model.residual_covar_module,
        sample_shape=sample_shape,
        num_features=num_features,
        **kwargs,
    )
    paths: dict[str, SamplePath] = {"residual": residual}
    if model.has_source_covariance:
        gps, task_weights = model.mean_module.gps, model.mean_module.task_weights
        share = max(num_features // len(gps.outputscale) * 2, MIN_FEATURES)
        shape = sample_shape + model.batch_shape
        paths["sources"] = SourcePath(gps, task_weights, shape, share)
    return model_paths(model, paths)


@DrawMatheronPaths.register(ModularTransferGP)
def draw_posterior_paths(
    model: ModularTransferGP | JointTransferGP,
    *,
    prior_sampler: Any,
    sample_shape: torch.Size,
    **kwargs: Any,
) -> SamplePath:
    """Draws from the posterior of a model's exact GP, or without target points from its prior.

    Args:
        model: The model.
        prior_sampler: Draws from the model's prior.
        sample_shape: The shape of the draws.
        **kwargs: Handed to BoTorch.

    Returns:
        Paths over the user's inputs, in the user's units.
    """
    if model.num_target_points == 0:
        return prior_sampler(model=model, sample_shape=sample_shape)
    return draw_matheron_paths_exact_gp(
        model, prior_sampler=prior_sampler, sample_shape=sample_shape, **kwargs
    )


class JointPath(ModelPath):
    """Draws of the target's function in a joint GP, given the source data.

    Args:
        conditional: The joint GP's target task, given the source data.
        sample_shape: The sample shape.
        num_features: The number of random features of each data kernel.
        map_generator: Makes feature maps of kernels, as BoTorch's ``gen_kernel_features`` does.
    """

    loadings: Tensor
    correction: Tensor

    def __init__(
        self,
        conditional: SourceConditional,
        sample_shape: torch.Size,
        num_features: int,
        map_generator: Callable[..., Any] = gen_kernel_features,
    ) -> None:
        super().__init__()
        # A copy: a path stays what it is when the model's hyperparameters change.
        self.conditional = deepcopy(conditional).eval().requires_grad_(False)
        kernel, points = self.conditional.kernel, self.conditional.points
        self.feature_maps = ModuleList(
            map_generator(data_kernel, num_inputs=points.X.shape[-1], num_outputs=num_features)
            for data_kernel in kernel.data_kernels
        )
        factors = kernel.task_factors()
        shape = (*sample_shape, *self.conditional.batch_shape, factors.shape[-3])
        theta = points.X.new_empty(*shape, num_features, factors.shape[-1]).normal_()
        loadings = theta @ factors.mT  # ... x Q x num_features x T
        self.register_buffer("loadings", loadings[..., -1])
        self.register_buffer("correction", self._correct(loadings))

    def _correct(self, loadings: Tensor) -> Tensor:
        """``K⁻¹ (y_s - f(X_s) - ε)``, a ``sample_shape x batch_shape x N_s`` tensor."""
        points, factor = self.conditional.points, self.conditional.factor()
        sizes = torch.tensor(points.sizes, device=points.X.device)
        tasks = torch.arange(len(points.sizes), device=points.X.device).repeat_interleave(sizes)
        values = self._combine(points.X, loadings)  # of all tasks at all points
        index = tasks.unsqueeze(-1).expand(*values.shape[:-1], 1)
        values = values.gather(-1, index).squeeze(-1)
        noise = self.conditional.noise.variances(points).sqrt() * torch.randn_like(values)
        residual = (points.Y - values - noise).unsqueeze(-1).double()
        solved = [
            torch.cholesky_solve(residual[..., rows, :], root)
            for (_, rows), root in zip(self.conditional.groups, factor.roots, strict=True)
        ]
        return torch.cat(solved, dim=-2).squeeze(-1).to(values)

    def _combine(self, x: Tensor, loadings: Tensor) -> Tensor:
        """``Σ_ν φ_ν(x) loadings_ν`` for ``... x Q x num_features x T`` loadings."""
        terms = [
            feature_map(x) @ loadings[..., index, :, :]
            for index, feature_map in enumerate(self.feature_maps)
        ]
        return torch.stack(terms).sum(dim=0)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        values = self._combine(x, self.loadings.unsqueeze(-1))
        update = self.conditional.cross(x) @ self.correction.unsqueeze(-1)
        return (values + update).squeeze(-1)


@DrawKernelFeaturePaths.register(JointTransferGP)
def _draw_joint_feature_paths(
    model: JointTransferGP, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    share = max(num_features // len(model.covar_modules) // 2 * 2, MIN_FEATURES)
    path = JointPath(model.conditional, sample_shape, share, **kwargs)
    return model_paths(model, {"joint": path})


DrawMatheronPaths.register(JointTransferGP)(draw_posterior_paths)


@GenKernelFeatures.register(BiasedLinearKernel)
class LinearFeatureMap(FeatureMap):
    """The features of a :class:`BiasedLinearKernel`, which are exact: ``(σ_0, z / λ)``.

    Args:
        kernel: The kernel.
        num_inputs: The number of its inputs.
        **_: Ignored.
    """

    def __init__(self, kernel: BiasedLinearKernel, num_inputs: int, **_: Any) -> None:
        super().__init__()
        self.kernel = kernel
        self.num_outputs = num_inputs + 1
        self.batch_shape = kernel.batch_shape
        self.input_transform = self.output_transform = None

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the features of ``... x n x num_inputs`` inputs."""
        bias = self.kernel.bias_variance.sqrt()[..., None, None]
        weight = self.kernel.weight_variance.sqrt()[..., None, None]
        scaled = weight * x
        return torch.cat([bias.expand(*scaled.shape[:-1], 1), scaled], dim=-1)


class UnbiasedPath(ModelPath):
    """Draws scaled around the posterior mean, those of an unbiased model.

    Args:
        path: Draws from the exact posterior.
        model: The model; its posterior mean is the draws'.
    """

    def __init__(self, path: SamplePath, model: PretrainedGP) -> None:
        super().__init__()
        self.path = path
        self.model = deepcopy(model).eval()
        self.scale = model._covariance_factor(model.num_target_points) ** 0.5

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws at ``[sample_shape x] batch_shape x n x d`` inputs."""
        values, mean = self.path(x), self.model.posterior(x).mean.squeeze(-1)
        return mean + self.scale * (values - mean)


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


@DrawKernelFeaturePaths.register(PretrainedGP)
def _draw_pretrained_feature_paths(
    model: PretrainedGP, sample_shape: torch.Size, num_features: int = MIN_FEATURES, **kwargs: Any
) -> PathDict:
    # Copies: a path stays what it is when the model's hyperparameters change.
    mean, covar = deepcopy((model.mean_module, model.covar_module))
    kernels = covar.kernels if isinstance(covar, AdditiveKernel) else [covar]
    paths = {
        f"kernel {number}": draw_kernel_feature_paths_fallback(
            num_inputs=model.prior.dim,
            mean_module=mean if number == 0 else None,
            covar_module=kernel,
            sample_shape=sample_shape,
            num_features=num_features,
            **kwargs,
        )
        for number, kernel in enumerate(kernels)
    }
    return model_paths(model, paths)


@DrawMatheronPaths.register(PretrainedGP)
def _draw_pretrained_matheron_paths(model: PretrainedGP, **kwargs: Any) -> SamplePath:
    path = draw_posterior_paths(model, **kwargs)
    return UnbiasedPath(path, model) if model.unbiased else path
