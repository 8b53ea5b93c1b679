"""Outcomes as normal scores: the Gaussian copula of [Salinas2020quantile], Section 3.

[Salinas2020quantile]: D. Salinas, H. Shen, V. Perrone. A Quantile-based Approach for Hyperparameter
Transfer Learning. ICML 2020.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def normal_scores(values: Tensor) -> Tensor:
    r"""Maps losses to normal scores by their ranks, `ψ = Φ⁻¹ ∘ F`.

    `F` is the empirical distribution function, cut off at `δ` and `1 - δ` so that the scores are
    finite, `δ = 1 / (4 n^{1/4} √(π log n))`.

    Args:
        values: An `n` tensor.

    Returns:
        An `n` tensor; zero for a single value, which has no rank.

    Example:
        >>> normal_scores(torch.tensor([10.0, 1e9, 0.1]))
        tensor([0.4307, ..., -0.4307])
    """
    n = len(values)
    if n < 2:
        return torch.zeros_like(values)
    share = torch.searchsorted(values.sort().values, values, right=True).to(values) / n
    cut = 1 / (4 * n**0.25 * math.sqrt(math.pi * math.log(n)))
    return torch.special.ndtri(share.clamp(cut, 1 - cut))


def maximized_scores(Y: Tensor) -> Tensor:
    """The normal scores of outcomes to be maximized.

    The paper minimizes; its empirical distribution function isn't symmetric.

    Args:
        Y: An `n x 1` tensor of outcomes.

    Returns:
        An `n x 1` tensor, larger where the outcome is.
    """
    return -normal_scores(-Y.squeeze(-1)).unsqueeze(-1)
