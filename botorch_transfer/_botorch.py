"""Private names of BoTorch that this package imports, each with the reason.

No other module of the package imports a private name of BoTorch, GPyTorch or linear_operator. These
names may change in any release: ``pyproject.toml`` bounds the versions, and a test checks what we
rely on.
"""

# Log expected improvement of a standardized improvement, as LogExpectedImprovement computes it. Its
# forward takes one model; ours evaluates several models at once.
from botorch.acquisition.analytic import _log_ei_helper as log_ei_helper

# Fits with the optimizer that the user names. The public fit_gpytorch_mll would call the model's
# custom_fit again.
from botorch.fit import _fit_fallback as fit_fallback

# Draws from one kernel by random features. The public draw_kernel_feature_paths takes a whole
# model; our models draw their parts one by one.
from botorch.sampling.pathwise.prior_samplers import (
    _draw_kernel_feature_paths_fallback as draw_kernel_feature_paths_fallback,
)

# The type of DEFAULT, to annotate outcome_transform and to see that it was left out.
from botorch.utils.types import _DefaultType as DefaultType

__all__ = [
    "DefaultType",
    "draw_kernel_feature_paths_fallback",
    "fit_fallback",
    "log_ei_helper",
]
