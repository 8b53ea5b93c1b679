r"""The Hartmann families in three and six dimensions.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.
.. [Tighineanu2023scaml]
    P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024.
    arXiv:2312.00742.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from botorch_transfer.test_functions.family import TaskFamily

Matrix = tuple[tuple[float, ...], ...]


class HartmannFamily(TaskFamily):
    """What the Hartmann families share: four bumps with weights to draw."""

    study_noise_std = 0.1
    _A: ClassVar[Matrix]
    _P: ClassVar[Matrix]
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
        bounds: list[tuple[float, float]] | None = None,
        dtype: torch.dtype = torch.double,
    ) -> None:
        self.alpha = (alpha_1, alpha_2, alpha_3, alpha_4)
        super().__init__(noise_std=noise_std, negate=negate, bounds=bounds, dtype=dtype)

    def _guesses(self) -> Tensor:
        # Two bumps compete for the optimum in six dimensions, and each is easily missed.
        return torch.tensor(self._P, dtype=torch.double)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        A, P, alpha = (torch.tensor(values).to(X) for values in (self._A, self._P, self.alpha))
        distance = (A * (X.unsqueeze(-2) - P).square()).sum(dim=-1)
        return -(alpha * torch.exp(-distance)).sum(dim=-1)


class Hartmann3Family(HartmannFamily):
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
        noise_std: The standard deviation of the observation noise; 0.1 in the papers.
        negate: Whether to negate the function, so that it is to be maximized.
        bounds: Other bounds than the family's.
        dtype: The dtype of the bounds.

    Example:
        >>> source, target = Hartmann3Family.sample(2, seed=0, negate=True)
        >>> target(torch.rand(5, 3, dtype=torch.double)).shape
        torch.Size([5])
    """

    dim = 3
    continuous_inds = [0, 1, 2]  # noqa: RUF012
    _bounds = [(0.0, 1.0)] * 3
    _A = ((3.0, 10.0, 30.0), (0.1, 10.0, 35.0), (3.0, 10.0, 30.0), (0.1, 10.0, 35.0))
    _P = (
        (0.3689, 0.1170, 0.2673),
        (0.4699, 0.4387, 0.7470),
        (0.1091, 0.8732, 0.5547),
        (0.0381, 0.5743, 0.8828),
    )


class Hartmann6Family(HartmannFamily):
    r"""A task of the six-dimensional Hartmann family, App. C.1 of [Tighineanu2022hierarchical]_.

    .. code-block:: text

        f(x) = - Σ_i α_i exp(- Σ_j A_ij (x_j - P_ij)²)

    on the unit cube, to be minimized; [Tighineanu2023scaml]_ has it, too (App. C.6). The weights
    decide which of two distant bumps holds the optimum.

    Args:
        alpha_1: Between 1.00 and 1.02, as drawn by :meth:`sample`; by default Hartmann's own value.
        alpha_2: Between 1.18 and 1.20.
        alpha_3: Between 2.8 and 3.0.
        alpha_4: Between 3.2 and 3.4.
        noise_std: The standard deviation of the observation noise; 0.1 in the papers.
        negate: Whether to negate the function, so that it is to be maximized.
        bounds: Other bounds than the family's.
        dtype: The dtype of the bounds.

    Example:
        >>> source, target = Hartmann6Family.sample(2, seed=0, noise_std=0.1)
        >>> X, Y = source.sample_data(60, seed=0)
        >>> X.shape, Y.shape
        (torch.Size([60, 6]), torch.Size([60, 1]))
    """

    dim = 6
    continuous_inds = [0, 1, 2, 3, 4, 5]  # noqa: RUF012
    _bounds = [(0.0, 1.0)] * 6
    _A = (
        (10.0, 3.0, 17.0, 3.5, 1.7, 8.0),
        (0.05, 10.0, 17.0, 0.1, 8.0, 14.0),
        (3.0, 3.5, 1.7, 10.0, 17.0, 8.0),
        (17.0, 8.0, 0.05, 10.0, 0.1, 14.0),
    )
    _P = (
        (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
        (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
        (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
        (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
    )
