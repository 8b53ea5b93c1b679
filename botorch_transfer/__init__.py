"""Transfer-learning surrogates for Bayesian optimization with GPyTorch, BoTorch and Ax."""

__version__ = "0.1.0.dev0"
