r"""Pathwise sampling of the models that predict otherwise than their exact GP.

Each of them is drawn as its mean plus centred draws of its parts:

* Ensembles, with weights ``w`` and draws ``δ`` of the members minus their means:
  ``μ + w_t δ_t + Σ_m w_m δ_m``. SGPT has the target's own covariance: ``μ + δ_t``.
* Guarded models, with the weight ``p`` of the transfer model, means ``μ`` and ``μ'`` of the
  transfer model and the plain GP, and a standard normal ``z``:
  ``pμ + (1-p)μ' + √p δ + √(1-p) δ' + √(p(1-p)) z (μ - μ')``.
* MHGP with combined standard deviations ``s``, and ``σ`` its exact GP's: ``μ + (s / σ) δ``.
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
from botorch.utils.context_managers import delattr_ctx
from gpytorch.settings import prior_mode
from torch import Tensor

from botorch_transfer.models.ensemble import EnsembleGP
from botorch_transfer.models.guarded import GuardedTransferGP
from botorch_transfer.models.hierarchical import MeanHierarchicalGP
from botorch_transfer.models.pathwise.paths import (
    MeanPath,
    ModelPath,
    ScaledPath,
    centred_posterior_paths,
    centred_prior_paths,
    model_paths,
)
from botorch_transfer.models.pathwise.sources import (
    MIN_FEATURES,
    SourcePath,
    draw_posterior_paths,
    draw_prior_paths,
)


@DrawKernelFeaturePaths.register(EnsembleGP)
def _ensemble_prior_paths(
    model: EnsembleGP, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    own = centred_prior_paths(model, sample_shape, num_features, **kwargs)
    paths: dict[str, SamplePath] = {"own": own}
    if model.has_source_covariance:
        gps = model.prior.gps
        share = max(num_features // len(gps.outputscale) * 2, MIN_FEATURES)
        shape = sample_shape + model.batch_shape
        paths["sources"] = SourcePath(gps, model.ensemble_weights, shape, share)
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


@DrawKernelFeaturePaths.register(GuardedTransferGP)
def _guarded_prior_paths(
    model: GuardedTransferGP, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    with delattr_ctx(model.eval().transfer, "outcome_transform", "input_transform"):
        transfer = draw_kernel_feature_paths(
            model.transfer, sample_shape, num_features=num_features, **kwargs
        )
    plain = centred_prior_paths(model, sample_shape, num_features, **kwargs)
    return _guarded_paths(model, transfer, plain, sample_shape, prior=True)


@DrawMatheronPaths.register(GuardedTransferGP)
def _guarded_posterior_paths(
    model: GuardedTransferGP, *, prior_sampler: Any, sample_shape: torch.Size, **kwargs: Any
) -> SamplePath:
    prior_paths = prior_sampler(model=model, sample_shape=sample_shape)
    if model.num_target_points == 0:
        return prior_paths
    with delattr_ctx(model.transfer, "outcome_transform", "input_transform"):
        transfer = draw_matheron_paths(
            model.transfer, sample_shape, prior_sampler=prior_sampler, **kwargs
        )
    plain = centred_posterior_paths(model, prior_paths["plain"].path)
    return _guarded_paths(model, transfer, plain, sample_shape, prior=False)


def _guarded_paths(
    model: GuardedTransferGP,
    transfer: SamplePath,
    plain: SamplePath,
    sample_shape: torch.Size,
    prior: bool,
) -> PathDict:
    """Adds up draws of the transfer model, whose mean they contain, and centred plain draws."""
    weight = model.transfer_weight
    # One z for each function: a function never mixes the two models.
    z = weight.new_empty(sample_shape + weight.shape).normal_()
    between = (weight * (1 - weight)).sqrt() * z
    mean_of_transfer = MeanPath(model.transfer, prior)
    mean_of_plain = MeanPath(model, prior, member="exact_gp")
    paths = {
        "transfer": ScaledPath(transfer, weight.sqrt()),
        "plain": ScaledPath(plain, (1 - weight).sqrt()),
        "mean_of_transfer": ScaledPath(mean_of_transfer, weight - weight.sqrt() + between),
        "mean_of_plain": ScaledPath(mean_of_plain, 1 - weight - between),
    }
    return model_paths(model, paths)


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
