"""Constraints between parameters, in the user's units: ``"x1 + x2 <= 1"``.

:func:`read_constraint` reads a constraint: a comparison of sums of parameters, a comparison of a
categorical parameter with a value, or a combination of comparisons by ``not``, ``and``, ``or`` and
``at_most``. :class:`Repair` moves a configuration to the nearest configuration that satisfies all
linear constraints. To find it, SciPy solves a small mixed-integer program. Whole numbers stay
whole, and parameters with a list of values keep a value from the list.
"""

from __future__ import annotations

import ast
import keyword
import logging
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pandas import DataFrame
from scipy import optimize
from scipy.linalg import block_diag
from torch import Tensor

from botorch_transfer.search_space import SearchSpace
from botorch_transfer.search_space.cells import hint

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Tolerance of equality constraints, relative to the sum of the absolute values of their terms.
TOLERANCE = 1e-9

#: Maximum number of nodes of branch and bound. If the maximum is reached, the found row is
#: feasible, but may not be the nearest row.
MAX_NODES = 100

#: Key of the constant term in dictionaries whose other keys are names of parameters.
CONSTANT = ""

#: Pattern of a text in quotation marks or backticks.
QUOTED = re.compile(r"""([`"'])(.*?)\1""")
#: Translation of typographic to plain quotation marks.
QUOTES = str.maketrans("“”„‘’", '"""\'\'')

#: Mapping from typographic or mistyped operators to Python operators.
OPERATORS = {"≤": "<=", "≥": ">=", "=<": "<=", "=>": ">=", "≠": "!=", "<>": "!=", "−": "-"}

#: Number by which both sides of a comparison are multiplied to get ``>=``; 0 for an equality.
SIGNS = {ast.GtE: 1, ast.Gt: 1, ast.LtE: -1, ast.Lt: -1, ast.Eq: 0}


@dataclass(frozen=True)
class Condition:
    """Constraint on configurations, made by :func:`read_constraint`.

    A condition with weights is linear: the weighted sum of parameters is at least the bound, or
    equals the bound. Inequalities hold exactly, as Python evaluates them; equalities hold up to
    :data:`TOLERANCE`.

    Args:
        text: The text that the user wrote.
        code: The condition as a Python expression of columns, constants and operators.
        ends: A dictionary from each parameter of a nonlinear condition to the numbers with which
            the condition compares this parameter. A categorical parameter has an empty list.
        weights: The weights of a linear condition by parameter; empty for other conditions.
        bound: The bound of a linear condition.
        is_equality: Whether the weighted sum has to equal the bound.

    Example:
        >>> from pandas import DataFrame
        >>> space = SearchSpace([FloatParameter("a", 0, 1), FloatParameter("b", 0, 1)])
        >>> (condition,) = read_constraint("at_most(1, a, b)", space)
        >>> condition.holds(DataFrame({"a": [0.5, 0.5], "b": [0.5, 0.0]})).tolist()
        [False, True]
    """

    text: str
    code: str
    ends: Mapping[str, Collection[float]]
    weights: Mapping[str, float] = field(default_factory=dict)
    bound: float = 0.0
    is_equality: bool = False

    def holds(self, frame: DataFrame) -> Mask:
        """Checks whether each configuration of a table satisfies the condition.

        Args:
            frame: A table of ``n`` configurations.

        Returns:
            A boolean array with ``n`` entries. Equalities tolerate rounding errors.
        """
        if self.is_equality:
            terms = [w * frame[c].to_numpy(float) for c, w in self.weights.items()]
            tolerance = TOLERANCE * (np.abs(terms).sum(axis=0) + abs(self.bound))
            return np.asarray(np.abs(np.sum(terms, axis=0) - self.bound) <= tolerance)
        code = compile(self.code, self.text, "eval")
        known = {"__builtins__": {}, "at_most": at_most}
        names = {_name(column): column for column in frame if _name(column) in code.co_names}
        rows = frame[[*names.values()]].itertuples(index=False, name=None)
        held = [eval(code, known, dict(zip(names, row, strict=True))) for row in rows]
        return np.array(held, dtype=bool)


def at_most(most: int, *values: float) -> bool:
    """Returns whether at most ``most`` of the numbers in ``values`` differ from zero."""
    return sum(value != 0 for value in values) <= most


# ---------------------------------------------------------------------------------------- reading


