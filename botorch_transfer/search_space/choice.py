"""Parameters with a list of values: ordered (ordinal) and unordered (categorical)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, Series

from botorch_transfer.search_space.parameter import (
    ActiveIf,
    Array,
    Parameter,
    read_numbers,
    read_values,
    refuse_where,
    relative_tolerance,
)


class _ListedParameter(Parameter):
    """Base class of parameters with a list of values: checks the list, and looks values up."""

    values: Sequence[Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        name, values = self.name, self.values
        if isinstance(values, str):
            raise ValueError(
                f"Parameter {name!r} has the text {values!r} as its values: give a list of values."
            )
        if not (values := tuple(values)):
            raise ValueError(f"Parameter {name!r} has no values: give at least one.")
        repeated = [value for rank, value in enumerate(values) if value in values[:rank]]
        if repeated:
            raise ValueError(
                f"Parameter {name!r} repeats the value {repeated[0]!r}: list each value once."
            )
        object.__setattr__(self, "values", values)

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values)

    def contains(self, value: Hashable) -> bool:
        """Whether ``value`` is one of the values."""
        return value in self.values

    def _ranks(self, column: Series) -> NDArray[np.intp]:
        """The position in the list of each of ``n`` values."""
        column = read_values(self.name, column)
        rank_of = {value: rank for rank, value in enumerate(self.values)}
        ranks = np.array([rank_of.get(value, -1) for value in column], dtype=np.intp)
        self._refuse_unknown(ranks < 0, column)
        return ranks

    def _refuse_unknown(self, unknown: NDArray[np.bool_], column: Series) -> None:
        listed = ", ".join(map(repr, self.values[:12])) + (", ..." if self.size > 12 else "")
        problem = f"not one of {listed}: add it to the search space or drop these rows"
        refuse_where(unknown, self.name, column, problem)

    def _take(self, ranks: NDArray[np.intp]) -> DataFrame:
        """The values of these ranks, each of its own Python type."""
        lookup = np.empty(self.size, dtype=object)
        lookup[:] = self.values
        return DataFrame({self.name: Series(lookup[ranks], dtype=object)})


@dataclass(frozen=True)
class OrdinalParameter(_ListedParameter):
    """One of a list of ordered values, such as batch sizes, or ``("low", "medium", "high")``.

    Values are equally spaced from 0 to 1 by rank, whatever their size; with ``log=True`` they lie
    at their scaled logarithms. Decoding picks the value in whose cell a point lies. Equally spaced
    values have cells of equal size, the first and the last one included.

    Args:
        name: Column of the table that holds the parameter.
        values: All values in order; numbers must increase by more than rounding errors (1e-9).
        log: Whether to place the values, which must be positive numbers, by their logarithms.
        active_if: Mapping from the name of a parent parameter to the values for which this one is
            active.

    Raises:
        ValueError: If there are no values, repeated ones, decreasing numbers, or ``log=True`` with
            values that aren't positive numbers.

    Example:
        >>> OrdinalParameter("batch_size", (8, 16, 32, 64), log=True).size
        4
    """

    name: str
    values: Sequence[Any]
    log: bool = False
    active_if: ActiveIf | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._numeric and not (np.diff(self._numbers) > 1e-9 * np.abs(self._numbers[1:])).all():
            raise ValueError(
                f"Parameter {self.name!r} has the values {self.values}: list numbers in increasing "
                "order and further apart than rounding errors, or use CategoricalParameter if they "
                "have no order."
            )
        if self.log and not (self._numeric and self.values[0] > 0):
            raise ValueError(
                f"Parameter {self.name!r} has log=True and the values {self.values}: a "
                "logarithmic scale needs positive numbers."
            )

    def encode(self, frame: DataFrame) -> Array:
        """Places values in the unit interval; see ``Parameter.encode``."""
        return self._positions[self._ranks(frame[self.name])][:, None]

    def decode(self, unit: Array) -> DataFrame:
        """Looks up the values in whose cells the points lie; see ``Parameter.decode``."""
        ranks = np.searchsorted(self._edges, unit[:, 0], side="right")
        if self._numeric:
            return DataFrame({self.name: np.array(self.values)[ranks]})
        return self._take(ranks)

    def unit_grid(self) -> Array:
        """Encodings of all values, ``size x 1``."""
        return self._positions[:, None]

    @property
    def _numeric(self) -> bool:
        return all(isinstance(v, Real) and not isinstance(v, bool) for v in self.values)

    @property
    def _numbers(self) -> Array:
        return np.array(self.values, dtype=np.float64)

    @property
    def _positions(self) -> Array:
        if self.size == 1:
            return np.array([0.5])
        scale = np.log(self._numbers) if self.log else np.arange(self.size)
        return (scale - scale[0]) / (scale[-1] - scale[0])

    @property
    def _edges(self) -> Array:
        """Where the cell of one value ends and that of the next one begins; shape ``size - 1``.

        Edges lie halfway between the values, on a scale that goes on by half a gap at both ends.
        They are then scaled back to the unit interval, and kept between their two values where gaps
        are very unequal.
        """
        if self.size == 1:
            return np.empty(0)
        positions = self._positions
        gaps = np.diff(positions)
        before, after = gaps[0] / 2, gaps[-1] / 2
        edges = (positions[:-1] + gaps / 2 + before) / (1 + before + after)
        margin = gaps * 1e-3
        return edges.clip(positions[:-1] + margin, positions[1:] - margin)

    def _ranks(self, column: Series) -> NDArray[np.intp]:
        """The position of each of ``n`` values; forgives numbers their rounding errors."""
        if not self._numeric:
            return super()._ranks(column)
        numbers, values = read_numbers(self.name, column), self._numbers
        ranks = np.searchsorted((values[:-1] + values[1:]) / 2, numbers)
        # Errors are relative to the value, and to the smallest step where the value is near zero.
        size = np.maximum(np.abs(values), np.diff(values).min() if self.size > 1 else 0.0)
        wrong = np.abs(numbers - values[ranks]) > relative_tolerance(column) * size[ranks]
        self._refuse_unknown(wrong, column)
        return ranks


@dataclass(frozen=True)
class CategoricalParameter(_ListedParameter):
    """One of a list of values without an order; one column of the encoding for each (one-hot).

    Args:
        name: Column of the table that holds the parameter.
        values: All values: text, numbers, booleans. Text and numbers differ: "1" isn't 1.
        active_if: Mapping from the name of a parent parameter to the values for which this one is
            active.

    Raises:
        ValueError: If there are no values or repeated ones.

    Example:
        >>> CategoricalParameter("kernel", ("rbf", "poly")).feature_names
        ['kernel=rbf', 'kernel=poly']
    """

    name: str
    values: Sequence[Any]
    active_if: ActiveIf | None = field(default=None, hash=False)

    @property
    def feature_names(self) -> list[str]:
        """One name a value."""
        return [f"{self.name}={value}" for value in self.values]

    @property
    def neutral(self) -> Array:
        """Equal shares."""
        return np.full(self.size, 1 / self.size)

    def encode(self, frame: DataFrame) -> Array:
        """Writes values as one-hot rows; see ``Parameter.encode``."""
        return np.eye(self.size)[self._ranks(frame[self.name])]

    def decode(self, unit: Array) -> DataFrame:
        """Takes the value with the largest share; see ``Parameter.decode``."""
        return self._take(unit.argmax(axis=1))

    def unit_grid(self) -> Array:
        """Encodings of all values, ``size x size``."""
        return np.eye(self.size)
