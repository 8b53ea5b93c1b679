"""Pathwise sampling of pre-trained models: random features of learned features."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from botorch.sampling.pathwise.features import gen_kernel_features
from botorch.sampling.pathwise.features.generators import GenKernelFeatures
from botorch.sampling.pathwise.features.maps import FeatureMap
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.sampling.pathwise.prior_samplers import (
    DrawKernelFeaturePaths,
    _draw_kernel_feature_paths_fallback,
)
from botorch.sampling.pathwise.utils import (
    ChainedTransform,
    get_input_transform,
    get_output_transform,
)
from gpytorch.kernels import AdditiveKernel
from torch import Tensor

from botorch_transfer.kernels.features import BiasedLinearKernel, FeatureKernel
from botorch_transfer.models.pathwise import MIN_FEATURES, _draw_matheron_paths, _sum
from botorch_transfer.models.pretrained import PretrainedGP


class LinearFeatureMap(FeatureMap):
    """The features of a :class:`BiasedLinearKernel`, which are exact: ``(σ_0, z / λ)``.

    Args:
        kernel: The kernel.
        num_inputs: The number of its inputs.
    """

    def __init__(self, kernel: BiasedLinearKernel, num_inputs: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.num_outputs = num_inputs + 1
        self.batch_shape = kernel.batch_shape
        self.input_transform = self.output_transform = None

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the features of ``... x n x num_inputs`` inputs."""
        bias = self.kernel.bias_variance.sqrt()[..., None, None]
        weight = self.kernel.weight_variance.sqrt()[..., None, None]
        scaled = weight * x
        return torch.cat([bias.expand(*scaled.shape[:-1], 1), scaled], dim=-1)


class UnbiasedPath(SamplePath):
    """Draws whose deviation from the posterior mean is scaled, those of an unbiased model.

    Args:
        path: Draws from the exact posterior.
        model: The model; its posterior mean is the draws'.
    """

    def __init__(self, path: SamplePath, model: PretrainedGP) -> None:
        super().__init__()
        self.path = path
        self.model = deepcopy(model).eval()
        self.scale = model._covariance_factor(model.num_target_points) ** 0.5

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws at ``[sample_shape x] batch_shape x n x d`` inputs."""
        values, mean = self.path(x), self.model.posterior(x).mean.squeeze(-1)
        return mean + self.scale * (values - mean)

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Does nothing: there is no ensemble dimension."""


@GenKernelFeatures.register(BiasedLinearKernel)
def _gen_linear_features(kernel: BiasedLinearKernel, *, num_inputs: int, **_: Any) -> FeatureMap:
    return LinearFeatureMap(kernel, num_inputs)


@GenKernelFeatures.register(FeatureKernel)
def _gen_features_of_features(
    kernel: FeatureKernel, *, num_inputs: int, num_outputs: int
) -> FeatureMap:
    network: Any = kernel.network
    feature_map = gen_kernel_features(
        kernel.base_kernel, num_inputs=network.num_features, num_outputs=num_outputs
    )
    inner: Any = feature_map.input_transform
    feature_map.input_transform = network if inner is None else ChainedTransform(inner, network)
    return feature_map


@DrawKernelFeaturePaths.register(PretrainedGP)
def _draw_kernel_feature_paths(
    model: PretrainedGP, sample_shape: torch.Size, num_features: int = MIN_FEATURES, **kwargs: Any
) -> PathDict:
    # Copies: a path stays what it is when the model's hyperparameters change.
    mean, covar = deepcopy((model.mean_module, model.covar_module))
    kernels = covar.kernels if isinstance(covar, AdditiveKernel) else [covar]
    paths = {
        f"kernel {number}": _draw_kernel_feature_paths_fallback(
            num_inputs=model.prior.dim,
            mean_module=mean if number == 0 else None,
            covar_module=kernel,
            sample_shape=sample_shape,
            num_features=num_features,
            **kwargs,
        )
        for number, kernel in enumerate(kernels)
    }
    return PathDict(
        paths=paths,
        join=_sum,
        input_transform=get_input_transform(model),
        output_transform=get_output_transform(model),
    )


@DrawMatheronPaths.register(PretrainedGP)
def _draw_pretrained_matheron_paths(model: PretrainedGP, **kwargs: Any) -> SamplePath:
    path = _draw_matheron_paths(model, **kwargs)
    return UnbiasedPath(path, model) if model.unbiased else path
