"""Linear constraints between parameters, in the user's units: ``"x1 + x2 <= 1"``.

:func:`read_constraint` reads one; :class:`Repair` moves configurations to the nearest ones that
satisfy all of them. What is nearest is a small mixed-integer program, which SciPy solves, so that
whole numbers, steps, levels and fractions are kept as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pandas import DataFrame
from scipy import optimize
from scipy.linalg import block_diag
from torch import Tensor

from botorch_transfer.search_space import (
    CategoricalParameter,
    Parameter,
    SearchSpace,
    SimplexParameter,
)

Array = NDArray[np.float64]

TOLERANCE = 1e-9
"""By how much rounding errors may violate a constraint, relative to the sizes of its terms."""

MAX_NODES = 100
"""The most nodes of a branch and bound: any feasible row will do, the nearest or not."""

SIGNS = {ast.GtE: 1, ast.Gt: 1, ast.LtE: -1, ast.Lt: -1, ast.Eq: 0}
"""By comparison the sign that turns it into one with ``>=``; 0 of an equality."""


@dataclass(frozen=True)
class LinearConstraint:
    """A weighted sum of parameters that is at least a bound, or equal to it.

    Args:
        text: As the user wrote it.
        weights: The parameters' weights by column.
        bound: The bound.
        is_equality: Whether the sum is equal to the bound.

    Example:
        >>> from pandas import DataFrame
        >>> constraint = LinearConstraint("x <= 1", {"x": -1.0}, -1.0)
        >>> constraint.holds(DataFrame({"x": [0.5, 1.5]})).tolist()
        [True, False]
    """

    text: str
    weights: Mapping[str, float]
    bound: float
    is_equality: bool = False

    def holds(self, frame: DataFrame) -> NDArray[np.bool_]:
        """Tells in which of ``n`` configurations it holds, up to rounding errors.

        Args:
            frame: A table with ``n`` rows.

        Returns:
            An ``n`` array.
        """
        terms = np.stack([w * frame[c].to_numpy(float) for c, w in self.weights.items()], axis=1)
        slack = terms.sum(axis=1) - self.bound
        tolerance = TOLERANCE * (np.abs(terms).sum(axis=1) + abs(self.bound))
        return np.asarray((np.abs(slack) if self.is_equality else -slack) <= tolerance)


# ---------------------------------------------------------------------------------------- reading


def read_constraint(text: str, space: SearchSpace) -> list[LinearConstraint]:
    """Reads a comparison of linear expressions; a chain, as ``"1 <= a + b <= 2"``, is several.

    Args:
        text: The text. Names that Python would not take are in backticks: ``"`flow rate` <= 2"``.
        space: The search space.

    Returns:
        The constraints.

    Raises:
        ValueError: If it is not linear, or names what has no number in each row.

    Example:
        >>> space = SearchSpace([FloatParameter("a", 0, 1), FloatParameter("b", 0, 1)])
        >>> read_constraint("a >= 2 * b", space)[0].weights
        {'a': 1.0, 'b': -2.0}
    """
    code, columns = str(text).strip(), {name: name for name in space.columns}
    for rank, name in enumerate(re.findall("`([^`]*)`", code)):
        code = code.replace(f"`{name}`", f"quoted_{rank}_")
        columns[f"quoted_{rank}_"] = name
    try:
        tree = ast.parse(code, mode="eval").body
        if not isinstance(tree, ast.Compare):
            raise ValueError
        sides = [_read_sum(side, columns) for side in (tree.left, *tree.comparators)]
        signs = [SIGNS[type(comparison)] for comparison in tree.ops]
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError) as error:
        raise ValueError(
            f"The constraint {text!r} is not a linear one of parameters: write it as "
            f"'a + 2 * b <= 1', with <=, >= or ==, names with spaces in backticks; there are "
            f"{', '.join(space.columns)}."
        ) from error
    found = []
    for left, sign, right in zip(sides, signs, sides[1:], strict=False):
        total = {
            name: (sign or 1) * (left.get(name, 0.0) - right.get(name, 0.0))
            for name in left | right
        }
        bound = -total.pop("", 0.0)
        weights = {name: weight for name, weight in total.items() if weight}
        _check_columns(text, weights, space)
        found.append(LinearConstraint(text, weights, bound, sign == 0))
    return found


def _read_sum(node: ast.AST, columns: Mapping[str, str]) -> dict[str, float]:
    """Reads weights by column, and the constant under ``""``; nothing is executed."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return {"": float(number)}
        case ast.Name(id=name):
            return {columns[name]: 1.0}
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return _times(-1.0, _read_sum(part, columns))
        case ast.BinOp(left=left, op=sign, right=right):
            a, b = _read_sum(left, columns), _read_sum(right, columns)
            match sign:
                case ast.Mult() if b.keys() == {""}:
                    return _times(b[""], a)
                case ast.Mult() if a.keys() == {""}:
                    return _times(a[""], b)
                case ast.Div() if b.keys() == {""}:
                    return _times(1 / b[""], a)
                case ast.Add() | ast.Sub():
                    b = b if isinstance(sign, ast.Add) else _times(-1.0, b)
                    return {name: a.get(name, 0.0) + b.get(name, 0.0) for name in a | b}
    raise ValueError


