r"""Functions drawn from posteriors: what the models' pathwise samples are made of.

A prior function is drawn by random features and corrected by the data (Matheron's rule,
[Wilson2020sampling]_). The prior of most models is itself a posterior, given each source's data.
Its functions are drawn by the same rule, one level below (:class:`SourcePath`). All paths are
functions of transformed inputs, in the model's own units, until :func:`in_users_units` adds the
model's transforms. Read it to write the draws of a kernel or of a model of your own.

.. [Wilson2020sampling]
    J. T. Wilson et al. Efficiently Sampling Functions from Gaussian Process Posteriors. ICML 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from botorch.models.utils import gpt_posterior_settings
from botorch.sampling.pathwise.features import gen_kernel_features
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from botorch.sampling.pathwise.posterior_samplers import MatheronPath
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths
from botorch.sampling.pathwise.update_strategies import gaussian_update
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from botorch.utils.context_managers import delattr_ctx
from botorch.utils.transforms import is_ensemble
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer._botorch import draw_kernel_feature_paths_fallback
from botorch_transfer.gp.conditioned import ConditionedBatch, times
from botorch_transfer.gp.frozen import FrozenPosterior, PriorKernel, terms_of

MIN_FEATURES = 1024
"""The least number of random features of one kernel."""


class ModelPath(SamplePath):
    """Base class of paths without ensemble dimension."""

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Does nothing: there is no ensemble dimension."""


class MeanPath(ModelPath):
    """A prior mean, the same in every draw.

    Args:
        mean: The mean.
    """

    def __init__(self, mean: Mean) -> None:
        super().__init__()
        self.mean = mean

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the mean.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``[sample_shape x] batch_shape x n`` tensor.
        """
        return self.mean(x)


class FrozenPath(ModelPath):
    """Draws from an exact GP's posterior, at the cost of arithmetic.

    Args:
        posterior: The posterior, in the model's own units.
        prior: Draws from the prior, over transformed inputs.
        X: An ``n x d`` tensor of the data's transformed inputs.
    """

    update: Tensor

    def __init__(self, posterior: FrozenPosterior, prior: SamplePath, X: Tensor) -> None:
        super().__init__()
        self.posterior, self.prior = posterior, prior
        self.register_buffer("update", posterior.draw_update(prior(X).detach().double()))

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of transformed inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        whitened = self.posterior.whiten(x)
        return self.prior(x) + (whitened @ self.update.unsqueeze(-1)).squeeze(-1).to(x.dtype)


class ScaledPath(ModelPath):
    """Draws times a factor, plus a shift.

    Args:
        path: The draws.
        factor: A ``[sample_shape x] batch_shape`` tensor.
        shift: A ``[sample_shape x] batch_shape`` tensor; zero if omitted.
    """

    factor: Tensor
    shift: Tensor

    def __init__(self, path: SamplePath, factor: Tensor, shift: Tensor | None = None) -> None:
        super().__init__()
        self.path = path
        shift = torch.zeros_like(factor) if shift is None else shift
        self.register_buffer("factor", factor.detach().unsqueeze(-1))
        self.register_buffer("shift", shift.detach().unsqueeze(-1))

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the scaled draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Handed through.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        return self.factor * self.path(x, **kwargs) + self.shift


def in_users_units(model: Any, path: SamplePath) -> PathDict:
    """Applies a model's transforms to draws.

    Args:
        model: The model.
        path: A path over transformed inputs, in the model's own units.

    Returns:
        A path over the user's inputs, in the user's units.
    """
    transforms = get_input_transform(model), get_output_transform(model)
    return PathDict({"own units": path}, sum, *transforms)  # type: ignore[arg-type]


class RescaledPath(ModelPath):
    """Draws of a model's exact GP, with the model's own mean and standard deviation.

    They have the model's joint distribution if its covariance is its exact GP's with rows and
    columns scaled.

    Args:
        path: Draws from the exact GP.
        model: The model.
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
        with gpt_posterior_settings():
            exact, own = self.model.exact_gp(points), self.model(points)
        values = own.mean, exact.mean, (own.variance / exact.variance).sqrt()
        mean, of_exact, scale = (value.squeeze(-1).movedim(0, -1) for value in values)
        return mean + scale * (self.path(x, **kwargs) - of_exact)


