"""GPs on the same data whose hyperparameters differ, as one of BoTorch's ensembles."""

from __future__ import annotations

from typing import Any, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.posteriors.fully_bayesian import MCMC_DIM, GaussianMixturePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.transformed import TransformedPosterior
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_transfer.models.modular import ModularTransferGP
from botorch_transfer.models.single_points import mixture_of_single_points


class HyperparameterEnsembleGP(ModularTransferGP):
    """A batch of GPs on one target's data, whose members are averaged over.

    The model's batch dimension is that of the members, as in BoTorch's fully Bayesian models;
    acquisition functions average over it. This class makes their posteriors a mixture, and
    conditions all of them on the same points. Subclasses choose the members. The arguments are
    those of :class:`~.modular.ModularTransferGP`, the target's data repeated for each member.
    """

    has_source_covariance = False
    _is_ensemble = True
    _supports_batched_models = False

    @property
    def residual_covar_module(self) -> Kernel:
        """The kernel: all of it is the target's own."""
        return self.covar_module

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        **kwargs: Any,
    ) -> GaussianMixturePosterior | GPyTorchPosterior | TransformedPosterior:
        """Evaluates the posterior of every member.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.
            output_indices: Must be omitted or ``[0]``.
            observation_noise: Whether to add the members' noise; or a ``batch_shape x q x 1``
                tensor of noise variances, in the model's own units; with a dimension of members
                before ``q``, each member's own.
            posterior_transform: A transform of the posterior.
            **kwargs: Ignored.

        Returns:
            A mixture of Gaussians with moments ``batch_shape x num_members x q x 1``.
        """
        plain = posterior_transform is None and output_indices is None and not kwargs
        if plain and observation_noise is False and len(self.batch_shape) == 1:
            mixture = mixture_of_single_points(super().posterior, X)
            if mixture is not None:
                return mixture
        if isinstance(observation_noise, Tensor) and observation_noise.dim() <= X.dim():
            observation_noise = observation_noise.unsqueeze(MCMC_DIM)
        posterior = super().posterior(
            X=X.unsqueeze(MCMC_DIM),
            output_indices=output_indices,
            observation_noise=observation_noise,
            posterior_transform=posterior_transform,
            **kwargs,
        )
        if not isinstance(posterior, GPyTorchPosterior):
            return posterior
        return GaussianMixturePosterior(distribution=posterior.distribution)

    def _is_per_member(self, values: Tensor) -> bool:
        return values.dim() > 2 and values.shape[MCMC_DIM] == self.batch_shape[-1]

    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> Self:
        """Conditions every member on further points; members and their weights stay as they are.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs, the same for all members; or one with a
                dimension of members, if ``Y`` has one.
            Y: A ``batch_shape x q x 1`` tensor of outcomes; or a ``batch_shape x num_members x q x
                1`` tensor of each member's own. As in BoTorch's fully Bayesian models, a dimension
                of the members' size before ``q`` is taken for theirs: condition on a batch of
                just this size in two parts.
            noise: A tensor of known noise variances like ``Y``.
            **kwargs: Further arguments of BoTorch's conditioning.

        Returns:
            A model with these points among its data.
        """
        per_member = self._is_per_member(Y)
        if not per_member:
            Y = _for_members(Y, self.batch_shape)
            noise = None if noise is None else _for_members(noise, self.batch_shape)
        if not (per_member and X.dim() == Y.dim()):
            X = _for_members(X, self.batch_shape)
        X = X.expand(*torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2]), *X.shape[-2:])
        conditioned: Any = super().condition_on_observations(X, Y, noise=noise, **kwargs)
        return conditioned


def _for_members(values: Tensor, members: torch.Size) -> Tensor:
    """Repeats ``batch_shape x q x c`` values for each member, next to the last two dimensions."""
    return values.unsqueeze(MCMC_DIM).expand(*values.shape[:-2], *members, *values.shape[-2:])