def _times(factor: float, terms: Mapping[str, float]) -> dict[str, float]:
    return {name: factor * weight for name, weight in terms.items()}


def _check_columns(text: str, columns: Collection[str], space: SearchSpace) -> None:
    if not columns:
        raise ValueError(f"The constraint {text!r} names no parameter: leave it out.")
    for name in columns:
        parameter: Any = _parameter_of(name, space)
        values = getattr(parameter, "values", ())
        has_text = any(isinstance(value, bool | str) for value in values)
        if parameter.active_if or has_text or isinstance(parameter, CategoricalParameter):
            raise ValueError(
                f"The constraint {text!r} names {name!r}, which does not have a number in each "
                "row: constraints are between numbers that are always active."
            )


def _parameter_of(column: str, space: SearchSpace) -> Parameter:
    return next(parameter for parameter in space.parameters if column in parameter.columns)


# ----------------------------------------------------------------------------------------- repair


class _Variable(NamedTuple):
    """How a column enters the program: ``offset + scales @ v``, with numbers ``v``.

    There is one ``v`` from 0 to ``largest``; or, of a list that is not equally spaced, one for each
    value, of which a single one is 1.
    """

    offset: float
    scales: Array
    largest: float
    is_whole: bool
    is_linear: bool  # whether the column's encoding is linear in it

    @classmethod
    def of(cls, parameter: Any, column: str) -> _Variable:
        """The variable of one of a parameter's columns."""
        if isinstance(parameter, SimplexParameter):
            step = parameter.step or 1.0
            return cls(0.0, np.array([step]), round(1 / step), parameter.step is not None, True)
        if parameter.size is None:
            width = parameter.upper - parameter.lower
            return cls(parameter.lower, np.array([width]), 1.0, False, True)
        values = parameter.decode(parameter.unit_grid())[column].to_numpy(float)
        gaps = np.diff(values)
        step = gaps[0] if len(gaps) else 0.0
        if np.allclose(gaps, step, rtol=1e-9, atol=0.0):
            return cls(values[0], np.array([step]), len(gaps), True, not parameter.log)
        return cls(0.0, values, 1.0, True, False)


