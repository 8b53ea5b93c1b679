"""Private names of BoTorch that this package imports, each with the reason.

No other module of the package imports a private name of BoTorch, GPyTorch or linear_operator.
Private names may change in any release. ``pyproject.toml`` therefore bounds the versions, and a
test checks these names.
"""

# Computes the log expected improvement of a standardized improvement. The public
# LogExpectedImprovement evaluates one model; our acquisition evaluates several models at once.
from botorch.acquisition.analytic import _log_ei_helper as log_ei_helper

# Fits with an optimizer that the user chooses. A model's custom_fit cannot call the public
# fit_gpytorch_mll, which would call custom_fit again.
from botorch.fit import _fit_fallback as fit_fallback

# Draws sample paths of one kernel by random features. The public draw_kernel_feature_paths takes a
# whole model, but our models draw their parts one by one.
from botorch.sampling.pathwise.prior_samplers import (
    _draw_kernel_feature_paths_fallback as draw_kernel_feature_paths_fallback,
)

# The type of DEFAULT, to annotate outcome_transform and to detect that the argument is omitted.
from botorch.utils.types import _DefaultType as DefaultType

__all__ = ["DefaultType", "draw_kernel_feature_paths_fallback", "fit_fallback", "log_ei_helper"]
