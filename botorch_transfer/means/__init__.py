"""Means of transferred priors. Each stands beside its kernel in ``kernels``."""

from botorch_transfer.kernels.features import FeatureMean
from botorch_transfer.kernels.source_conditional import SourceConditionalMean
from botorch_transfer.kernels.weighted_sum import WeightedSumMean

__all__ = ["FeatureMean", "SourceConditionalMean", "WeightedSumMean"]
