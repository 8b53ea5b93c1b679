"""Functions drawn from MHGP with deviations that are combined along the hierarchy."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import DrawKernelFeaturePaths
from gpytorch.settings import prior_mode
from torch import Tensor

from botorch_transfer.models.mean_hierarchical import MeanHierarchicalGP
from botorch_transfer.models.pathwise import _draw_kernel_feature_paths, _draw_matheron_paths


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
