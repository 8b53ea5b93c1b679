"""What must hold between the parameters of a space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from botorch_transfer._space.numeric import FloatParameter
from botorch_transfer._space.parameter import Parameter
from botorch_transfer._space.simplex import SimplexParameter


def check_names(parameters: Sequence[Parameter]) -> None:
    """Refuse parameters that share a name, a column of the table or a column of the encoding."""
    for kind, names in (
        ("parameter", [parameter.name for parameter in parameters]),
        ("column", [column for parameter in parameters for column in parameter.columns]),
        ("feature", [name for parameter in parameters for name in parameter.feature_names]),
    ):
        repeated = [name for rank, name in enumerate(names) if name in names[:rank]]
        if repeated:
            raise ValueError(
                f"The search space has more than one {kind} {repeated[0]!r}: names must differ."
            )


def check_conditions(parameters: Sequence[Parameter]) -> None:
    """Refuse an ``active_if`` with an unknown, later or unsuitable parent, or wrong values."""
    for rank, parameter in enumerate(parameters):
        for name, values in (parameter.active_if or {}).items():
            parent = next((p for p in parameters[:rank] if p.name == name), None)
            if parent is None:
                known = any(p.name == name for p in parameters)
                reason = "is not defined before it" if known else "is not in the search space"
                raise ValueError(
                    f"Parameter {parameter.name!r} is active for certain values of {name!r}, which "
                    f"{reason}: list parents first."
                )
            _check_parent(parameter, parent, values)


def _check_parent(parameter: Parameter, parent: Parameter, values: Sequence[Any]) -> None:
    if isinstance(parent, FloatParameter | SimplexParameter):
        raise ValueError(
            f"Parameter {parameter.name!r} depends on {parent.name!r}, which is continuous: only "
            "categorical, ordinal and integer parameters can switch others on."
        )
    unknown = [value for value in values if not parent.contains(value)]
    if unknown:
        raise ValueError(
            f"Parameter {parameter.name!r} is active if {parent.name!r} is {unknown[0]!r}, which "
            f"is not one of its values: correct the active_if of {parameter.name!r}."
        )
