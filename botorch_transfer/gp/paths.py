r"""Pathwise samples: functions drawn from priors and posteriors.

A path is a module that evaluates one or more drawn functions. A function is drawn from the prior by
random features. Matheron's rule [Wilson2020sampling]_ then conditions the function on the data. The
prior of most models is itself a posterior given source data. :class:`SourcePath` also uses
Matheron's rule, to draw functions from this posterior. All paths take transformed inputs and return
transformed outcomes. :func:`in_users_units` adds the model's transforms. Use these classes to
implement pathwise sampling for your own kernel or model.

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
from botorch_transfer.gp.expansion import PriorKernel, terms_of
from botorch_transfer.gp.frozen import FrozenPosterior

#: Minimum number of random features of one kernel.
MIN_FEATURES = 1024


class ModelPath(SamplePath):
    """Base class of BoTorch sample paths of GPs. The paths have no ensemble dimension."""

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Does nothing, because this path has no ensemble dimension. BoTorch calls this method."""


class MeanPath(ModelPath):
    """Path that evaluates a prior mean, which is the same for all drawn functions.

    Args:
        mean: The prior mean.
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
    """Functions drawn from the closed-form posterior of an exact GP.

    Args:
        posterior: The posterior of transformed outcomes.
        prior: Functions that are drawn from the prior. They take transformed inputs.
        X: An ``n x d`` tensor of transformed training inputs.
    """

    update: Tensor

    def __init__(self, posterior: FrozenPosterior, prior: SamplePath, X: Tensor) -> None:
        super().__init__()
        self.posterior, self.prior = posterior, prior
        self.register_buffer("update", posterior.draw_update(prior(X).detach().double()))

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the drawn functions.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of transformed inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        whitened = self.posterior.whiten(x)
        return self.prior(x) + (whitened @ self.update.unsqueeze(-1)).squeeze(-1).to(x.dtype)


class ScaledPath(ModelPath):
    """Drawn functions multiplied by a factor, plus a shift.

    Args:
        path: The drawn functions.
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
        """Evaluates the scaled and shifted functions.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Passed to the path.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        return self.factor * self.path(x, **kwargs) + self.shift


def in_users_units(model: Any, path: SamplePath) -> PathDict:
    """Converts drawn functions to the user's units, with a model's input and outcome transforms.

    Args:
        model: The model.
        path: A path from transformed inputs to transformed outcomes.

    Returns:
        A path from untransformed inputs to untransformed outcomes.
    """
    transforms = get_input_transform(model), get_output_transform(model)
    return PathDict({"own units": path}, sum, *transforms)  # type: ignore[arg-type]


class RescaledPath(ModelPath):
    """Functions drawn from a model's exact GP, rescaled to the moments of the model's predictions.

    The rescaled functions have the mean and the standard deviation of the model's predictions, and
    the correlations of the exact GP's predictions. If the model's predictions also have these
    correlations, the rescaled functions have the joint distribution of the model's predictions.

    Args:
        path: Functions drawn from the exact GP.
        model: The model.
    """

    def __init__(self, path: SamplePath, model: Any) -> None:
        super().__init__()
        self.path = path
        self.model = deepcopy(model).eval()

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the drawn functions.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Passed to the path of the exact GP.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        # Each point is a batch of its own, because covariances between points are not needed.
        batch_shape = torch.broadcast_shapes(x.shape[:-2], self.model.batch_shape)
        points = x.expand(*batch_shape, *x.shape[-2:]).movedim(-2, 0).unsqueeze(-2)
        with gpt_posterior_settings():
            exact, own = self.model.exact_gp(points), self.model(points)
        values = own.mean, exact.mean, (own.variance / exact.variance).sqrt()
        mean, of_exact, scale = (value.squeeze(-1).movedim(0, -1) for value in values)
        return mean + scale * (self.path(x, **kwargs) - of_exact)


@dataclass(frozen=True)
class PriorGP:
    """Prior mean and kernels, as an argument of BoTorch's ``draw_kernel_feature_paths``.

    Args:
        model: The model.
        mean: The prior mean, a function of the model's transformed inputs.
        kernels: Kernels of the model's transformed inputs. Their sum is the prior covariance.
    """

    model: Any
    mean: Mean
    kernels: Sequence[Kernel]


@DrawKernelFeaturePaths.register(PriorGP)
def draw_prior(
    prior: PriorGP, *, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    """Draws functions from a GP prior, by random features.

    Args:
        prior: The prior.
        sample_shape: The sample shape of the drawn functions.
        num_features: The number of random features of each kernel.
        **kwargs: Passed to BoTorch's ``draw_kernel_feature_paths``.

    Returns:
        A path from transformed inputs to transformed outcomes.
    """
    # Copies, because later changes of the hyperparameters must not change the path.
    mean, kernels = deepcopy((prior.mean, prior.kernels))
    model, paths = prior.model, dict[str, SamplePath]()
    for term in (term for kernel in kernels for term in terms_of(kernel)):
        if isinstance(term, PriorKernel):
            path = term.draw(sample_shape, model.batch_shape, num_features, **kwargs)
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
            mean = None  # BoTorch adds the mean to the path of the first term
        paths[f"term {len(paths)}"] = path
    if mean is not None:
        paths["mean"] = MeanPath(mean)
    return PathDict(paths, sum)  # type: ignore[arg-type]


def condition_paths(
    model: Any, prior: SamplePath, update_strategy: Callable[..., SamplePath] = gaussian_update
) -> SamplePath:
    """Turns sample paths of the prior into sample paths of the posterior, given the training data.

    Args:
        model: The model in evaluation mode, with target points.
        prior: Functions that are drawn from the prior of the exact GP. They take transformed
            inputs.
        update_strategy: Function that conditions the paths, see BoTorch's ``draw_matheron_paths``.

    Returns:
        Functions drawn from the posterior of the model's exact GP. They take transformed inputs and
        return transformed outcomes.
    """
    (X,), Y, frozen = model.train_inputs, model.train_targets, model.strategy.frozen
    if frozen is not None and update_strategy is gaussian_update:
        return FrozenPath(frozen, prior, X)
    model = deepcopy(model)  # later changes of the model must not change the path
    # Unlike the inputs of a path, the training inputs of an ensemble have an ensemble dimension.
    prior.set_ensemble_as_batch(True)
    with delattr_ctx(model, "outcome_transform", "input_transform"):
        update = update_strategy(model=model, sample_values=prior(X), target_values=Y)
    path = MatheronPath(prior, update)
    path.set_ensemble_as_batch(False)
    return path


class SourcePath(ModelPath):
    r"""Functions drawn from a weighted sum of source posteriors, minus the posterior means.

    The path evaluates ``Σ_g w_g (f_g - μ_g)``. Source function ``f_g`` has the weight ``w_g`` and
    the posterior mean ``μ_g``. For each kernel, a function ``h`` is drawn from the prior by random
    features. Matheron's rule then turns ``h`` into the deviation of a posterior sample from the
    posterior mean: ``h(x) - k(x, X) K⁻¹ (h(X) + ε)``, where ``K`` is the covariance matrix of the
    source data, and ``ε`` is sampled from the noise.

    Args:
        gps: The source GPs.
        weights: A ``batch_shape x G`` tensor of the weights of the GPs.
        shape: The sample shape, followed by the batch shape of the target model.
        num_features: The total number of frequencies of the features, divided among the kernels.
            Each kernel has at least ``MIN_FEATURES / 2`` frequencies.
    """

    gps: ConditionedBatch
    weights: Tensor
    theta: Tensor
    correction: Tensor

    def __init__(
        self, gps: ConditionedBatch, weights: Tensor, shape: torch.Size, num_features: int
    ) -> None:
        super().__init__()
        self.gps, num_kernels = gps, len(gps.outputscale)
        half = max(num_features // num_kernels, MIN_FEATURES // 2)
        self.register_buffer("weights", weights.detach().double())
        kernel = gps.stationary.make_kernel()
        # Each kernel has its own features, so that the features' errors average out in the sum.
        self.features = gen_kernel_features(kernel, num_inputs=gps.dim, num_outputs=2 * half)
        theta = gps.alpha.new_empty(*shape, num_kernels, 2 * half).normal_()
        self.register_buffer("theta", theta)
        self.register_buffer("correction", -gps.draw_coefficients(self._values(gps.points)))

    def _values(self, x: Tensor) -> Tensor:
        """Returns the values of the functions drawn from ``Q`` priors, a ``... x Q x n`` tensor."""
        return times(self.features(x), self.theta)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the drawn functions.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        prior = self.gps.aggregate(self._values(x.double().unsqueeze(-3)), dim=-2)
        update = times(self.gps.cross(x), self.correction)
        return (self.weights.unsqueeze(-1) * (prior + update)).sum(dim=-2).to(x.dtype)
