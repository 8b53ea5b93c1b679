"""Maximizes an acquisition function over a mixed, conditional, finite or infinite region.

Gradient searches start from the best of random rows and of rows near good runs. Each promising
combination of categorical values has its own searches. Then single steps change discrete
parameters. Rows that have been tried, or are pending, are excluded. If the acquisition is flat in a
continuous parameter, the maximum is arbitrary and often at a bound: the parameter then moves to the
middle of its range. In a table of candidates, or in a small finite space, the search scores all
rows.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import CandidateGenerationError, OptimizationGradientError
from botorch.optim import optimize_acqf_mixed
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from botorch_transfer.gp.objective import minimize_batched
from botorch_transfer.search_space import SearchSpace
from botorch_transfer.suggestion.region import MAX_REPAIRED, Region

#: Two encoded rows count as the same row if no column differs by more than this tolerance.
SAME_ROW = 1e-4

#: Number of random rows with which the search starts.
POOL = 512

#: Maximum number of values of a discrete parameter that is changed by single steps. A parameter
#: with more values is changed only by gradient searches.
MAX_VALUES = 2_000

#: Settings of gradient searches. They start from ``NUM_STARTS`` rows for each of at most
#: ``NUM_CHOICES`` combinations of categorical values. They end after ``MAX_ITER`` iterations,
#: or if the relative improvement is below ``TOLERANCE``.
NUM_STARTS, NUM_CHOICES, MAX_ITER, TOLERANCE = 4, 3, 80, 1e-5

#: Maximum number of rows from which single steps of discrete parameters start.
MAX_STEPS = 20

#: Tolerances of moves to the middle of ranges, as shares of the expected improvement. Before the
#: first outcome, ``INDIFFERENCE`` and ``UNKNOWN`` are shares of the acquisition's spread.
#: - ``INDIFFERENCE``: the maximum loss of all moves together.
#: - ``UNKNOWN``: a parameter moves to the middle if its effect is below this share.
#: - ``OWN_EFFECT``: the maximum loss of the move of a parameter with a larger effect, as a share of
#:   this effect.
INDIFFERENCE, UNKNOWN, OWN_EFFECT = 0.01, 1e-4, 1e-3


class ExhaustedSpaceError(ValueError):
    """Error if too few configurations of a finite search space are left to suggest."""


def maximize(
    acquisition: AcquisitionFunction,
    region: Region,
    taken: Tensor,
    anchors: Tensor,
    is_logarithm: bool,
    seed: int,
) -> Tensor:
    """Finds the row with the largest acquisition value among the rows that are not in ``taken``.

    After the search, continuous parameters are moved towards the middle of their ranges, as long as
    the loss of acquisition value is small.

    Args:
        acquisition: The acquisition function of single inputs.
        region: The rows to choose from.
        taken: A ``p x d`` tensor of rows to exclude.
        anchors: An ``a x d`` tensor of good rows. The search also starts near these rows.
        is_logarithm: Whether the acquisition is the logarithm of an improvement. If true, the move
            loses at most a small share of the improvement. If false, the move loses at most a small
            share of the spread of acquisition values.
        seed: The seed of random rows.

    Returns:
        The row, a ``d`` tensor.

    Raises:
        ExhaustedSpaceError: If all rows of a finite space are taken.

    Example:
        >>> from botorch.acquisition import PosteriorMean
        >>> from botorch.models import SingleTaskGP
        >>> region = Region(SearchSpace([FloatParameter("C", 0.0, 1.0)]))
        >>> X = torch.rand(4, 1, dtype=torch.double)
        >>> mean = PosteriorMean(SingleTaskGP(X, X))
        >>> maximize(mean, region, X[:0], X[:0], is_logarithm=False, seed=0).shape
        torch.Size([1])
    """
    grid = region.grid()
    pool = not_taken(_pool(region, anchors, seed) if grid is None else grid, taken)
    values = _evaluate(acquisition, pool)
    if grid is not None:
        return pool[values.argmax()]
    spread = float(values.max() - values.median())
    tolerance = math.log1p(INDIFFERENCE) if is_logarithm else INDIFFERENCE * spread
    best_first = pool[values.argsort(descending=True, stable=True)]
    x = _climb(acquisition, region, best_first, taken)
    moved = _move_to_middle(acquisition, region, x, tolerance, is_logarithm)
    return x if bool(is_among(moved.unsqueeze(0), taken)) else moved


def spread_out(region: Region, number: int, taken: Tensor, seed: int) -> Tensor:
    """Finds the next row of a space-filling design, near the next point of a Sobol sequence.

    Args:
        region: The rows to choose from.
        number: Number of earlier points of the sequence, which are skipped.
        taken: A ``p x d`` tensor of rows to exclude.
        seed: The seed that scrambles the sequence.

    Returns:
        The row, a ``d`` tensor.

    Raises:
        ExhaustedSpaceError: If all rows of a finite region are taken.

    Example:
        >>> region = Region(SearchSpace([FloatParameter("C", 0.0, 1.0)]))
        >>> spread_out(region, 0, torch.empty(0, 1, dtype=torch.double), seed=0).shape
        torch.Size([1])
    """
    points = draw_sobol_samples(region.space.bounds, number + 64, 1, seed=seed).squeeze(-2)[number:]
    if (grid := region.grid()) is None:
        return not_taken(region.nearest(points, MAX_REPAIRED // 4), taken)[0]
    grid = not_taken(grid, taken)
    return grid[torch.cdist(points[:1], grid).argmin()]


def _pool(region: Region, anchors: Tensor, seed: int) -> Tensor:
    """Returns the encoded rows with which the search starts.

    These are random rows, the anchors, and copies of the anchors in which one parameter has a
    random value. The acquisition is evaluated at all these rows, and the best rows are improved.
    """
    drawn, space = region.sample(POOL, seed), region.space
    rng = np.random.default_rng(seed)
    varied = [anchors]
    for parameter in space.parameters:
        columns = space.feature_indices[parameter.name]
        rows = anchors.repeat(2, 1)
        rows[:, columns] = torch.from_numpy(parameter.sample(len(rows), rng))
        varied.append(rows)
    return torch.cat([drawn, region.nearest(torch.cat(varied), MAX_REPAIRED)])


@torch.no_grad()
def _evaluate(acquisition: AcquisitionFunction, X: Tensor) -> Tensor:
    if len(X) == 0:  # all found rows are taken
        return X.new_empty(0)
    values = torch.cat([acquisition(part.unsqueeze(-2)) for part in X.split(256)])
    return values.nan_to_num(nan=-math.inf)


def not_taken(X: Tensor, taken: Tensor, n: int = 1) -> Tensor:
    """Removes the rows of ``X`` that are in ``taken``.

    Args:
        X: An ``m x d`` tensor of rows.
        taken: A ``p x d`` tensor of rows.
        n: Minimum number of rows that must remain.

    Returns:
        The remaining rows of ``X``.

    Raises:
        ExhaustedSpaceError: If fewer than ``n`` rows remain.
    """
    X = X[~is_among(X, taken)]
    if len(X) < n:
        raise ExhaustedSpaceError(
            "Too few rows are left, because all other rows are among the runs or in this batch: "
            "ask for fewer rows, widen the space, omit fixed= or same_in_batch=, or give "
            "repeats=True."
        )
    return X


def is_among(X: Tensor, taken: Tensor) -> Tensor:
    """Returns a mask of the rows of ``X`` that occur in ``taken``, up to rounding errors."""
    return (torch.cdist(X, taken, p=math.inf) <= SAME_ROW).any(dim=-1)


def _climb(
    acquisition: AcquisitionFunction, region: Region, best_first: Tensor, taken: Tensor
) -> Tensor:
    """Maximizes the acquisition by gradients, and then by single steps of discrete parameters.

    Steps may start from a taken row, because a neighbour of this row may be the best free row.

    Args:
        acquisition: The acquisition function.
        region: The rows to choose from.
        best_first: An ``m x d`` tensor of start rows, the best row first.
        taken: A ``p x d`` tensor of rows to exclude.

    Returns:
        The best row that is found, a ``d`` tensor.
    """
    space, rows = region.space, best_first[:64]
    unique = {tuple(choice.items()): choice for choice in region.fixed_features(rows)}
    # If a combination of categorical values fixes every input, no input is left for gradients.
    choices = [c for c in list(unique.values())[:NUM_CHOICES] if len(c) < rows.shape[-1]]
    if choices:
        # Gradients of huge outcomes are not finite. With many constraints, rounding errors may
        # leave no feasible point. In both cases, the best scored rows are kept.
        with suppress(OptimizationGradientError, CandidateGenerationError):
            found = _ascend(acquisition, region, best_first[:NUM_STARTS], choices)
            rows = torch.cat([region.nearest(found), best_first[:1]])
    values = _evaluate(acquisition, rows)
    is_left = torch.ones(len(rows), dtype=torch.bool)  # rows with unscored neighbours
    for _ in range(MAX_STEPS):
        is_free = ~is_among(rows, taken)
        best = int(values.where(is_left, -math.inf).argmax())
        if not bool((values[best] > values[is_free & ~is_left]).all()):
            break
        is_left[best] = False
        near = region.nearest(_neighbours(space, rows[best]), MAX_REPAIRED // 4)
        near = near[~is_among(near, rows)]
        rows, values = torch.cat([rows, near]), torch.cat([values, _evaluate(acquisition, near)])
        is_left = torch.cat([is_left, torch.ones(len(near), dtype=torch.bool)])
    return rows[values.where(~is_among(rows, taken), -math.inf).argmax()]


def _ascend(
    acquisition: AcquisitionFunction,
    region: Region,
    starts: Tensor,
    choices: list[dict[int, float]],
) -> Tensor:
    """Maximizes the acquisition by gradient searches from all start rows.

    Args:
        acquisition: The acquisition function.
        region: The rows to choose from.
        starts: An ``s x d`` tensor of start rows.
        choices: Dictionaries from indices of encoded inputs to fixed values. A search runs for each
            dictionary and each start row.

    Returns:
        The best row that is found, a ``1 x d`` tensor.
    """
    bounds = region.space.bounds
    limits: Any = {} if region.repair is None else region.repair.for_botorch()
    if limits:
        found, _ = optimize_acqf_mixed(
            acquisition,
            bounds,
            q=1,
            num_restarts=len(starts),
            fixed_features_list=choices,
            batch_initial_conditions=starts.unsqueeze(-2),
            options={"maxiter": MAX_ITER},
            **limits,
        )
        return found.detach()
    fixed = starts.new_full((len(choices), starts.shape[-1]), torch.nan)
    for choice, row in zip(choices, fixed, strict=True):
        row[[*choice]] = row.new_tensor([*choice.values()])
    fixed = fixed.repeat_interleave(len(starts), dim=0)
    is_free = fixed.isnan()

    def descend(X: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            values = -acquisition(X.requires_grad_().unsqueeze(-2))
            (gradient,) = torch.autograd.grad(values.sum(), X)
        return values.detach(), gradient * is_free[rows]

    X = torch.where(is_free, starts.repeat(len(choices), 1), fixed)
    X, values = minimize_batched(descend, X, bounds, MAX_ITER, value_tolerance=TOLERANCE)
    return X[values.argmin()].unsqueeze(0)


def _neighbours(space: SearchSpace, x: Tensor) -> Tensor:
    """Returns copies of the encoded row ``x``, each with another value of one discrete parameter.

    A parameter with ordered values changes by one step. A categorical parameter takes every value.
    """
    rows = [x[None][:0]]
    few = [p for p in space.parameters if p.size is not None and p.size <= MAX_VALUES]
    for parameter in few:
        columns = space.feature_indices[parameter.name]
        values = torch.from_numpy(parameter.unit_grid()).to(x)
        if values.shape[1] == 1:
            rank = int((values[:, 0] - x[columns]).abs().argmin())
            values = values[max(rank - 1, 0) : rank + 2]
        changed = x.repeat(len(values), 1)
        changed[:, columns] = values
        rows.append(changed)
    return torch.cat(rows)


def _move_to_middle(
    acquisition: AcquisitionFunction,
    region: Region,
    x: Tensor,
    tolerance: float,
    is_logarithm: bool,
) -> Tensor:
    """Moves continuous parameters towards the middle of their ranges, at a negligible loss.

    If the outcome does not depend on a parameter, the acquisition is flat in this parameter. The
    maximum is then arbitrary, and often at a bound.
    """
    least = float(_evaluate(acquisition, x.unsqueeze(0))) - tolerance
    continuous = [p.name for p in region.space.parameters if p.size is None]
    columns = {region.space.feature_indices[name][0] for name in continuous}
    for column in sorted(columns - region.fixed_features(x.unsqueeze(0))[0].keys()):
        rows = x.repeat(18, 1)
        rows[:9, column] = torch.linspace(0.5, float(x[column]), 9, dtype=torch.double)
        rows[9:, column] = torch.linspace(0.0, 1.0, 9, dtype=torch.double)
        values = _evaluate(acquisition, rows)
        loss = values[8] - values
        if is_logarithm:
            loss = -(-loss).expm1()
        effect = float(loss.max() - loss.min())
        is_known = effect > UNKNOWN / INDIFFERENCE * tolerance
        enough = loss <= (OWN_EFFECT if is_known else 1.0) * effect
        enough = (enough & (values >= least) & region.allows(rows))[:9]
        enough[8] = True
        x = rows[int(enough.to(torch.int).argmax())]
    return x
