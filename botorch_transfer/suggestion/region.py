"""The region of a search space from which rows are suggested.

A :class:`Region` is the whole space, the configurations with fixed values that satisfy constraints,
or a table of candidates. The search, the first design and the scales of acquisition functions use
rows of a :class:`Region`. A row is a configuration: a value for each parameter.
"""

from __future__ import annotations

import logging
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import DataFrame, isna
from torch import Tensor

from botorch_transfer.data.measurements import numbers
from botorch_transfer.search_space import SearchSpace
from botorch_transfer.search_space.cells import errors_in, refuse_cell, with_numbers
from botorch_transfer.search_space.parameters import refuse_where
from botorch_transfer.suggestion.constraints import Condition, Repair, parameter_of

logger = logging.getLogger(__name__)

#: Maximum number of configurations of a space that the search lists and scores completely.
MAX_GRID = 2_000

#: Maximum number of rows that :meth:`Region.nearest` moves at once to satisfy linear constraints.
MAX_REPAIRED = 48

#: Margins by which inequalities are tightened, relative to the sizes of their terms. A larger
#: margin is tried if rounding errors violate an inequality.
MARGINS = (0.0, 1e-11, 1e-6)

#: Number of attempts to satisfy nonlinear constraints by numbers that the constraints contain. As
#: many further attempts also try the values next to these numbers.
MAX_MOVES = 12

#: Number of digits to which continuous values are rounded if there are constraints.
DIGITS = 12


