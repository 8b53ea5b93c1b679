"""Noise variances of any likelihood; learned noise, plus noise variances of single outcomes.

Read this for runs whose outcome is itself a prediction, such as runs that were stopped early.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Self, cast

import torch
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from linear_operator.operators import DiagLinearOperator, LinearOperator
from torch import Tensor
from torch.nn import Parameter


class DerivedNoise(HomoskedasticNoise):
    """Base class, and default, of noise variances that a model may compute until one is set."""

    is_set = False

    def _set_noise(self, value: Any) -> None:
        super()._set_noise(value)
        self.is_set = True

    def derive(self, value: Tensor) -> None:
        """Takes the value that the model computes, unless another one was set."""
        if not self.is_set:
            super()._set_noise(value)


class AddedNoiseLikelihood(GaussianLikelihood):
    """A Gaussian likelihood that adds known variances of single points to the learned noise.

    Give it to a transfer model: the model learns the noise as it does by default, and brings the
    variances into its own units. Members of averages do so each in theirs. Predictions of new
    points have the learned noise only.

    It is GPyTorch's ``FixedNoiseGaussianLikelihood`` with ``learn_additional_noise``, but
    ``noise`` is the learned one, and zero variances stay zero.

    Args:
        added: A ``batch_shape x n`` tensor of variances in the outcomes' unit; zero for points
            that have the learned noise only.
        likelihood: A Gaussian likelihood, whose noise becomes the learned one; by default the
            model's own.

    Example:
        >>> likelihood = AddedNoiseLikelihood(torch.tensor([0.0, 0.5]))
        >>> likelihood.noise = 0.25
        >>> likelihood.noise_covar(shape=torch.Size([2])).diagonal()
        tensor([0.2500, 0.7500], grad_fn=<AddBackward0>)
    """

    noise_covar: _AddedNoise

    def __init__(self, added: Tensor, likelihood: GaussianLikelihood | None = None) -> None:
        super().__init__()
        self.is_default = likelihood is None
        learned = GaussianLikelihood() if likelihood is None else likelihood
        self.noise_covar = _AddedNoise(learned.noise_covar, added)

    @property
    def added(self) -> Tensor:
        """The variances that are added."""
        return self.noise_covar.added

    @torch.no_grad()
    def transform(self, outcome_transform: OutcomeTransform | None, Y: Tensor) -> None:
        """Brings the variances into the units of a model.

        Args:
            outcome_transform: The model's fitted transform.
            Y: A ``batch_shape x n x 1`` tensor: the outcomes before it.
        """
        if outcome_transform is not None:
            was_training = outcome_transform.training
            _, added = outcome_transform.eval()(Y, self.added.unsqueeze(-1))
            self.noise_covar.added = added.squeeze(-1)
            outcome_transform.train(was_training)

    def get_fantasy_likelihood(self, noise: Tensor | None = None, **kwargs: Any) -> Self:
        """Makes the likelihood of a model that is conditioned on further points.

        Args:
            noise: A ``batch_shape x q`` tensor: what is added at the new points.
            **kwargs: Ignored.

        Returns:
            The likelihood.
        """
        extended = deepcopy(self)
        if noise is not None:
            old = self.added.expand(*noise.shape[:-1], self.added.shape[-1])
            extended.noise_covar.added = torch.cat([old, noise.to(old)], dim=-1)
        return extended


class _AddedNoise(DerivedNoise):
    """A learned noise variance, and what is added to it at the training points.

    As in GPyTorch's fixed noise, as many points as there are variances are the training points, and
    ``noise`` holds the variances at other points.
    """

    added: Tensor

    def __init__(self, learned: HomoskedasticNoise, added: Tensor) -> None:
        raw, constraint = learned.raw_noise, deepcopy(learned.raw_noise_constraint)
        prior = deepcopy(getattr(learned, "noise_prior", None))
        super().__init__(prior, constraint, batch_shape=raw.shape[:-1])
        self.raw_noise = Parameter(raw.detach().clone(), requires_grad=raw.requires_grad)
        self.register_buffer("added", added, persistent=False)

    def forward(
        self,
        *params: Any,
        shape: torch.Size | None = None,
        noise: Tensor | None = None,
        **kwargs: Any,
    ) -> LinearOperator:
        """Evaluates the covariance of the noise.

        Args:
            *params: The inputs, if ``shape`` is not given.
            shape: The shape of the points.
            noise: A ``batch_shape x n`` tensor: what is added instead.
            **kwargs: Ignored.

        Returns:
            A diagonal operator.
        """
        learned: Any = super().forward(*params, shape=shape)
        if noise is None:
            if learned.shape[-1] != self.added.shape[-1]:
                return learned
            noise = self.added
        return DiagLinearOperator(learned.diagonal() + noise)


def added_variance(likelihood: Any) -> Tensor | float:
    """Returns the variances that a likelihood adds to the learned noise at the training points."""
    return likelihood.added if isinstance(likelihood, AddedNoiseLikelihood) else 0.0


def noise_variance(likelihood: Any, X: Tensor, **kwargs: Any) -> Tensor:
    """Evaluates the noise variances of a Gaussian likelihood.

    Args:
        likelihood: The likelihood, of any noise: learned, known, both, or a function of the inputs.
        X: A ``batch_shape x n x d`` tensor of inputs.
        **kwargs: For the likelihood: ``noise``, the known noise variances of new points.

    Returns:
        A ``batch_shape x n`` tensor.

    Example:
        >>> noise_variance(AddedNoiseLikelihood(torch.tensor([0.0, 0.5])), torch.zeros(2, 3))
        tensor([0.6932, 1.1932], grad_fn=<...>)
    """
    zero = X.new_zeros(X.shape[:-1])
    noisy = likelihood(MultivariateNormal(zero, DiagLinearOperator(zero)), [X], **kwargs)
    return cast(Tensor, noisy.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1))
