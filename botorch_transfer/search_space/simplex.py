"""A composition: fractions that sum to one, such as the elements of an alloy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import comb

import numpy as np
from pandas import DataFrame, Series

from botorch_transfer.search_space.parameter import (
    ActiveIf,
    Array,
    Parameter,
    read_numbers,
    refuse_where,
)


@dataclass(frozen=True)
class SimplexParameter(Parameter):
    """Fractions of a whole: one column of the table and one of the encoding for each component.

    Fractions are their own encoding, and ``SearchSpace.equality_constraints`` tells BoTorch's
    optimizers that they sum to one. Decoding scales shares to a sum of one or, where there is a
    ``step``, to the multiples of it that are nearest (largest remainders are rounded up).

    Args:
        name: Name of the whole; no column of the table.
        components: Columns of the table that hold the fractions, at least two.
        step: Grid of the fractions, such as 0.1; a whole number of steps makes one. ``None``:
            continuous.
        active_if: Mapping from the name of a parent parameter to the values for which this one is
            active.

    Raises:
        ValueError: If there are fewer than two components, repeated ones, or the step doesn't
            divide one.

    Example:
        >>> SimplexParameter("alloy", ("Ni", "Fe", "Co"), step=0.5).size
        6
    """

    name: str
    components: Sequence[str]
    step: float | None = None
    active_if: ActiveIf | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "components", tuple(self.components))
        if len(self.components) < 2 or len(set(self.components)) < len(self.components):
            raise ValueError(
                f"Parameter {self.name!r} has the components {self.components}: give at least two "
                "different ones."
            )
        if self.step is not None and not (
            0 < self.step <= 1 and abs(1 / self.step - self._steps) < 1e-6
        ):
            raise ValueError(
                f"Parameter {self.name!r} has the step {self.step}: a whole number of steps must "
                "make one."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The components."""
        return tuple(self.components)

    @property
    def feature_names(self) -> list[str]:
        """The components."""
        return list(self.components)

    @property
    def neutral(self) -> Array:
        """Equal shares."""
        return np.full(len(self.components), 1 / len(self.components))

    @property
    def size(self) -> int | None:
        """Number of compositions, if there is a step."""
        parts = len(self.components)
        return None if self.step is None else comb(self._steps + parts - 1, parts - 1)

    def encode(self, frame: DataFrame) -> Array:
        """Checks and copies fractions; see ``Parameter.encode``."""
        fractions = np.stack([self._read(frame[name], name) for name in self.components], axis=1)
        total = fractions.sum(axis=1)
        refuse_where(
            np.abs(total - 1) > 1e-6,
            self.name,
            Series(total, index=frame.index),
            f"the sum of {', '.join(self.components)}, which must be 1: correct or drop these rows",
        )
        return self._normalize(fractions)

    def decode(self, unit: Array) -> DataFrame:
        """Scales shares to a sum of one; see ``Parameter.decode``."""
        return DataFrame(self._normalize(unit), columns=list(self.components))

    def unit_grid(self) -> Array:
        """Encodings of all compositions, ``size x w`` ("stars and bars")."""
        parts = len(self.components)
        slots = self._steps + parts - 1
        bars = np.array(list(combinations(range(slots), parts - 1)))
        walls = np.pad(bars, ((0, 0), (1, 1)), constant_values=((0, 0), (-1, slots)))
        return (np.diff(walls, axis=1) - 1)[::-1] / self._steps

    def sample(self, n: int, rng: np.random.Generator) -> Array:
        """Draws ``n`` compositions uniformly from the simplex; decoding moves them to the grid."""
        return rng.dirichlet(np.ones(len(self.components)), size=n)

    @property
    def _steps(self) -> int:
        return round(1 / self.step) if self.step else 0

    def _read(self, column: Series, name: str) -> Array:
        numbers = read_numbers(name, column)
        refuse_where(
            (numbers < -1e-6) | (numbers > 1 + 1e-6),
            name,
            column,
            "not a fraction between 0 and 1: correct or drop these rows",
        )
        if self.step is not None:
            refuse_where(
                np.abs(numbers * self._steps - np.rint(numbers * self._steps)) > 1e-6,
                name,
                column,
                f"not a multiple of the step {self.step}: correct the step or drop these rows",
            )
        return numbers

    def _normalize(self, shares: Array) -> Array:
        shares = shares.clip(0.0, 1.0)
        total = shares.sum(axis=1, keepdims=True)
        shares = np.where(total > 0, shares / np.where(total > 0, total, 1), self.neutral)
        return shares if self.step is None else self._round(shares)

    def _round(self, shares: Array) -> Array:
        scaled = shares * self._steps
        # A share that is a whole number of steps keeps its last step in spite of rounding errors.
        whole = np.floor(scaled + 1e-9)
        lacking = self._steps - whole.sum(axis=1, keepdims=True)
        order = np.argsort(whole - scaled, axis=1, kind="stable").argsort(axis=1)
        return (whole + (order < lacking)) / self._steps
