r"""Functions drawn from posteriors: what the models' pathwise samples are made of.

A prior function is drawn by random features and corrected by the data (Matheron's rule,
[Wilson2020sampling]_). The prior of most models is itself a posterior, given each source's data.
Its functions are drawn by the same rule, one level below (:class:`SourcePath`). All paths are
functions of transformed inputs, in the model's own units; a sum of them with the model's transforms
(:func:`model_paths`) is in the user's. Read it to write a model's ``prior_paths`` or
``posterior_paths``.

.. [Wilson2020sampling]
    J. T. Wilson et al. Efficiently Sampling Functions from Gaussian Process Posteriors. ICML 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from botorch.models.utils import gpt_posterior_settings
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from botorch.sampling.pathwise.posterior_samplers import MatheronPath
from botorch.sampling.pathwise.update_strategies import gaussian_update
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
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
from botorch_transfer.gp.combine import SourceWeights, WeightedSumKernel
from botorch_transfer.gp.conditioned import ConditionedBatch, times
from botorch_transfer.gp.frozen import FrozenPosterior

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
    """

    def __init__(self, model: Any, prior: bool = False) -> None:
        super().__init__()
        self.model = model.eval()
        self._prior = prior

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
            return self.model(x).mean


class FrozenPath(ModelPath):
    """Draws from an exact GP's posterior, or its mean, at the cost of arithmetic.

    Args:
        posterior: The posterior, in the model's own units.
        prior: Draws from the prior, over transformed inputs; the mean if omitted.
        X: An ``n x d`` tensor of the data's transformed inputs.
    """

    update: Tensor

    def __init__(
        self, posterior: FrozenPosterior, prior: SamplePath | None = None, X: Tensor | None = None
    ) -> None:
        super().__init__()
        self.posterior, self.prior = posterior, prior
        if prior is not None and X is not None:
            self.register_buffer("update", posterior.draw_update(prior(X).detach().double()))

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws, or the mean.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of transformed inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor, of the mean one like the inputs.
        """
        mean, whitened = self.posterior.mean_and_whitened(x)
        if self.prior is None:
            return mean.to(x.dtype)
        return self.prior(x) + (whitened @ self.update.unsqueeze(-1)).squeeze(-1).to(x.dtype)


class ScaledPath(ModelPath):
    """Draws times a factor, minus their means at some inputs if there are any.

    Args:
        path: The draws.
        factor: A ``[sample_shape x] batch_shape`` tensor.
        reference: An ``R x d`` tensor of these inputs.
    """

    factor: Tensor
    mean: Tensor

    def __init__(self, path: SamplePath, factor: Tensor, reference: Tensor | None = None) -> None:
        super().__init__()
        self.path = path
        mean = factor.new_zeros(1)
        if reference is not None:
            mean = path(reference).mean(dim=-1, keepdim=True)
        self.register_buffer("factor", factor.detach().unsqueeze(-1))
        self.register_buffer("mean", mean.detach())

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the scaled draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Handed through.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        return self.factor * (self.path(x, **kwargs) - self.mean)


class AveragedPath(ModelPath):
    r"""Draws of an average of models, which are those of the mixture in the first two moments.

    With shares ``p_k``, means ``μ_k``, mean ``μ = Σ_k p_k μ_k`` and a standard normal ``z_k`` each,
    they are the mean plus centred draws ``δ_k`` of the members, ``μ + Σ_k √p_k (δ_k + z_k (μ_k -
    μ))``.

    Args:
        model: The average, in evaluation mode.
        paths: A draw from each of its members with a share, their means included, in the member's
            own units.
        sample_shape: The sample shape.
        prior: Whether the draws are from the priors, without the target's data.
    """

    shares: Tensor
    scale: Tensor
    shift: Tensor
    z: Tensor

    def __init__(
        self,
        model: Any,
        paths: Sequence[SamplePath],
        sample_shape: torch.Size,
        prior: bool,
    ) -> None:
        super().__init__()
        self.paths, shares = ModuleList(paths), model.shares.detach()[..., model.used].clone()
        members = model.used_members.values()
        self.means = ModuleList(mean_path(member, prior) for member in members)
        units = [model._scale_and_shift(member) for member in members]
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


def mean_path(model: Any, prior: bool) -> ModelPath:
    """A model's mean, which stays what it is when the model's hyperparameters change.

    Args:
        model: The model, in evaluation mode.
        prior: Whether to take its mean without the target's data.

    Returns:
        The mean as a path over transformed inputs, in the model's own units.
    """
    posterior = None if prior or model.num_target_points == 0 else model._frozen_data()
    return MeanPath(deepcopy(model), prior) if posterior is None else FrozenPath(posterior)


def model_paths(model: Any, paths: Mapping[str, SamplePath]) -> PathDict:
    """Adds up paths, as functions of the user's inputs with values in the user's units.

    Args:
        model: The model whose transforms these are.
        paths: Paths over transformed inputs, in the model's own units.

    Returns:
        Their sum.
    """
    transforms = get_input_transform(model), get_output_transform(model)
    return PathDict(paths, sum, *transforms)  # type: ignore[arg-type]


def kernel_paths(model: Any, kernel: Kernel, mean: Mean | None = None, **kwargs: Any) -> SamplePath:
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


def centred_posterior_paths(model: Any, prior: SamplePath) -> SamplePath:
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


class RescaledPath(ModelPath):
    """Draws of a model's exact GP, scaled about the mean to the model's own standard deviation.

    The covariance of the model is that of its exact GP with rows and columns scaled, and so are
    its draws.

    Args:
        path: Draws from the exact GP, in the user's units.
        model: The model, whose mean is the exact GP's.
    """

    def __init__(self, path: SamplePath, model: Any) -> None:
        super().__init__()
        self.path = path
        self.model = deepcopy(model).eval()

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
        mean = self.model.posterior(points).mean.squeeze(-1)
        scale = (self.model(X).variance / self.model.exact_gp(X).variance).sqrt()
        mean, scale = (values.squeeze(-1).movedim(0, -1) for values in (mean, scale))
        return mean + scale * (self.path(x, **kwargs) - mean)


def exact_posterior_paths(
    model: Any, prior_sampler: Callable[..., Any], sample_shape: torch.Size, **kwargs: Any
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

    usual = kwargs.get("update_strategy", gaussian_update) is gaussian_update
    posterior = model.eval()._frozen_data() if usual else None
    if posterior is not None:
        (X,) = model.train_inputs
        with delattr_ctx(model, "outcome_transform", "input_transform"):
            prior = prior_sampler(model=model, sample_shape=sample_shape)
        return model_paths(model, {"posterior": FrozenPath(posterior, prior, X)})
    path = draw_matheron_paths_exact_gp(
        model, prior_sampler=sampler, sample_shape=sample_shape, **kwargs
    )
    path.set_ensemble_as_batch(False)
    return path


class SourcePath(ModelPath):
    r"""Draws of ``Σ_g w_g (f_g - μ_g)``, from the source posteriors minus their means.

    Each kernel's function is drawn by random features, and corrected by what it has at the source
    data, with noise: ``f(x) - k(x, X) K⁻¹ (f(X) + ε)``.

    Args:
        gps: The source GPs.
        task_weights: Their weights; every GP counts once if omitted.
        shape: The sample shape and the batch shape of the target model.
        num_features: The number of frequencies, shared out among the kernels; each has
            half of ``MIN_FEATURES`` at least.
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
        self.register_buffer("correction", -gps.draw_coefficients(self._values(gps.points)))

    def _values(self, x: Tensor) -> Tensor:
        """Each kernel's function at ``... x [Q] x n x d`` inputs: ``... x Q x n``."""
        phase = (x / self.gps.lengthscale.unsqueeze(-2)) @ self.frequencies.mT
        scale = (self.gps.outputscale / self.frequencies.shape[-2]).sqrt()
        features = torch.cat([phase.sin(), phase.cos()], dim=-1) * scale[:, None, None]
        return times(features, self.theta)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        prior = self.gps.aggregate(self._values(x.double().unsqueeze(-3)), dim=-2)
        update = times(self.gps.cross(x), self.correction)
        return (self.weights.unsqueeze(-1) * (prior + update)).sum(dim=-2).to(x.dtype)