def read_constraint(text: str, space: SearchSpace) -> list[Condition]:
    """Parses the text of a constraint.

    A chain such as ``"1 <= a + b <= 2"``, or a text with ``and``, becomes several constraints.

    Args:
        text: The text. Put a name that is not a Python name into backticks or quotation marks:
            ``"`flow rate` <= 2"``. ``at_most(2, a, b, c)`` is true if at most two
            of the parameters differ from zero.
        space: The search space.

    Returns:
        The constraints. A linear constraint has weights. Any other constraint, such as a text with
        ``not`` or ``at_most``, has no weights.

    Raises:
        ValueError: If a side of a comparison of numbers is not a weighted sum of parameters, for
            example ``"a * b <= 1"``. Also if a sum contains a parameter that is not numeric, or
            that is not always active.

    Example:
        >>> space = SearchSpace([FloatParameter("a", 0, 1), FloatParameter("b", 0, 1)])
        >>> read_constraint("a >= 2 * b", space)[0].weights
        {'a': 1.0, 'b': -2.0}
    """
    text = with_operators(text)
    try:
        reader = _Reader(text, space)
        found = [reader.read(part) for part in _conjuncts(_parse(text, space.columns))]
    except (SyntaxError, KeyError, ZeroDivisionError) as error:
        equals = re.search(r"(?<![<>=!])=(?!=)", QUOTED.sub("", text))
        problem = "has = in place of ==" if equals else "is not a linear comparison of parameters"
        if isinstance(error, KeyError):
            name = error.args[0]
            remark = f" (a limit on an outcome has the form '{name} <= 5' or '{name} >= 5')"
            problem = f"names {name!r}, which is not a parameter"
            problem += hint(name, space.columns) or remark
        raise ValueError(
            f"The constraint {text!r} {problem}: write a constraint as 'a + 2 * b <= 1', with <=, "
            ">= or ==, or combine comparisons by 'and', 'or', 'not' and at_most(2, a, b). "
            "Put text values, reserved words such as lambda, and names with spaces into quotation "
            f"marks. The parameters are {', '.join(space.columns)}."
        ) from error
    if all(_is_idle(condition, space) for condition in found):
        message = "The constraint %r, or a comparison in it, has no effect: check the unit of its "
        logger.warning(message + "numbers", text)
    return found


def _is_idle(condition: Condition, space: SearchSpace) -> bool:
    """Returns whether a condition, or a comparison in the condition, has no effect.

    The result is ``True`` if all numbers with which the condition compares some numeric parameter
    lie outside of the parameter's range. If the condition has a single parameter, all values in the
    range must also satisfy it.
    """
    named = [p for p in space.parameters if names_some(condition.code, [p.name])]
    for parameter in (p for p in named if p.is_numeric and len(condition.weights) < 2):
        bounds = parameter.decode(np.array([[0.0], [1.0]]))
        (low, high), weights = bounds[parameter.name], condition.weights.values()
        ends = condition.ends.get(parameter.name) or [condition.bound / w for w in weights]
        is_outside = bool(ends) and all(not low <= end <= high for end in ends)
        if is_outside and (len(named) > 1 or condition.holds(bounds).all()):
            return True
    return False


def names_some(text: str, columns: Collection[str]) -> bool:
    """Returns whether a text is a Python expression that contains the name of a column."""
    try:
        tree = _parse(text, columns)
    except SyntaxError:
        return False
    known = set(map(_name, columns))
    return any(isinstance(node, ast.Name) and node.id in known for node in ast.walk(tree))


def _name(column: Any) -> str:
    """Converts the name of a column to a Python identifier."""
    name = str(column)
    is_plain = name.isidentifier() and not keyword.iskeyword(name)
    return name if is_plain else f"_{name.encode().hex()}"


def _parse(text: str, columns: Collection[str]) -> ast.expr:
    """Parses a constraint to a syntax tree; column names may be in backticks or quotation marks."""
    code = QUOTED.sub(lambda q: _name(q[2]) if q[2] in columns else q[0], with_operators(text))
    return ast.parse(code.strip(), mode="eval").body


def with_operators(text: Any) -> str:
    """Replaces typographic quotation marks and, outside of quoted text, typographic operators."""
    parts = f"{QUOTED.pattern}|{'|'.join(OPERATORS)}"
    return re.sub(parts, lambda m: OPERATORS.get(m[0], m[0]), str(text).translate(QUOTES))


def _conjuncts(node: ast.expr) -> Iterator[ast.expr]:
    """Splits a syntax tree at each ``and``; splits ``a < b < c`` into ``a < b`` and ``b < c``."""
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            for value in values:
                yield from _conjuncts(value)
        case ast.Compare(left=left, ops=ops, comparators=others):
            for before, op, after in zip([left, *others], ops, others, strict=False):
                yield ast.Compare(before, [op], [after])
        case _:
            yield node


