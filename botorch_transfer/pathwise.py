r"""Pathwise sampling: functions drawn from the models, for Thompson sampling.

Importing it registers the models with BoTorch's ``draw_kernel_feature_paths`` and
``draw_matheron_paths``, which draw a prior function by random features and correct it by the data
(Matheron's rule, [Wilson2020sampling]_). Here the prior is itself a posterior:

* of the modular models, given each source's data. Its functions are drawn by the same rule, one
  level below (:class:`SourcePath`). Those of the hierarchical GP over the sources have a random
  scale and level besides (:class:`PopulationMeanPath`).
* of the joint models, given all source data. A function of all tasks is drawn by random features of
  each data kernel, ``f(x, i) = Σ_ν φ_ν(x)ᵀ θ_ν [F_ν]_i``, and corrected by the source data
  (:class:`JointPath`).

The pre-trained models need random features of their learned features. Models that predict otherwise
than their exact GP are drawn as their mean plus centred draws of their parts:

* Ensembles, with weights ``w`` and draws ``δ`` of the members minus their means:
  ``μ + w_t δ_t + Σ_m w_m δ_m``. SGPT has the target's own covariance: ``μ + δ_t``.
* Averages of members with shares ``p_k``, means ``μ_k``, mean ``μ = Σ_k p_k μ_k`` and a standard
  normal ``z_k`` each: ``μ + Σ_k √p_k (δ_k + z_k (μ_k - μ))``.
* MHGP with combined standard deviations ``s``, and ``σ`` its exact GP's: ``μ + (s / σ) δ``.

All paths are functions of transformed inputs, in the model's own units; a sum of them with the
model's transforms is in the user's.

.. [Wilson2020sampling]
    J. T. Wilson et al. Efficiently Sampling Functions from Gaussian Process Posteriors. ICML 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, cast

import torch
from botorch.models.utils import gpt_posterior_settings
from botorch.sampling.pathwise.features import KernelFeatureMap, gen_kernel_features
from botorch.sampling.pathwise.features.generators import GenKernelFeatures
from botorch.sampling.pathwise.features.maps import FeatureMap
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from botorch.sampling.pathwise.posterior_samplers import (
    DrawMatheronPaths,
    MatheronPath,
    draw_matheron_paths,
)
from botorch.sampling.pathwise.prior_samplers import (
    DrawKernelFeaturePaths,
    draw_kernel_feature_paths,
)
from botorch.sampling.pathwise.utils import (
    ChainedTransform,
    get_input_transform,
    get_output_transform,
)
from botorch.utils.context_managers import delattr_ctx
from botorch.utils.sampling import draw_sobol_normal_samples
from botorch.utils.transforms import is_ensemble
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.means import Mean
from gpytorch.settings import prior_mode, skip_posterior_variances
from torch import Tensor
from torch.nn import ModuleList

from botorch_transfer._botorch import (
    draw_kernel_feature_paths_fallback,
    draw_matheron_paths_exact_gp,
    gaussian_update_exact,
)
from botorch_transfer.average import AveragedGP, PlainGP
from botorch_transfer.gp.combine import SourceWeights
from botorch_transfer.gp.conditioned import ConditionedBatch
from botorch_transfer.hierarchy.models import MeanHierarchicalGP
from botorch_transfer.hyperbo.features import BiasedLinearKernel, FeatureKernel
from botorch_transfer.hyperbo.model import PretrainedGP
from botorch_transfer.joint.conditional import SourceConditional
from botorch_transfer.joint.models import JointTransferGP
from botorch_transfer.model import TargetGP, TransferModel
from botorch_transfer.modular import ModularTransferGP
from botorch_transfer.population.kernel import PopulationKernel
from botorch_transfer.population.model import PopulationGP
from botorch_transfer.sources.ensembles import EnsembleGP

MIN_FEATURES = 1024
"""The least number of random features of one kernel."""

_MATERN_SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


class ModelPath(SamplePath):
    """Base class of paths without ensemble dimension."""

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Does nothing: there is no ensemble dimension."""