def _draw_frequencies(gps: ConditionedBatch, num: int) -> Tensor:
    """Draws from the spectral density of the kernel at unit lengthscale: ``M x num x d``.

    Each kernel has its own, so that their errors average out in the sum.

    That of a Matérn kernel is a multivariate t distribution with twice its smoothness as degrees of
    freedom.
    """
    # Quasi-random, which about halves the error of the variance; so is each kernel's part.
    count, like = len(gps.outputscale), gps.alpha
    normal = draw_sobol_normal_samples(gps.dim, count * num, like.device, like.dtype)
    normal = normal.unflatten(0, (count, num))
    smoothness = _MATERN_SMOOTHNESS.get(gps.kernel)
    if smoothness is None:
        return normal
    rate = torch.tensor(smoothness).to(normal)
    return normal * torch.distributions.Gamma(rate, rate).sample((*normal.shape[:-1], 1)).rsqrt()


def sum_paths(
    model: Any, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> dict[str, SamplePath]:
    """Draws from a prior whose kernel is one, or a sum of kernels and source posteriors.

    Args:
        model: The model.
        sample_shape: The shape of the draws.
        num_features: The number of random features.
        **kwargs: Handed to BoTorch.

    Returns:
        A path for each term, by name; the first kernel's has the mean.
    """
    size: Any = {"sample_shape": sample_shape, "num_features": num_features}
    # Copies: a path stays what it is when the model's hyperparameters change.
    mean, kernels = deepcopy((model.mean_module, model._terms))
    paths: dict[str, SamplePath] = {}
    for kernel in kernels:
        for term in kernel.kernels if isinstance(kernel, AdditiveKernel) else [kernel]:
            if isinstance(term, WeightedSumKernel):
                shape = sample_shape + model.batch_shape
                path: SamplePath = SourcePath(term.gps, term.task_weights, shape, num_features)
            else:
                path, mean = kernel_paths(model, term, mean, **size, **kwargs), None
            paths[f"term {len(paths)}"] = path
    return paths
