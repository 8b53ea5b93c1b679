"""The parameters of a search space: floats, integers, ordinals and categoricals.

Read this to see how a parameter encodes a column of a table in the unit cube. Read it also to add a
kind of parameter: a subclass of :class:`Parameter`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property, partial
from numbers import Real
from typing import Any, ClassVar, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pandas import NA, DataFrame, Series, to_numeric

from botorch_transfer.search_space.cells import NUMBER, hint, parameter_codes, refuse_cell, stripped

Array = NDArray[np.float64]
ActiveIf = Mapping[str, Any]

#: Largest magnitude of a whole number. Larger whole numbers are not exact in double precision.
MAX_NUMBER = 2**53


class Parameter(ABC):
    """Base class of parameters. A parameter maps one column of a table to points of the unit cube.

    To add a kind of parameter, write a subclass. Methods ignore ``active_if``: the search space
    passes only rows in which the parameter is active.
    """

    name: str
    active_if: ActiveIf | None
    log: bool | Literal["1-x"] = False

    def __post_init__(self) -> None:
        """Raises an error for invalid arguments; converts the values of ``active_if`` to tuples."""
        for problem in self._problems():
            raise ValueError(f"Parameter {self.name!r} {problem}.")
        if self.active_if is not None:
            self._set(active_if={k: _as_tuple(v) for k, v in self.active_if.items()})

    def _problems(self) -> Iterator[str]:
        """Yields a message for each invalid argument; the constructor raises the first message."""
        if not isinstance(self.name, str):
            yield f"has a name that is not text: write {str(self.name)!r}"
        given = self.active_if
        is_full = isinstance(given, Mapping) and given and all(map(_as_tuple, given.values()))
        if given is not None and not is_full:
            yield f"has the active_if {given!r}: give a dictionary from parents to lists of values"

    def _set(self, **fields: Any) -> None:
        """Sets fields of this frozen dataclass; only for the constructor."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def is_numeric(self) -> bool:
        """Whether the parameter's column holds numbers."""
        return True

    @property
    def may_be_empty(self) -> bool:
        """Whether an empty cell is a valid value of the parameter."""
        return False

    @property
    def feature_names(self) -> list[str]:
        """Names of the ``w`` columns of the parameter's encoding."""
        return [self.name]

    @property
    def neutral(self) -> Array:
        """Encoding of an inactive parameter: an array with one number for each feature name."""
        return np.array([0.5])

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of different values of the parameter; ``None`` if it is continuous."""

    @abstractmethod
    def encode(self, frame: DataFrame) -> Array:
        """Maps the parameter's values in a table to points of the unit cube.

        Args:
            frame: A table with ``n`` rows and the column of this parameter, which has no empty
                cells.

        Returns:
            An ``n x w`` array in the unit cube, where ``w`` is the number of feature names.
        """

    def place(self, frame: DataFrame) -> Array:
        """Encodes values from an earlier search space, which may have had other bounds or choices.

        Args:
            frame: As in ``encode``.

        Returns:
            An ``n x w`` array. It differs from the result of ``encode`` only if values are not in
            the space. Numbers outside of the range are extrapolated beyond the unit interval.
            Numbers between two values of a list are interpolated. Values that cannot be encoded,
            such as removed choices, become NaN.
        """
        return self.encode(frame)

    @abstractmethod
    def decode(self, unit: Array) -> DataFrame:
        """Maps points of the unit cube to the nearest values of the parameter.

        Args:
            unit: An ``n x w`` array in the unit cube.

        Returns:
            A table with ``n`` rows and the column of this parameter.
        """

    def unit_grid(self) -> Array:
        """Returns the ``size x w`` encodings of all values of a finite parameter.

        Raises:
            NotImplementedError: If the parameter is continuous.
        """
        raise NotImplementedError

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draws random encodings; the decoded values are uniform on the parameter's scale.

        Args:
            n: The number of points.
            rng: NumPy's random number generator.

        Returns:
            An ``n x w`` array in the unit cube.
        """
        return rng.random((n, len(self.feature_names)))

    def contains(self, value: Hashable) -> bool:
        """Returns whether ``value`` is a listed value, or an integer in the parameter's range.

        The result is always ``False`` for a real-valued parameter.

        Args:
            value: A value in the ``active_if`` of another parameter.
        """
        return False


