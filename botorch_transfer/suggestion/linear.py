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

from botorch_transfer.search_space import SearchSpace

Array = NDArray[np.float64]

TOLERANCE = 1e-9
"""By how much rounding errors may violate a constraint, relative to the sizes of its terms."""

MAX_NODES = 100
"""The most nodes of a branch and bound: any feasible row will do, the nearest or not."""

CONSTANT = ""
"""Stands for the constant among the names of columns."""

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
        """Finds the configurations in which it holds, up to rounding errors.

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
    names, units = space.columns, np.eye(len(space.columns) + 1)
    sums = dict(zip([*names, CONSTANT], units, strict=True))
    sums |= {f"_{place}_": unit for place, unit in enumerate(units)}
    try:
        code = re.sub("`([^`]*)`", lambda name: f"_{names.index(name[1])}_", str(text).strip())
        tree = ast.parse(code, mode="eval").body
        if not isinstance(tree, ast.Compare):
            raise ValueError
        sides = [_read_sum(side, sums) for side in (tree.left, *tree.comparators)]
        signs = [SIGNS[type(comparison)] for comparison in tree.ops]
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError) as error:
        raise ValueError(
            f"The constraint {text!r} is not a linear one of parameters: write it as "
            f"'a + 2 * b <= 1', with <=, >= or ==, names with spaces in backticks; there are "
            f"{', '.join(names)}."
        ) from error
    found = []
    for left, sign, right in zip(sides, signs, sides[1:], strict=False):
        *weights, constant = ((sign or 1) * (left - right)).tolist()
        used = {name: weight for name, weight in zip(names, weights, strict=True) if weight}
        _check_columns(text, used, space)
        found.append(LinearConstraint(text, used, -constant, sign == 0))
    return found


def _read_sum(node: ast.AST, columns: Mapping[str, Array]) -> Array:
    """Reads the weights of the columns, the constant last; nothing is executed."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return number * columns[CONSTANT]
        case ast.Name(id=name):
            return columns[name]
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return -_read_sum(part, columns)
        case ast.BinOp(left=left, op=sign, right=right):
            a, b = _read_sum(left, columns), _read_sum(right, columns)
            if isinstance(sign, ast.Add | ast.Sub):
                return a + b if isinstance(sign, ast.Add) else a - b
            if isinstance(sign, ast.Mult) and not a[:-1].any():
                a, b = b, a
            if isinstance(sign, ast.Mult | ast.Div) and not b[:-1].any():
                number = float(b[-1])
                return a * (number if isinstance(sign, ast.Mult) else 1 / number)
    raise ValueError


def _check_columns(text: str, columns: Collection[str], space: SearchSpace) -> None:
    if not columns:
        raise ValueError(f"The constraint {text!r} names no parameter: leave it out.")
    for name in columns:
        parameter = _parameter_of(name, space)
        if parameter.active_if or not parameter.is_numeric:
            raise ValueError(
                f"The constraint {text!r} names {name!r}, which does not have a number in each "
                "row: constraints are between numbers that are always active."
            )


def _parameter_of(column: str, space: SearchSpace) -> Any:
    return next(parameter for parameter in space.parameters if parameter.name == column)


# ----------------------------------------------------------------------------------------- repair


class _Variable(NamedTuple):
    """Column in the program: ``offset + scales @ v``, with numbers ``v``.

    There is one ``v`` from 0 to ``largest``; or, of a list that is not equally spaced, one for each
    value, of which a single one is 1.
    """

    offset: float
    scales: Array
    largest: float
    is_whole: bool
    is_linear: bool  # whether the column's encoding is linear in it

    @classmethod
    def of(cls, column: str, space: SearchSpace) -> _Variable:
        """The variable of one of a space's columns."""
        parameter = _parameter_of(column, space)
        if parameter.size is None:
            width = parameter.upper - parameter.lower
            return cls(parameter.lower, np.array([width]), 1.0, False, not parameter.log)
        values = parameter.decode(parameter.unit_grid())[column].to_numpy(float)
        gaps = np.diff(values)
        if np.allclose(gaps, gaps[:1], rtol=1e-9, atol=0.0):
            step = gaps[:1].sum()  # 0 of a single value
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
        self._features, self._constraints = space.feature_names, constraints
        named = {column for constraint in constraints for column in constraint.weights}
        self._variables = {c: _Variable.of(c, space) for c in space.columns if c in named}
        self._columns, variables = list(self._variables), list(self._variables.values())
        for constraint in constraints:
            for column in constraint.weights:
                variable = self._variables[column]
                if not (variable.is_linear or variable.is_whole):
                    raise ValueError(
                        f"The constraint {constraint.text!r} is not linear in the logarithm of "
                        f"{column!r}: write this parameter without log in the search space."
                    )
        self._fixed = np.isin(self._columns, list(fixed))
        self._offsets = np.array([v.offset for v in variables])
        self._scales = block_diag(*[v.scales for v in variables])
        counts = [len(v.scales) for v in variables]
        self._largest = np.repeat([v.largest for v in variables], counts)
        self._is_whole = np.repeat([v.is_whole for v in variables], counts)
        A = np.array([[row.weights.get(c, 0.0) for c in self._columns] for row in constraints])
        least = np.array([row.bound for row in constraints]) - A @ self._offsets
        most = np.where([row.is_equality for row in constraints], least, np.inf)
        # Of a list of values one is chosen.
        lists = (self._scales != 0)[np.array(counts) > 1]
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
        found = []
        for row in self._constraints:
            parts = [(self._variables[column], weight) for column, weight in row.weights.items()]
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
        places = frame[self._columns].to_numpy(float)
        moved = DataFrame([self._move(place, rng) for place in places], frame.index, self._columns)
        others = frame.drop(columns=self._columns)
        return others.join(moved.dropna(), how="inner")[frame.columns]

    def _move(self, place: Array, rng: np.random.Generator) -> Array:
        """The nearest place that satisfies all, or NaN."""
        S, (m, p) = self._scales, self._scales.shape  # there are p variables, and m moves
        width = np.maximum(np.abs(S * self._largest).max(axis=1), 1e-300)
        cost = np.concatenate([np.zeros(p), rng.uniform(0.5, 1.5, m) / width])
        off, free, none = place - self._offsets, np.full(m, np.inf), np.zeros((len(self._sums), m))
        A = np.block([[self._sums, none], [S, np.eye(m)], [-S, np.eye(m)]])
        least, most = np.r_[self._least, off, -off], np.r_[self._most, free, free]
        lower = np.zeros(p + m)
        upper = np.r_[self._largest, np.where(self._fixed, TOLERANCE * width, np.inf)]
        whole = np.pad(self._is_whole, (0, m))
        for _ in range(2):  # again if whole numbers are not exact, which adapts the others
            found = optimize.milp(
                cost,
                integrality=whole,
                bounds=optimize.Bounds(lower, upper),
                constraints=optimize.LinearConstraint(A, least, most),
                options={"node_limit": MAX_NODES},
            ).x
            if found is None:
                return np.full(m, np.nan)
            exact = np.where(whole, np.rint(found), found)
            if (exact == found).all():
                break
            found = exact
            lower, upper = np.where(whole, found, lower), np.where(whole, found, upper)
        return np.asarray(self._offsets + S @ found[:p])
