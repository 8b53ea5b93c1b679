"""The factorized covariance of source data, and remembering it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_transfer.kernels.input_cache import version_of


@dataclass(frozen=True)
class SourceFactor:
    """The factorized covariance of the source data, group by group.

    Args:
        roots: The Cholesky factors, ``batch_shape x N_g x N_g`` in double precision.
        alphas: ``K⁻¹ y_s``, ``batch_shape x N_g`` each.
        log_likelihood: ``log p(y_s)``, a ``batch_shape`` tensor.
    """

    roots: tuple[Tensor, ...]
    alphas: tuple[Tensor, ...]
    log_likelihood: Tensor


class FactorMemory:
    """Remembers one factor, as long as what it depends on has the same values.

    What a factor depends on is its state: a tuple of data tensors, compared by identity and
    version, and last a tensor of hyperparameters, compared by value, because GPyTorch sets them in
    ways that no version counter sees. Copies share what is remembered; pickles start empty.
    """

    def __init__(self) -> None:
        self._state: tuple[Tensor, ...] | None = None
        self._versions: list[int] = []
        self._factor: SourceFactor | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> FactorMemory:
        twin = FactorMemory()  # the tensors are never written into, so copies share them
        twin.__dict__.update(self.__dict__)
        memo[id(self)] = twin
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return FactorMemory().__dict__

    def recall(self, state: tuple[Tensor, ...]) -> SourceFactor | None:
        """Recalls the factor.

        Args:
            state: What it depends on now.

        Returns:
            The factor, or ``None`` if the state is another one.
        """
        *data, values = state
        if self._state is None:
            return None
        *known_data, known_values = self._state
        same_data = all(one is other for one, other in zip(data, known_data, strict=True))
        if not same_data or self._versions != [version_of(tensor) for tensor in data]:
            return None
        same_type = values.dtype == known_values.dtype and values.device == known_values.device
        return self._factor if same_type and torch.equal(values, known_values) else None

    def remember(self, state: tuple[Tensor, ...], factor: SourceFactor) -> None:
        """Remembers a factor instead of the one before.

        Args:
            state: What it depends on.
            factor: The factor, without graph.
        """
        self._state = state
        self._versions = [version_of(tensor) for tensor in state[:-1]]
        self._factor = factor


def log_density(root: Tensor, whitened: Tensor) -> Tensor:
    """Evaluates ``log N(y; 0, L Lᵀ)``.

    Args:
        root: A ``batch_shape x N x N`` tensor ``L``.
        whitened: A ``batch_shape x N x 1`` tensor ``L⁻¹ y``.

    Returns:
        A ``batch_shape`` tensor.
    """
    log_determinant = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    constant = root.shape[-1] * math.log(2 * math.pi)
    return -0.5 * (whitened.square().sum(dim=(-2, -1)) + log_determinant + constant)
