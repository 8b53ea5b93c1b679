"""The means and kernels that pre-training starts from, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.means import ConstantMean, Mean, ZeroMean

from botorch_transfer.kernels.feature_network import FeatureNetwork
from botorch_transfer.kernels.features import BiasedLinearKernel, FeatureKernel
from botorch_transfer.kernels.stationary import stationary_function
from botorch_transfer.means.features import FeatureMean

Parts = tuple[Mean, Kernel]


def hyperbo(dim: int, hidden: Sequence[int], kernel: str, seed: int) -> Parts:
    """A mean that is linear in a network's features, and a stationary kernel on them."""
    network = FeatureNetwork(dim, hidden, seed)
    return FeatureMean(network), FeatureKernel(_stationary(network.num_features, kernel), network)


def fsbo(dim: int, hidden: Sequence[int], kernel: str, seed: int) -> Parts:
    """A zero mean, and a stationary kernel on a network's features."""
    network = FeatureNetwork(dim, hidden, seed)
    return ZeroMean(), FeatureKernel(_stationary(network.num_features, kernel), network)


def ablr(dim: int, hidden: Sequence[int], seed: int) -> Parts:
    """A zero mean, and a linear kernel with an intercept on a network's features."""
    network = FeatureNetwork(dim, hidden, seed)
    kernel = BiasedLinearKernel(bias_variance=1.0, weight_variance=1.0 / network.num_features)
    return ZeroMean(), FeatureKernel(kernel, network)


def stationary(dim: int, kernel: str, mean: str) -> Parts:
    """A constant or zero mean, and a stationary kernel on the inputs themselves."""
    means: dict[str, Callable[[], Mean]] = {"constant": ConstantMean, "zero": ZeroMean}
    if mean not in means:
        raise ValueError(f"Unknown mean {mean!r}: choose 'constant' or 'zero'.")
    return means[mean](), _stationary(dim, kernel, lengthscale=0.5)


PRESETS: dict[str, Callable[..., Parts]] = {
    "hyperbo": hyperbo,
    "fsbo": fsbo,
    "ablr": ablr,
    "stationary": stationary,
}
"""The presets; the name and the arguments are all that a file needs to rebuild one."""


def build_preset(name: str, arguments: dict[str, Any]) -> Parts:
    """Builds a preset's mean and kernel, at their starting values."""
    return PRESETS[name](**arguments)


def _stationary(dim: int, kernel: str, lengthscale: float | None = None) -> ScaleKernel:
    """A scaled stationary kernel with a lengthscale for each input or feature."""
    base = stationary_function(kernel).make_kernel(ard_num_dims=dim).double()
    # Distances between features grow with the root of their number.
    base.lengthscale = math.sqrt(dim) / 2 if lengthscale is None else lengthscale
    scaled = ScaleKernel(base).double()
    scaled.outputscale = 1.0
    return scaled
