"""Search spaces convert tables of runs to model inputs, and candidates to tables of new runs.

A ``SearchSpace`` is a list of parameters. ``encode`` maps the rows of a table to points of the unit
cube, the inputs of models and of BoTorch's optimizers. ``decode`` maps points of the unit cube to a
table of configurations.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from os import PathLike
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import DataFrame, Series
from pandas.api.types import is_integer_dtype
from torch import Tensor

from botorch_transfer.search_space.cells import as_known, decoded, hint, sheets, warn_of_spellings
from botorch_transfer.search_space.parameters import (
    Array,
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    Parameter,
)

logger = logging.getLogger(__name__)

#: Maximum number of values of an integer parameter in ``SearchSpace.discrete_dims``.
MAX_LISTED_VALUES = 1_000


#: Names of arguments, their allowed types, and the advice of the error message for other types.
ARGUMENTS: tuple[tuple[str, Any, str], ...] = (
    ("history runs candidates", DataFrame | None, "give one DataFrame, as read_table returns"),
    ("missing rename fixed", Mapping | None, "give a dictionary with names as keys"),
    ("task step run cost status", Hashable, "give the name of one column"),
    ("outcome same_in_batch leave_out", Iterable, "give a name, or a list of names"),
    ("goal", str | list | tuple | None, "use 'max' or 'min', or a list of them"),
    ("models constraints", Iterable | None, "give a list"),
    ("cache resume", str | PathLike | None, "give a path"),
    ("repeats changed robust progress", Integral | np.bool_ | None, "use True or False"),
    ("noise", str | Mapping | None, "give the name of the column of standard errors"),
    ("log", bool | np.bool_ | Iterable, "use True or False, or name outcomes"),
    ("seed", Integral, "give a whole number of at least 0"),
)

#: Types that an argument must not have, because their items have no order or their values would be
#: ignored.
REFUSED: dict[str, Any] = {"outcome": set | Mapping | Series, "models": set, "constraints": set}


def check_arguments(
    given: Mapping[str, Any], arguments: Sequence[tuple[str, Any, str]] = ARGUMENTS
) -> None:
    """Raises an error if an argument has a wrong type.

    Args:
        given: The arguments to check, by name. An argument whose name is not in ``arguments`` is
            not checked.
        arguments: Triples in the format of :data:`ARGUMENTS`: names of arguments, their allowed
            types, and the advice of the error message for other types.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If ``seed`` is negative or too large.

    Example:
        >>> check_arguments({"seed": 0, "n": "any"})
    """
    for names, kinds, remedy in arguments:
        for name in given.keys() & names.split():
            is_right = isinstance(value := given[name], kinds)
            is_right &= not isinstance(value, REFUSED.get(name, ()))
            if not is_right or (name == "seed" and not 0 <= value < 2**62):
                kind = ValueError if is_right else TypeError
                raise kind(f"{name} is {' '.join(repr(value).split())[:60]}: {remedy}.")


def check_table(frame: DataFrame, columns: Collection[Any], known: Iterable[Any] = ()) -> DataFrame:
    """Converts column names to text; raises an error if one of ``columns`` occurs twice.

    Args:
        frame: The table.
        columns: Names of the columns that must not occur twice.
        known: Further names that columns of the table may have.

    Returns:
        The table with column names as text: the name 1 becomes ``"1"``. A column name is
        replaced by a name in ``columns`` or ``known`` if the two names are equal except for the
        Unicode form of accents. A named level of the index becomes a column, unless the table
        already has a column with this name.

    Raises:
        InputDataError: If ``frame`` is not a ``DataFrame``, if column names have several levels, or
            if one of the columns occurs more than once.
    """
    if not isinstance(frame, DataFrame):
        raise InputDataError(f"The table is a {type(frame).__name__}: give a pandas DataFrame.")
    if (levels := frame.columns.nlevels) > 1:
        problem = f"The column names have {levels} levels"
        raise InputDataError(f"{problem}: flatten the names to one level.")
    index: Any = frame.index
    if {*index.names} != {None}:
        labels = index.set_names([None] * index.nlevels) if index.is_unique else range(len(index))
        new = [name for name in index.names if name not in {None, *frame.columns}]
        frame = frame.set_axis(labels).assign(**{str(n): index.get_level_values(n) for n in new})
    names = as_known(frame.columns, [*columns, *known])
    for name in columns:
        if names.count(str(name)) > 1:
            raise InputDataError(f"The table has several columns {name!r}: keep one column.")
    return frame if names == list(frame.columns) else frame.set_axis(names, axis=1)


@dataclass(frozen=True)
class SearchSpace:
    """A list of parameters, with conversions between tables of runs and model inputs.

    Use it to describe the parameters that you tune. Model inputs are points of the unit cube.

    A parameter with an ``active_if`` is active in a row if each of its parents is active and has
    one of the given values. If the parameter is inactive, ``encode`` ignores its cell, which is
    usually empty, and ``decode`` leaves its cell empty (NaN, None or <NA>). The encoding of an
    inactive parameter is constant: 0.5, or the mean encoding of all choices.

    Args:
        parameters: The parameters; parents precede their dependent parameters.

    Raises:
        ValueError: If there are no parameters, or if two parameters have the same name or the same
            column of the encoding. Also if an ``active_if`` names a parent that is continuous or
            not earlier in the list, or a value that the parent cannot have.

    Example:
        >>> from pandas import DataFrame
        >>> space = SearchSpace(
        ...     [
        ...         CategoricalParameter("kernel", ("rbf", "linear")),
        ...         FloatParameter("C", 0.01, 100.0, log=True),
        ...         FloatParameter("gamma", 0.001, 10.0, log=True, active_if={"kernel": "rbf"}),
        ...     ]
        ... )
        >>> runs = DataFrame({"kernel": ["rbf", "linear"], "C": [1.0, 100.0], "gamma": [0.1, None]})
        >>> X = space.encode(runs)
        >>> X
        tensor([[1.0000, 0.0000, 0.5000, 0.5000],
                [0.0000, 1.0000, 1.0000, 0.5000]], dtype=torch.float64)
        >>> space.decode(X)
           kernel      C  gamma
        0     rbf    1.0    0.1
        1  linear  100.0    NaN
    """

    parameters: Sequence[Parameter]

    def __post_init__(self) -> None:
        given = self.parameters
        is_list = isinstance(given, Iterable) and not isinstance(given, Mapping | str)
        parts = tuple(given) if is_list else ()
        wrong = [part for part in parts if not isinstance(part, Parameter)] if is_list else [given]
        if wrong:
            raise TypeError(
                f"A search space takes a list of parameters, not {wrong[0]!r}: give a list of "
                "parameters such as FloatParameter('x', 0, 1), or use SearchSpace.from_dict for a "
                "dictionary, SearchSpace.from_json for a file, or guess_space for a table."
            )
        object.__setattr__(self, "parameters", parts)
        if not self.parameters:
            raise ValueError("The search space has no parameters: give at least one parameter.")
        _check_names("parameter", self.columns)
        _check_names("feature", self.feature_names)
        for rank, parameter in enumerate(self.parameters):
            _check_condition(parameter, self.parameters[:rank])
            warn_of_spellings(f"Values of {parameter.name!r}", getattr(parameter, "values", ()))

    @classmethod
    def of(cls, given: Any) -> SearchSpace:
        """Makes a space from a list of parameters or a dictionary; returns a space unchanged.

        Args:
            given: A space, a list of parameters, or a dictionary as for ``from_dict``.

        Returns:
            The space.

        Raises:
            TypeError: If ``given`` is none of these.

        Example:
            >>> SearchSpace.of([FloatParameter("C", 0.1, 10.0)]).columns
            ['C']
        """
        if isinstance(given, SearchSpace):
            return given
        return cls.from_dict(given) if isinstance(given, Mapping) else cls(given)

    @classmethod
    def from_dict(cls, spec: Mapping[str, Any]) -> SearchSpace:
        """Makes a space from nested dictionaries, such as the content of a JSON file.

        Args:
            spec: Mapping from parameter names to dictionaries, or a mapping that has such a mapping
                under the key ``"params"``. Each dictionary has a ``"type"``. ``"float"`` and
                ``"int"`` need ``"low"`` and ``"high"``. ``"ordinal"`` needs ``"values"``, and
                ``"categorical"`` needs ``"choices"``. ``"simplex"`` is a fraction of a mixture,
                from 0 to 1, and needs no further entry. Optional entries are ``"log"`` (not for
                ``"categorical"`` and ``"simplex"``), ``"step"`` (for ``"float"`` and
                ``"simplex"``), ``"descriptors"`` (for ``"categorical"``), ``"active_if"``, such as
                ``{"kernel": ["rbf"]}`` or ``"kernel==rbf"``, and ``"note"``, which is ignored.

        Returns:
            The space, with parameters in the order of the mapping.

        Raises:
            ValueError: If an entry is missing, unknown or invalid.

        Example:
            >>> C = {"type": "float", "low": 0.1, "high": 10, "log": True}
            >>> SearchSpace.from_dict({"C": C}).dim
            1
        """
        specs = spec.get("params", spec) if isinstance(spec, Mapping) else spec
        if not isinstance(specs, Mapping):
            raise TypeError(f"The search space is a {type(specs).__name__}: give a dictionary.")
        parameters: dict[str, Parameter] = {}
        for name, entries in specs.items():
            parameters[name] = _read_parameter(name, entries, parameters)
        if fractions := [name for name in specs if specs[name]["type"] == FRACTION]:
            text = "The fractions %s must sum to 1: give the constraint '%s == 1'"
            logger.warning(text, ", ".join(fractions), " + ".join(fractions))
        return cls(list(parameters.values()))

    @classmethod
    def from_json(cls, path: str | PathLike[str]) -> SearchSpace:
        """Reads a space from a JSON file; see ``from_dict``.

        Args:
            path: The file.

        Returns:
            The space.

        Example:
            >>> from pathlib import Path
            >>> _ = Path("space.json").write_text('{"C": {"type": "float", "low": 0, "high": 9}}')
            >>> SearchSpace.from_json("space.json").columns
            ['C']
        """
        try:
            return cls.from_dict(json.loads(decoded(path)[0], object_pairs_hook=_mapping))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is not a JSON file of a search space ({error}).") from error

    def to_dict(self) -> dict[str, Any]:
        """Converts the space to nested dictionaries, for JSON; the inverse of ``from_dict``.

        Returns:
            The dictionary that ``from_dict`` takes.

        Raises:
            ValueError: If the class of a parameter is not a class of this package.

        Example:
            >>> SearchSpace([IntegerParameter("depth", 1, 9)]).to_dict()
            {'params': {'depth': {'type': 'int', 'low': 1, 'high': 9}}}
        """
        return {"params": {p.name: _write_parameter(p) for p in self.parameters}}

    @property
    def dim(self) -> int:
        """Number ``d`` of model inputs, the columns of the encoding."""
        return len(self.feature_names)

    @property
    def bounds(self) -> Tensor:
        """Bounds of the model inputs for BoTorch's optimizers, ``2 x d``: zeros and ones."""
        return torch.tensor([[0.0], [1.0]], dtype=torch.float64).repeat(1, self.dim)

    @property
    def columns(self) -> list[str]:
        """Names of the parameters, which are also columns of a table of runs."""
        return [parameter.name for parameter in self.parameters]

    @property
    def number_columns(self) -> list[str]:
        """Names of the parameters whose columns hold numbers."""
        return [parameter.name for parameter in self.parameters if parameter.is_numeric]

    @property
    def feature_names(self) -> list[str]:
        """Names of the ``d`` model inputs, such as ``lr`` and ``kernel=rbf``."""
        return [name for parameter in self.parameters for name in parameter.feature_names]

    @property
    def feature_indices(self) -> dict[str, list[int]]:
        """Mapping from each parameter's name to the indices of its model inputs."""
        return {p.name: list(range(s.start, s.stop)) for p, s in self._places}

    @property
    def is_discrete(self) -> list[bool]:
        """For each of the ``d`` model inputs, whether it takes only finitely many values."""
        return [p.size is not None for p in self.parameters for _ in p.feature_names]

    @property
    def discrete_dims(self) -> dict[int, list[float]]:
        """Encoded values of each integer, ordinal or stepped input, by the index of the input.

        Pass the mapping to ``optimize_acqf_mixed_alternating(discrete_dims=...)``. The mapping has
        no one-hot columns, because this optimizer moves one column at a time: fix one-hot columns
        by ``fixed_features_list``. The mapping has no parameters with more than
        ``MAX_LISTED_VALUES`` values. Treat such parameters as continuous, and ``round`` the
        candidates. If a parameter in the mapping has more than 20 values, the optimizer treats this
        parameter as continuous.
        """
        return {
            columns.start: parameter.unit_grid()[:, 0].tolist()
            for parameter, columns in self._places
            if isinstance(parameter, FloatParameter | IntegerParameter | OrdinalParameter)
            and 1 < (parameter.size or 0) <= MAX_LISTED_VALUES
        }

    def encode(self, frame: DataFrame) -> Tensor:
        """Maps the rows of a table to points of the unit cube.

        Args:
            frame: A table with ``n`` rows and a column for each parameter; other columns are
                ignored. Values that are outside of a range by a rounding error are clipped. The
                relative tolerance is 1e-9, or 1e-6 in single precision.

        Returns:
            An ``n x d`` tensor in double precision.

        Raises:
            InputDataError: If a column is missing, or an active parameter's value is missing,
                outside of its range or not in its list of values. The message names the parameter,
                the value and the row.
        """
        return self._encode(frame, lambda parameter, rows: parameter.encode(rows))[0]

    def place(self, frame: DataFrame, within: float | None = None) -> Tensor:
        """Encodes runs of an earlier search space, which may have had other bounds or choices.

        Args:
            frame: As in ``encode``.
            within: Largest allowed distance from the unit cube in any column. Values further
                outside, and values that cannot be encoded, raise an error as in ``encode``. With
                ``None``, these values raise no error.

        Returns:
            An ``n x d`` tensor in double precision. It differs from the result of ``encode`` only
            if values are not in the space. Numbers outside of a range are extrapolated beyond the
            unit cube. Numbers between two values of an integer, ordinal or stepped parameter are
            interpolated. A row is NaN if one of its values cannot be encoded: a choice that no
            longer exists, a number that has no logarithm although the parameter's scale is
            logarithmic, or a usual code of a missing value, such as -999, if this code is outside
            of the range.

        Raises:
            InputDataError: If a column or value is missing, if a value has a wrong type, or if
                ``within`` excludes a value.

        Example:
            >>> from pandas import DataFrame
            >>> space = SearchSpace([FloatParameter("x", 0, 10), OrdinalParameter("n", (1, 2))])
            >>> space.place(DataFrame({"x": [5, 15, 5], "n": [1, 2, 3]}))
            tensor([[0.5000, 0.0000],
                    [1.5000, 1.0000],
                    [0.5000, 2.0000]], dtype=torch.float64)
        """

        def place(parameter: Parameter, rows: DataFrame) -> Array:
            unit = parameter.place(rows)
            if within is not None:
                is_far = ~np.asarray(((-unit <= within) & (unit - 1 <= within)).all(axis=1))
                parameter.encode(rows[is_far])  # raises an error for values far outside
            return unit

        return self._encode(frame, place)[0]

    def without_place(self, frame: DataFrame) -> list[tuple[str, Any, str]]:
        """Finds the values in a table that :meth:`place` cannot encode.

        Args:
            frame: As in ``encode``.

        Returns:
            A tuple for each row that has such a value: the column of the row's first such value,
            this value, and a remark for messages. The remark names a similar value of the
            parameter; the remark is empty if there is no similar value.

        Example:
            >>> from pandas import DataFrame
            >>> space = SearchSpace([CategoricalParameter("solvent", ("THF", "DMF"))])
            >>> space.without_place(DataFrame({"solvent": ["THF", "dmf"]}))
            [('solvent', 'dmf', " (a similar value is 'DMF')")]
        """
        return self._encode(frame, lambda parameter, rows: parameter.place(rows))[1]

    def _encode(
        self, frame: DataFrame, how: Callable[[Parameter, DataFrame], Array]
    ) -> tuple[Tensor, list[tuple[str, Any, str]]]:
        """Encodes the column of each parameter by the function ``how``.

        Returns the encoded rows, and the values that cannot be encoded, as in ``without_place``.
        """
        frame = check_table(frame, self.columns)
        unit, lost = np.empty((len(frame), self.dim)), np.zeros(len(frame), dtype=np.bool_)
        reasons: list[tuple[str, Any, str]] = []
        for parameter, columns in self._places:
            active = self._active(parameter, unit) & ~lost
            unit[:, columns] = parameter.neutral
            if not active.any():
                continue
            if (name := parameter.name) not in frame.columns:
                problem = f"The table has no column {name!r} for parameter {name!r}"
                problem += hint(name, frame.columns)
                remedy = "add the column, or take the parameter out of the search space."
                raise InputDataError(f"{problem}: {remedy}{sheets(frame)}")
            rows = frame if active.all() else frame[active]
            placed = how(parameter, rows)
            lost[active] = nowhere = np.asarray(np.isnan(placed).any(axis=1))
            if nowhere.any():
                cells = rows[name][nowhere]
                remark = hint(cells.iloc[0], getattr(parameter, "values", ()), "value")
                reasons += [(name, cell, remark) for cell in cells]
            unit[active, columns] = np.nan_to_num(placed)
        unit[lost] = np.nan
        return torch.from_numpy(unit), reasons

    def decode(self, X: Tensor) -> DataFrame:
        """Converts points of the unit cube to a table of configurations; the inverse of ``encode``.

        Discrete parameters are rounded to an allowed value, so any point of the cube decodes to a
        valid configuration.

        Args:
            X: An ``n x d`` tensor in the unit cube, of any floating-point type and on any device.

        Returns:
            A table with ``n`` rows. Conditional integers have pandas' nullable type ``Int64``.

        Raises:
            ValueError: If ``X`` is not an ``n x d`` tensor, or is outside of the unit cube by more
                than 1e-6.
        """
        if not isinstance(X, Tensor) or X.ndim != 2 or X.shape[-1] != self.dim:
            found = tuple(X.shape) if isinstance(X, Tensor) else type(X).__name__
            raise ValueError(f"X has shape or type {found}: give an n x {self.dim} tensor.")
        unit = X.detach().to(device="cpu", dtype=torch.float64).numpy()
        if not np.all((unit >= -1e-6) & (unit <= 1 + 1e-6)):
            raise ValueError("X has values outside of the unit cube: scale X to the unit cube.")
        unit = unit.clip(0.0, 1.0)
        decoded: dict[Any, Series] = {}
        for parameter, columns in self._places:
            column = parameter.decode(unit[:, columns])[parameter.name]
            if parameter.active_if is not None:
                column = column.astype("Int64") if is_integer_dtype(column.dtype) else column
                column = column.mask(~self._active(parameter, unit), None)  # <NA>, None or NaN
            decoded[parameter.name] = column
        return DataFrame(decoded)

    def round(self, X: Tensor) -> Tensor:
        """Moves each point of the unit cube to the encoding of the nearest configuration.

        Use it as ``optimize_acqf(..., post_processing_func=space.round)``.

        Args:
            X: A ``... x d`` tensor in the unit cube.

        Returns:
            A tensor with the shape, type and device of ``X``.
        """
        return self.encode(self.decode(X.reshape(-1, X.shape[-1]))).to(X).reshape(X.shape)

    def sample(self, n: int, seed: int) -> DataFrame:
        """Draws valid random configurations, uniform on each parameter's scale.

        Args:
            n: The number of configurations.
            seed: Seed of the random numbers.

        Returns:
            A table with ``n`` rows.

        Raises:
            ValueError: If ``n`` is not a whole number, or is negative.
        """
        if not isinstance(n, Integral) or n < 0:
            raise ValueError(f"n is {n!r}: give a whole number of configurations.")
        rng = np.random.default_rng(seed)
        unit = np.hstack([parameter.sample(n, rng) for parameter in self.parameters])
        return self.decode(torch.from_numpy(unit))

    def grid(self, max_rows: int = 1_000_000) -> DataFrame:
        """Lists all configurations of a finite space, for ``optimize_acqf_discrete``.

        Args:
            max_rows: Maximum number of configurations.

        Returns:
            A table of distinct configurations; the last parameter varies fastest.

        Raises:
            ValueError: If a parameter is continuous, or there are more than ``max_rows``
                configurations.
        """
        return self.decode(torch.from_numpy(self._combinations(self.parameters, max_rows)))

    def fixed_features_list(self, max_rows: int = 10_000) -> list[dict[int, float]]:
        """Lists the combinations of unordered choices, for ``optimize_acqf_mixed``.

        Each combination fixes the one-hot columns and the parents of conditional parameters. If
        these values make a parameter inactive, the combination also fixes this parameter at its
        neutral encoding. The optimizer varies the remaining floats, integers and ordinals: round
        its candidates by ``post_processing_func=space.round``. A space without unordered choices
        gives ``[{}]``.

        Args:
            max_rows: Maximum number of combinations.

        Returns:
            A list of mappings from columns of the encoding to values.

        Raises:
            ValueError: If there are more than ``max_rows`` combinations.
        """
        return _fixed(self._combinations(self._chosen, max_rows))

    def fixed_features(self, X: Tensor) -> list[dict[int, float]]:
        """Finds the combination of unordered choices of each point; see ``fixed_features_list``.

        Use this method if there are too many combinations to list: evaluate the acquisition
        function at many points, and optimize only over the combinations that occur in the points
        with the largest values.

        Args:
            X: An ``n x d`` tensor in the unit cube, rounded by ``round``.

        Returns:
            For each point, a mapping from columns of the encoding to values.

        Example:
            >>> kernel = CategoricalParameter("kernel", ("rbf", "linear"))
            >>> space = SearchSpace([kernel, FloatParameter("C", 0, 1)])
            >>> space.fixed_features(torch.tensor([[0.0, 1.0, 0.3]]))
            [{0: 0.0, 1: 1.0}]
        """
        unit = X.detach().cpu().double().numpy().copy()
        for parameter, columns in self._places:
            if parameter not in self._chosen:
                unit[self._active(parameter, unit), columns] = np.nan
        return _fixed(unit)

    @property
    def _chosen(self) -> list[Parameter]:
        """Parameters that ``fixed_features_list`` fixes: categoricals, parents and constants."""
        parents = {name for p in self.parameters for name in p.active_if or ()}
        return [
            p
            for p in self.parameters
            if isinstance(p, CategoricalParameter) or p.name in parents or p.size == 1
        ]

    @property
    def _places(self) -> list[tuple[Parameter, slice]]:
        """Pairs of a parameter and the slice of its model inputs."""
        ends = np.cumsum([len(parameter.feature_names) for parameter in self.parameters]).tolist()
        return list(zip(self.parameters, map(slice, [0, *ends[:-1]], ends), strict=True))

    def _active(self, parameter: Parameter, unit: Array) -> NDArray[np.bool_]:
        """For each row of the encoding ``unit``, returns whether a parameter is active.

        Reads only the columns of the parameter's direct and indirect parents. All other columns of
        ``unit`` may be unset.
        """
        active = np.ones(len(unit), dtype=np.bool_)
        for name, values in (parameter.active_if or {}).items():
            parent, columns = next((p, s) for p, s in self._places if p.name == name)
            matches = parent.decode(unit[:, columns])[name].isin(values).to_numpy()
            active &= matches & self._active(parent, unit)
        return active

    def _combinations(self, chosen: Sequence[Parameter], max_rows: int) -> Array:
        """Returns an ``m x d`` array: the encoded combinations of values of ``chosen`` parameters.

        All parents of conditional parameters must be in ``chosen``. The columns of a parameter that
        is not in ``chosen`` are NaN in the rows in which this parameter is active.
        """
        unit = np.full((1, self.dim), np.nan)
        for parameter, columns in self._places:
            active = self._active(parameter, unit)
            unit[~active, columns] = parameter.neutral
            if parameter in chosen:
                _check_size(parameter, active, max_rows)
                values = parameter.unit_grid()
                repeats = np.where(active, len(values), 1)
                unit, active = unit.repeat(repeats, axis=0), active.repeat(repeats)
                unit[active, columns] = np.tile(values, (int(active.sum()) // len(values), 1))
        return unit


def _fixed(unit: Array) -> list[dict[int, float]]:
    """Converts each row to a mapping from column indices to values; leaves out NaN."""
    return [{j: float(v) for j, v in enumerate(row) if not np.isnan(v)} for row in unit]


def _check_size(parameter: Parameter, active: NDArray[np.bool_], max_rows: int) -> None:
    if parameter.size is None:
        problem = f"Parameter {parameter.name!r} is continuous, so the space has no grid"
        raise ValueError(f"{problem}: use sample().")
    if active.sum() * parameter.size + (~active).sum() > max_rows:
        raise ValueError(
            f"With the parameter {parameter.name!r}, the space has more than {max_rows:,} "
            "combinations of values: raise max_rows, or use sample() or a continuous optimizer."
        )


def _check_names(kind: str, names: Sequence[str]) -> None:
    """Raises an error if a name of a parameter, a feature or an entry occurs twice."""
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"The space has more than one {kind} {twice[0]!r}: use different names.")


def _mapping(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Converts an object of a JSON file to a dictionary; raises an error if a name is repeated."""
    _check_names("entry", [name for name, _ in pairs])
    return dict(pairs)


def _check_condition(parameter: Parameter, earlier: Sequence[Parameter]) -> None:
    """Raises an error if the ``active_if`` of a parameter has invalid parents or values."""
    parents = {p.name: p for p in earlier if not isinstance(p, FloatParameter)}
    for name, values in (parameter.active_if or {}).items():
        if name not in parents:
            problem = f"The active_if of {parameter.name!r} has the parent {name!r}: {name!r} must"
            kinds = "be a categorical, ordinal or integer parameter"
            raise ValueError(f"{problem} {kinds}, listed before {parameter.name!r}.")
        if unknown := [value for value in values if not parents[name].contains(value)]:
            problem = f"Parameter {parameter.name!r} is active if {name!r} is {unknown[0]!r}, which"
            remedy = f"is not a value of {name!r}: correct the active_if of {parameter.name!r}."
            raise ValueError(f"{problem} {remedy}")


#: Value of the entry ``"type"`` for a parameter that is a fraction of a mixture, from 0 to 1.
FRACTION = "simplex"

#: Formats of the dictionaries that describe parameters, by ``"type"``: the class of the parameter,
#: the required entries with the fields that they set, and the optional entries. An optional entry
#: has the name of the field that it sets.
_FORMATS: dict[str, tuple[Callable[..., Parameter], dict[str, str], set[str]]] = {
    "float": (FloatParameter, {"low": "lower", "high": "upper"}, {"log", "step"}),
    "int": (IntegerParameter, {"low": "lower", "high": "upper"}, {"log"}),
    "ordinal": (OrdinalParameter, {"values": "values"}, {"log"}),
    "categorical": (CategoricalParameter, {"choices": "values"}, {"descriptors"}),
    FRACTION: (partial(FloatParameter, lower=0.0, upper=1.0), {}, {"step"}),
}


def _read_parameter(
    name: str, spec: Mapping[str, Any], earlier: Mapping[str, Parameter]
) -> Parameter:
    kind = spec.get("type") if isinstance(spec, Mapping) else None
    if kind not in list(_FORMATS):
        problem = f"Parameter {name!r} has the type {kind!r}: use one of {', '.join(_FORMATS)},"
        raise ValueError(f"{problem} as in {{{name!r}: {{'type': 'float', 'low': 0, 'high': 1}}}}.")
    make, required, optional = _FORMATS[kind]
    known = optional.union(required)
    if extra := set(spec) - known - {"type", "active_if", "note"}:
        problem = f"Parameter {name!r} of type {kind} has the unknown entry {min(extra, key=str)!r}"
        raise ValueError(f"{problem}: use {', '.join(sorted(known))}, active_if or note.")
    if missing := [key for key in required if key not in spec]:
        raise ValueError(f"Parameter {name!r} of type {kind} needs the entry {missing[0]!r}.")
    options = {key: spec[key] for key in optional if key in spec}
    condition = _read_condition(name, spec.get("active_if"), earlier)
    return make(name, *map(spec.get, required), **options, active_if=condition)


def _write_parameter(parameter: Parameter) -> dict[str, Any]:
    """Converts a parameter to a dictionary; the inverse of ``_read_parameter``."""
    kind = next((kind for kind, (make, *_) in _FORMATS.items() if make is type(parameter)), None)
    if kind is None:
        problem = f"{parameter.name!r} is a {type(parameter).__name__}, which cannot be written"
        raise ValueError(f"{problem} as a dictionary: use a parameter class of this package.")
    _, required, optional = _FORMATS[kind]
    given = {"type": kind} | {key: getattr(parameter, name) for key, name in required.items()}
    given |= {key: getattr(parameter, key) for key in sorted(optional) if getattr(parameter, key)}
    entries = {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
    if parameter.active_if:
        entries["active_if"] = {name: list(v) for name, v in parameter.active_if.items()}
    return entries


def _read_condition(
    name: str, condition: Any, earlier: Mapping[str, Parameter]
) -> Mapping[str, Any] | None:
    """Converts an ``active_if`` in a file, such as ``"kernel==rbf"``, to a dictionary."""
    if condition is None or isinstance(condition, Mapping):
        return condition
    parent, equals, text = (part.strip() for part in str(condition).partition("=="))
    if not equals:
        raise ValueError(f"Parameter {name!r} has active_if {condition!r}: write 'parent==value'.")
    values = getattr(earlier.get(parent), "values", ())
    return {parent: tuple(value for value in values if str(value) == text) or (text,)}