class MeanPath(ModelPath):
    """A model's mean, the same in every draw.

    Args:
        model: The model.
        prior: Whether to take its mean without the target's data.
        member: The name of the model's method that gives the distribution; its own by default.
    """

    def __init__(self, model: TransferModel, prior: bool = False, member: str = "__call__") -> None:
        super().__init__()
        self.model = model.eval()
        self._prior = prior
        self._member = member

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the mean at transformed inputs, in the model's own units.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``[sample_shape x] batch_shape x n`` tensor.
        """
        prior = prior_mode(self._prior or prior_mode.on())
        with gpt_posterior_settings(), skip_posterior_variances(), prior:
            return getattr(self.model, self._member)(x).mean


class ScaledPath(ModelPath):
    """Draws times a factor.

    Args:
        path: The draws.
        factor: A ``[sample_shape x] batch_shape`` tensor.
    """

    factor: Tensor

    def __init__(self, path: SamplePath, factor: Tensor) -> None:
        super().__init__()
        self.path = path
        self.register_buffer("factor", factor.detach())

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the scaled draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Handed through.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        return self.factor.unsqueeze(-1) * self.path(x, **kwargs)


class CentredPath(ModelPath):
    """Draws minus their means at some inputs.

    Args:
        path: The draws.
        reference: An ``R x d`` tensor of these inputs.
    """

    mean: Tensor

    def __init__(self, path: SamplePath, reference: Tensor) -> None:
        super().__init__()
        self.path = path
        self.register_buffer("mean", path(reference).mean(dim=-1, keepdim=True).detach())

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the centred draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Handed through.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        return self.path(x, **kwargs) - self.mean


def model_paths(model: TransferModel, paths: Mapping[str, SamplePath]) -> PathDict:
    """Adds up paths, as functions of the user's inputs with values in the user's units.

    Args:
        model: The model whose transforms these are.
        paths: Paths over transformed inputs, in the model's own units.

    Returns:
        Their sum.
    """
    transforms = get_input_transform(model), get_output_transform(model)
    return PathDict(paths, sum, *transforms)  # type: ignore[arg-type]


def kernel_paths(
    model: TargetGP, kernel: Kernel, mean: Mean | None = None, **kwargs: Any
) -> SamplePath:
    """Draws from a prior by random features.

    Args:
        model: The model whose transformed inputs these are.
        kernel: The kernel.
        mean: The mean; zero if omitted.
        **kwargs: Handed to BoTorch, with ``sample_shape`` and ``num_features``.

    Returns:
        Paths over transformed inputs, in the model's own units.
    """
    return draw_kernel_feature_paths_fallback(
        num_inputs=model.num_inputs,
        mean_module=mean,
        covar_module=kernel,
        is_ensemble=is_ensemble(model),
        **kwargs,
    )


def centred_posterior_paths(model: TargetGP, prior: SamplePath) -> SamplePath:
    """Turns centred draws from the prior of a model's exact GP into centred ones of its posterior.

    Args:
        model: The model, with target points.
        prior: Draws from :func:`kernel_paths` with the model's kernel.

    Returns:
        Paths over transformed inputs, in the model's own units.
    """
    (X,) = model.eval().train_inputs
    values = prior.forward(X)
    # With outcomes that are all zero, the rule gives draws minus their mean.
    update = gaussian_update_exact(
        kernel=model.covar_module,
        points=X,
        target_values=torch.zeros_like(values),
        sample_values=values,
        noise_covariance=model.likelihood.noise_covar(shape=X.shape[:-1]),
    )
    return MatheronPath(prior, update)


class SourcePath(ModelPath):
    r"""Draws of ``Σ_g w_g (f_g - μ_g)``, from the source posteriors minus their means.

    Each kernel's function is drawn by random features, and corrected by what it has at the source
    data, with noise: ``f(x) - k(x, X) solve(f(X) + ε)``.

    Args:
        gps: The source GPs.
        task_weights: Their weights; every GP counts once if omitted.
        shape: The sample shape and the batch shape of the target model.
        num_features: The number of random features, shared out among the kernels; each has
            ``MIN_FEATURES`` at least.
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
        weights = gps.alpha.new_ones(len(gps.alpha))
        if task_weights is not None:
            gps, weights = task_weights.selected(gps)
        self.gps, num_kernels = gps, len(gps.outputscale)
        half = max(num_features // num_kernels, MIN_FEATURES // 2)
        self.register_buffer("weights", weights.detach().double())
        self.register_buffer("frequencies", _draw_frequencies(gps, half))
        theta = gps.alpha.new_empty(*shape, num_kernels, 2 * half).normal_()
        self.register_buffer("theta", theta)
        observed = gps.aggregate_at_data(self._values(gps.train_X)) + gps.draw_noise(shape)
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
    size: Any = {"sample_shape": sample_shape, "num_features": num_features}
    residual, mean = model.residual_covar_module, model.mean_module
    paths = {"residual": kernel_paths(model, residual, mean, **size, **kwargs)}
    if model.has_source_covariance:
        shape = sample_shape + model.batch_shape
        paths["sources"] = SourcePath(mean.gps, mean.task_weights, shape, num_features)
    return model_paths(model, paths)


class PopulationMeanPath(ModelPath):
    """Draws of ``a + b μ(x)``, of random level and scale: two normal numbers each.

    Args:
        kernel: The target's kernel, which knows ``μ`` and the moments.
        sample_shape: The sample shape.
    """

    slope: Tensor
    level: Tensor

    def __init__(self, kernel: PopulationKernel, sample_shape: torch.Size) -> None:
        super().__init__()
        self.common, scale = kernel.common, kernel.scale
        z = scale.mean.new_empty(2, *sample_shape, *kernel.batch_shape).normal_()
        self.register_buffer("slope", (scale.mean + scale.variance.sqrt() * z[0]).detach())
        self.register_buffer("level", (scale.level_variance.sqrt() * z[1]).detach())

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        return self.level.unsqueeze(-1) + self.slope.unsqueeze(-1) * self.common(x)


@DrawKernelFeaturePaths.register(PopulationGP)
def _population_prior_paths(
    model: PopulationGP, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    size: Any = {"sample_shape": sample_shape, "num_features": num_features}
    shape, factor = sample_shape + model.batch_shape, model.scale.mean_square.sqrt()
    own = kernel_paths(model, model.residual_covar_module, **size, **kwargs)
    own = CentredPath(own, model.prior.gps.reference.to(model.train_targets))
    sources = SourcePath(model.prior.gps, None, shape, num_features)
    paths = {
        "mean": PopulationMeanPath(model.covar_module, sample_shape),
        "residual": ScaledPath(own, factor),
        "sources": ScaledPath(sources, factor),
    }
    return model_paths(model, paths)


@DrawMatheronPaths.register((ModularTransferGP, JointTransferGP, PlainGP))
def draw_posterior_paths(
    model: ModularTransferGP | JointTransferGP | PlainGP,
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

    def sampler(**arguments: Any) -> SamplePath:
        # The training inputs of an ensemble have a dimension of members; those of a path have none.
        paths = prior_sampler(**arguments)
        paths.set_ensemble_as_batch(True)
        return paths

    path = draw_matheron_paths_exact_gp(
        model, prior_sampler=sampler, sample_shape=sample_shape, **kwargs
    )
    path.set_ensemble_as_batch(False)
    return path


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
        maps = zip(self.feature_maps, loadings.unbind(dim=-3), strict=True)
        return torch.stack([feature_map(x) @ loading for feature_map, loading in maps]).sum(dim=0)

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


@GenKernelFeatures.register(BiasedLinearKernel)
class LinearFeatureMap(KernelFeatureMap):
    """The features of a :class:`BiasedLinearKernel`, which are exact: ``(σ_0, z / λ)``.

    Args:
        kernel: The kernel.
        num_inputs: The number of its inputs.
        **_: Ignored.
    """

    def __init__(self, kernel: BiasedLinearKernel, num_inputs: int, **_: Any) -> None:
        eye = torch.eye(num_inputs + 1).to(kernel.bias_variance)
        bias = kernel.bias_variance.sqrt()[..., None, None] * eye[0]
        weight = kernel.weight_variance.sqrt()[..., None, None] * eye[:, 1:]
        super().__init__(kernel, weight.detach(), bias.detach())


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


@DrawKernelFeaturePaths.register(PretrainedGP)
def _draw_pretrained_feature_paths(model: PretrainedGP, **kwargs: Any) -> PathDict:
    # Copies: a path stays what it is when the model's hyperparameters change.
    mean, covar = deepcopy((model.mean_module, model.covar_module))
    kernels = covar.kernels if isinstance(covar, AdditiveKernel) else [covar]
    paths = {
        f"kernel {number}": kernel_paths(model, kernel, None if number else mean, **kwargs)
        for number, kernel in enumerate(kernels)
    }
    return model_paths(model, paths)


@DrawMatheronPaths.register(PretrainedGP)
def _draw_pretrained_matheron_paths(model: PretrainedGP, **kwargs: Any) -> SamplePath:
    path = draw_posterior_paths(model, **kwargs)
    return UnbiasedPath(path, model) if model.unbiased else path


@DrawKernelFeaturePaths.register(EnsembleGP)
def _ensemble_prior_paths(
    model: EnsembleGP, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    size: Any = {"sample_shape": sample_shape, "num_features": num_features}
    paths = {"own": kernel_paths(model, model.covar_module, **size, **kwargs)}
    if model.has_source_covariance:
        shape, weights = sample_shape + model.batch_shape, model.ensemble_weights
        paths["sources"] = SourcePath(model.prior.gps, weights, shape, num_features)
    return _ensemble_paths(model, paths, prior=True)


@DrawMatheronPaths.register(EnsembleGP)
def _ensemble_posterior_paths(
    model: EnsembleGP, *, prior_sampler: Any, sample_shape: torch.Size, **kwargs: Any
) -> SamplePath:
    prior_paths = prior_sampler(model=model, sample_shape=sample_shape)
    if model.num_target_points == 0:
        return prior_paths
    own = centred_posterior_paths(model, prior_paths["own"].path)
    return _ensemble_paths(model, {**dict(prior_paths.items()), "own": own}, prior=False)


def _ensemble_paths(model: EnsembleGP, paths: dict[str, SamplePath], prior: bool) -> PathDict:
    """Adds up the ensemble's mean and the centred draws of its members."""
    weight = model.target_weight
    if not model.has_source_covariance:
        weight = torch.ones_like(weight)
    own = ScaledPath(paths["own"], weight)
    return model_paths(model, {**paths, "own": own, "mean": MeanPath(model, prior)})


class AveragedPath(ModelPath):
    """Draws of an average of models, which are those of the mixture in the first two moments.

    Args:
        model: The model, in evaluation mode.
        paths: A draw from each of its members, their means included, in the member's own units.
        sample_shape: The sample shape.
        prior: Whether the draws are from the priors, without the target's data.
    """

    shares: Tensor
    scale: Tensor
    shift: Tensor
    z: Tensor

    def __init__(
        self,
        model: AveragedGP,
        paths: Sequence[SamplePath],
        sample_shape: torch.Size,
        prior: bool,
    ) -> None:
        super().__init__()
        self.paths, shares = ModuleList(paths), model.shares.detach().clone()
        # Copies: a path stays what it is when the model's hyperparameters change.
        members = deepcopy(model).members.values()
        self.means = ModuleList(MeanPath(member, prior) for member in members)
        units = [model._scale_and_shift(member) for member in model.members.values()]
        scales, shifts = (
            torch.stack(torch.broadcast_tensors(*each), dim=-1) for each in zip(*units, strict=True)
        )
        self.register_buffer("shares", shares.unsqueeze(-2))  # a dimension of points
        self.register_buffer("scale", scales)
        self.register_buffer("shift", shifts)
        # One z for each function: which model is right does not change from point to point.
        z = shares.new_empty(*sample_shape, *shares.shape).normal_()
        self.register_buffer("z", z.unsqueeze(-2))

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Handed through.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        draws = torch.stack([path(x, **kwargs) for path in self.paths], dim=-1)
        means = torch.stack([mean(x) for mean in self.means], dim=-1) * self.scale + self.shift
        mean = (self.shares * means).sum(dim=-1, keepdim=True)
        deviations = draws * self.scale + self.shift - means + self.z * (means - mean)
        return mean.squeeze(-1) + (self.shares.sqrt() * deviations).sum(dim=-1)


@DrawKernelFeaturePaths.register(AveragedGP)
def _averaged_prior_paths(model: AveragedGP, sample_shape: torch.Size, **kwargs: Any) -> PathDict:
    return _averaged_paths(model, draw_kernel_feature_paths, sample_shape, prior=True, **kwargs)


@DrawMatheronPaths.register(AveragedGP)
def _averaged_posterior_paths(
    model: AveragedGP, *, prior_sampler: Any, sample_shape: torch.Size, **kwargs: Any
) -> SamplePath:
    given = {"prior_sampler": prior_sampler, **kwargs}
    if model.num_target_points == 0:
        return prior_sampler(model=model, sample_shape=sample_shape)
    return _averaged_paths(model, draw_matheron_paths, sample_shape, prior=False, **given)


def _averaged_paths(
    model: AveragedGP,
    draw: Callable[..., SamplePath],
    sample_shape: torch.Size,
    prior: bool,
    **kwargs: Any,
) -> PathDict:
    """Draws from each member over transformed inputs, and averages."""
    paths = []
    for member in model.eval().members.values():
        with delattr_ctx(member, "outcome_transform", "input_transform"):
            paths.append(draw(cast(Any, member), sample_shape=sample_shape, **kwargs))
    return model_paths(model, {"average": AveragedPath(model, paths, sample_shape, prior)})


class CombinedDeviationPath(ModelPath):
    """Draws of MHGP's exact GP, scaled about the mean to the combined standard deviation.

    The combined covariance is the exact one with rows and columns scaled, and so are its draws.

    Args:
        path: Draws from the exact GP, in the user's units.
        model: The model, with a ``deviation_weight``.
        prior: Whether the draws are from the prior, without the target's data.
    """

    def __init__(self, path: SamplePath, model: MeanHierarchicalGP, prior: bool) -> None:
        super().__init__()
        self.path = path
        self.model = deepcopy(model).eval()
        self._prior = prior

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: For the exact GP's draws.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        # Points as batches: no covariance between them is needed.
        batch_shape = torch.broadcast_shapes(x.shape[:-2], self.model.batch_shape)
        points = x.expand(*batch_shape, *x.shape[-2:]).movedim(-2, 0).unsqueeze(-2)
        X = self.model.transform_inputs(points)
        with prior_mode(self._prior or prior_mode.on()):
            mean = self.model.posterior(points).mean.squeeze(-1)
            variance = self.model.exact_gp(X).variance
        num_points = 0 if self._prior else self.model.num_target_points
        scale = (self.model._combined_variance(variance, X, num_points) / variance).sqrt()
        mean, scale = (values.squeeze(-1).movedim(0, -1) for values in (mean, scale))
        return mean + scale * (self.path(x, **kwargs) - mean)


@DrawKernelFeaturePaths.register(MeanHierarchicalGP)
def _combined_prior_paths(
    model: MeanHierarchicalGP, sample_shape: torch.Size, **kwargs: Any
) -> SamplePath:
    path = draw_prior_paths(model, sample_shape, **kwargs)
    return path if model.deviation_weight is None else CombinedDeviationPath(path, model, True)


@DrawMatheronPaths.register(MeanHierarchicalGP)
def _combined_posterior_paths(model: MeanHierarchicalGP, **kwargs: Any) -> SamplePath:
    exact = deepcopy(model)
    exact.deviation_weight = None
    path = draw_posterior_paths(exact, **kwargs)
    if model.deviation_weight is None:
        return path
    return CombinedDeviationPath(path, model, prior=model.num_target_points == 0)
