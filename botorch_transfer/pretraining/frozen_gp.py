"""A GP for all tasks whose mean, kernel and noise are known: nothing in it is to be fitted."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any, get_args

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer.outcome_transforms import PooledStandardize
from botorch_transfer.pretraining.gp_parts import MIN_NOISE, GPParts, freeze, spread, thaw
from botorch_transfer.pretraining.learning_curve import LearningCurve
from botorch_transfer.pretraining.outcome_scale import OutcomeScale
from botorch_transfer.pretraining.prior import TransferPrior


class FrozenGP(TransferPrior):
    """A GP as a prior: its parameters are buffers, and models take copies.

    Args:
        mean_module: The mean; may share modules with the kernel.
        covar_module: The kernel.
        dim: The number of inputs ``d``.
        noise: The noise variance, in the prior's units.

    Raises:
        ValueError: If there is no input, or the noise variance is too small.
    """

    counts: Tensor
    outcome_mean: Tensor
    outcome_spread: Tensor

    def __init__(
        self, mean_module: Mean, covar_module: Kernel, dim: int, noise: float = 1e-2
    ) -> None:
        super().__init__("raw")
        if dim < 1:
            raise ValueError(f"dim={dim} must be positive.")
        if not MIN_NOISE < noise < math.inf:
            raise ValueError(f"noise={noise} must be a variance of more than {MIN_NOISE}.")
        self.parts = GPParts(*deepcopy((mean_module, covar_module)), noise).eval()
        self.trainable = freeze(self.parts)
        self._dim = dim
        self._noise = noise
        # Which modules these are, if they are none of the user's own.
        self._preset: dict[str, Any] | None = None
        self.register_buffer("counts", torch.zeros(2, dtype=torch.long))
        self.learning_curve = LearningCurve()
        self.register_buffer("outcome_mean", torch.zeros((), dtype=torch.double))
        self.register_buffer("outcome_spread", torch.ones((), dtype=torch.double))

    def _set_units(self, outcome_scale: OutcomeScale, transform: InputTransform | None) -> None:
        self.outcome_scale, self.input_transform = outcome_scale, transform
        index = get_args(OutcomeScale).index(outcome_scale)
        self.outcome_scale_index = torch.full_like(self.outcome_scale_index, index)

    @property
    def num_tasks(self) -> int:
        """The number of source tasks."""
        return int(self.counts[0])

    @property
    def num_points(self) -> int:
        """The number of their evaluations."""
        return int(self.counts[1])

    def _set_counts(self, num_tasks: int, num_points: int) -> None:
        self.counts = torch.tensor([num_tasks, num_points], device=self.counts.device)

    @property
    def dim(self) -> int:
        """The number of input dimensions ``d``."""
        return self._dim

    @property
    def noise(self) -> Tensor:
        """The noise variance, in the prior's units, a tensor without dimensions."""
        return self.parts.noise.squeeze(-1)

    def mean(self, X: Tensor) -> Tensor:
        """Evaluates the pre-trained mean, in the prior's units.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n`` tensor, differentiable in ``X``.
        """
        return self._thawed(fit=False).to(X).mean_module(self._transformed(X))

    def covariance(self, X: Tensor) -> Tensor:
        """Evaluates the pre-trained kernel, noise left out.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n x n`` tensor, differentiable in ``X``.
        """
        return self._thawed(fit=False).to(X).covar_module(self._transformed(X)).to_dense()

    def gp(self, batch_shape: torch.Size, fit: bool) -> GPParts:
        """Copies the GP, for a model.

        Args:
            batch_shape: The batch shape of the model.
            fit: Whether the copy's parameters are to be fitted.

        Returns:
            Mean, kernel and likelihood with parameters of their own. Each member of a batched
            model has its own; a frozen mean and kernel of the user's serve all members.
        """
        parts = self._thawed(fit)
        if batch_shape and (fit or self._preset is not None):
            spread(parts, batch_shape)
        elif batch_shape:
            spread(parts.likelihood, batch_shape)
        return parts

    def _thawed(self, fit: bool = True) -> GPParts:
        parts = deepcopy(self.parts)
        thaw(parts, self.trainable, fit)
        return parts

    def _transformed(self, X: Tensor) -> Tensor:
        x = super()._transformed(X)
        if x.shape[-1] != self.dim:
            raise BotorchTensorDimensionError(
                f"The inputs have {x.shape[-1]} columns, but the prior was built for {self.dim}."
            )
        return x

    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """The outcome transform that brings a target's outcomes into the prior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            ``None`` if the prior speaks in raw units, as an untrained one does. Otherwise a
            standardization by the outcomes of the source tasks, and of the target too if each
            source task was standardized by itself.
        """
        if self.outcome_scale == "raw":
            return None
        return PooledStandardize.from_moments(
            self.num_points,
            self.outcome_mean,
            self.outcome_spread,
            include_target=self.outcome_scale == "per_task",
            batch_shape=batch_shape,
        )

    def extra_repr(self) -> str:
        """What ``print`` shows of the prior."""
        return (
            f"tasks={self.num_tasks}, points={self.num_points}, inputs={self.dim}, "
            f"outcome_scale={self.outcome_scale!r}"
        )