@dataclass(frozen=True)
class Region:
    """Rows of a search space that may be suggested.

    Use it to draw, repair, list and decode rows that respect fixed values and constraints.

    Args:
        space: The search space.
        fixed: Fixed values of parameters by name, in the user's units. A number may have a unit:
            ``"80 °C"``.
        constraints: Constraints between parameters.
        table: A table of candidates. Only its rows are suggested. It may have further columns. Of
            candidates with equal parameters, only the first candidate is kept.
        repeats: Whether tried and pending rows may be suggested again.
        cost: The column of ``table`` with the cost of each candidate.

    If there is a table, the attribute ``candidates`` is a ``c x d`` tensor: the encoded candidates.

    Raises:
        InputDataError: If a fixed value or a candidate is outside of the search space.
        ValueError: If no row satisfies all constraints, or :class:`Repair` raises an error.

    Example:
        >>> space = SearchSpace([FloatParameter("a", 0, 1), FloatParameter("b", 0, 2)])
        >>> Region(space, {"b": 0.5}).sample(1, seed=0)[0, 1]
        tensor(0.2500, dtype=torch.float64)
    """

    space: SearchSpace
    fixed: Mapping[str, Any] | None = None
    constraints: Sequence[Condition] = ()
    table: DataFrame | None = None
    repeats: bool = False
    cost: str | None = None
    candidates: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.table is None:
            rows = self.nearest(torch.full((1, self.space.dim), 0.5, dtype=torch.double))
            rows = rows if len(rows) else self.sample(MAX_REPAIRED, seed=0)
        else:
            with errors_in("In the candidates"):
                X = self.space.encode(self.table)
            is_repeated = DataFrame(X.numpy().round(12)).duplicated().to_numpy()
            if is_repeated.any():
                message = "Left out %d candidates that repeat the parameter values of earlier rows"
                logger.warning(message, is_repeated.sum())
            read = {name: numbers(self.table, name) for name in self.space.number_columns}
            held = _num_held(self.constraints, self.table.assign(**read)) == len(self.constraints)
            kept = self.allows(X).numpy() & held & ~is_repeated
            rows = X[kept]
            object.__setattr__(self, "table", self.table[kept])
            object.__setattr__(self, "candidates", rows)
        if len(rows) == 0:
            asked = [f"{name} = {value!r}" for name, value in (self.fixed or {}).items()]
            asked += dict.fromkeys(repr(constraint.text) for constraint in self.constraints)
            if not asked:
                raise InputDataError("The table of candidates has no rows: add rows.")
            what = "configuration of the search space" if self.table is None else "candidate"
            problem = f"No {what} satisfies {' and '.join(asked)}: the conditions contradict one "
            problem += "another, or too few values are available. Relax one condition."
            raise ValueError(problem)

    @property
    def columns(self) -> list[str]:
        """Columns of decoded rows: the parameters, then further columns of candidates."""
        more = () if self.table is None else self.table.columns
        return list(dict.fromkeys([*self.space.columns, *more]))

    @cached_property
    def fixed_columns(self) -> dict[int, float]:
        """Encoded values of fixed parameters, by the index of the input in the encoding."""
        found: dict[int, float] = {}
        for name, value in (self.fixed or {}).items():
            parameter = parameter_of(name, self.space, "fixed")
            if value is None and not parameter.may_be_empty:
                raise ValueError(f"The fixed value of {name!r} is None: omit {name!r} from fixed=.")
            try:
                cell = with_numbers(DataFrame({name: [value]}), self.space.number_columns)
                (unit,) = parameter.encode(cell)
                if self.table is None and getattr(parameter, "step", None) is not None:
                    bad = np.abs(parameter.place(parameter.decode(unit[None])) - unit) > 1e-9
                    problem = f"not a multiple of its step {parameter.step}: round the value"
                    refuse_where(bad, cell[name], problem)
            except InputDataError as error:
                about_rows = " in row 0|: correct the cell, or empty it|,? or drop these rows"
                problem = re.sub(about_rows, "", str(error))
                if isinstance(value, list | tuple | set):
                    problem = f"{name!r} is {value!r}: give one value, or use constraints=."
                raise InputDataError(f"In the fixed values: {problem}") from error
            found |= dict(zip(self.space.feature_indices[name], unit.tolist(), strict=True))
        return found

    @cached_property
    def repair(self) -> Repair | None:
        """Solver that moves rows so that they satisfy the linear constraints.

        The solver is ``None`` if there are no linear constraints, or if the region is a table.
        Candidates that violate a constraint are left out, not moved.
        """
        linear = [c for c in self.constraints if c.weights and self.table is None]
        return Repair(self.space, linear, (self.fixed or {}).keys()) if linear else None

    @cached_property
    def _conditions(self) -> list[Condition]:
        """Nonlinear constraints of the region."""
        return [c for c in self.constraints if not c.weights]

    @cached_property
    def _ends(self) -> dict[str, list[float]]:
        """Numbers with which nonlinear constraints compare each parameter, by parameter name.

        A categorical parameter has an empty list.
        """
        ends = defaultdict[str, list[float]](list)
        for name, values in (pair for c in self._conditions for pair in c.ends.items()):
            ends[name] += values
        return ends

    @cached_property
    def _places(self) -> list[tuple[list[int], Tensor, int]]:
        """Encoded values to try, for each free parameter that a nonlinear constraint contains.

        Each entry is a triple: the indices of the parameter's encoded inputs; the encoded values to
        try; and a number ``count``. The first ``count`` values are the numbers in the constraints,
        or all values of a categorical parameter. The other values are the nearest neighbours of
        these numbers.
        """
        found = []
        for name, ends in self._ends.items():
            parameter = parameter_of(name, self.space)
            columns = self.space.feature_indices[name]
            if not parameter.is_numeric:
                unit = parameter.unit_grid()
            else:
                low, high = parameter.decode(np.array([[0.0], [1.0]]))[name]
                unit = parameter.place(DataFrame({name: np.clip(ends, low, high)}))
                step = 1 / parameter.size if parameter.size else MARGINS[-1]
                unit = np.concatenate([unit, unit - step, unit + step])
            if not self.fixed_columns.keys() & columns:
                places = torch.from_numpy(unit.clip(0.0, 1.0))
                found.append((columns, places, len(ends) or len(places)))
        return found

    def _with_conditions(self, X: Tensor, rng: np.random.Generator) -> Tensor:
        """Changes encoded rows in place until they satisfy the nonlinear constraints.

        Each attempt sets some parameters of the constraints to values that are drawn at random from
        :attr:`_places`. A change is kept if the row then satisfies more constraints. The first
        attempts allow only small changes, and later attempts allow larger changes.
        """
        for attempt in range(2 * MAX_MOVES):
            held = _num_held(self._conditions, self._rounded(X))
            bad = np.flatnonzero(held < len(self._conditions))
            if len(bad) == 0:
                break
            moved, most = X[bad], 1.5 * (attempt % MAX_MOVES + 1) / MAX_MOVES
            for columns, places, number in self._places:
                number = number if attempt < MAX_MOVES else len(places)
                near = places[rng.integers(number, size=len(bad))]
                moves = (near - moved[:, columns]).abs().amax(dim=-1, keepdim=True)
                moves *= torch.from_numpy(rng.uniform(0.5, 1.5, (len(bad), 1)))
                moved[:, columns] = near.where(moves <= most, moved[:, columns])
            moved = self._with_fixed(moved)
            better = _num_held(self._conditions, self._rounded(moved)) > held[bad]
            X[bad[better]] = moved[better]
        return X

    def _with_fixed(self, X: Tensor) -> Tensor:
        """Copies encoded rows, sets the fixed values, and rounds each row to a configuration."""
        X = X.clone()
        for column, value in self.fixed_columns.items():
            X[:, column] = value
        return self.space.round(X)

    def allows(self, X: Tensor) -> Tensor:
        """Returns a mask of the rows that have the fixed values and satisfy the constraints.

        Args:
            X: An ``n x d`` tensor of encoded configurations.

        Returns:
            An ``n`` boolean tensor.
        """
        allowed = torch.ones(len(X), dtype=torch.bool)
        if self.constraints:
            held = _num_held(self.constraints, self._rounded(X))
            allowed = torch.from_numpy(held == len(self.constraints))
        for name in self.fixed or {}:
            columns, parameter = self.space.feature_indices[name], parameter_of(name, self.space)
            wanted = X.new_tensor([self.fixed_columns[column] for column in columns])
            is_empty = torch.tensor(self.space.decode(X)[name].isna().to_numpy())
            is_idle = (X[:, columns] == torch.tensor(parameter.neutral)).all(dim=-1) & is_empty
            allowed &= is_idle | ((X[:, columns] - wanted).abs() < 1e-9).all(dim=-1)
        return allowed

    def _rounded(self, X: Tensor) -> DataFrame:
        """Decodes rows to a table of parameter values.

        If there are constraints, continuous values are rounded, so that sums of values are exact.
        """
        if not self.constraints:
            return self.space.decode(X)
        continuous: list[Any] = [p for p in self.space.parameters if p.size is None and not p.log]
        sizes = {p.name: max(abs(p.lower), abs(p.upper)) for p in continuous}
        digits = {name: DIGITS - math.ceil(math.log10(size)) for name, size in sizes.items()}
        return self.space.decode(X).round(digits)

    def nearest(self, X: Tensor, max_repaired: int | None = None) -> Tensor:
        """Moves points of the unit cube to nearby configurations that satisfy all constraints.

        Args:
            X: An ``n x d`` tensor.
            max_repaired: Maximum number of points that are moved because they violate linear
                constraints; ``None`` for no maximum.

        Returns:
            At most ``n`` encoded rows, in the order of the points. Points that cannot be moved are
            left out. If the region is a table of candidates, the returned rows may be
            configurations that are not in the table.
        """
        X = self._with_fixed(X)
        if self._conditions:
            X = self._with_conditions(X, np.random.default_rng(0))
        allowed = self.allows(X)
        if self.repair is None:
            return X[allowed]
        left = (~allowed).nonzero()[:max_repaired, 0]
        for margin in MARGINS:
            if len(left) == 0:
                break
            frame = self._rounded(X[left])
            at_end = np.stack([frame[c].isin(self._ends.get(c, ())) for c in self.repair.columns])
            frame[self.repair.columns] = self.repair.nearest(frame, at_end.T, margin)
            X[left] = self._with_fixed(self.space.encode(frame))
            left = left[~self.allows(X[left])]
        return X[self.allows(X)]

    def fixed_features(self, X: Tensor) -> list[dict[int, float]]:
        """Returns, for each row, the encoded inputs that a gradient-based search must not change.

        Args:
            X: An ``n x d`` tensor of rows of the region.

        Returns:
            For each row, a dictionary from indices of encoded inputs to values. It contains the
            fixed values and the values of categorical parameters. If a parameter is zero in the
            row, and a nonlinear constraint compares this parameter with zero, the dictionary also
            contains the parameter's value.
        """
        found = [self.fixed_columns | choice for choice in self.space.fixed_features(X)]
        for name in (name for name, ends in self._ends.items() if 0.0 in ends):
            (column,) = self.space.feature_indices[name]
            for row in np.flatnonzero(self._rounded(X)[name] == 0):
                found[row][column] = float(X[row, column])
        return found

    def grid(self) -> Tensor | None:
        """Returns all encoded rows of the region; ``None`` if the region is too large to list."""
        if self.table is not None:
            return self.candidates
        try:
            grid = self.space.encode(self.space.grid(MAX_GRID))
        except ValueError:  # continuous, or too many configurations
            return None
        return grid[self.allows(grid)]

    def sample(self, n: int, seed: int) -> Tensor:
        """Draws at most ``n`` random rows of the region.

        A drawn row that violates a constraint is moved, or left out if this is not possible.

        Args:
            n: The number of rows.
            seed: The random seed.

        Returns:
            The encoded rows.
        """
        if self.table is not None:
            order = np.random.default_rng(seed).permutation(len(self.candidates))
            return self.candidates[torch.from_numpy(order[:n])]
        X = self.space.encode(self.space.sample(n, seed))
        return self.nearest(X, MAX_REPAIRED) if self.fixed or self.constraints else X

    def decode(self, X: Tensor) -> DataFrame:
        """Decodes rows of the region.

        Args:
            X: An ``n x d`` tensor of rows of the region.

        Returns:
            A table with the columns of the parameters. If the region is a table of candidates, the
            other columns of this table follow.
        """
        if self.table is None:
            return self._rounded(X)
        places = (X.unsqueeze(-2) == self.candidates).all(dim=-1).to(torch.int).argmax(dim=-1)
        return self.table.iloc[places.numpy()][self.columns].copy()

    def with_room(self, shared: Sequence[str], n: int, free: Tensor | None) -> Region:
        """Returns a smaller region, in which any row can be the first row of a batch of ``n`` rows.

        All rows of the batch have the same values of the shared parameters. A row is left out if
        fewer than ``n`` rows share the row's values of these parameters.

        Args:
            shared: Parameters with the same value in all rows of a batch.
            n: The number of rows of the batch.
            free: An ``f x d`` tensor of the rows that may be suggested; ``None`` if the region is
                too large to list.

        Returns:
            A region with the remaining rows as candidates; the same region if ``free`` is ``None``.

        Raises:
            ValueError: If a name is not a parameter, or if no group of ``n`` rows has the same
                values of the shared parameters.
        """
        for name in shared:
            parameter_of(name, self.space, "same_in_batch")
        if free is None:
            return self
        rows = self.decode(free)
        sizes = rows.groupby(list(shared), dropna=False)[rows.columns[0]].transform("size")
        if not (sizes >= n).any():
            listed = ", ".join(map(repr, shared))
            text = f"Fewer than {n} untried rows have the same values of {listed}"
            raise ValueError(f"{text}: ask for fewer rows (n=), or omit same_in_batch=.")
        return replace(self, table=rows[sizes >= n])

    def sharing(self, shared: Sequence[str], x: Tensor) -> Region:
        """Returns a region in which shared parameters have fixed values.

        Args:
            shared: Parameters with the same value in all rows of a batch.
            x: A ``d`` tensor: an encoded row. Its values of the shared parameters become the fixed
                values of the region.
        """
        row = self.decode(x.unsqueeze(0)).iloc[0]
        conditions = {p.name: p.active_if or {} for p in self.space.parameters}
        # Parameters that activate a shared parameter are also fixed. The shared parameter is then
        # active in all rows, or in no row.
        names = [name for each in shared for name in (each, *conditions[each])]
        values = {name: row[name] for name in names if not isna(row[name])}
        return replace(self, fixed={**(self.fixed or {}), **values})

    def costs(self) -> Tensor:
        """Reads the costs of the candidates from the column ``cost``.

        Returns:
            A ``c`` tensor of the costs.

        Raises:
            InputDataError: If a cost is not positive.
            ValueError: If there is no table of candidates, or if the table lacks the column.
        """
        if self.table is None or self.cost not in self.table.columns:
            problem = f"cost= is {self.cost!r}, but candidates= has no such column"
            raise ValueError(f"{problem}: add the column.")
        costs = numbers(with_numbers(self.table, [self.cost]), self.cost)
        problem = "which is not a positive number: correct the cost"
        refuse_cell(~(np.isfinite(costs) & (costs > 0)), self.table[self.cost], problem)
        return torch.from_numpy(costs)


def _num_held(constraints: Sequence[Condition], frame: DataFrame) -> NDArray[np.intp]:
    """Counts the constraints that each of the ``n`` configurations of a table satisfies."""
    held = [constraint.holds(frame) for constraint in constraints]
    return np.sum([np.zeros(len(frame), dtype=np.intp), *held], axis=0)
