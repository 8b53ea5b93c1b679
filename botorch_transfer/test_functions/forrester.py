r"""The Forrester family.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from botorch_transfer.test_functions.family import TaskFamily


class ForresterFamily(TaskFamily):
    r"""A task of the Forrester family, App. C.1 (Eq. 37) of [Tighineanu2022hierarchical]_.

    .. code-block:: text

        f(x) = a (6 x - 2)² sin(12 x - 4) + b (x - 1/2) - c

    on ``[0, 1]``, to be minimized. Parameters are uniform. A steep slope ``b`` next to a small
    ``a`` moves the optimum from its basin at 0.76 towards the left edge.

    Args:
        a: Between 0.2 and 3, as drawn by :meth:`sample`; by default Forrester's own value.
        b: Between -5 and 15.
        c: Between -5 and 5.
        noise_std: The standard deviation of the observation noise; 0.1 in the paper.
        negate: Whether to negate the function, so that it is to be maximized.
        bounds: Other bounds than the family's.
        dtype: The dtype of the bounds.

    Example:
        >>> task = ForresterFamily()
        >>> print(f"{task.optimal_value:.3f} at {task.optimizers.item():.3f}")
        -6.021 at 0.757
    """

    dim = 1
    continuous_inds = [0]  # noqa: RUF012
    study_noise_std = 0.1
    _bounds = [(0.0, 1.0)]  # noqa: RUF012
    _check_grad_at_opt = False
    _ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "a": (0.2, 3.0),
        "b": (-5.0, 15.0),
        "c": (-5.0, 5.0),
    }

    def __init__(
        self,
        a: float = 1.0,
        b: float = 0.0,
        c: float = 0.0,
        noise_std: float | None = None,
        negate: bool = False,
        bounds: list[tuple[float, float]] | None = None,
        dtype: torch.dtype = torch.double,
    ) -> None:
        self.a, self.b, self.c = a, b, c
        super().__init__(noise_std=noise_std, negate=negate, bounds=bounds, dtype=dtype)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x = X.squeeze(-1)
        wave = (6 * x - 2).square() * (12 * x - 4).sin()
        return self.a * wave + self.b * (x - 0.5) - self.c
