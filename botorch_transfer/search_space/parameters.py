"""The parameters of a search space: floats, integers, ordinals and categoricals.

Read this for how a parameter reads its column of a table and where it places them in the unit
cube, or to add a kind of parameter: :class:`Parameter` is their interface.
"""

from __future__ import annotations

import math
import operator
import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar, Literal, cast

import numpy as np
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import CategoricalDtype, DataFrame, Series, to_numeric

from botorch_transfer.search_space.cells import stripped

Array = NDArray[np.float64]
ActiveIf = Mapping[str, Any]


class Parameter(ABC):
    """One parameter: a column of a table of runs, and its place in the unit cube.

    A parameter knows nothing about the others. The search space decides in which rows it is active,
    and hands over active rows only.
    """

    name: str
    active_if: ActiveIf | None
    log: bool | Literal["1-x"] = False

    def __post_init__(self) -> None:
        """Refuses impossible arguments, and writes the condition with tuples of values."""
        for problem in self._problems():
            raise ValueError(f"Parameter {self.name!r} {problem}.")
        if self.active_if is not None:
            self._set(active_if={k: _as_tuple(v) for k, v in self.active_if.items()})

    def _problems(self) -> Iterator[str]:
        """Problems of the arguments; the first one is raised."""
        given = {} if self.active_if is None else self.active_if
        is_empty = self.active_if is not None and not given
        if is_empty or not isinstance(given, Mapping) or not all(map(_as_tuple, given.values())):
            yield (
                f"has the active_if {given!r}: give a dictionary of parent parameters with at "
                "least one value each, {'parent': [values]}, or leave active_if out"
            )

    def _set(self, **fields: Any) -> None:
        """Replaces fields of a new object by their normal form."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def is_numeric(self) -> bool:
        """Whether the column holds numbers."""
        return True

    @property
    def may_be_empty(self) -> bool:
        """Whether an empty cell is a value, too."""
        return False

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
            frame: ``n`` rows with at least the column of this parameter, none of its cells missing.

        Returns:
            An ``n x w`` array in the unit cube, ``w`` the number of feature names.
        """

    def place(self, frame: DataFrame) -> Array:
        """Places values of an earlier search space, which may have had other bounds or choices.

        Args:
            frame: As in ``encode``.

        Returns:
            An ``n x w`` array: as ``encode``, but numbers outside of the range keep their place
            outside of the unit interval, numbers between the values keep their place between
            them, and values that have no place are NaN.
        """
        return self.encode(frame)

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
        """Returns whether a value is one of this parameter's; never true for a continuous one.

        Args:
            value: A value in the ``active_if`` of another parameter.
        """
        return False


def _as_tuple(values: Any) -> tuple[Any, ...]:
    """Returns several values, or one."""
    is_one = isinstance(values, str) or not isinstance(values, Iterable)
    return (values,) if is_one else tuple(values)


def read_values(column: Series) -> Series:
    """Reads a column as plain objects or numbers; refuses missing values."""
    problem = (
        "which needs one there: fill it in or drop the row; a parameter that some runs do without "
        "has an active_if"
    )
    refuse_where(column.isna().to_numpy(), column, problem)
    return column.astype(object) if isinstance(column.dtype, CategoricalDtype) else column


def read_numbers(column: Series) -> Array:
    """Reads a column as an array of ``n`` float64; refuses missing values and text."""
    column = read_values(column)
    numbers = to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    refuse_where(np.isnan(numbers), column, "not a number: correct the cell, or empty it")
    return numbers


def relative_tolerance(column: Series) -> float:
    """Returns the largest relative error of a value that counts as a rounding error."""
    return 1e-6 if str(column.dtype).lower() == "float32" else 1e-9


def is_none(value: Any) -> bool:
    """Returns whether a value is the word "none", which is what an empty cell of a choice means."""
    return isinstance(value, str) and value.casefold() == "none"


def has_decimal_comma(column: Series) -> NDArray[np.bool_]:
    """Finds text such as ``"9,5"`` in a column of ``n`` values; an ``n`` array."""
    values = column.tolist()
    found = [isinstance(v, str) and re.fullmatch(r"\s*[-+]?\d+,\d+\s*", v) for v in values]
    return np.array(found, dtype=np.bool_)


