"""A target's data together with what is known of its source tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_transfer.data import SourceData
from botorch_transfer.pretraining.prior import TransferPrior


@dataclass(frozen=True, eq=False)
class Transferred:
    """What one metric's model is to learn from, and the units that Ax shows its outcomes in.

    Args:
        sources: The source tasks by name, in Ax's model space and in the units of Ax's
            standardized outcomes; or a prior, which speaks in its own units.
        sign: 1, or -1 if the prior speaks of the negated metric, because that is maximized.
        mean: What was subtracted from the metric's outcomes.
        std: What they were then divided by.
        pretraining: Options of pre-training.
    """

    sources: Mapping[str, SourceData] | Sequence[SourceData] | TransferPrior
    sign: float = 1.0
    mean: float = 0.0
    std: float = 1.0
    pretraining: dict[str, Any] = field(default_factory=dict)


class TransferDataset(SupervisedDataset):
    """The target's data; of its source tasks it only carries the reference along.

    Args:
        X: A ``n x d`` tensor of inputs; ``n`` may be zero.
        Y: A ``n x 1`` tensor of outcomes.
        transferred: What the model is to learn from.
        **kwargs: Those of ``SupervisedDataset``.
    """

    def __init__(
        self, X: Tensor, Y: Tensor, *, transferred: Transferred | None = None, **kwargs: Any
    ) -> None:
        super().__init__(X, Y, **kwargs)
        self.transferred = transferred

    def clone(self, deepcopy: bool = False, mask: Tensor | None = None) -> TransferDataset:
        """Copies the data, or selects rows.

        Args:
            deepcopy: Whether to copy the tensors.
            mask: A ``n`` tensor that says which rows to keep.

        Returns:
            The new data set, with the same source tasks.
        """
        copied = cast(TransferDataset, super().clone(deepcopy, mask))
        copied.transferred = self.transferred
        return copied
