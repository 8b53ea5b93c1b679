"""Noise models of Gaussian likelihoods: learned noise, optionally plus known variances.

Use :class:`AddedNoiseLikelihood` if some outcomes are themselves predictions with a variance, for
example the predicted final values of runs that were stopped early.
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
    """Noise variance that a model may set to a computed value, unless the user has set a value."""

    is_set = False

    def _set_noise(self, value: Any) -> None:
        super()._set_noise(value)
        self.is_set = True

    def derive(self, value: Tensor) -> None:
        """Sets the noise variance to a computed value, unless the user has already set a value."""
        if not self.is_set:
            super()._set_noise(value)


class AddedNoiseLikelihood(GaussianLikelihood):
    """Gaussian likelihood with a learned noise variance plus a known variance for each point.

    Pass this likelihood as ``likelihood=`` to a transfer model. The model fits the learned noise
    variance in the same way as without added variances. The model transforms the added variances to
    its own units. In an average of models, each model transforms the added variances to its own
    units. Observations at new points have only the learned noise.

    GPyTorch's ``FixedNoiseGaussianLikelihood`` with ``learn_additional_noise`` is similar. Here,
    however, ``noise`` is only the learned noise variance, and added variances may be zero.

    Args:
        added: A ``batch_shape x n`` tensor of the known variances in the units of the outcomes;
            zero for points with only the learned noise.
        likelihood: A Gaussian likelihood whose noise model is used for the learned noise; by
            default, the model's default likelihood.

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
        """The known variances added to the learned noise, a ``batch_shape x n`` tensor."""
        return self.noise_covar.added

    @torch.no_grad()
    def transform(self, outcome_transform: OutcomeTransform | None, Y: Tensor) -> None:
        """Transforms the added variances to the units of a model.

        Args:
            outcome_transform: The model's fitted outcome transform.
            Y: A ``batch_shape x n x 1`` tensor of the untransformed outcomes.
        """
        if outcome_transform is not None:
            was_training = outcome_transform.training
            _, added = outcome_transform.eval()(Y, self.added.unsqueeze(-1))
            self.noise_covar.added = added.squeeze(-1)
            outcome_transform.train(was_training)

    def get_fantasy_likelihood(self, noise: Tensor | None = None, **kwargs: Any) -> Self:
        """Returns the likelihood of a model that is conditioned on new points.

        Args:
            noise: A ``batch_shape x q`` tensor of the added variances at the new points.
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
    """Noise model: a learned noise variance plus known added variances at the training points.

    If the number of points equals the number of added variances, the points are assumed to be the
    training points, as in GPyTorch's fixed noise. For other points, pass added variances as
    ``noise=``.
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
        """Evaluates the covariance matrix of the noise.

        Args:
            *params: The inputs, used if ``shape`` is omitted.
            shape: The batch shape, followed by the number of points.
            noise: A ``batch_shape x n`` tensor that replaces the added variances.
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
    """Returns ``added`` of an :class:`AddedNoiseLikelihood`; zero for any other likelihood."""
    return likelihood.added if isinstance(likelihood, AddedNoiseLikelihood) else 0.0


def noise_variance(likelihood: Any, X: Tensor, **kwargs: Any) -> Tensor:
    """Evaluates the noise variances of a Gaussian likelihood at inputs.

    Args:
        likelihood: The likelihood. Its noise may be learned, known, the sum of both, or a function
            of the inputs.
        X: A ``batch_shape x n x d`` tensor of inputs.
        **kwargs: Arguments of the likelihood, such as ``noise=``, the known noise variances at new
            points.

    Returns:
        A ``batch_shape x n`` tensor.

    Example:
        >>> noise_variance(AddedNoiseLikelihood(torch.tensor([0.0, 0.5])), torch.zeros(2, 3))
        tensor([0.6932, 1.1932], grad_fn=<...>)
    """
    zero = X.new_zeros(X.shape[:-1])
    noisy = likelihood(MultivariateNormal(zero, DiagLinearOperator(zero)), [X], **kwargs)
    return cast(Tensor, noisy.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1))