@dataclass(frozen=True)
class PriorGP:
    """A prior, for BoTorch's ``draw_kernel_feature_paths``.

    Args:
        model: The model whose transformed inputs these are.
        mean: The mean.
        kernels: The kernels that the covariance is the sum of.
    """

    model: Any
    mean: Mean
    kernels: Sequence[Kernel]


@DrawKernelFeaturePaths.register(PriorGP)
def draw_prior(
    prior: PriorGP, *, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    """Draws from a prior.

    Args:
        prior: The prior.
        sample_shape: The shape of the draws.
        num_features: The number of random features of each kernel.
        **kwargs: Handed to BoTorch.

    Returns:
        A path over transformed inputs, in the model's own units.
    """
    # Copies: a path does not change with the model's hyperparameters.
    mean, kernels = deepcopy((prior.mean, prior.kernels))
    model, paths = prior.model, dict[str, SamplePath]()
    for term in (term for kernel in kernels for term in terms_of(kernel)):
        if isinstance(term, PriorKernel):
            shapes = sample_shape, model.batch_shape
            path = term.draw(*shapes, num_features, **kwargs)
        else:
            path = draw_kernel_feature_paths_fallback(
                num_inputs=model.num_inputs,
                mean_module=mean,
                covar_module=term,
                sample_shape=sample_shape,
                num_features=num_features,
                is_ensemble=is_ensemble(model),
                **kwargs,
            )
            mean = None  # added once
        paths[f"term {len(paths)}"] = path
    if mean is not None:
        paths["mean"] = MeanPath(mean)
    return PathDict(paths, sum)  # type: ignore[arg-type]


def condition_paths(
    model: Any, prior: SamplePath, update_strategy: Callable[..., SamplePath] = gaussian_update
) -> SamplePath:
    """Turns draws from the prior of a model's exact GP into draws from its posterior.

    Args:
        model: The model in evaluation mode, with target points.
        prior: The draws, over transformed inputs.
        update_strategy: BoTorch's, see ``draw_matheron_paths``.

    Returns:
        Paths over transformed inputs, in the model's own units.
    """
    (X,), frozen = model.train_inputs, model.strategy.frozen
    if frozen is not None and update_strategy is gaussian_update:
        return FrozenPath(frozen, prior, X)
    model = deepcopy(model)  # a path does not change with the model's hyperparameters
    # The training inputs of an ensemble have a dimension of members; inputs of a path have none.
    prior.set_ensemble_as_batch(True)
    with delattr_ctx(model, "outcome_transform", "input_transform"):
        update = update_strategy(
            model=model, sample_values=prior(X), target_values=model.train_targets
        )
    path = MatheronPath(prior, update)
    path.set_ensemble_as_batch(False)
    return path


class SourcePath(ModelPath):
    r"""Draws of ``Σ_g w_g (f_g - μ_g)``, from the source posteriors minus their means.

    Each kernel's function is drawn by random features, and corrected by its noisy values at the
    source data: ``f(x) - k(x, X) K⁻¹ (f(X) + ε)``.

    Args:
        gps: The source GPs.
        weights: Their weights, a ``batch_shape x G`` tensor; every GP counts once if omitted.
        shape: The sample shape and the batch shape of the target model.
        num_features: The number of frequencies, shared out among the kernels; each has
            half of ``MIN_FEATURES`` at least.
    """

    gps: ConditionedBatch
    weights: Tensor
    theta: Tensor
    correction: Tensor

    def __init__(
        self,
        gps: ConditionedBatch,
        weights: Tensor | None,
        shape: torch.Size,
        num_features: int,
    ) -> None:
        super().__init__()
        weights = gps.alpha.new_ones(len(gps.alpha)) if weights is None else weights
        self.gps, num_kernels = gps, len(gps.outputscale)
        half = max(num_features // num_kernels, MIN_FEATURES // 2)
        self.register_buffer("weights", weights.detach().double())
        kernel = gps.stationary.make_kernel()
        # Each kernel has its own features, so that their errors average out in the sum.
        self.features = gen_kernel_features(kernel, num_inputs=gps.dim, num_outputs=2 * half)
        theta = gps.alpha.new_empty(*shape, num_kernels, 2 * half).normal_()
        self.register_buffer("theta", theta)
        self.register_buffer("correction", -gps.draw_coefficients(self._values(gps.points)))

    def _values(self, x: Tensor) -> Tensor:
        """Returns each kernel's function at ``... x [Q] x n x d`` inputs: ``... x Q x n``."""
        return times(self.features(x), self.theta)

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