class _Reader:
    """Converter from the syntax tree of a constraint's text to a :class:`Condition`."""

    def __init__(self, text: str, space: SearchSpace) -> None:
        self.text, self.space, self.ends = text, space, dict[str, list[float]]()
        self.columns = {_name(name): name for name in space.columns}
        self.sums = dict(zip([*self.columns, CONSTANT], np.eye(len(self.columns) + 1), strict=True))

    def read(self, node: ast.expr) -> Condition:
        """Converts a syntax tree to a condition."""
        self.ends = {}
        self.check(node)
        code = ast.unparse(node)
        sign = SIGNS.get(type(node.ops[0])) if isinstance(node, ast.Compare) else None
        # Categorical parameters have an empty list of ends.
        if isinstance(node, ast.Compare) and sign is not None and [] not in self.ends.values():
            weights, bound = self.weights(node.left, node.comparators[0])
            # A bound on a single log-scaled parameter is not linear in the encoding.
            if weights and (len(weights) > 1 or not self.parameter(*weights).log):
                weights = {name: (sign or 1) * weight for name, weight in weights.items()}
                return Condition(self.text, code, {}, weights, (sign or 1) * bound, not sign)
        return Condition(self.text, code, self.ends)

    def check(self, node: ast.expr) -> None:
        """Raises an error unless the expression is a comparison, or combines comparisons.

        Also adds to ``ends`` the numbers with which the expression compares parameters.
        """
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=part):
                self.check(part)
            case ast.BoolOp(values=parts):
                for part in parts:
                    self.check(part)
            case ast.Compare(
                left,
                [ast.In() | ast.NotIn()],
                [ast.List([_, *_] as values) | ast.Tuple([_, *_] as values)],
            ):
                for value in values:
                    self.pair(left, value, True)
            case ast.Compare(ops=[_, _, *_]):
                for part in _conjuncts(node):
                    self.check(part)
            case ast.Compare(left, [op], [right]) if isinstance(op, (ast.NotEq, *SIGNS)):
                self.pair(left, right, isinstance(op, ast.Eq | ast.NotEq))
            case ast.Call(ast.Name("at_most"), [ast.Constant(int()), _, *_], []):
                names = [self.columns[ast.unparse(part)] for part in node.args[1:]]
                for name in names:
                    self.count(name, names.count(name))
            case _:
                raise SyntaxError

    def count(self, name: str, times: int) -> None:
        """Raises an error if ``at_most`` has ``name`` twice, or if ``name`` cannot be zero."""
        parameter = self.parameter(name)
        unit = np.nan_to_num(parameter.place(DataFrame({name: [0.0]}))).clip(0.0, 1.0)
        if times > 1 or abs(parameter.decode(unit)[name].item()) > TOLERANCE:
            problem = f"{self.text!r} may name {name!r} only once,"
            raise ValueError(f"{problem} and only if {name!r} can be zero.")
        self.ends.setdefault(name, []).append(0.0)

    def pair(self, left: ast.expr, right: ast.expr, is_equality: bool) -> None:
        """Raises an error unless a comparison is valid.

        A valid comparison compares two sums, or a categorical parameter with one of its values.
        """
        for node, other in ((left, right), (right, left)):
            name = self.columns.get(getattr(node, "id", ""), "")
            choice = parameter_of(name, self.space) if name and is_equality else None
            if isinstance(other, ast.Constant) and choice is not None and not choice.is_numeric:
                if other.value not in choice.values:
                    raise ValueError(
                        f"The constraint {self.text!r} compares {name!r} with {other.value!r}, "
                        "which is not a value of the parameter: use one of "
                        f"{', '.join(map(repr, choice.values[:12]))}."
                    )
                self.ends[name] = []
                return
        weights, bound = self.weights(left, right)
        if not weights:
            raise ValueError(f"The constraint {self.text!r} names no parameter: omit it.")
        if len(weights) == 1:
            ((name, weight),) = weights.items()
            self.ends.setdefault(name, []).append(bound / weight)

    def weights(self, left: ast.expr, right: ast.expr) -> tuple[dict[str, float], float]:
        """Moves all parameters of a comparison to the left side, and all constants to the right.

        Returns:
            The weights of the left side by parameter, and the constant on the right side.
        """
        *weights, constant = (_read_sum(left, self.sums) - _read_sum(right, self.sums)).tolist()
        used = {c: w for c, w in zip(self.space.columns, weights, strict=True) if w}
        for name in used:
            self.parameter(name)
        return used, -constant

    def parameter(self, name: str) -> Any:
        """Returns a parameter by name; raises an error unless it is numeric and always active."""
        parameter = parameter_of(name, self.space)
        if parameter.active_if or not parameter.is_numeric:
            raise ValueError(
                f"The constraint {self.text!r} names {name!r}, which does not have a number in "
                "each row: use only numeric parameters that are always active."
            )
        return parameter


