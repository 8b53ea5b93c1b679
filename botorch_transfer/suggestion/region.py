"""The region of a search space that rows are suggested from.

It is the whole space, or what fixed values and linear constraints leave of it, or the rows of a
table of candidates. The search, the first design and the scales of acquisition functions ask a
:class:`Region` for rows, whatever its parts are.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from pandas import DataFrame, isna, to_numeric
from torch import Tensor

from botorch_transfer.data.measurements import refuse_cell
from botorch_transfer.search_space import SearchSpace
from botorch_transfer.search_space.cells import errors_in, with_numbers
from botorch_transfer.suggestion.linear import LinearConstraint, Repair

logger = logging.getLogger(__name__)

MAX_GRID = 2_000
"""A space with no more configurations than this is searched by listing them."""

MAX_REPAIRED = 48
"""The most rows to make feasible at once; all rows that are feasible already are taken."""


@dataclass(frozen=True)
class Region:
    """The rows of a search space that may be suggested.

    Args:
        space: The search space.
        fixed: Values of parameters by name, in the user's units; ``"80 °C"`` is a number, too.
        constraints: Linear constraints between parameters.
        table: A table of candidates, if these are all there are. It may have further columns. Of
            candidates with equal parameters, the first one counts.
        repeats: Whether rows that were tried, or are pending, may be suggested again.

    Raises:
        InputDataError: If a fixed value is none of the parameter's, or a candidate none of the
            space's.
        ValueError: If no row is left, or a constraint cannot be kept.

    Example:
        >>> space = SearchSpace([FloatParameter("a", 0, 1), FloatParameter("b", 0, 2)])
        >>> Region(space, {"b": 0.5}).sample(1, seed=0)[0, 1]
        tensor(0.2500, dtype=torch.float64)
    """

    space: SearchSpace
    fixed: Mapping[str, Any] | None = None
    constraints: Sequence[LinearConstraint] = ()
    table: DataFrame | None = None
    repeats: bool = False

    def __post_init__(self) -> None:
        if self.table is not None:
            X = self.candidates
            is_repeated = DataFrame(X.numpy().round(12)).duplicated().to_numpy()
            if is_repeated.any():
                logger.warning(
                    "%d candidates have the parameters of another one: the first of them counts",
                    is_repeated.sum(),
                )
            kept = self.allows(X).numpy() & ~is_repeated
            object.__setattr__(self, "table", self.table[kept])
            object.__setattr__(self, "candidates", X[kept])
            rows = X[kept]
        else:
            rows = self.nearest(torch.full((1, self.space.dim), 0.5, dtype=torch.double))
        if len(rows) == 0:
            asked = [f"{name} = {value!r}" for name, value in (self.fixed or {}).items()]
            asked += dict.fromkeys(repr(constraint.text) for constraint in self.constraints)
            if not asked:
                raise InputDataError("The table of candidates has no rows: fill it.")
            what = "configuration of the search space" if self.table is None else "candidate"
            raise ValueError(
                f"No {what} satisfies {' and '.join(asked)}: they contradict one another, or there "
                "is too little to choose from."
            )

    @property
    def columns(self) -> list[str]:
        """Columns of its rows as a table: the parameters, then what else candidates have."""
        more = () if self.table is None else self.table.columns
        return [*self.space.columns, *(name for name in more if name not in self.space.columns)]

    @cached_property
    def candidates(self) -> Tensor:
        """The encoded table, ``c x d``."""
        assert self.table is not None
        with errors_in("In the candidates"):
            return self.space.encode(self.table)

    @cached_property
    def fixed_columns(self) -> dict[int, float]:
        """Columns of the encoding that are fixed, with their values."""
        found: dict[int, float] = {}
        for name, value in (self.fixed or {}).items():
            parameter = next((p for p in self.space.parameters if p.name == name), None)
            if parameter is None:
                raise InputDataError(
                    f"fixed names {name!r}, which is no parameter: use some of "
                    f"{', '.join(self.space.columns)}."
                )
            with errors_in("In the fixed values"):
                cell = with_numbers(DataFrame({name: [value]}), self.space.number_columns)
                unit = parameter.encode(cell)[0]
            found |= dict(zip(self.space.feature_indices[name], unit.tolist(), strict=True))
        return found

    @cached_property
    def _repair(self) -> Repair | None:
        # Among candidates, rows that violate a constraint are left out instead.
        if not self.constraints or self.table is not None:
            return None
        return Repair(self.space, self.constraints, (self.fixed or {}).keys())

    def for_botorch(self, is_equality: bool) -> list[tuple[Tensor, Tensor, float]] | None:
        """The constraints on the encoding, as ``optimize_acqf`` takes them.

        Args:
            is_equality: Whether to return equalities, else inequalities.

        Returns:
            Columns, weights and least sums; ``None`` if there are none.
        """
        found = [] if self._repair is None else self._repair.for_botorch(is_equality)
        return found or None

    def _with_fixed(self, X: Tensor) -> Tensor:
        """Configurations near to points, with the fixed values."""
        X = X.clone()
        for column, value in self.fixed_columns.items():
            X[:, column] = value
        return self.space.round(X)

    def allows(self, X: Tensor) -> Tensor:
        """Finds the rows that have the fixed values and satisfy the constraints.

        Args:
            X: An ``n x d`` tensor of encoded configurations.

        Returns:
            An ``n`` boolean tensor.
        """
        allowed = torch.ones(len(X), dtype=torch.bool)
        if self.fixed:
            allowed &= ((self._with_fixed(X) - X).abs() < 1e-9).all(dim=-1)
        if self.constraints:
            frame = self.space.decode(X)
            for constraint in self.constraints:
                allowed &= torch.from_numpy(constraint.holds(frame))
        return allowed

    def nearest(self, X: Tensor, max_repaired: int | None = None) -> Tensor:
        """Moves points of the unit cube to near configurations with all that is asked for.

        Args:
            X: An ``n x d`` tensor.
            max_repaired: Of points that violate constraints, how many to move; ``None`` for all.

        Returns:
            At most ``n`` encoded rows, in the points' order; the others are left out. They need not
            be candidates.
        """
        X = self._with_fixed(X)
        allowed = self.allows(X)
        if self._repair is not None and not bool(allowed.all()):
            moved = self._repair.nearest(self.space.decode(X)[~allowed.numpy()][:max_repaired])
            X[moved.index.tolist()] = self.space.encode(moved)
            allowed = self.allows(X)
        return X[allowed]

    def grid(self) -> Tensor | None:
        """All rows, if they are few or a table; else ``None``."""
        if self.table is not None:
            return self.candidates
        try:
            grid = self.space.encode(self.space.grid(MAX_GRID))
        except ValueError:  # continuous, or too many
            return None
        return grid[self.allows(grid)]

    def sample(self, n: int, seed: int) -> Tensor:
        """Draws at most ``n`` random rows.

        Args:
            n: How many.
            seed: The seed of random numbers.

        Returns:
            Their encoding.
        """
        if self.table is not None:
            order = np.random.default_rng(seed).permutation(len(self.candidates))
            return self.candidates[torch.from_numpy(order[:n])]
        X = self.space.encode(self.space.sample(n, seed))
        return self.nearest(X, MAX_REPAIRED) if self.fixed or self.constraints else X

    def decode(self, X: Tensor) -> DataFrame:
        """Turns encoded rows of the region into a table, candidates with all their columns.

        Args:
            X: An ``n x d`` tensor of rows of the region.

        Returns:
            A table, parameters first.
        """
        if self.table is None:
            return self.space.decode(X)
        places = (X.unsqueeze(-2) == self.candidates).all(dim=-1).to(torch.int).argmax(dim=-1)
        return self.table.iloc[places.numpy()][self.columns].copy()

    def with_room(self, shared: Sequence[str], n: int, free: Tensor | None) -> Region:
        """Keeps the rows whose shared values leave enough to choose from.

        Args:
            shared: Parameters that all rows of a batch have in common.
            n: The number of rows of the batch.
            free: An ``f x d`` tensor of the rows that may be suggested; ``None`` if they are many.

        Returns:
            The region; of few rows, a table of candidates.

        Raises:
            ValueError: If a name is no parameter, or no value has enough rows.
        """
        names = self.space.columns
        if unknown := [name for name in shared if name not in names]:
            raise ValueError(
                f"same_in_batch names {unknown[0]!r}, which is no parameter: use some of "
                f"{', '.join(names)}."
            )
        if free is None:
            return self
        rows = self.decode(free)
        sizes = rows.groupby(list(shared), dropna=False)[rows.columns[0]].transform("size")
        if not (sizes >= n).any():
            raise ValueError(
                f"No value of {', '.join(map(repr, shared))} has {n} free rows: ask for fewer, or "
                "leave same_in_batch out."
            )
        return replace(self, table=rows[sizes >= n])

    def sharing(self, shared: Sequence[str], x: Tensor) -> Region:
        """Fixes shared parameters to the values of a row, a ``d`` tensor."""
        row = self.space.decode(x.unsqueeze(0)).iloc[0]
        conditions = {p.name: p.active_if or {} for p in self.space.parameters}
        # Parents are shared, too, so that a parameter is active in all rows or in none.
        names = [name for each in shared for name in (each, *conditions[each])]
        values = {name: row[name] for name in names if not isna(row[name])}
        return replace(self, fixed={**(self.fixed or {}), **values})

    def costs(self, column: str) -> Tensor:
        """Reads the costs of the candidates, a ``c`` tensor.

        Args:
            column: Their column.

        Returns:
            The costs.

        Raises:
            InputDataError: If a cost is not positive.
            ValueError: If there are no candidates, or they have no such column.
        """
        if self.table is None or column not in self.table.columns:
            raise ValueError(
                f"cost names {column!r}, which is no column of candidates: give candidates with it."
            )
        cells = with_numbers(self.table, [column])[column]
        costs = to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, copy=True)
        problem = ", which is no positive number: correct the cost"
        refuse_cell(~(np.isfinite(costs) & (costs > 0)), self.table[column], problem)
        return torch.from_numpy(costs)
