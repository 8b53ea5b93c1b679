r"""The Hartmann family in three dimensions.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from botorch_transfer.test_functions.family import TaskFamily

_A = ((3.0, 10.0, 30.0), (0.1, 10.0, 35.0), (3.0, 10.0, 30.0), (0.1, 10.0, 35.0))
_P = (
    (0.3689, 0.1170, 0.2673),
    (0.4699, 0.4387, 0.7470),
    (0.1091, 0.8732, 0.5547),
    (0.0381, 0.5743, 0.8828),
)


class Hartmann3Family(TaskFamily):
    r"""A task of the three-dimensional Hartmann family, App. C.1 of [Tighineanu2022hierarchical]_.

    .. code-block:: text

        f(x) = - Σ_i α_i exp(- Σ_j A_ij (x_j - P_ij)²)

    on the unit cube, to be minimized. The four weights ``α_i`` are uniform in narrow intervals, so
    that tasks are very much alike.

    Args:
        alpha_1: Between 1.00 and 1.02, as drawn by :meth:`sample`; by default Hartmann's own value.
        alpha_2: Between 1.18 and 1.20.
        alpha_3: Between 2.8 and 3.0.
        alpha_4: Between 3.2 and 3.4.
        noise_std: The standard deviation of the observation noise; 0.1 in the paper.
        negate: Whether to negate the function, so that it is to be maximized.
        dtype: The dtype of the bounds.

    Example:
        >>> source, target = Hartmann3Family.sample(2, seed=0, negate=True)
        >>> target(torch.rand(5, 3, dtype=torch.double)).shape
        torch.Size([5])
    """

    dim = 3
    continuous_inds = [0, 1, 2]  # noqa: RUF012
    _bounds = [(0.0, 1.0)] * 3
    _ranges: ClassVar[dict[str, tuple[float, float]]] = {
        "alpha_1": (1.00, 1.02),
        "alpha_2": (1.18, 1.20),
        "alpha_3": (2.8, 3.0),
        "alpha_4": (3.2, 3.4),
    }

    def __init__(
        self,
        alpha_1: float = 1.0,
        alpha_2: float = 1.2,
        alpha_3: float = 3.0,
        alpha_4: float = 3.2,
        noise_std: float | None = None,
        negate: bool = False,
        dtype: torch.dtype = torch.double,
    ) -> None:
        self.alpha = (alpha_1, alpha_2, alpha_3, alpha_4)
        super().__init__(noise_std=noise_std, negate=negate, dtype=dtype)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        A, P, alpha = (torch.tensor(values).to(X) for values in (_A, _P, self.alpha))
        distance = (A * (X.unsqueeze(-2) - P).square()).sum(dim=-1)
        return -(alpha * torch.exp(-distance)).sum(dim=-1)
