r"""Pathwise sampling of ensembles: their mean, and draws of what their members deviate by."""

from __future__ import annotations

from typing import Any

import torch
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform

from botorch_transfer.models.ensemble import EnsembleGP
from botorch_transfer.models.path_parts import (
    MeanPath,
    ScaledPath,
    own_deviation,
    own_prior_deviation,
    sum_of_paths,
)
from botorch_transfer.models.pathwise import MIN_FEATURES, SourcePath


@DrawKernelFeaturePaths.register(EnsembleGP)
def _draw_kernel_feature_paths(
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
def _draw_matheron_paths(
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