def refuse_where(bad: NDArray[np.bool_], column: Series, problem: str) -> None:
    """Raises an ``InputDataError`` about the first row where ``bad`` is true, if there is one."""
    if not bad.any():
        return
    first, others = int(np.argmax(bad)), int(bad.sum()) - 1
    is_empty = column.isna().iloc[first]
    found = "has no value" if is_empty else f"is {plain(column.iloc[first])!r}"
    rows = {0: "", 1: " (and one more row)"}.get(others, f" (and {others:,} more rows)")
    where = f"in row {column.index[first]}{rows}"
    raise InputDataError(f"Parameter {column.name!r} {found} {where}, {problem}.")


def plain(value: Any) -> Any:
    """Returns a value of Python's own type in place of NumPy's."""
    return value.item() if isinstance(value, np.generic) else value


def _ratio(part: Array, whole: Array) -> Array:
    """Returns the part of a whole; a half in a range of one value, which has no width."""
    return np.divide(part, whole, out=np.full_like(part, 0.5), where=whole > 0)


class _RangeParameter(Parameter):
    """Base class of parameters with a range: checks the range, and reads columns within it."""

    lower: float
    upper: float
    _margin: ClassVar[float] = 0.0

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        lower, upper = self.lower, self.upper
        are_numbers = isinstance(lower, Real) and isinstance(upper, Real)
        if not (are_numbers and -math.inf < lower <= upper < math.inf):
            yield (
                f"has the lower bound {lower!r} and the upper bound {upper!r}: give finite "
                "numbers, the lower one below the upper one or equal to it"
            )
        if self.log is True and lower <= 0:
            yield f"has log=True and the lower bound {lower}: a logarithm needs a positive one"

    def encode(self, frame: DataFrame) -> Array:
        """Scales values to the unit interval; see ``Parameter.encode``."""
        unit, column = self.place(frame), frame[self.name]
        problem = (
            f"outside of its range [{self.lower}, {self.upper}]: check its unit, widen its range "
            "in the search space, or drop these rows"
        )
        refuse_where(~((unit[:, 0] >= 0) & (unit[:, 0] <= 1)), column, problem)
        return unit

    def place(self, frame: DataFrame) -> Array:
        """Goes on beyond the range on the parameter's scale; see ``Parameter.place``.

        Rounding errors at the bounds are no change of the range. They are relative to the larger
        bound (-1e-17 is a rounded 0), or to each bound by itself, as bounds of a logarithmic scale
        may be many orders of magnitude apart.
        """
        numbers, bounds = read_numbers(frame[self.name]), np.array([self.lower, self.upper], float)
        inside = numbers.clip(*bounds)
        sizes = np.abs(inside) if self.log is True else np.abs(bounds).max()
        is_near = np.abs(numbers - inside) <= relative_tolerance(frame[self.name]) * sizes
        with np.errstate(invalid="ignore", divide="ignore"):  # where the scale does not reach
            beyond = self._scale(numbers) - self._scale(inside)
            beyond /= np.diff(self._scale(bounds))
        unit = self._inside(inside) + np.where(is_near, 0.0, beyond)
        return np.where(np.isfinite(unit), unit, np.nan)[:, None]

    def _scale(self, values: Array) -> Array:
        if self.log == "1-x":
            return -np.log1p(-values)
        return np.log(values) if self.log else values

    def _unscale(self, unit: Array) -> Array:
        """Brings points of the unit interval back to the parameter's range."""
        start, end = self._ends
        scaled = start + unit * (end - start)
        if self.log == "1-x":
            return -np.expm1(-scaled)
        return np.exp(scaled) if self.log else scaled

    def _inside(self, values: Array) -> Array:
        """Scales values of the range to the unit interval."""
        start, end = self._ends
        return _ratio(self._scale(values) - start, end - start).clip(0.0, 1.0)

    def unit_grid(self) -> Array:
        """Encodings of all values, which are equally far apart in a table, ``size x 1``."""
        if self.size is None:
            return super().unit_grid()
        return self._inside(np.linspace(self.lower, self.upper, self.size))[:, None]

    @property
    def _ends(self) -> Array:
        """Ends of the unit interval on the parameter's scale."""
        return self._scale(np.array([self.lower - self._margin, self.upper + self._margin]))


