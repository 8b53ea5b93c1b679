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
    normalize_active_if,
    read_numbers,
    read_values,
    refuse_where,
    relative_tolerance,
)


@dataclass(frozen=True)
class OrdinalParameter(Parameter):
    """One of a list of ordered values, such as batch sizes, or ``("low", "medium", "high")``.

    Values are equally spaced from 0 to 1 by rank, whatever their size; with ``log=True`` they lie
    at their scaled logarithms. Decoding picks the value in whose cell a point lies; cells are set
    such that equally spaced values have equal shares of the unit interval, the first and the last
    one included.

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
        object.__setattr__(self, "active_if", normalize_active_if(self.name, self.active_if))
        object.__setattr__(self, "values", _check_values(self.name, self.values))
        if self._numeric and not _increase(np.array(self.values, dtype=np.float64)):
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

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values)

    def encode(self, frame: DataFrame) -> Array:
        """Place values in the unit interval; see ``Parameter.encode``."""
        column = frame[self.name]
        ranks = (
            self._numeric_ranks(column) if self._numeric else _ranks(self.name, self.values, column)
        )
        return self._positions[ranks][:, None]

    def decode(self, unit: Array) -> DataFrame:
        """Look up the values in whose cells the points lie; see ``Parameter.decode``."""
        ranks = np.searchsorted(self._edges, unit[:, 0], side="right")
        return DataFrame({self.name: _take(self.values, ranks, as_numbers=self._numeric)})

    def unit_grid(self) -> Array:
        """Encodings of all values, ``size x 1``."""
        return self._positions[:, None]

    def contains(self, value: Hashable) -> bool:
        """Whether ``value`` is one of the values."""
        return value in self.values

    @property
    def _numeric(self) -> bool:
        return all(isinstance(v, Real) and not isinstance(v, bool) for v in self.values)

    @property
    def _positions(self) -> Array:
        if self.size == 1:
            return np.array([0.5])
        scale = (
            np.log(np.array(self.values, dtype=np.float64)) if self.log else np.arange(self.size)
        )
        return (scale - scale[0]) / (scale[-1] - scale[0])

    @property
    def _edges(self) -> Array:
        """Where the cell of one value ends and that of the next one begins; shape ``size - 1``.

        Halfway between the values on a scale that continues by half a gap at both ends, pressed
        back into the unit interval, and kept between the two values where gaps are very unequal.
        """
        if self.size == 1:
            return np.empty(0)
        positions = self._positions
        gaps = np.diff(positions)
        before, after = gaps[0] / 2, gaps[-1] / 2
        edges = (positions[:-1] + gaps / 2 + before) / (1 + before + after)
        margin = gaps * 1e-3
        return edges.clip(positions[:-1] + margin, positions[1:] - margin)

    def _numeric_ranks(self, column: Series) -> NDArray[np.intp]:
        numbers = read_numbers(self.name, column)
        values = np.array(self.values, dtype=np.float64)
        ranks = np.searchsorted((values[:-1] + values[1:]) / 2, numbers)
        # A value of zero has no size of its own: the smallest step between values stands in.
        size = np.maximum(np.abs(values), np.diff(values).min() if self.size > 1 else 0.0)
        wrong = np.abs(numbers - values[ranks]) > relative_tolerance(column) * size[ranks]
        refuse_where(wrong, self.name, column, _not_among(self.values))
        return ranks


@dataclass(frozen=True)
class CategoricalParameter(Parameter):
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "active_if", normalize_active_if(self.name, self.active_if))
        object.__setattr__(self, "values", _check_values(self.name, self.values))

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values)

    @property
    def feature_names(self) -> list[str]:
        """One name a value."""
        return [f"{self.name}={value}" for value in self.values]

    @property
    def neutral(self) -> Array:
        """Equal shares."""
        return np.full(self.size, 1 / self.size)

    def encode(self, frame: DataFrame) -> Array:
        """Write values as one-hot rows; see ``Parameter.encode``."""
        return np.eye(self.size)[_ranks(self.name, self.values, frame[self.name])]

    def decode(self, unit: Array) -> DataFrame:
        """Take the value with the largest share; see ``Parameter.decode``."""
        return DataFrame({self.name: _take(self.values, unit.argmax(axis=1), as_numbers=False)})

    def unit_grid(self) -> Array:
        """Encodings of all values, ``size x size``."""
        return np.eye(self.size)

    def contains(self, value: Hashable) -> bool:
        """Whether ``value`` is one of the values."""
        return value in self.values


def _increase(values: Array) -> bool:
    return bool(np.all(np.diff(values) > 1e-9 * np.abs(values[1:])))


def _check_values(name: str, values: Sequence[Any]) -> tuple[Any, ...]:
    if isinstance(values, str):
        raise ValueError(
            f"Parameter {name!r} has the text {values!r} as its values: give a list of values."
        )
    values = tuple(values)
    if not values:
        raise ValueError(f"Parameter {name!r} has no values: give at least one.")
    repeated = [value for rank, value in enumerate(values) if value in values[:rank]]
    if repeated:
        raise ValueError(
            f"Parameter {name!r} repeats the value {repeated[0]!r}: list each value once."
        )
    return values


def _ranks(name: str, values: Sequence[Any], column: Series) -> NDArray[np.intp]:
    column = read_values(name, column)
    rank_of = {value: rank for rank, value in enumerate(values)}
    ranks = np.array([rank_of.get(value, -1) for value in column], dtype=np.intp)
    refuse_where(ranks < 0, name, column, _not_among(values))
    return ranks


def _take(values: Sequence[Any], ranks: NDArray[np.intp], as_numbers: bool) -> Series:
    """Look values up, keeping Python's own types unless all are numbers."""
    if as_numbers:
        return Series(np.array(values)[ranks])
    lookup = np.empty(len(values), dtype=object)
    lookup[:] = values
    return Series(lookup[ranks], dtype=object)


def _not_among(values: Sequence[Any]) -> str:
    shown = ", ".join(repr(value) for value in values[:12]) + (", ..." if len(values) > 12 else "")
    return f"not one of {shown}: add it to the search space or drop these rows"
