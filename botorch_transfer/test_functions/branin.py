r"""The Branin family.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from botorch_transfer.test_functions.family import TaskFamily


class BraninFamily(TaskFamily):
    r"""A task of the Branin family, App. C.1 of [Tighineanu2022hierarchical]_.

    .. code-block:: text

        f(x) = a (x_2 - b x_1² + c x_1 - r)² + s (1 - t) cos(x_1) + s

    on ``[-5, 10] x [0, 15]``, to be minimized. The paper's formula lacks the square. Parameters are
    uniform. They move the three basins, at ``x_1 = -π, π`` and ``3π``, which are all of the depth
    ``s t`` unless the edge ``x_2 = 0`` cuts the second or the third one off.

    Args:
        a: Between 0.5 and 1.5, as drawn by :meth:`sample`; by default Branin's own value.
        b: Between 0.1 and 0.15.
        c: Between 1 and 2.
        r: Between 5 and 7.
        s: Between 8 and 12.
        t: Between 0.03 and 0.05.
        noise_std: The standard deviation of the observation noise; 1 in the paper.
        negate: Whether to negate the function, so that it is to be maximized.
        bounds: Other bounds than the family's.
        dtype: The dtype of the bounds.

    Example:
        >>> source, target = BraninFamily.sample(2, seed=0, negate=True)
        >>> target(torch.tensor([[0.0, 5.0]], dtype=torch.double)).shape
        torch.Size([1])
    """

    dim = 2
    continuous_inds = [0, 1]  # noqa: RUF012
    study_noise_std = 1.0
    _bounds = [(-5.0, 10.0), (0.0, 15.0)]  # noqa: RUF012
    _ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "a": (0.5, 1.5),
        "b": (0.1, 0.15),
        "c": (1.0, 2.0),
        "r": (5.0, 7.0),
        "s": (8.0, 12.0),
        "t": (0.03, 0.05),
    }

    def __init__(
        self,
        a: float = 1.0,
        b: float = 5.1 / (4 * torch.pi**2),
        c: float = 5 / torch.pi,
        r: float = 6.0,
        s: float = 10.0,
        t: float = 1 / (8 * torch.pi),
        noise_std: float | None = None,
        negate: bool = False,
        bounds: list[tuple[float, float]] | None = None,
        dtype: torch.dtype = torch.double,
    ) -> None:
        self.a, self.b, self.c, self.r, self.s, self.t = a, b, c, r, s, t
        super().__init__(noise_std=noise_std, negate=negate, bounds=bounds, dtype=dtype)

    def _guesses(self) -> Tensor:
        x1 = torch.pi * torch.tensor([-1.0, 1.0, 3.0], dtype=torch.double)
        return torch.stack([x1, self.b * x1.square() - self.c * x1 + self.r], dim=-1)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        x1, x2 = X.unbind(dim=-1)
        valley = x2 - self.b * x1.square() + self.c * x1 - self.r
        return self.a * valley.square() + self.s * (1 - self.t) * x1.cos() + self.s