@dataclass(frozen=True)
class FloatParameter(_RangeParameter):
    """A real number in a range; use ``log=True`` where the order of magnitude matters.

    Args:
        name: Column of the table that holds the parameter.
        lower: Smallest value.
        upper: Largest value.
        log: ``True`` for a logarithmic scale. ``"1-x"`` for a logarithmic scale of ``1 - x``, which
            suits momentum-like parameters: 0.9, 0.99 and 0.999 are equally far apart.
        active_if: Mapping from the name of a parent parameter, defined earlier in the space, to the
            values of the parent for which this parameter is active; several parents must all agree.
        step: Suggested values are multiples of it, and the range begins and ends with one. Other
            values in a table keep their place.

    Raises:
        ValueError: If the range is empty or not finite, or is not positive on a logarithmic scale,
            or has no multiple of the step.

    Example:
        >>> FloatParameter("learning_rate", 1e-5, 1e-1, log=True).name
        'learning_rate'
        >>> import numpy as np
        >>> FloatParameter("volume", 0.05, 0.95, step=0.1).decode(np.array([[0.26]]))
           volume
        0     0.3
    """

    name: str
    lower: float
    upper: float
    log: bool | Literal["1-x"] = False
    active_if: ActiveIf | None = field(default=None, hash=False)
    step: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step is not None:
            lower, upper = _multiples(np.array(self._steps), self.step).tolist()
            self._set(lower=lower, upper=upper)

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        step, log = self.step, self.log
        if step is not None and not (isinstance(step, Real) and 0 < step < math.inf):
            yield f"has the step {step!r}: give one above 0"
        if step is not None and operator.gt(*self._steps):
            yield (
                f"has no multiple of its step {step} in its range [{self.lower}, {self.upper}]: "
                "widen the range, or give a smaller step"
            )
        if log not in (True, False, "1-x"):
            yield f"has log={log!r}: use True, False or '1-x'"
        if log == "1-x" and self.upper >= 1:
            yield (
                f"has log='1-x' and the upper bound {self.upper}: the logarithm of 1 - x needs one "
                "below 1"
            )

    @property
    def _steps(self) -> tuple[int, int]:
        """The first and the last multiple of the step in the range."""
        step = cast(float, self.step)
        return math.ceil(self.lower / step - 1e-9), math.floor(self.upper / step + 1e-9)

    @property
    def size(self) -> int | None:
        """``None``: continuous, unless there is a step, or the range has one value."""
        if self.step is not None:
            return round((self.upper - self.lower) / self.step) + 1
        return 1 if self.lower == self.upper else None

    def decode(self, unit: Array) -> DataFrame:
        """Scales back to the parameter's range; see ``Parameter.decode``."""
        values = self._unscale(unit[:, 0])
        if self.step is not None:
            values = _multiples(np.rint(values / self.step), self.step)
        return DataFrame({self.name: values.clip(self.lower, self.upper)})


def _multiples(numbers: Array, step: float) -> Array:
    """Multiples of a step, with as many decimals as it has: 3 times 0.1 is 0.3."""
    exponent = Decimal(str(step)).as_tuple().exponent
    return np.round(numbers * step, max(0, -int(exponent)))


