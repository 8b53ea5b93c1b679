"""Fits of models, as BoTorch's users write them."""

from typing import Any, TypeVar

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

Model = TypeVar("Model", bound=Any)


def fit_model(model: Model, max_iter: int | None = None, **options: Any) -> Model:
    """Fits a model in place.

    Args:
        model: The model.
        max_iter: The optimizer's iterations at most; by default those of a fit.
        options: Further arguments of ``fit_gpytorch_mll``.

    Returns:
        The model.
    """
    if max_iter is not None:
        options["optimizer_kwargs"] = {"options": {"maxiter": max_iter}}
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **options)
    return model


def log_posterior(model: Any) -> Tensor:
    """Evaluates the objective of a fit, per point; the model is in evaluation mode afterwards."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    with torch.no_grad():
        value = mll(model(*model.train_inputs), model.train_targets)
    model.eval()
    return value