def _read_sum(node: ast.AST, columns: Mapping[str, Array]) -> Array:
    """Converts the syntax tree of a sum to a vector.

    Args:
        node: The syntax tree.
        columns: A unit vector for each parameter, and for :data:`CONSTANT`.

    Returns:
        The weights of all parameters, followed by the constant term.
    """
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
    raise SyntaxError


def parameter_of(name: str, space: SearchSpace, argument: str = "The constraint") -> Any:
    """Returns a parameter by its name.

    If there is no such parameter, the error message names ``argument`` as the source of the name.
    """
    for parameter in space.parameters:
        if parameter.name == name:
            return parameter
    columns = ", ".join(space.columns)
    raise ValueError(f"{argument} names {name!r}, which is not a parameter: use one of {columns}.")


# ----------------------------------------------------------------------------------------- repair


class _Variable(NamedTuple):
    """Parameter in the mixed-integer program of :class:`Repair`.

    The value of the parameter is ``offset + scales @ v``, where ``v`` are variables of the program.
    A parameter with a range, or with an equally spaced list of values, has one variable between 0
    and ``largest``. Any other list has a 0-1 variable for each value, and exactly one of these
    variables is 1.
    """

    offset: float
    scales: Array
    largest: float
    is_whole: bool
    is_linear: bool = True  # whether the encoded value is linear in v

    @classmethod
    def of(cls, column: str, space: SearchSpace) -> _Variable:
        """Makes the variables for a parameter of the search space."""
        parameter = parameter_of(column, space)
        if parameter.size is None:
            if parameter.log:
                raise ValueError(
                    f"A constraint on {column!r} is not linear, because the parameter has "
                    "log=True: remove this setting from the search space."
                )
            return cls(parameter.lower, np.array([parameter.upper - parameter.lower]), 1.0, False)
        values = parameter.decode(parameter.unit_grid())[column].to_numpy(float)
        gaps = np.diff(values)
        if np.allclose(gaps, gaps[:1], rtol=1e-9, atol=0.0):
            step = gaps[:1].sum()  # 0 for a single value
            return cls(values[0], np.array([step]), len(gaps), True, not parameter.log)
        return cls(0.0, values, 1.0, True, is_linear=False)