@dataclass(frozen=True)
class IntegerParameter(_RangeParameter):
    r"""A whole number in a range.

    Every integer ``k`` owns a cell ``[b_k, b_{k+1})`` of the unit interval. Cells have equal widths
    or, with ``log=True``, the widths of ``[k - 1/2, k + 1/2)`` on the logarithmic scale. Decoding
    looks up the cell, so uniform points give every integer its share, the end values included.
    Encoding places ``k`` inside its own cell at

        u_k = b_k / (b_k + 1 - b_{k+1}),

    the fraction of the remaining cells below it. The end values are then exactly 0 and 1, as
    BoTorch's mixed optimizer requires, and equal cells give ``(k - lower) / (upper - lower)``.

    Args:
        name: Column of the table that holds the parameter.
        lower: Smallest value.
        upper: Largest value.
        log: Whether the scale is logarithmic.
        active_if: Mapping from the name of a parent parameter to the values for which this one is
            active.

    Raises:
        ValueError: If the bounds are not integers, the range is empty, or not positive with
            ``log=True``, or ``log`` is neither true nor false.

    Example:
        >>> IntegerParameter("max_depth", 1, 12).size
        12
    """

    name: str
    lower: int
    upper: int
    log: bool = False
    active_if: ActiveIf | None = field(default=None, hash=False)
    _margin = 0.5

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.lower != int(self.lower) or self.upper != int(self.upper):
            yield (
                f"has the bounds {self.lower} and {self.upper}: an integer parameter needs whole "
                "numbers; use FloatParameter otherwise"
            )
        if self.log not in (True, False):
            yield f"has log={self.log!r}: an integer parameter has True or False"

    @property
    def size(self) -> int:
        """Number of integers in the range."""
        return int(self.upper) - int(self.lower) + 1

    def encode(self, frame: DataFrame) -> Array:
        """Places integers in the unit interval; see ``Parameter.encode``."""
        super().encode(frame)
        column = frame[self.name]
        numbers = read_numbers(column).clip(self.lower, self.upper)
        integers = np.rint(numbers)
        error = np.abs(numbers - integers) / np.maximum(1.0, np.abs(numbers))
        problem = "not an integer: round it or use FloatParameter"
        refuse_where(error > relative_tolerance(column), column, problem)
        return self._inside(integers)[:, None]

    def decode(self, unit: Array) -> DataFrame:
        """Looks up the integers in whose cells the points lie; see ``Parameter.decode``."""
        u = unit[:, 0]
        integers = np.rint(self._unscale(u)).clip(self.lower, self.upper)
        # An integer may lie within a rounding error of its cell's edge: take it if it is that near.
        nearby = np.stack([integers - 1, integers, integers + 1]).clip(self.lower, self.upper)
        distances = np.abs(self._inside(nearby) - u)
        nearest = np.take_along_axis(nearby, distances.argmin(axis=0)[None], axis=0)[0]
        snapped = np.where(distances.min(axis=0) <= 1e-7, nearest, integers)
        return DataFrame({self.name: snapped.astype(np.int64)})

    def contains(self, value: Hashable) -> bool:
        """Returns whether ``value`` is an integer of the range."""
        if not isinstance(value, Real):  # NumPy's numbers are real, too
            return False
        return bool(self.lower <= value <= self.upper and value == int(value))

    def _inside(self, integers: Array) -> Array:
        start, end = self._ends
        below = self._scale(integers - 0.5) - start
        above = end - self._scale(integers + 0.5)
        return _ratio(below, below + above)


