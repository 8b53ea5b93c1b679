"""The mean that the source data of a joint GP give the target."""

from __future__ import annotations

from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer.kernels.source_conditional import SourceConditional


class SourceConditionalMean(Mean):
    """The target's mean, given the source data of a joint GP.

    Args:
        conditional: The joint GP's target task.

    Example:
        >>> model.mean_module(torch.rand(4, 2, dtype=torch.double)).shape
        torch.Size([4])
    """

    def __init__(self, conditional: SourceConditional) -> None:
        super().__init__()
        self.conditional = conditional

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the mean.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x n`` tensor.
        """
        return self.conditional.mean(x)
