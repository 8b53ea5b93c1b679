"""Maximizes an acquisition function over a search space: mixed, conditional, finite or not.

BoTorch's gradient search starts from the best of random rows and of rows near known good ones, for
each promising choice of what has no order. Single steps of what is discrete follow. A row is never
found twice. Where the acquisition is flat in a parameter, its largest value is anywhere, often at a
bound: such parameters move to the middle of their range.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.optim import optimize_acqf_mixed
from torch import Tensor

from botorch_transfer.search_space import FloatParameter, SearchSpace

SAME_ROW = 1e-4
"""Points of the unit cube that are no further apart in any column are one row."""

POOL = 512
"""How many random rows are scored before the best ones are improved."""

MAX_GRID = 2_000
"""A space with no more configurations than this is searched by listing them."""

NUM_STARTS, NUM_CHOICES, MAX_ITER = 4, 3, 80
"""Gradient searches an unordered choice, unordered choices to search, iterations of a search."""

INDIFFERENCE = 0.01
"""The share of the improvement, or of the prior mean's spread over the space, that a row may lose
by moving to the middle of a range."""


class ExhaustedSpaceError(ValueError):
    """All configurations of a finite search space have been tried, or are pending."""


def maximize(
    acquisition: AcquisitionFunction,
    space: SearchSpace,
    taken: Tensor,
    anchors: Tensor,
    is_logarithm: bool,
    seed: int,
) -> tuple[Tensor, float]:
    """Finds the row that is not taken where an acquisition is largest, and its value.

    Args:
        acquisition: The acquisition function of single inputs.
        space: The search space.
        taken: A ``p x d`` tensor of rows that are not to be found again.
        anchors: An ``a x d`` tensor of rows near which it may be large.
        is_logarithm: Whether it is the logarithm of an improvement. The row may lose a share of the
            improvement, otherwise of the acquisition's spread, by moving to the middle of ranges.
        seed: The seed of random rows.

    Returns:
        The row, a ``d`` tensor, and the acquisition there.

    Raises:
        ExhaustedSpaceError: If all rows of a finite space are taken.

    Example:
        >>> from botorch.acquisition import PosteriorMean
        >>> from botorch.models import SingleTaskGP
        >>> space = SearchSpace([FloatParameter("C", 0.0, 1.0)])
        >>> X = torch.rand(4, 1, dtype=torch.double)
        >>> mean = PosteriorMean(SingleTaskGP(X, X))
        >>> x, value = maximize(mean, space, X[:0], X[:0], is_logarithm=False, seed=0)
        >>> x.shape
        torch.Size([1])
    """
    grid = _grid(space)
    pool = _pool(space, anchors, seed) if grid is None else grid
    pool = pool[~is_among(pool, taken)]
    if len(pool) == 0:
        raise ExhaustedSpaceError(
            "All configurations of the search space are among the runs or in this batch: ask for "
            "fewer, or widen the space."
        )
    values = _evaluate(acquisition, pool)
    if grid is None:
        spread = float(values.max() - values.median())
        tolerance = math.log1p(INDIFFERENCE) if is_logarithm else INDIFFERENCE * spread
        x = _climb(acquisition, space, pool[values.argsort(descending=True, stable=True)])
        rows = torch.stack([_move_to_middle(acquisition, space, x, tolerance), x])
        rows = rows[~is_among(rows, taken)]
        pool = torch.cat([rows, pool])
        values = torch.cat([_evaluate(acquisition, rows), values])
        # The first row that is as good as the best: the one that has moved, if it may.
        enough = values >= values.max() - tolerance
        if len(rows) and bool(enough[0]):
            return pool[0], float(values[0])
    best = int(values.argmax())
    return pool[best], float(values[best])


def _grid(space: SearchSpace) -> Tensor | None:
    """All configurations, if they are few."""
    try:
        return space.encode(space.grid(MAX_GRID))
    except ValueError:  # continuous, or too many
        return None


def _pool(space: SearchSpace, anchors: Tensor, seed: int) -> Tensor:
    """Random rows, the anchors, and anchors with one parameter drawn anew."""
    drawn = space.encode(space.sample(POOL, seed))
    rng = np.random.default_rng(seed)
    varied = [anchors]
    for parameter in space.parameters if len(anchors) else ():
        columns = space.feature_indices[parameter.name]
        rows = anchors.repeat(2, 1)
        rows[:, columns] = torch.from_numpy(parameter.sample(len(rows), rng))
        varied.append(rows)
    return torch.cat([drawn, space.round(torch.cat(varied))])


@torch.no_grad()
def _evaluate(acquisition: AcquisitionFunction, X: Tensor) -> Tensor:
    if len(X) == 0:  # nothing but taken rows was found
        return X.new_empty(0)
    return torch.cat([acquisition(part.unsqueeze(-2)) for part in X.split(256)]).nan_to_num(
        nan=-math.inf
    )


def is_among(X: Tensor, taken: Tensor) -> Tensor:
    """Which rows of ``X`` are among others, as far as the search tells them apart."""
    if len(taken) == 0:
        return torch.zeros(len(X), dtype=torch.bool)
    return torch.cdist(X, taken, p=math.inf).amin(dim=-1) <= SAME_ROW


def _climb(acquisition: AcquisitionFunction, space: SearchSpace, best_first: Tensor) -> Tensor:
    """Improves the best rows by gradients, and by single steps of what is discrete."""
    found_choices = space.fixed_features(best_first[:64])
    different = {tuple(choice.items()): choice for choice in found_choices}
    choices = list(different.values())[:NUM_CHOICES]
    # `optimize_acqf_mixed` takes no choices that fix every input; these are scored as rows already.
    choices = [choice for choice in choices if len(choice) < best_first.shape[-1]]
    rows, starts = best_first[:64], best_first[:NUM_STARTS].unsqueeze(-2)
    if choices:
        found, _ = optimize_acqf_mixed(
            acquisition,
            bounds=space.bounds,
            q=1,
            num_restarts=len(starts),
            fixed_features_list=choices,
            batch_initial_conditions=starts,
            equality_constraints=space.equality_constraints or None,
            options={"maxiter": MAX_ITER},
        )
        rows = torch.cat([space.round(found.detach()), best_first[:1]])
    x = rows[_evaluate(acquisition, rows).argmax()]
    for _ in range(10):
        rows = torch.cat([x.unsqueeze(0), _neighbours(space, x)])
        step = int(_evaluate(acquisition, rows).argmax())
        if step == 0:
            break
        x = rows[step]
    return x


def _neighbours(space: SearchSpace, x: Tensor) -> Tensor:
    """Rows that differ by one step of an ordered parameter, or by another choice."""
    rows = [x[None, :][:0]]
    for parameter in space.parameters:
        columns = space.feature_indices[parameter.name]
        if parameter.size is None or parameter.size > MAX_GRID:
            continue
        values = torch.from_numpy(parameter.unit_grid()).to(x)
        if values.shape[1] == 1:
            rank = int((values[:, 0] - x[columns]).abs().argmin())
            values = values[max(rank - 1, 0) : rank + 2]
        changed = x.repeat(len(values), 1)
        changed[:, columns] = values
        rows.append(changed)
    return space.round(torch.cat(rows))


def _move_to_middle(
    acquisition: AcquisitionFunction, space: SearchSpace, x: Tensor, tolerance: float
) -> Tensor:
    """Moves continuous parameters towards the middle of their range as far as it costs nothing.

    Where neither sources nor runs say anything of a parameter, the acquisition is flat in it, and
    its largest value is anywhere, often at a bound.
    """
    least = float(_evaluate(acquisition, x.unsqueeze(0))) - tolerance
    fixed = space.fixed_features(x.unsqueeze(0))[0]
    for parameter in space.parameters:
        column = space.feature_indices[parameter.name][0]
        is_continuous = isinstance(parameter, FloatParameter) and parameter.size is None
        if not is_continuous or column in fixed:
            continue
        rows = x.repeat(9, 1)
        rows[:, column] = torch.linspace(0.5, float(x[column]), 9, dtype=torch.double)
        enough = _evaluate(acquisition, rows) >= least
        enough[-1] = True
        x = rows[int(enough.to(torch.int).argmax())]
    return x