class _ListedParameter(Parameter):
    """Base class of parameters with a list of values: checks the list, and looks values up."""

    values: Sequence[Any]

    def __post_init__(self) -> None:
        if isinstance(self.values, Iterable) and not isinstance(self.values, str):
            self._set(values=tuple(self.values))
        super().__post_init__()

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        values = self.values
        if not isinstance(values, tuple):
            yield f"has {values!r} as its values: give a list of them"
        if not values:
            yield "has no values: give at least one"
        for rank, value in enumerate(values):
            if value in values[:rank]:
                yield f"repeats the value {value!r}: list it once"

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values)

    def contains(self, value: Hashable) -> bool:
        """Returns whether ``value`` is one of the values."""
        return value in self.values

    def encode(self, frame: DataFrame) -> Array:
        """Looks values up in the list; see ``Parameter.encode``."""
        ranks, column = self._ranks(frame[self.name]), frame[self.name]
        listed = ", ".join(map(repr, self.values[:12])) + (", ..." if self.size > 12 else "")
        problem = f"not one of {listed}: add it to the search space or drop these rows"
        refuse_where(ranks < 0, column, problem)
        return self.unit_grid()[ranks]

    def place(self, frame: DataFrame) -> Array:
        """Leaves values that are not in the list without a place; see ``Parameter.place``."""
        ranks = self._ranks(frame[self.name])
        return np.where(ranks[:, None] < 0, np.nan, self.unit_grid()[ranks])

    def _ranks(self, column: Series) -> NDArray[np.intp]:
        """Returns the position in the list of each of ``n`` values; -1 for others."""
        rank_of = {value: rank for rank, value in enumerate(self.values)}
        return self._look_up(column, rank_of, -1).astype(np.intp)

    def _look_up(self, column: Series, places: Mapping[Any, Any], nowhere: Any) -> NDArray[Any]:
        """Looks up each of ``n`` cells; blanks around a cell count only where places have them."""
        cells = self._cells(column)
        return np.array([places.get(c, places.get(stripped(c), nowhere)) for c in cells])

    def _cells(self, column: Series) -> Series:
        """Returns the cells as values, as far as they are; refuses empty ones."""
        return read_values(column)

    def _take(self, ranks: NDArray[np.intp]) -> DataFrame:
        """Returns the values of these ranks, each of its own Python type."""
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

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        numbers = self._numbers if self.is_numeric else np.empty(0)
        if not (np.diff(numbers) > 1e-9 * np.abs(numbers[1:])).all():
            yield (
                f"has the values {self.values}: list numbers in increasing order and further apart "
                "than rounding errors, or use CategoricalParameter if they have no order"
            )
        if self.log and not (self.is_numeric and numbers[0] > 0):
            yield (
                f"has log=True and the values {self.values}: a logarithmic scale needs positive "
                "numbers"
            )

    def decode(self, unit: Array) -> DataFrame:
        """Looks up the values in whose cells the points lie; see ``Parameter.decode``."""
        ranks = np.searchsorted(self._edges, unit[:, 0], side="right")
        if self.is_numeric:
            return DataFrame({self.name: np.array(self.values)[ranks]})
        return self._take(ranks)

    def place(self, frame: DataFrame) -> Array:
        """Interpolates or extrapolates other numbers linearly; see ``Parameter.place``."""
        placed = super().place(frame)
        if not self.is_numeric or self.size == 1:
            return placed
        numbers, values, positions = read_numbers(frame[self.name]), self._numbers, self._positions
        if self.log:
            with np.errstate(invalid="ignore", divide="ignore"):  # where the scale does not reach
                numbers, values = np.log(numbers), np.log(values)
        gap = np.searchsorted(values[1:-1], numbers)
        slopes = np.diff(positions) / np.diff(values)
        other = (positions[gap] + slopes[gap] * (numbers - values[gap]))[:, None]
        return np.where(np.isnan(placed) & np.isfinite(other), other, placed)

    def unit_grid(self) -> Array:
        """Encodings of all values, ``size x 1``."""
        return self._positions[:, None]

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
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
        """Borders between the cells of successive values; shape ``size - 1``.

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
        """The position of each of ``n`` values, or -1; forgives numbers their rounding errors."""
        if not self.is_numeric:
            return super()._ranks(column)
        numbers, values = read_numbers(column), self._numbers
        ranks = np.searchsorted((values[:-1] + values[1:]) / 2, numbers)
        # Errors are relative to the value, and to the smallest step where the value is near zero.
        size = np.maximum(np.abs(values), np.diff(values).min() if self.size > 1 else 0.0)
        wrong = np.abs(numbers - values[ranks]) > relative_tolerance(column) * size[ranks]
        return np.where(wrong, -1, ranks)


@dataclass(frozen=True)
class CategoricalParameter(_ListedParameter):
    """One of a list of values without an order; one column of the encoding for each (one-hot).

    If one of the values is ``"none"``, in upper or lower case, empty cells have that value.

    With ``descriptors``, numbers that describe the values, these are the encoding instead, each
    scaled to the unit interval. Values with similar numbers are then near to one another, and a
    value that no run has is no stranger.

    Args:
        name: Column of the table that holds the parameter.
        values: All values: text, numbers, booleans. Text and numbers differ: "1" isn't 1. With
            descriptors it may be left out: the descriptors' features.
        active_if: Mapping from the name of a parent parameter to the values for which this one is
            active.
        descriptors: A table of numbers indexed by the values, or with a column of them that is
            named like the parameter. Old runs may have values of it that are no longer choices.

    Raises:
        ValueError: If there are no values or repeated ones; or if a value has no descriptors, has
            the same as another one, or one that is no finite number.

    Example:
        >>> CategoricalParameter("kernel", ("rbf", "poly")).feature_names
        ['kernel=rbf', 'kernel=poly']
        >>> polarity = {"solvent": ["water", "THF", "DMF"], "polarity": [1.0, 0.21, 0.39]}
        >>> solvent = CategoricalParameter("solvent", ("water", "DMF"), descriptors=polarity)
        >>> solvent.feature_names
        ['solvent: polarity']
    """

    name: str
    values: Sequence[Any] = ()
    active_if: ActiveIf | None = field(default=None, hash=False)
    descriptors: DataFrame | Mapping[str, Sequence[Any]] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if self.descriptors is not None:
            table = DataFrame(self.descriptors)
            table = table.set_index(self.name) if self.name in table else table
            values = self.values if len(self.values) else table.index.tolist()
            described = _read_descriptors(self.name, table, values)
            self._set(values=values, descriptors=described)
        super().__post_init__()

    @property
    def feature_names(self) -> list[str]:
        """One name a value, or a descriptor."""
        if self.descriptors is None:
            return [f"{self.name}={value}" for value in self.values]
        return [f"{self.name}: {column}" for column in list(self.descriptors)[1:]]

    @property
    def neutral(self) -> Array:
        """The mean of all places: equal shares."""
        return np.asarray(self.unit_grid().mean(axis=0))

    @property
    def is_numeric(self) -> bool:
        """False: numbers in the list are names."""
        return False

    @property
    def may_be_empty(self) -> bool:
        """Whether one of the values is ``"none"``."""
        return any(is_none(value) for value in self.values)

    def place(self, frame: DataFrame) -> Array:
        """Values that are no choices have a place if they have descriptors."""
        nowhere = np.full(len(self.feature_names), np.nan)
        return self._look_up(frame[self.name], self._points, nowhere).reshape(-1, len(nowhere))

    def decode(self, unit: Array) -> DataFrame:
        """Takes the nearest value: that with the largest share; see ``Parameter.decode``."""
        grid = self.unit_grid()
        return self._take((unit @ grid.T - np.square(grid).sum(axis=1) / 2).argmax(axis=1))

    def unit_grid(self) -> Array:
        """Encodings of all values, ``size x w``."""
        return np.array([self._points[value] for value in self.values])

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draws ``n`` of the values, each as often; see ``Parameter.sample``."""
        return self.unit_grid()[rng.random((n, self.size)).argmax(axis=1)]

    @cached_property
    def _points(self) -> dict[Any, Array]:
        """The places of the values, and of others that have descriptors."""
        if self.descriptors is None:
            return dict(zip(self.values, np.eye(self.size), strict=True))
        levels, *columns = {**self.descriptors}.values()
        numbers = np.array(columns, dtype=np.float64)
        above = numbers - numbers.min(axis=1, keepdims=True)
        points = _ratio(above, above.max(axis=1, keepdims=True)).T
        return dict(zip(levels, points, strict=True))

    def _cells(self, column: Series) -> Series:
        """The cells, with ``"none"`` or a value that is never in the list for empty ones."""
        no_value = next((value for value in self.values if is_none(value)), object())
        return column.astype(object).where(column.notna(), no_value)


def _read_descriptors(
    name: str, table: DataFrame, values: Sequence[Any]
) -> dict[str, tuple[Any, ...]]:
    """The columns of a table whose index has the values, these first; refuses wrong numbers."""
    numbers = table.apply(to_numeric, errors="coerce").astype(np.float64)
    missing = [value for value in values if value not in table.index]
    wrong = table.index[~np.isfinite(numbers.to_numpy()).all(axis=1)]
    own = numbers[table.index.isin(values)]
    for bad, problem in (
        (table.index[table.index.duplicated()], "two rows of descriptors"),
        ([*missing, *wrong], "a descriptor that is no finite number, or none"),
        (own.index[own.duplicated()], "the same descriptors as another value"),
    ):
        if len(bad):
            raise ValueError(f"Parameter {name!r}: the value {bad[0]!r} has {problem}.")
    columns = {str(column): tuple(numbers[column].tolist()) for column in numbers}
    return {name: tuple(table.index.tolist()), **columns}