class Repair:
    """Solver that moves configurations so that they satisfy linear constraints.

    Use it to move each configuration to the nearest configuration that satisfies all constraints.

    Args:
        space: The search space.
        constraints: The linear constraints.
        fixed: Columns whose values do not change.

    Raises:
        ValueError: If a constraint contains a real-valued parameter with a logarithmic scale,
            because the constraint is not linear on this scale.

    Example:
        >>> from pandas import DataFrame
        >>> space = SearchSpace([IntegerParameter("a", 0, 9), FloatParameter("b", 0, 1)])
        >>> repair = Repair(space, read_constraint("a == 4 * b", space))
        >>> repair.nearest(DataFrame({"a": [9], "b": [0.5]})).to_numpy().tolist()
        [[2.0, 0.5]]
    """

    def __init__(
        self, space: SearchSpace, constraints: Sequence[Condition], fixed: Collection[str] = ()
    ) -> None:
        self._features, self._constraints = space.feature_names, constraints
        named = {column for constraint in constraints for column in constraint.weights}
        self._variables = {c: _Variable.of(c, space) for c in space.columns if c in named}
        self.columns, variables = list(self._variables), list(self._variables.values())
        self._fixed = np.isin(self.columns, list(fixed))
        self._offsets = np.array([v.offset for v in variables])
        counts = [len(v.scales) for v in variables]
        self._largest = np.repeat([v.largest for v in variables], counts)
        self._is_whole = np.repeat([v.is_whole for v in variables], counts)
        self._scales = block_diag(*[v.scales for v in variables])
        self._widths = np.maximum(np.abs(self._scales * self._largest).max(axis=1), 1e-300)
        A = np.array([[row.weights.get(c, 0.0) for c in self.columns] for row in constraints])
        least = np.array([row.bound for row in constraints]) - A @ self._offsets
        sizes = np.abs(A @ self._scales) @ self._largest + np.abs(least)
        # Exactly one value of each list is chosen.
        lists = np.repeat(np.eye(len(counts)), counts, axis=1)[np.array(counts) > 1]
        self._sums = np.vstack([(A @ self._scales) / sizes[:, None], lists])
        self._least = np.concatenate([least / sizes, np.ones(len(lists))])
        is_equality = [row.is_equality for row in constraints] + [True] * len(lists)
        self._most = np.where(is_equality, self._least, np.inf)

    def for_botorch(self) -> dict[str, list[tuple[Tensor, Tensor, float]]]:
        """Converts the constraints on parameters to constraints on encoded inputs.

        Returns:
            The arguments ``inequality_constraints`` and ``equality_constraints`` of
            ``optimize_acqf``. Constraints on unequally spaced lists of values, or on log-scaled
            whole numbers, are left out.
        """
        found = defaultdict[str, list[tuple[Tensor, Tensor, float]]](list)
        for row in self._constraints:
            parts = [(self._variables[column], weight) for column, weight in row.weights.items()]
            if all(v.is_linear for v, _ in parts):
                columns = [self._features.index(column) for column in row.weights]
                widths = [weight * v.scales[0] * v.largest for v, weight in parts]
                least = row.bound - sum(weight * v.offset for v, weight in parts)
                factors = torch.tensor(widths, dtype=torch.double)
                kind = "equality_constraints" if row.is_equality else "inequality_constraints"
                found[kind].append((torch.tensor(columns), factors, float(least)))
        return found

    def nearest(
        self, frame: DataFrame, fixed: Mask | bool = False, margin: float = 0.0
    ) -> DataFrame:
        """Moves each configuration to a configuration that satisfies the constraints.

        Minimizes a weighted sum of the changes of parameters, relative to the widths of their
        ranges. The weights are random numbers between 1/2 and 3/2. They are drawn anew for each
        configuration, so that the moves do not always change the same parameters.

        Args:
            frame: A table of ``n`` configurations.
            fixed: Mask of cells that do not change, with one column for each parameter in
                ``self.columns``. The ``fixed`` columns of the constructor do not change, either.
            margin: The amount by which inequalities are tightened, relative to the sizes of their
                terms.

        Returns:
            A table with a column for each parameter that the constraints name (``self.columns``). A
            row does not change if no values satisfy the constraints.
        """
        rng = np.random.default_rng(0)
        places = frame[self.columns].to_numpy(float)
        stay = np.broadcast_to(self._fixed | fixed, places.shape)
        moved = [self._move(*each, margin, rng) for each in zip(places, stay, strict=True)]
        return DataFrame(moved, frame.index, self.columns)

    def _move(self, place: Array, stay: Mask, margin: float, rng: np.random.Generator) -> Array:
        """Moves the values ``place`` of one configuration until they satisfy all constraints.

        Returns the nearest values that satisfy the constraints; ``place`` if there are none. Values
        in the mask ``stay`` do not change.
        """
        m, p = self._scales.shape  # m parameters, made of p variables
        cost = np.concatenate([np.zeros(p), rng.uniform(0.5, 1.5, m)])
        S, off = self._scales / self._widths[:, None], (place - self._offsets) / self._widths
        free, none = np.full(m, np.inf), np.zeros((len(self._sums), m))
        A = np.block([[self._sums, none], [S, np.eye(m)], [-S, np.eye(m)]])
        tight = self._least + margin * np.isinf(self._most)
        least, most = np.r_[tight, off, -off], np.r_[self._most, free, free]
        lower = np.zeros(p + m)
        upper = np.r_[self._largest, np.where(stay, TOLERANCE, np.inf)]
        whole = np.pad(self._is_whole, (0, m))
        for _ in range(2):  # solves again with fixed whole numbers if they were inexact
            found = optimize.milp(
                cost,
                integrality=whole,
                bounds=optimize.Bounds(lower, upper),
                constraints=optimize.LinearConstraint(A, least, most),
                options={"node_limit": MAX_NODES},
            ).x
            if found is None:
                return place
            exact = np.where(whole, np.rint(found), found)
            if (exact == found).all():
                break
            found = exact
            lower, upper = np.where(whole, found, lower), np.where(whole, found, upper)
        moved = self._offsets + self._scales @ found[:p].clip(0.0, self._largest)
        return np.where(stay, place, moved)
