r"""Pathwise sampling of ensembles: their mean, and draws of what their members deviate by."""

from __future__ import annotations

from typing import Any

import torch
from botorch.models.utils import gpt_posterior_settings
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import (
    DrawKernelFeaturePaths,
    _draw_kernel_feature_paths_fallback,
)
from botorch.sampling.pathwise.update_strategies import _gaussian_update_exact
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from gpytorch.settings import prior_mode, skip_posterior_variances
from torch import Tensor

from botorch_transfer.models.ensemble import EnsembleGP
from botorch_transfer.models.pathwise import MIN_FEATURES, SourcePath
from botorch_transfer.models.target import TargetGP


class MeanPath(SamplePath):
    """A model's mean, the same in every draw.

    Args:
        model: The model.
        prior: Whether to take its mean without the target's data.
    """

    def __init__(self, model: TargetGP, prior: bool = False) -> None:
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

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Does nothing: there is no ensemble dimension."""


class ScaledPath(SamplePath):
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

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Hands the setting through."""
        self.path.set_ensemble_as_batch(ensemble_as_batch)


def sum_of_paths(values: list[Tensor]) -> Tensor:
    """Adds up the values of several paths.

    Args:
        values: Tensors of the same shape, or one that broadcasts.

    Returns:
        Their sum.
    """
    return torch.stack(torch.broadcast_tensors(*values)).sum(dim=0)


@DrawKernelFeaturePaths.register(EnsembleGP)
def _draw_kernel_feature_paths(
    model: EnsembleGP, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    own = _draw_kernel_feature_paths_fallback(
        num_inputs=model.prior.dim,
        mean_module=None,
        covar_module=model.covar_module,
        sample_shape=sample_shape,
        num_features=num_features,
        **kwargs,
    )
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
    (X,) = model.eval().train_inputs
    own = prior_paths["own"].path
    values = own.forward(X)
    # The deviation from the mean is what the same rule gives for outcomes that are all zero.
    update = _gaussian_update_exact(
        kernel=model.covar_module,
        points=X,
        target_values=torch.zeros_like(values),
        sample_values=values,
        noise_covariance=model.likelihood.noise_covar(shape=X.shape[:-1]),
    )
    paths: dict[str, SamplePath] = dict(prior_paths.items())
    paths["own"] = PathDict({"own_prior": own, "own_update": update}, join=sum_of_paths)
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
