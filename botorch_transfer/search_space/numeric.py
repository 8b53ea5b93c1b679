"""Parameters with a range: continuous and integer."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field
from numbers import Real
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from botorch_transfer.search_space.parameter import (
    ActiveIf,
    Array,
    Parameter,
    normalize_active_if,
    read_numbers,
    refuse_where,
    relative_tolerance,
)

WIDEN = "widen its range in the search space or drop these rows"


@dataclass(frozen=True)
class FloatParameter(Parameter):
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
        object.__setattr__(self, "active_if", normalize_active_if(self.name, self.active_if))
        _check_range(self.name, self.lower, self.upper)
        if self.log not in (True, False, "1-x"):
            raise ValueError(
                f"Parameter {self.name!r} has log={self.log!r}: use True, False or '1-x'."
            )
        if self.log is True and self.lower <= 0:
            raise ValueError(
                f"Parameter {self.name!r} has log=True and the lower bound {self.lower}: a "
                "logarithmic scale needs a positive one."
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
        """Scale values to the unit interval; see ``Parameter.encode``."""
        column = frame[self.name]
        numbers = read_numbers(self.name, column)
        refuse_where(
            _outside(numbers, self.lower, self.upper, relative_tolerance(column), self.log is True),
            self.name,
            column,
            f"outside of its range [{self.lower}, {self.upper}]: {WIDEN}",
        )
        start, end = self._scale(np.array([self.lower, self.upper], dtype=np.float64))
        scaled = self._scale(numbers.clip(self.lower, self.upper))
        return ((scaled - start) / (end - start)).clip(0.0, 1.0)[:, None]

    def decode(self, unit: Array) -> DataFrame:
        """Scale back to the parameter's range; see ``Parameter.decode``."""
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
class IntegerParameter(Parameter):
    r"""A whole number in a range.

    Every integer ``k`` owns a cell ``[b_k, b_{k+1})`` of the unit interval: cells have equal widths
    or, with ``log=True``, the widths of ``[k - 1/2, k + 1/2)`` on the logarithmic scale. Decoding
    looks up the cell, so that uniform points give unbiased integers, the end values included.
    Encoding places ``k`` inside its own cell at

        u_k = b_k / (b_k + 1 - b_{k+1}),

    the share of the other cells that lies below it. The end values are then exactly 0 and 1, which
    BoTorch's mixed optimizer asks for, and equal cells give the usual `(k - lower) / (upper -
    lower)`.

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
        object.__setattr__(self, "active_if", normalize_active_if(self.name, self.active_if))
        _check_range(self.name, self.lower, self.upper)
        if self.lower != int(self.lower) or self.upper != int(self.upper):
            raise ValueError(
                f"Parameter {self.name!r} has the bounds {self.lower} and {self.upper}: an integer "
                "parameter needs whole numbers; use FloatParameter otherwise."
            )
        if self.log and self.lower < 1:
            raise ValueError(
                f"Parameter {self.name!r} has log=True and the lower bound {self.lower}: a "
                "logarithmic scale needs a positive one."
            )

    @property
    def size(self) -> int:
        """Number of integers in the range."""
        return int(self.upper) - int(self.lower) + 1

    def encode(self, frame: DataFrame) -> Array:
        """Place integers in the unit interval; see ``Parameter.encode``."""
        column = frame[self.name]
        numbers = read_numbers(self.name, column)
        tolerance = relative_tolerance(column)
        refuse_where(
            _outside(numbers, self.lower, self.upper, tolerance, False),
            self.name,
            column,
            f"outside of its range [{self.lower}, {self.upper}]: {WIDEN}",
        )
        integers = np.rint(numbers)
        refuse_where(
            np.abs(numbers - integers) > tolerance * np.maximum(1.0, np.abs(numbers)),
            self.name,
            column,
            "not an integer: round it or use FloatParameter",
        )
        return self._place(integers.clip(self.lower, self.upper))[:, None]

    def decode(self, unit: Array) -> DataFrame:
        """Look up the integers in whose cells the points lie; see ``Parameter.decode``."""
        u = unit[:, 0]
        integers = np.rint(self._unscale(u)).clip(self.lower, self.upper)
        # The place of an integer can be within rounding error of its cell's edge: snap to it first.
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


def _check_range(name: str, lower: float, upper: float) -> None:
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise ValueError(
            f"Parameter {name!r} has the lower bound {lower} and the upper bound {upper}: give "
            "finite bounds, the lower one below the upper one."
        )


def _outside(
    values: Array, lower: float, upper: float, tolerance: float, by_bound: bool
) -> NDArray[np.bool_]:
    """Tell which of ``n`` values lie outside by more than a rounding error.

    On a linear scale the error is relative to the larger bound (a value of -1e-17 is a rounded 0);
    on a logarithmic one to each bound by itself, for these can be many orders of magnitude apart.
    """
    largest = max(abs(lower), abs(upper))
    below = tolerance * (abs(lower) if by_bound else largest)
    above = tolerance * (abs(upper) if by_bound else largest)
    return (values < lower - below) | (values > upper + above)
