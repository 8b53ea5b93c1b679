"""Parameters with a range: continuous and integer."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal

import numpy as np
from pandas import DataFrame, Series

from botorch_transfer.search_space.parameter import (
    ActiveIf,
    Array,
    Parameter,
    read_numbers,
    refuse_where,
    relative_tolerance,
)


class _RangeParameter(Parameter):
    """Base class of parameters with a range: checks the range, and reads columns within it."""

    lower: float
    upper: float
    log: bool | Literal["1-x"]

    def __post_init__(self) -> None:
        super().__post_init__()
        lower, upper = self.lower, self.upper
        if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
            raise ValueError(
                f"Parameter {self.name!r} has the lower bound {lower} and the upper bound {upper}: "
                "give finite bounds, the lower one below the upper one."
            )
        if self.log is True and lower <= 0:
            raise ValueError(
                f"Parameter {self.name!r} has log=True and the lower bound {lower}: a logarithmic "
                "scale needs a positive one."
            )

    def _read(self, column: Series, each_bound: bool = False) -> Array:
        """Reads ``n`` numbers, clipped to the range; refuses what lies outside of it.

        Rounding errors are forgiven. They are relative to the larger bound (-1e-17 is a rounded 0),
        or to each bound by itself, as bounds of a logarithmic scale may be many orders of magnitude
        apart.
        """
        numbers, tolerance = read_numbers(self.name, column), relative_tolerance(column)
        bounds = np.array([self.lower, self.upper], dtype=np.float64)
        sizes = np.abs(bounds) if each_bound else np.abs(bounds).max().repeat(2)
        below, above = bounds + tolerance * sizes * [-1, 1]
        refuse_where(
            (numbers < below) | (numbers > above),
            self.name,
            column,
            f"outside of its range [{self.lower}, {self.upper}]: widen its range in the search "
            "space or drop these rows",
        )
        return numbers.clip(self.lower, self.upper)


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

    Raises:
        ValueError: If the range is empty or not finite, or is not positive on a logarithmic scale.

    Example:
        >>> FloatParameter("learning_rate", 1e-5, 1e-1, log=True).name
        'learning_rate'
    """

    name: str
    lower: float
    upper: float
    log: bool | Literal["1-x"] = False
    active_if: ActiveIf | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.log not in (True, False, "1-x"):
            raise ValueError(
                f"Parameter {self.name!r} has log={self.log!r}: use True, False or '1-x'."
            )
        if self.log == "1-x" and self.upper >= 1:
            raise ValueError(
                f"Parameter {self.name!r} has log='1-x' and the upper bound {self.upper}: the "
                "logarithm of 1 - x needs one below 1."
            )

    @property
    def size(self) -> None:
        """``None``: a continuous parameter."""
        return

    def encode(self, frame: DataFrame) -> Array:
        """Scales values to the unit interval; see ``Parameter.encode``."""
        start, end = self._scale(np.array([self.lower, self.upper], dtype=np.float64))
        scaled = self._scale(self._read(frame[self.name], each_bound=self.log is True))
        return ((scaled - start) / (end - start)).clip(0.0, 1.0)[:, None]

    def decode(self, unit: Array) -> DataFrame:
        """Scales back to the parameter's range; see ``Parameter.decode``."""
        start, end = self._scale(np.array([self.lower, self.upper], dtype=np.float64))
        values = self._unscale(start + unit[:, 0] * (end - start)).clip(self.lower, self.upper)
        return DataFrame({self.name: values})

    def _scale(self, values: Array) -> Array:
        if self.log is False:
            return values
        return np.log(values) if self.log is True else -np.log1p(-values)

    def _unscale(self, scaled: Array) -> Array:
        if self.log is False:
            return scaled
        return np.exp(scaled) if self.log is True else -np.expm1(-scaled)


@dataclass(frozen=True)
class IntegerParameter(_RangeParameter):
    r"""A whole number in a range.

    Every integer ``k`` owns a cell ``[b_k, b_{k+1})`` of the unit interval. Cells have equal widths
    or, with ``log=True``, the widths of ``[k - 1/2, k + 1/2)`` on the logarithmic scale. Decoding
    looks up the cell, so uniform points give every integer its share, the end values included.
    Encoding places ``k`` inside its own cell at

        u_k = b_k / (b_k + 1 - b_{k+1}),

    the share of the other cells that lies below it. The end values are then exactly 0 and 1, as
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
            ``log=True``.

    Example:
        >>> IntegerParameter("max_depth", 1, 12).size
        12
    """

    name: str
    lower: int
    upper: int
    log: bool = False
    active_if: ActiveIf | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lower != int(self.lower) or self.upper != int(self.upper):
            raise ValueError(
                f"Parameter {self.name!r} has the bounds {self.lower} and {self.upper}: an integer "
                "parameter needs whole numbers; use FloatParameter otherwise."
            )

    @property
    def size(self) -> int:
        """Number of integers in the range."""
        return int(self.upper) - int(self.lower) + 1

    def encode(self, frame: DataFrame) -> Array:
        """Places integers in the unit interval; see ``Parameter.encode``."""
        column = frame[self.name]
        numbers = self._read(column)
        integers = np.rint(numbers)
        error = np.abs(numbers - integers) / np.maximum(1.0, np.abs(numbers))
        refuse_where(
            error > relative_tolerance(column),
            self.name,
            column,
            "not an integer: round it or use FloatParameter",
        )
        return self._place(integers)[:, None]

    def decode(self, unit: Array) -> DataFrame:
        """Looks up the integers in whose cells the points lie; see ``Parameter.decode``."""
        u = unit[:, 0]
        integers = np.rint(self._unscale(u)).clip(self.lower, self.upper)
        # An integer may lie within a rounding error of its cell's edge: take it if it is that near.
        nearby = np.stack([integers - 1, integers, integers + 1]).clip(self.lower, self.upper)
        distances = np.abs(self._place(nearby) - u)
        nearest = np.take_along_axis(nearby, distances.argmin(axis=0)[None], axis=0)[0]
        snapped = np.where(distances.min(axis=0) <= 1e-7, nearest, integers)
        return DataFrame({self.name: snapped.astype(np.int64)})

    def unit_grid(self) -> Array:
        """Encodings of all integers of the range, ``size x 1``."""
        return self._place(np.arange(self.lower, self.upper + 1, dtype=np.float64))[:, None]

    def contains(self, value: Hashable) -> bool:
        """Whether ``value`` is an integer of the range."""
        return (
            isinstance(value, Real)  # NumPy's, too
            and self.lower <= value <= self.upper
            and value == int(value)
        )

    def _place(self, integers: Array) -> Array:
        start, end = self._scale(np.array([self.lower - 0.5, self.upper + 0.5]))
        below = self._scale(integers - 0.5) - start
        above = end - self._scale(integers + 0.5)
        return below / (below + above)

    def _scale(self, values: Array) -> Array:
        return np.log(values) if self.log else values

    def _unscale(self, u: Array) -> Array:
        start, end = self._scale(np.array([self.lower - 0.5, self.upper + 0.5]))
        scaled = start + u * (end - start)
        return np.exp(scaled) if self.log else scaled