def _as_tuple(values: Any) -> tuple[Any, ...]:
    """Converts a list of values, or a single value, to a tuple."""
    is_one = isinstance(values, str) or not isinstance(values, Iterable)
    return (values,) if is_one else tuple(values)


#: Raises an error about a cell in the column of a parameter; see :func:`~.cells.refuse_cell`.
refuse_where = partial(refuse_cell, what="Parameter is")


def read_values(column: Series) -> Series:
    """Returns a parameter's column unchanged; raises an error if a cell is empty."""
    problem = "but the parameter is active: fill in the cell, drop the row, or set active_if"
    refuse_where(column.isna().to_numpy(), column, problem)
    return column


def read_numbers(column: Series) -> Array:
    """Converts a parameter's column to float64; raises an error if a cell is not a number."""
    column = read_values(column)
    numbers = to_numeric(column, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    bad, problem = column.dtype.kind in "cMm", "not a number: correct the cell, or empty it"
    refuse_where(np.isnan(numbers) | bad, column, problem)
    return numbers


def relative_tolerance(column: Series) -> float:
    """Returns the relative tolerance for numbers of a column: 1e-9 (single precision: 1e-6)."""
    return 1e-6 if str(column.dtype).lower() == "float32" else 1e-9


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_none(value: Any) -> bool:
    """Returns whether a choice is "none" in upper or lower case.

    Empty cells count as this choice.
    """
    return isinstance(value, str) and value.casefold() == "none"


def _ratio(part: Array, whole: Array) -> Array:
    """Divides ``part`` by ``whole``; returns 0.5 where ``whole`` is zero (a range of one value)."""
    return np.divide(part, whole, out=np.full_like(part, 0.5), where=whole > 0)


class _RangeParameter(Parameter):
    """Base class of parameters with a lower and an upper bound."""

    lower: float
    upper: float
    _margin: ClassVar[float] = 0.0

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        lower, upper = self.lower, self.upper
        are_numbers = isinstance(lower, Real) and isinstance(upper, Real)
        if not (are_numbers and -math.inf < lower <= upper < math.inf):
            yield f"has the bounds {lower!r} and {upper!r}: give finite numbers, the smaller first"
        if self.log is True and lower <= 0:
            yield f"has log=True and the lower bound {lower}: give a positive lower bound"

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
        """Scales numbers so that the range becomes the unit interval; see ``Parameter.place``.

        Numbers within a rounding error of a bound are clipped. The rounding error is relative to
        the larger of the two bounds' absolute values. In the range from 0 to 1, for example, -1e-17
        thus counts as 0. With ``log=True``, however, the rounding error is relative to the nearer
        bound, because the bounds may be many orders of magnitude apart. Codes of missing values,
        such as -999, become NaN.
        """
        numbers, bounds = read_numbers(frame[self.name]), np.array([self.lower, self.upper], float)
        inside = numbers.clip(*bounds)
        sizes = np.abs(inside) if self.log is True else np.abs(bounds).max()
        is_near = np.abs(numbers - inside) <= relative_tolerance(frame[self.name]) * sizes
        with np.errstate(invalid="ignore", divide="ignore"):  # such as logarithms of 0
            beyond = self._scale(numbers) - self._scale(inside)
            beyond /= np.diff(self._scale(bounds))
        unit = self._inside(inside) + np.where(is_near, 0.0, beyond)
        if (outside := numbers != inside).any():
            values = self._unscale(np.linspace(0.0, 1.0, 9)).clip(*bounds)
            unit[np.isin(numbers, parameter_codes(numbers[outside], values))] = np.nan
        return np.where(np.isfinite(unit), unit, np.nan)[:, None]

    def _scale(self, values: Array) -> Array:
        if self.log == "1-x":
            return -np.log1p(-values)
        return np.log(values) if self.log else values

    def _unscale(self, unit: Array) -> Array:
        """Scales points of the unit interval to the parameter's range."""
        start, end = self._ends
        scaled = start + unit * (end - start)
        if self.log == "1-x":
            return -np.expm1(-scaled)
        return np.exp(scaled) if self.log else scaled

    def _inside(self, values: Array) -> Array:
        """Scales values in the range to the unit interval."""
        start, end = self._ends
        return _ratio(self._scale(values) - start, end - start).clip(0.0, 1.0)

    def unit_grid(self) -> Array:
        """Returns the ``size x 1`` encodings of all values, from the lower to the upper bound."""
        if self.size is None:
            return super().unit_grid()
        return self._inside(np.linspace(self.lower, self.upper, self.size))[:, None]

    @property
    def _ends(self) -> Array:
        """Lower and upper bound of the range, converted to the parameter's scale.

        Ranges of integers are widened by 0.5 at both ends.
        """
        return self._scale(np.array([self.lower - self._margin, self.upper + self._margin]))


@dataclass(frozen=True)
class FloatParameter(_RangeParameter):
    """A real number in a range.

    Use ``log=True`` for a parameter whose order of magnitude matters, such as a learning rate.

    Args:
        name: Column of the table that holds the parameter.
        lower: Smallest value.
        upper: Largest value.
        log: ``True`` for a logarithmic scale. ``"1-x"`` for a logarithmic scale of ``1 - x``, on
            which 0.9, 0.99 and 0.999 are equally spaced. It suits parameters such as a momentum.
        active_if: Mapping from names of parent parameters to lists of values. This parameter is
            active if the value of each parent is in the parent's list. Parents come earlier in the
            space.
        step: Step size. Suggested values are multiples of the step. The constructor moves the
            bounds inward to multiples of the step. Values of old runs between two multiples are not
            rounded.

    Raises:
        ValueError: If the range is empty or not finite, or has too few multiples of the step. Also
            if ``log=True`` and the lower bound is not positive, or if ``log="1-x"`` and the upper
            bound is not below 1.

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
            yield f"has the step {step!r}: give a step above 0"
        elif step is not None:
            first, last = self._steps
            if last - first < int(self.lower != self.upper):
                yield f"has too few multiples of its step {step} in its range: widen the range"
        if log not in (True, False, "1-x"):
            yield f"has log={log!r}: use True, False or '1-x'"
        if log == "1-x" and self.upper >= 1:
            yield f"has log='1-x' and the upper bound {self.upper}: give an upper bound below 1"

    @property
    def _steps(self) -> tuple[int, int]:
        """Smallest and largest ``k`` for which ``k`` times the step is in the range."""
        step = cast(float, self.step)
        return math.ceil(self.lower / step - 1e-9), math.floor(self.upper / step + 1e-9)

    @property
    def size(self) -> int | None:
        """Number of multiples of the step. Without a step: 1 if the bounds agree, else ``None``."""
        if self.step is not None:
            return round((self.upper - self.lower) / self.step) + 1
        return 1 if self.lower == self.upper else None

    def decode(self, unit: Array) -> DataFrame:
        """Scales points of the unit interval to the range, and rounds to multiples of the step."""
        values = self._unscale(unit[:, 0])
        if self.step is not None:
            values = _multiples(np.rint(values / self.step), self.step)
        return DataFrame({self.name: values.clip(self.lower, self.upper)})


def _multiples(numbers: Array, step: float) -> Array:
    """Multiplies whole numbers by a step, without rounding errors: 3 times 0.1 is 0.3."""
    exponent = Decimal(str(step)).as_tuple().exponent
    return np.round(numbers * step, max(0, -int(exponent)))


@dataclass(frozen=True)
class IntegerParameter(_RangeParameter):
    r"""A whole number in a range.

    Every integer ``k`` has a cell ``[b_k, b_{k+1})`` of the unit interval. By default, all cells
    have the same width. With ``log=True``, the width is proportional to the width of
    ``[k - 1/2, k + 1/2)`` on the logarithmic scale. A point is decoded to the integer whose cell
    contains the point. If points are uniform, the share of points that are decoded to ``k`` is thus
    the width of the cell of ``k``, also at the bounds. The encoding of ``k`` is the point

        u_k = b_k / (b_k + 1 - b_{k+1}),

    which is in the cell of ``k``. The numerator is the total width of the cells below this cell;
    the denominator is the total width of all cells except this cell. The encodings of the bounds
    are then exactly 0 and 1, as BoTorch's mixed optimizer requires. If all cells have the same
    width, the encoding is ``(k - lower) / (upper - lower)``.

    Args:
        name: Column of the table that holds the parameter.
        lower: Smallest value.
        upper: Largest value.
        log: Whether the scale is logarithmic.
        active_if: See :class:`FloatParameter`.

    Raises:
        ValueError: If a bound is not an integer, if the range is empty, or if ``log`` is not a
            boolean. Also if ``log=True`` and the lower bound is not positive.

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
        bounds = self.lower, self.upper
        if any(bound != int(bound) or abs(bound) > MAX_NUMBER for bound in bounds):
            yield f"has bounds {bounds}: give whole numbers up to 2**53, or use FloatParameter"
        if self.log not in (True, False):
            yield f"has log={self.log!r}: use True or False for an integer parameter"

    @property
    def size(self) -> int:
        """Number of integers in the range."""
        return int(self.upper) - int(self.lower) + 1

    def encode(self, frame: DataFrame) -> Array:
        """Maps integers to the unit interval; see ``Parameter.encode``."""
        super().encode(frame)
        column = frame[self.name]
        numbers = read_numbers(column).clip(self.lower, self.upper)
        integers, tolerance = np.rint(numbers), relative_tolerance(column)
        is_whole = np.isclose(numbers, integers, tolerance, tolerance)
        refuse_where(~is_whole, column, "not an integer: round the value, or use FloatParameter")
        return self._inside(integers)[:, None]

    def decode(self, unit: Array) -> DataFrame:
        """Maps each point of the unit interval to the integer whose cell contains the point."""
        u = unit[:, 0]
        integers = np.rint(self._unscale(u)).clip(self.lower, self.upper)
        # The encoding of an integer may be within a rounding error of the edge of its cell. So a
        # point within 1e-7 of an encoding is decoded to the integer of this encoding, even if the
        # point lies in another cell.
        nearby = np.stack([integers - 1, integers, integers + 1]).clip(self.lower, self.upper)
        distances = np.abs(self._inside(nearby) - u)
        nearest = np.take_along_axis(nearby, distances.argmin(axis=0)[None], axis=0)[0]
        snapped = np.where(distances.min(axis=0) <= 1e-7, nearest, integers)
        return DataFrame({self.name: snapped.astype(np.int64)})

    def contains(self, value: Hashable) -> bool:
        """Returns whether ``value`` is an integer in the range."""
        return isinstance(value, Real) and self.lower <= value <= self.upper and value == int(value)

    def _inside(self, integers: Array) -> Array:
        start, end = self._ends
        below = self._scale(integers - 0.5) - start
        above = end - self._scale(integers + 0.5)
        return _ratio(below, below + above)


class _ListedParameter(Parameter):
    """Base class of parameters with a list of values."""

    values: Sequence[Any]

    def __post_init__(self) -> None:
        # Sets are refused, because their order differs between processes.
        if isinstance(self.values, Iterable) and not isinstance(self.values, str | Set | Mapping):
            self._set(values=tuple(self.values))
        super().__post_init__()

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        values = self.values
        if not isinstance(values, tuple):
            yield f"has the values {values!r}: give a list of values"
        if not values:
            yield "has no values: give at least one value"
        for value in values:
            if not isinstance(value, Hashable) or value is None or value is NA or value != value:
                yield f"has the value {value!r}: give text or numbers, and 'none' for an empty cell"
        if twice := [value for value in values if values.count(value) > 1]:
            yield f"repeats the value {twice[0]!r}: list each value once"

    @property
    def size(self) -> int:
        """Number of values."""
        return len(self.values)

    def contains(self, value: Hashable) -> bool:
        """Returns whether ``value`` is one of the values."""
        return value in self.values

    def encode(self, frame: DataFrame) -> Array:
        """Encodes listed values; raises an error for other values; see ``Parameter.encode``."""
        ranks, column = self._ranks(frame[self.name]), frame[self.name]
        listed = ", ".join(map(repr, self.values[:12])) + (", ..." if self.size > 12 else "")
        listed += "".join(hint(cell, self.values, "value") for cell in column[ranks < 0][:1])
        problem = f"not one of {listed}: add the value to the search space, or drop these rows"
        refuse_where(ranks < 0, column, problem)
        return self.unit_grid()[ranks]

    def _ranks(self, column: Series) -> NDArray[np.intp]:
        """Returns the position of each cell's value in the list of values; -1 if not listed."""
        rank_of = {value: rank for rank, value in enumerate(self.values)}
        return self._look_up(column, rank_of, -1).astype(np.intp)

    def _look_up(self, column: Series, places: Mapping[Any, Any], nowhere: Any) -> NDArray[Any]:
        """Looks up each cell of a column in ``places``; blanks around text are ignored.

        If a text is not a key of ``places``, it is looked up as a number, if possible. If a number
        is not a key, it is looked up as text. For a cell that is not found, the result is the
        argument ``nowhere``.
        """
        texts = {str(value): place for value, place in places.items()}
        places = texts | {stripped(value): place for value, place in places.items()} | {**places}

        def found(cell: Any) -> Any:
            cell = cell if isinstance(cell, Hashable) and cell in places else stripped(cell)
            if cell not in places and isinstance(cell, str):
                with suppress(ValueError):
                    return places.get(float(cell), nowhere)
            if cell not in places and isinstance(cell, float | int) and not isinstance(cell, bool):
                cell = f"{cell:.15g}"
            return places.get(cell, nowhere)

        return np.array([found(cell) for cell in read_values(column)])

    def _take(self, ranks: NDArray[np.intp]) -> DataFrame:
        """Makes a table of the listed values at the positions ``ranks``; keeps Python types."""
        values = Series(self.values, dtype=object).to_numpy()
        return DataFrame({self.name: values[ranks]}, dtype=object)


@dataclass(frozen=True)
class OrdinalParameter(_ListedParameter):
    """One of a list of ordered values, such as batch sizes, or ``("low", "medium", "high")``.

    The encodings of the values are equally spaced from 0 to 1. With ``log=True``, the encodings are
    the logarithms of the values, scaled to the unit interval. Each value has a cell of the unit
    interval, and points in the cell are decoded to this value. If the encodings are equally spaced,
    all cells have the same size, also the cells of the first and the last value.

    Args:
        name: Column of the table that holds the parameter.
        values: All values in order. Numbers must increase by more than rounding errors (1e-9). The
            same holds for texts such as ``"50"``, and for texts with a common unit, such as
            ``"50 mL"`` and ``"100 mL"``.
        log: Whether to encode logarithms. All values must then be positive numbers.
        active_if: See :class:`FloatParameter`.

    Raises:
        ValueError: If the list is empty, repeats a value, or has decreasing numbers. Also if
            ``log=True`` and a value is not a positive number.

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
        if len({_is_number(value) or type(value) for value in self.values}) > 1:
            yield f"has the values {self.values}: give only text, or only numbers"
        numbers = self._numbers if self.is_numeric else np.empty(0)
        if np.abs(numbers).max(initial=0) > MAX_NUMBER:
            yield f"has the values {self.values}: give numbers up to 2**53"
        parts = Series(self.values, dtype=object).astype(str).str.extract(NUMBER)
        if parts["number"].notna().all() and parts["unit"].nunique(dropna=False) == 1:
            numbers = parts["number"].to_numpy(np.float64)  # also of text such as "50 mL"
        if not (np.diff(numbers) > 1e-9 * np.abs(numbers[1:])).all():
            yield (
                f"has the values {self.values}: list numbers in increasing order and further apart "
                "than rounding errors, or use CategoricalParameter for values without an order"
            )
        if self.log not in (True, False) or (self.log and not (self.is_numeric and numbers[0] > 0)):
            yield f"has log={self.log!r} and the values {self.values}: give positive numbers"

    def decode(self, unit: Array) -> DataFrame:
        """Maps each point of the unit interval to the value whose cell contains the point."""
        ranks = np.searchsorted(self._edges, unit[:, 0], side="right")
        if self.is_numeric:
            return DataFrame({self.name: np.array(self.values)[ranks]})
        return self._take(ranks)

    def place(self, frame: DataFrame) -> Array:
        """Encodes listed values; interpolates or extrapolates other numbers.

        Any other text becomes NaN.
        """
        ranks, positions = self._ranks(frame[self.name]), self.unit_grid()[:, 0]
        other = np.full(len(ranks), np.nan)
        if self.is_numeric and self.size > 1:
            given, scale = read_numbers(frame[self.name]), np.log if self.log else np.asarray
            with np.errstate(invalid="ignore", divide="ignore"):  # such as logarithms of 0
                numbers, values = scale(given), scale(self._numbers)
            gap = np.searchsorted(values[1:-1], numbers)
            slopes = np.diff(positions) / np.diff(values)
            other = positions[gap] + slopes[gap] * (numbers - values[gap])
            other[~np.isfinite(other)] = np.nan
            other[np.isin(given, parameter_codes(given[ranks < 0], self._numbers))] = np.nan
        return np.where(ranks < 0, other, positions[ranks])[:, None]

    def unit_grid(self) -> Array:
        """Returns the ``size x 1`` encodings of all values."""
        scale = np.log(self._numbers) if self.log else np.arange(self.size, dtype=np.float64)
        return _ratio(scale - scale[0], scale[-1] - scale[0])[:, None]

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return all(map(_is_number, self.values))

    @property
    def _numbers(self) -> Array:
        return np.array(self.values, dtype=np.float64)

    @property
    def _edges(self) -> Array:
        """Points of the unit interval where the decoded value changes; shape ``size - 1``.

        Each edge is first halfway between the encodings of two successive values. The interval from
        the first to the last encoding is then extended at each end by half of the nearest gap.
        Finally, the extended interval and the edges in it are mapped to the unit interval. If gaps
        are very unequal, an edge is clipped to lie between its two encodings.
        """
        if self.size == 1:
            return np.empty(0)
        positions = self.unit_grid()[:, 0]
        gaps = np.diff(positions)
        before, after = gaps[0] / 2, gaps[-1] / 2
        edges = (positions[:-1] + gaps / 2 + before) / (1 + before + after)
        margin = gaps * 1e-3
        return edges.clip(positions[:-1] + margin, positions[1:] - margin)

    def _ranks(self, column: Series) -> NDArray[np.intp]:
        """Returns each number's position in the list, despite rounding errors; -1 if not listed."""
        if not self.is_numeric:
            return super()._ranks(column)
        numbers, values = read_numbers(column), self._numbers
        ranks = np.searchsorted((values[:-1] + values[1:]) / 2, numbers)
        # The tolerance is relative to the value, or to the smallest gap if this gap is larger.
        size = np.maximum(np.abs(values), np.diff(values).min() if self.size > 1 else 0.0)
        wrong = np.abs(numbers - values[ranks]) > relative_tolerance(column) * size[ranks]
        return np.where(wrong, -1, ranks)


@dataclass(frozen=True)
class CategoricalParameter(_ListedParameter):
    """One of a list of values without an order, encoded one-hot or by descriptors.

    If ``"none"`` is one of the values, in upper or lower case, empty cells count as this value.

    Descriptors are numbers that describe the values, such as the polarity of a solvent. With
    ``descriptors``, descriptors replace one-hot columns: the encoding of a value consists of its
    descriptors, each scaled to the unit interval. Values with similar descriptors then have similar
    encodings, so models can predict outcomes even of values that no run has used.

    Args:
        name: Column of the table that holds the parameter.
        values: All values: text, numbers, booleans. By default, all values in the table of
            descriptors. If the number 1 is in ``values``, but not the text "1", a cell with the
            text "1" counts as the number. If the text is in ``values``, but not the number, a cell
            with the number counts as the text.
        active_if: See :class:`FloatParameter`.
        descriptors: A table of numbers, one row per value. The values are in the index, or in a
            column with the parameter's name. The table may also have values of old runs that are no
            longer in ``values``.

    Raises:
        ValueError: If the list of values is empty or repeats a value. Also if a value has no
            descriptors, the same descriptors as another value, or a descriptor that is not finite.

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
            self._set(values=values, descriptors=_read_descriptors(self.name, table, values))
        super().__post_init__()

    @property
    def feature_names(self) -> list[str]:
        """Names of the one-hot columns, or of the columns of descriptors."""
        if self.descriptors is None:
            return [f"{self.name}={value}" for value in self.values]
        return [f"{self.name}: {column}" for column in list(self.descriptors)[1:]]

    @property
    def neutral(self) -> Array:
        """Encoding of an inactive parameter: the mean of the encodings of all values."""
        return np.asarray(self.unit_grid().mean(axis=0))

    @property
    def is_numeric(self) -> bool:
        """``False``, because numbers among the values count as names."""
        return False

    @property
    def may_be_empty(self) -> bool:
        """Whether one of the values is ``"none"``, so that an empty cell is valid."""
        return any(is_none(value) for value in self.values)

    def place(self, frame: DataFrame) -> Array:
        """Encodes the values of the parameter; see ``Parameter.place``.

        Also encodes values that were removed from the parameter, if they still have descriptors.
        Any other value becomes NaN.
        """
        nowhere = np.full(len(self.feature_names), np.nan)
        return self._look_up(frame[self.name], self._points, nowhere).reshape(-1, len(nowhere))

    def decode(self, unit: Array) -> DataFrame:
        """Maps each point to the value with the nearest encoding; see ``Parameter.decode``."""
        grid = self.unit_grid()
        return self._take((unit @ grid.T - np.square(grid).sum(axis=1) / 2).argmax(axis=1))

    def unit_grid(self) -> Array:
        """Returns the ``size x w`` encodings of all values."""
        return np.array([self._points[value] for value in self.values])

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draws ``n`` values with equal probabilities; see ``Parameter.sample``."""
        return self.unit_grid()[rng.random((n, self.size)).argmax(axis=1)]

    @cached_property
    def _points(self) -> dict[Any, Array]:
        """Mapping from values to encodings, also for removed values that still have descriptors."""
        if self.descriptors is None:
            return dict(zip(self.values, np.eye(self.size), strict=True))
        levels, *columns = {**self.descriptors}.values()
        numbers = np.array(columns, dtype=np.float64)
        above = numbers - numbers.min(axis=1, keepdims=True)
        points = _ratio(above, above.max(axis=1, keepdims=True)).T
        return dict(zip(levels, points, strict=True))

    def _look_up(self, column: Series, places: Mapping[Any, Any], nowhere: Any) -> NDArray[Any]:
        """Looks up each cell of a column in ``places``.

        Empty cells count as ``"none"`` if ``"none"`` is one of the parameter's values.
        """
        no_value = next((value for value in self.values if is_none(value)), object())
        filled = column.astype(object).where(column.notna(), no_value)
        return super()._look_up(filled, places, nowhere)


def _read_descriptors(
    name: str, table: DataFrame, values: Sequence[Any]
) -> dict[str, tuple[Any, ...]]:
    """Checks a parameter's table of descriptors; the index of the table holds the values.

    Returns a dictionary of tuples: the name of the parameter maps to the values, and the name of
    each column maps to its numbers.
    """
    numbers = table.apply(to_numeric, errors="coerce").astype(np.float64)
    codes = {code for column in numbers for code in parameter_codes(numbers[column].to_numpy())}
    numbers = numbers.replace([*codes - {-1.0, -99.0}], np.nan)
    missing = [value for value in values if value not in table.index]
    wrong = table.index[~np.isfinite(numbers.to_numpy()).all(axis=1)]
    own = numbers[table.index.isin(values)]
    for bad, problem in (
        (table.index[table.index.duplicated()], "two rows of descriptors: drop one row"),
        ([*missing, *wrong], "descriptors that are missing or not finite (or -999): give numbers"),
        (own.index[own.duplicated()], "the descriptors of another value: give other descriptors"),
    ):
        if len(bad):
            raise ValueError(f"Parameter {name!r}: the value {bad[0]!r} has {problem}.")
    columns = {str(column): tuple(numbers[column].tolist()) for column in numbers}
    return {name: tuple(table.index.tolist()), **columns}
