"""Pathwise sampling of ensembles: their mean, and draws of what their members deviate by.

Pathwise sampling of guarded models: draws of the normal distribution with a mixture's moments.

With weight ``p``, means ``μ`` and ``μ'`` and deviations ``δ`` and ``δ'`` drawn from the transfer
model and the plain GP, a draw is ``pμ + (1-p)μ' + √p δ + √(1-p) δ' + √(p(1-p)) z (μ - μ')``.

Functions drawn from MHGP with deviations that are combined along the hierarchy.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths, draw_matheron_paths
from botorch.sampling.pathwise.prior_samplers import (
    DrawKernelFeaturePaths,
    draw_kernel_feature_paths,
)
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from botorch.utils.context_managers import delattr_ctx
from gpytorch.settings import prior_mode
from torch import Tensor

from botorch_transfer.models.ensemble import EnsembleGP
from botorch_transfer.models.guarded import GuardedTransferGP
from botorch_transfer.models.hierarchical import MeanHierarchicalGP
from botorch_transfer.models.pathwise.paths import (
    MeanPath,
    ScaledPath,
    own_deviation,
    own_prior_deviation,
    sum_of_paths,
)
from botorch_transfer.models.pathwise.sources import (
    MIN_FEATURES,
    SourcePath,
    _draw_kernel_feature_paths,
    _draw_matheron_paths,
)


@DrawKernelFeaturePaths.register(EnsembleGP)
def _draw_ensemble_feature_paths(
    model: EnsembleGP, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    own = own_prior_deviation(model, sample_shape, num_features, **kwargs)
    paths: dict[str, SamplePath] = {"own": own}
    if model.has_source_covariance:
        gps = model.prior.gps
        share = max(num_features // len(gps.outputscale) * 2, MIN_FEATURES)
        shape = sample_shape + model.batch_shape
        paths["sources"] = SourcePath(gps, model.ensemble_weights, shape, share)
    return _ensemble_paths(model, paths, prior=True)


@DrawMatheronPaths.register(EnsembleGP)
def _draw_ensemble_matheron_paths(
    model: EnsembleGP, *, prior_sampler: Any, sample_shape: torch.Size, **kwargs: Any
) -> SamplePath:
    prior_paths = prior_sampler(model=model, sample_shape=sample_shape)
    if model.num_target_points == 0:
        return prior_paths
    paths: dict[str, SamplePath] = dict(prior_paths.items())
    paths["own"] = own_deviation(model, prior_paths["own"].path)
    return _ensemble_paths(model, paths, prior=False)


def _ensemble_paths(model: EnsembleGP, paths: dict[str, SamplePath], prior: bool) -> PathDict:
    """Joins the members' deviations and the ensemble's mean."""
    own = model.target_weight if model.has_source_covariance else model.target_weight.new_ones(())
    joined = {**paths, "own": ScaledPath(paths["own"], own), "mean": MeanPath(model, prior)}
    return PathDict(
        joined,
        join=sum_of_paths,
        input_transform=get_input_transform(model),
        output_transform=get_output_transform(model),
    )


@DrawKernelFeaturePaths.register(GuardedTransferGP)
def _draw_guarded_feature_paths(
    model: GuardedTransferGP, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    with delattr_ctx(model.eval().transfer, "outcome_transform", "input_transform"):
        transfer = draw_kernel_feature_paths(
            model.transfer, sample_shape, num_features=num_features, **kwargs
        )
    plain = own_prior_deviation(model, sample_shape, num_features, **kwargs)
    return _guarded_paths(model, transfer, plain, sample_shape, prior=True)


@DrawMatheronPaths.register(GuardedTransferGP)
def _draw_guarded_matheron_paths(
    model: GuardedTransferGP, *, prior_sampler: Any, sample_shape: torch.Size, **kwargs: Any
) -> SamplePath:
    prior_paths = prior_sampler(model=model, sample_shape=sample_shape)
    if model.num_target_points == 0:
        return prior_paths
    with delattr_ctx(model.transfer, "outcome_transform", "input_transform"):
        transfer = draw_matheron_paths(
            model.transfer, sample_shape, prior_sampler=prior_sampler, **kwargs
        )
    plain = own_deviation(model, prior_paths["plain"].path)
    return _guarded_paths(model, transfer, plain, sample_shape, prior=False)


def _guarded_paths(
    model: GuardedTransferGP,
    transfer: SamplePath,
    plain: SamplePath,
    sample_shape: torch.Size,
    prior: bool,
) -> PathDict:
    """Joins draws from the transfer model, and deviations of the plain GP from its mean."""
    weight = model.transfer_weight
    means = {
        "of_transfer": MeanPath(model.transfer, prior),
        "of_plain": MeanPath(model, prior, member="plain"),
    }
    # The sign of which model is right is drawn once a function: the two are never mixed within one.
    side = weight.new_empty(sample_shape + weight.shape).normal_()
    between = (weight * (1 - weight)).sqrt() * side
    paths = {
        "transfer": ScaledPath(transfer, weight.sqrt()),
        "plain": ScaledPath(plain, (1 - weight).sqrt()),
        "mean_of_transfer": ScaledPath(means["of_transfer"], weight - weight.sqrt() + between),
        "mean_of_plain": ScaledPath(means["of_plain"], 1 - weight - between),
    }
    return PathDict(
        paths,
        join=sum_of_paths,
        input_transform=get_input_transform(model),
        output_transform=get_output_transform(model),
    )


class CombinedDeviationPath(SamplePath):
    """Draws of an exact GP whose deviation from the mean is scaled to the combined one.

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
        self.exact = _exact(self.model)
        self._prior = prior

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws at ``[sample_shape x] batch_shape x n x d`` inputs."""
        # Points as batches: no covariance between them is needed.
        batch_shape = torch.broadcast_shapes(x.shape[:-2], self.model.batch_shape)
        points = x.expand(*batch_shape, *x.shape[-2:]).movedim(-2, 0).unsqueeze(-2)
        with prior_mode(self._prior or prior_mode.on()):
            mean = self.exact.posterior(points).mean.squeeze(-1)
        scale = self._scale(self.model.transform_inputs(points))
        mean, scale = (values.squeeze(-1).movedim(0, -1) for values in (mean, scale))
        return mean + scale * (self.path(x, **kwargs) - mean)

    def _scale(self, X: Tensor) -> Tensor:
        """The ratio of the deviations, ``n x [sample_shape x] batch_shape x 1``."""
        with prior_mode(self._prior or prior_mode.on()):
            variance = self.exact(X).variance
        num_points = 0 if self._prior else self.model.num_target_points
        combined = self.model._combined_variance(variance, X, num_points)
        return (combined / variance).sqrt()

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Does nothing: there is no ensemble dimension."""


def _exact(model: MeanHierarchicalGP) -> MeanHierarchicalGP:
    """The same model with MHGP's own deviations."""
    exact = deepcopy(model)
    exact.deviation_weight = None
    return exact


@DrawKernelFeaturePaths.register(MeanHierarchicalGP)
def _draw_combined_feature_paths(
    model: MeanHierarchicalGP, sample_shape: torch.Size, **kwargs: Any
) -> SamplePath:
    path = _draw_kernel_feature_paths(model, sample_shape, **kwargs)
    return path if model.deviation_weight is None else CombinedDeviationPath(path, model, True)


@DrawMatheronPaths.register(MeanHierarchicalGP)
def _draw_combined_matheron_paths(model: MeanHierarchicalGP, **kwargs: Any) -> SamplePath:
    path = _draw_matheron_paths(_exact(model), **kwargs)
    if model.deviation_weight is None:
        return path
    return CombinedDeviationPath(path, model, prior=model.num_target_points == 0)
