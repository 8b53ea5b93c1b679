r"""Pathwise sampling: functions drawn from the models, for Thompson sampling.

Importing it registers the models with BoTorch's ``draw_kernel_feature_paths`` and
``draw_matheron_paths``, which ask a model for its ``prior_paths`` and ``posterior_paths``; what
these are made of is in ``gp.paths``. Averages of models with shares ``p_k``, means ``μ_k``, mean
``μ = Σ_k p_k μ_k`` and a standard normal ``z_k`` each are drawn as their mean plus centred draws
``δ_k`` of their parts, ``μ + Σ_k √p_k (δ_k + z_k (μ_k - μ))``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, cast

import torch
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths, draw_matheron_paths
from botorch.sampling.pathwise.prior_samplers import (
    DrawKernelFeaturePaths,
    draw_kernel_feature_paths,
)
from botorch.utils.context_managers import delattr_ctx
from torch import Tensor
from torch.nn import ModuleList

from botorch_transfer.average import AveragedGP
from botorch_transfer.gp.paths import (
    MeanPath,
    ModelPath,
    model_paths,
)
from botorch_transfer.model import TargetGP


@DrawKernelFeaturePaths.register(TargetGP)
def draw_prior_paths(model: TargetGP, sample_shape: torch.Size, **kwargs: Any) -> SamplePath:
    """Draws from a model's prior at the target's points.

    Args:
        model: The model.
        sample_shape: The shape of the draws.
        **kwargs: ``num_features``, and what BoTorch knows besides.

    Returns:
        Paths over the user's inputs, in the user's units.
    """
    return model.prior_paths(sample_shape, **kwargs)


@DrawMatheronPaths.register(TargetGP)
def draw_posterior_paths(
    model: TargetGP, *, prior_sampler: Any, sample_shape: torch.Size, **kwargs: Any
) -> SamplePath:
    """Draws from a model's posterior, or without target points from its prior.

    Args:
        model: The model.
        prior_sampler: Draws from the model's prior.
        sample_shape: The shape of the draws.
        **kwargs: Handed to BoTorch.

    Returns:
        Paths over the user's inputs, in the user's units.
    """
    return model.posterior_paths(prior_sampler, sample_shape, **kwargs)


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
