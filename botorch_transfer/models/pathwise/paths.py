"""Parts of drawn functions: a model's mean, scaled draws, sums, draws of an exact GP.

Read it for what the samplers of several models share. All paths are functions of transformed
inputs, in the model's own units; a sum of them with the model's transforms is in the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from botorch.models.utils import gpt_posterior_settings
from botorch.sampling.pathwise.paths import PathDict, SamplePath
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from gpytorch.settings import prior_mode, skip_posterior_variances
from torch import Tensor

from botorch_transfer._botorch import draw_kernel_feature_paths_fallback, gaussian_update_exact
from botorch_transfer.models.target import TargetGP


class ModelPath(SamplePath):
    """Base class of paths without ensemble dimension."""

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Does nothing: there is no ensemble dimension."""


class MeanPath(ModelPath):
    """A model's mean, the same in every draw.

    Args:
        model: The model.
        prior: Whether to take its mean without the target's data.
        member: The name of the model's method that gives the distribution; its own by default.
    """

    def __init__(self, model: TargetGP, prior: bool = False, member: str = "__call__") -> None:
        super().__init__()
        self.model = model.eval()
        self._prior = prior
        self._member = member

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the mean at transformed inputs, in the model's own units.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``[sample_shape x] batch_shape x n`` tensor.
        """
        prior = prior_mode(self._prior or prior_mode.on())
        with gpt_posterior_settings(), skip_posterior_variances(), prior:
            return getattr(self.model, self._member)(x).mean


class ScaledPath(SamplePath):
    """Draws times a factor.

    Args:
        path: The draws.
        factor: A ``[sample_shape x] batch_shape`` tensor.
    """

    factor: Tensor

    def __init__(self, path: SamplePath, factor: Tensor) -> None:
        super().__init__()
        self.path = path
        self.register_buffer("factor", factor.detach())

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the scaled draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Handed through.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        return self.factor.unsqueeze(-1) * self.path(x, **kwargs)

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Hands the setting through."""
        self.path.set_ensemble_as_batch(ensemble_as_batch)


def model_paths(model: TargetGP, paths: Mapping[str, SamplePath]) -> PathDict:
    """Adds up paths, as functions of the user's inputs with values in the user's units.

    Args:
        model: The model whose transforms these are.
        paths: Paths over transformed inputs, in the model's own units.

    Returns:
        Their sum.
    """
    return PathDict(
        paths=paths,
        join=sum_of_paths,
        input_transform=get_input_transform(model),
        output_transform=get_output_transform(model),
    )


def sum_of_paths(values: list[Tensor]) -> Tensor:
    """Adds up the values of several paths.

    Args:
        values: Tensors of the same shape, or one that broadcasts.

    Returns:
        Their sum.
    """
    return torch.stack(torch.broadcast_tensors(*values)).sum(dim=0)


def centred_prior_paths(
    model: TargetGP, sample_shape: torch.Size, num_features: int, **kwargs: Any
) -> SamplePath:
    """Draws from the prior of a model's exact GP, minus its mean.

    Args:
        model: The model.
        sample_shape: The shape of the draws.
        num_features: The number of random features.
        **kwargs: Handed to BoTorch.

    Returns:
        Paths over transformed inputs, in the model's own units.
    """
    return draw_kernel_feature_paths_fallback(
        num_inputs=model.num_inputs,
        mean_module=None,
        covar_module=model.covar_module,
        sample_shape=sample_shape,
        num_features=num_features,
        **kwargs,
    )


def centred_posterior_paths(model: TargetGP, prior: SamplePath) -> SamplePath:
    """Turns centred draws from the prior of a model's exact GP into centred ones of its posterior.

    Args:
        model: The model.
        prior: What :func:`centred_prior_paths` gave.

    Returns:
        Paths over transformed inputs, in the model's own units.
    """
    if model.num_target_points == 0:
        return prior
    (X,) = model.eval().train_inputs
    values = prior.forward(X)
    # With outcomes that are all zero, the rule gives draws minus their mean.
    update = gaussian_update_exact(
        kernel=model.covar_module,
        points=X,
        target_values=torch.zeros_like(values),
        sample_values=values,
        noise_covariance=model.likelihood.noise_covar(shape=X.shape[:-1]),
    )
    return PathDict({"own_prior": prior, "own_update": update}, join=sum_of_paths)