class Repair:
    """Moves configurations to the nearest ones that satisfy linear constraints.

    Args:
        space: The search space.
        constraints: The constraints.
        fixed: Columns that stay as they are.

    Raises:
        ValueError: If a constraint is on a real number with a logarithmic scale, where it is not
            linear.

    Example:
        >>> from pandas import DataFrame
        >>> space = SearchSpace([IntegerParameter("a", 0, 9), FloatParameter("b", 0, 1)])
        >>> repair = Repair(space, read_constraint("a == 4 * b", space))
        >>> repair.nearest(DataFrame({"a": [9], "b": [0.5]})).to_numpy().tolist()
        [[2.0, 0.5]]
    """

    def __init__(
        self,
        space: SearchSpace,
        constraints: Sequence[LinearConstraint],
        fixed: Collection[str] = (),
    ) -> None:
        self.rows = list(constraints)
        self._features = space.feature_names
        named = {column for constraint in constraints for column in constraint.weights}
        for parameter in space.parameters:
            if not named.intersection(parameter.columns):
                continue
            if isinstance(parameter, SimplexParameter):
                whole = dict.fromkeys(parameter.columns, 1.0)
                self.rows.append(LinearConstraint("their sum is 1", whole, 1.0, True))
                named |= whole.keys()
            elif parameter.size is None and getattr(parameter, "log", False):
                text = next(c.text for c in constraints if parameter.name in c.weights)
                raise ValueError(
                    f"The constraint {text!r} is not linear in the logarithm of "
                    f"{parameter.name!r}: leave log out, or narrow its range instead."
                )
        self.columns = [column for column in space.columns if column in named]
        self.variables = [_Variable.of(_parameter_of(c, space), c) for c in self.columns]
        self._fixed = np.array([column in fixed for column in self.columns])
        self._offsets = np.array([v.offset for v in self.variables])
        self._scales = block_diag(*[v.scales for v in self.variables])
        self._largest, self._is_whole = (
            np.repeat(values, [len(v.scales) for v in self.variables])
            for values in zip(*[(v.largest, v.is_whole) for v in self.variables], strict=True)
        )
        A = np.array([[row.weights.get(c, 0.0) for c in self.columns] for row in self.rows])
        least = np.array([row.bound for row in self.rows]) - A @ self._offsets
        most = np.where([row.is_equality for row in self.rows], least, np.inf)
        # Of a list of values one is chosen.
        lists = (self._scales != 0)[[len(v.scales) > 1 for v in self.variables]]
        one = np.ones(len(lists))
        self._sums = np.vstack([A @ self._scales, lists])
        self._least, self._most = np.concatenate([least, one]), np.concatenate([most, one])

    def for_botorch(self, is_equality: bool) -> list[tuple[Tensor, Tensor, float]]:
        """Converts the constraints to the unit cube, as ``optimize_acqf`` takes them.

        Args:
            is_equality: Whether to return equalities, else inequalities.

        Returns:
            Columns, weights and least sums. Constraints on lists of values that are not equally
            spaced, or on logarithms of whole numbers, are left out.
        """
        found, variables = [], dict(zip(self.columns, self.variables, strict=True))
        for row in self.rows:
            parts = [(variables[column], weight) for column, weight in row.weights.items()]
            if row.is_equality == is_equality and all(v.is_linear for v, _ in parts):
                columns = [self._features.index(column) for column in row.weights]
                widths = [weight * v.scales[0] * v.largest for v, weight in parts]
                least = row.bound - sum(weight * v.offset for v, weight in parts)
                factors = torch.tensor(widths, dtype=torch.double)
                found.append((torch.tensor(columns), factors, float(least)))
        return found

    def nearest(self, frame: DataFrame) -> DataFrame:
        """Moves each configuration to one that satisfies the constraints.

        The sum of the moves, each in widths of its parameter, is least, up to random factors
        between 1/2 and 3/2, so that it is not always the same parameters that move.

        Args:
            frame: A table with ``n`` rows.

        Returns:
            The table; rows for which there is none are left out.
        """
        rng = np.random.default_rng(0)
        moved = frame.astype(dict.fromkeys(self.columns, float))
        found = [self._move(place, rng) for place in moved[self.columns].to_numpy()]
        kept = np.array([place is not None for place in found], dtype=np.bool_)
        moved = moved[kept].copy()
        moved[self.columns] = np.array([place for place in found if place is not None]).reshape(
            -1, len(self.columns)
        )
        return moved

    def _move(self, place: Array, rng: np.random.Generator) -> Array | None:
        """The nearest place that satisfies all; the program is in the variables and the moves."""
        S, (m, p) = self._scales, self._scales.shape
        width = np.maximum(np.abs(S * self._largest).max(axis=1), 1e-300)
        cost = np.concatenate([np.zeros(p), rng.uniform(0.5, 1.5, m) / width])
        off = place - self._offsets
        rows = [
            optimize.LinearConstraint(
                np.pad(self._sums, ((0, 0), (0, m))), self._least, self._most
            ),
            optimize.LinearConstraint(np.hstack([S, np.eye(m)]), off, np.inf),
            optimize.LinearConstraint(np.hstack([-S, np.eye(m)]), -off, np.inf),
        ]
        lower = np.zeros(p + m)
        upper = np.concatenate([self._largest, np.where(self._fixed, TOLERANCE * width, np.inf)])
        whole = np.pad(self._is_whole, (0, m))
        for _ in range(2):  # again if whole numbers are not exact, which adapts the others
            found = optimize.milp(
                cost,
                integrality=whole,
                bounds=optimize.Bounds(lower, upper),
                constraints=rows,
                options={"node_limit": MAX_NODES},
            ).x
            if found is None:
                return None
            exact = np.where(whole, np.rint(found), found)
            if (exact == found).all():
                break
            found = exact
            lower, upper = np.where(whole, found, lower), np.where(whole, found, upper)
        return np.asarray(self._offsets + S @ found[:p])
