"""Pathwise sampling of guarded models: draws of the normal distribution with a mixture's moments.

With weight ``p``, means ``μ`` and ``μ'`` and deviations ``δ`` and ``δ'`` drawn from the transfer
model and the plain GP, a draw is ``pμ + (1-p)μ' + √p δ + √(1-p) δ' + √(p(1-p)) z (μ - μ')``.
"""

from __future__ import annotations

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

from botorch_transfer.models.guarded import GuardedTransferGP
from botorch_transfer.models.path_parts import (
    MeanPath,
    ScaledPath,
    own_deviation,
    own_prior_deviation,
    sum_of_paths,
)


@DrawKernelFeaturePaths.register(GuardedTransferGP)
def _draw_kernel_feature_paths(
    model: GuardedTransferGP, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    with delattr_ctx(model.eval().transfer, "outcome_transform", "input_transform"):
        transfer = draw_kernel_feature_paths(
            model.transfer, sample_shape, num_features=num_features, **kwargs
        )
    plain = own_prior_deviation(model, sample_shape, num_features, **kwargs)
    return _guarded_paths(model, transfer, plain, sample_shape, prior=True)


@DrawMatheronPaths.register(GuardedTransferGP)
def _draw_matheron_paths(
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
