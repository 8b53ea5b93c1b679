"""What a model adds to the log likelihood of its own data when it is fitted."""

from __future__ import annotations

from typing import Any, Self

from gpytorch.mlls import AddedLossTerm
from torch import Tensor


class LogLikelihoodTerm(AddedLossTerm):
    """A further log likelihood, that of source data or of a second model, as a term to add.

    Args:
        value: A ``batch_shape`` tensor, with its graph. Copies and pickles have no graph.
    """

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def loss(self, *params: Any) -> Tensor:
        """The value.

        Args:
            *params: Ignored.
        """
        return self._value

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return type(self)(self._value.detach())

    def __getstate__(self) -> dict[str, Tensor]:
        return {"_value": self._value.detach()}
