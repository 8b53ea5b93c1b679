r"""Pathwise sampling: functions drawn from a model's posterior, for Thompson sampling and more.

BoTorch draws a prior function by random features and corrects it by the data (Matheron's rule,
[Wilson2020sampling]_). The source part of a transferred prior is itself a posterior, so its
functions are drawn by the same rule, one level below.

.. [Wilson2020sampling]
    J. T. Wilson et al. Efficiently Sampling Functions from Gaussian Process Posteriors. ICML 2020.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from botorch.sampling.pathwise.posterior_samplers import (
    DrawMatheronPaths,
    _draw_matheron_paths_ExactGP,
)
from botorch.sampling.pathwise.prior_samplers import (
    DrawKernelFeaturePaths,
    _draw_kernel_feature_paths_fallback,
)
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from botorch.utils.sampling import draw_sobol_normal_samples
from torch import Tensor

from botorch_transfer.kernels.conditioned_batch import ConditionedBatch
from botorch_transfer.kernels.task_weights import SourceWeights
from botorch_transfer.models.modular import ModularTransferGP

MIN_FEATURES = 1024
"""The least number of random features of one kernel."""

_MATERN_SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


class SourcePath(SamplePath):
    r"""Draws of ``Σ_g w_g (f_g - μ_g)``, the source posteriors' deviation from their means.

    Each kernel's function is drawn by random features, and corrected by what it has at the source
    data, with noise: ``f(x) - k(x, X) solve(f(X) + ε)``.

    Args:
        gps: The source GPs.
        task_weights: Their weights; every GP counts once if omitted.
        shape: The sample shape and the batch shape of the target model.
        num_features: The number of random features of each kernel, even.
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
        self.gps = gps
        weights = (
            gps.alpha.new_ones(len(gps.alpha)) if task_weights is None else task_weights.weights
        )
        self.register_buffer("weights", weights.detach().double())
        self.register_buffer("frequencies", _draw_frequencies(gps, num_features // 2))
        num_kernels = len(gps.outputscale)
        theta = gps.alpha.new_empty(*shape, num_kernels, num_features).normal_()
        self.register_buffer("theta", theta)
        noise = gps.alpha.new_empty(*shape, *gps.alpha.shape).normal_() * gps.noise.sqrt()
        observed = gps.aggregate_at_data(self._values(gps.train_X)) + noise * gps.mask
        self.register_buffer("correction", -gps.solve(observed))

    def _values(self, x: Tensor) -> Tensor:
        """Each kernel's function at ``... x [Q] x n x d`` inputs: ``... x Q x n``."""
        phase = (x / self.gps.lengthscale.unsqueeze(-2)) @ self.frequencies.mT
        scale = (self.gps.outputscale / self.frequencies.shape[-2]).sqrt()
        features = torch.cat([phase.sin(), phase.cos()], dim=-1) * scale[:, None, None]
        return (features @ self.theta.unsqueeze(-1)).squeeze(-1)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        prior = self.gps.aggregate(self._values(x.double().unsqueeze(-3)), dim=-2)
        update = (self.gps.cross(x) @ self.correction.unsqueeze(-1)).squeeze(-1)
        return (self.weights.unsqueeze(-1) * (prior + update)).sum(dim=-2).to(x.dtype)

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Does nothing: there is no ensemble dimension."""


def _draw_frequencies(gps: ConditionedBatch, num: int) -> Tensor:
    """Draws from the spectral density of the kernel at unit lengthscale: ``M x num x d``.

    Each kernel has its own, so that their errors average out in the sum.

    That of a Matérn kernel is a multivariate t distribution with twice its smoothness as degrees of
    freedom.
    """
    # Quasi-random within a kernel, which about halves the error of the variance.
    draw = partial(draw_sobol_normal_samples, gps.dim, num, gps.alpha.device, gps.alpha.dtype)
    normal = torch.stack([draw() for _ in gps.outputscale])
    smoothness = _MATERN_SMOOTHNESS.get(gps.kernel)
    if smoothness is None:
        return normal
    rate = torch.tensor(smoothness).to(normal)
    return normal * torch.distributions.Gamma(rate, rate).sample((*normal.shape[:-1], 1)).rsqrt()


@DrawKernelFeaturePaths.register(ModularTransferGP)
def _draw_kernel_feature_paths(
    model: ModularTransferGP, sample_shape: torch.Size, num_features: int = 1024, **kwargs: Any
) -> PathDict:
    residual = _draw_kernel_feature_paths_fallback(
        num_inputs=model.num_inputs,
        mean_module=model.mean_module,
        covar_module=model.residual_covar_module,
        sample_shape=sample_shape,
        num_features=num_features,
        **kwargs,
    )
    paths: dict[str, SamplePath] = {"residual": residual}
    if model.has_source_covariance:
        gps, task_weights = model.mean_module.gps, model.mean_module.task_weights
        share = max(num_features // len(gps.outputscale) * 2, MIN_FEATURES)
        shape = sample_shape + model.batch_shape
        paths["sources"] = SourcePath(gps, task_weights, shape, share)
    return PathDict(
        paths=paths,
        join=_sum,
        input_transform=get_input_transform(model),
        output_transform=get_output_transform(model),
    )


def _sum(values: list[Tensor]) -> Tensor:
    return torch.stack(values).sum(dim=0)


@DrawMatheronPaths.register(ModularTransferGP)
def _draw_matheron_paths(
    model: ModularTransferGP, *, prior_sampler: Any, sample_shape: torch.Size, **kwargs: Any
) -> SamplePath:
    if model.num_target_points == 0:
        return prior_sampler(model=model, sample_shape=sample_shape)
    return _draw_matheron_paths_ExactGP(
        model, prior_sampler=prior_sampler, sample_shape=sample_shape, **kwargs
    )
