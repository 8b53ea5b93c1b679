"""Search spaces written down as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from botorch_transfer.search_space.choice import CategoricalParameter, OrdinalParameter
from botorch_transfer.search_space.numeric import FloatParameter, IntegerParameter
from botorch_transfer.search_space.parameter import Parameter
from botorch_transfer.search_space.simplex import SimplexParameter

_KEYS = {
    "float": {"low", "high", "log"},
    "int": {"low", "high", "log"},
    "ordinal": {"values", "log"},
    "categorical": {"choices"},
    "simplex": {"step"},
}
_REQUIRED = {
    "float": ("low", "high"),
    "int": ("low", "high"),
    "ordinal": ("values",),
    "categorical": ("choices",),
    "simplex": (),
}
_RANGE_IN_WORDS = re.compile(r"1-\w+ log-uniform ([\d.e+-]+?)\.\.([\d.e+-]+)")


def read_parameters(specs: Mapping[str, Mapping[str, Any]]) -> list[Parameter]:
    """Turn a mapping from names to specifications into parameters, in the same order.

    All ``simplex`` entries together are one composition, at the place of the first one.
    """
    parameters: dict[str, Parameter] = {}
    for name, spec in specs.items():
        _check_spec(name, spec)
        if spec["type"] == "simplex":
            parameters.setdefault("composition", _read_simplex(specs))
        else:
            parameters[name] = _read_parameter(name, spec, parameters)
    return list(parameters.values())


def _check_spec(name: str, spec: Mapping[str, Any]) -> None:
    kind = spec.get("type")
    if kind not in _KEYS:
        raise ValueError(
            f"Parameter {name!r} has the type {kind!r}: use one of {', '.join(_KEYS)}."
        )
    unknown = set(spec) - _KEYS[kind] - {"type", "active_if", "note"}
    if unknown:
        raise ValueError(
            f"Parameter {name!r} of type {kind} has the unknown entry {min(unknown)!r}: use "
            f"{', '.join(sorted(_KEYS[kind]))}, active_if or note."
        )


def _read_parameter(
    name: str, spec: Mapping[str, Any], earlier: Mapping[str, Parameter]
) -> Parameter:
    spec = _with_range(spec)
    for key in _REQUIRED[spec["type"]]:
        if key not in spec:
            raise ValueError(f"Parameter {name!r} of type {spec['type']} needs the entry {key!r}.")
    log = spec.get("log", False)
    condition = _read_condition(name, spec.get("active_if"), earlier)
    match spec["type"]:
        case "float":
            return FloatParameter(name, spec["low"], spec["high"], log, condition)
        case "int":
            return IntegerParameter(name, spec["low"], spec["high"], log, condition)
        case "ordinal":
            return OrdinalParameter(name, spec["values"], log, condition)
        case _:
            return CategoricalParameter(name, spec["choices"], condition)


def _with_range(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Read the range of a float from words such as "1-beta1 log-uniform 1e-4..1"."""
    words = _RANGE_IN_WORDS.fullmatch(spec.get("note", ""))
    if spec["type"] != "float" or "low" in spec or words is None:
        return spec
    smallest, largest = float(words[1]), float(words[2])
    return {**spec, "low": 1 - largest, "high": 1 - smallest, "log": "1-x"}


def _read_simplex(specs: Mapping[str, Mapping[str, Any]]) -> SimplexParameter:
    parts = {name: spec for name, spec in specs.items() if spec.get("type") == "simplex"}
    steps = {spec.get("step") for spec in parts.values()}
    if len(steps) > 1 or any("active_if" in spec for spec in parts.values()):
        raise ValueError(
            f"The fractions {', '.join(parts)} must have one and the same step and no active_if: "
            "they are one composition."
        )
    return SimplexParameter("composition", tuple(parts), steps.pop())


def _read_condition(
    name: str, condition: Any, earlier: Mapping[str, Parameter]
) -> Mapping[str, Any] | None:
    """Read ``{"kernel": ["rbf"]}`` or ``"kernel==rbf"``, text matched with the parent's values."""
    if condition is None or isinstance(condition, Mapping):
        return condition
    parent, equals, text = (part.strip() for part in str(condition).partition("=="))
    if not equals:
        raise ValueError(
            f"Parameter {name!r} has the active_if {condition!r}: write 'parent==value' or "
            "{'parent': [values]}."
        )
    values = getattr(earlier.get(parent), "values", ())
    return {parent: tuple(value for value in values if str(value) == text) or (text,)}
