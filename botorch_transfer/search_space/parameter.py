"""The base class of parameters, and how parameters read the columns of a table.

Read this to add a kind of parameter: ``numeric``, ``choice`` and ``simplex`` have those that exist.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import CategoricalDtype, DataFrame, Series, to_numeric

Array = NDArray[np.float64]
ActiveIf = Mapping[str, Any]


class Parameter(ABC):
    """One parameter: some columns of a table of runs, and their place in the unit cube.

    A parameter knows nothing about the others. The search space decides in which rows it is active,
    and hands over active rows only.
    """

    name: str
    active_if: ActiveIf | None

    def __post_init__(self) -> None:
        """Writes the condition with tuples of values; one bare value becomes a tuple of one."""
        if self.active_if is None:
            return
        condition = {
            parent: tuple(values)
            if isinstance(values, Iterable) and not isinstance(values, str)
            else (values,)
            for parent, values in self.active_if.items()
        }
        if not condition or not all(condition.values()):
            raise ValueError(
                f"Parameter {self.name!r} has an empty active_if: name a parent parameter and at "
                "least one of its values, or leave active_if out."
            )
        object.__setattr__(self, "active_if", condition)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the table that hold this parameter."""
        return (self.name,)

    @property
    def feature_names(self) -> list[str]:
        """Names of the columns of the encoding."""
        return [self.name]

    @property
    def neutral(self) -> Array:
        """Encoding of a row in which the parameter is inactive; shape ``w``."""
        return np.array([0.5])

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of different values; ``None`` for a continuous parameter."""

    @abstractmethod
    def encode(self, frame: DataFrame) -> Array:
        """Places the values in ``frame`` in the unit cube.

        Args:
            frame: ``n`` rows with at least the columns of this parameter, none of them missing.

        Returns:
            An ``n x w`` array in the unit cube, ``w`` the number of feature names.
        """

    @abstractmethod
    def decode(self, unit: Array) -> DataFrame:
        """Finds the values nearest to points of the unit cube.

        Args:
            unit: An ``n x w`` array in the unit cube.

        Returns:
            A table with ``n`` rows and the columns of this parameter.
        """

    def unit_grid(self) -> Array:
        """Encodings of all values, ``size x w``; only for finite parameters.

        Raises:
            NotImplementedError: If the parameter is continuous.
        """
        raise NotImplementedError

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draws points whose decoded values are uniform on the parameter's scale.

        Args:
            n: How many.
            rng: NumPy's generator of random numbers.

        Returns:
            An ``n x w`` array in the unit cube.
        """
        return rng.random((n, len(self.feature_names)))

    def contains(self, value: Hashable) -> bool:
        """Tells whether a value is one of this parameter's; never true for a continuous one.

        Args:
            value: A value in the ``active_if`` of another parameter.
        """
        return False


def read_values(name: str, column: Series) -> Series:
    """Reads a column as plain objects or numbers; refuses missing values."""
    missing = column.isna().to_numpy()
    if missing.any():
        row, count = _first(column, missing)
        raise InputDataError(
            f"Parameter {name!r} has no value in row {row}{count}, where it is active: fill it "
            "in, drop these rows, or describe when the parameter is inactive by active_if."
        )
    return column.astype(object) if isinstance(column.dtype, CategoricalDtype) else column


def read_numbers(name: str, column: Series) -> Array:
    """Reads a column as an array of ``n`` float64; refuses missing values and text."""
    column = read_values(name, column)
    numbers = to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    refuse_where(np.isnan(numbers), name, column, "not a number: convert the column")
    return numbers


def relative_tolerance(column: Series) -> float:
    """The largest relative error of a value that counts as a rounding error."""
    return 1e-6 if str(column.dtype).lower() == "float32" else 1e-9


def refuse_where(bad: NDArray[np.bool_], name: str, column: Series, problem: str) -> None:
    """Raises an ``InputDataError`` about the first row where ``bad`` is true, if there is one."""
    if not bad.any():
        return
    row, count = _first(column, bad)
    value = column.iloc[int(np.argmax(bad))]
    value = value.item() if isinstance(value, np.generic) else value
    raise InputDataError(f"Parameter {name!r} is {value!r} in row {row}{count}, {problem}.")


def _first(column: Series, bad: NDArray[np.bool_]) -> tuple[Any, str]:
    others = int(bad.sum()) - 1
    count = (
        f" (and {others:,} more rows)" if others > 1 else " (and one more row)" if others else ""
    )
    return column.index[int(np.argmax(bad))], count
