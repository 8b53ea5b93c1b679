"""Optuna's distributions as parameters of a search space, and back.

Read this for how a distribution with a step is encoded, and for what stands in a table of runs for
a choice that tables cannot hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from botorch_transfer.search_space import (
    MAX_LISTED_VALUES,
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    Parameter,
)
from botorch_transfer.search_space.parameters import ActiveIf


def parameter_of(
    name: str, distribution: BaseDistribution, active_if: ActiveIf | None = None
) -> Parameter:
    """Describes a distribution as a parameter.

    Numbers with a step become ordinal values, which are equally spaced. Of more than
    ``MAX_LISTED_VALUES`` steps the encoding is continuous, and :func:`value_of` rounds.

    Args:
        name: The name of the parameter.
        distribution: Optuna's distribution, not of a single value.
        active_if: When the parameter is active.

    Returns:
        The parameter.

    Example:
        >>> parameter_of("units", IntDistribution(32, 128, step=32)).values
        (32, 64, 96, 128)
    """
    if isinstance(distribution, CategoricalDistribution):
        return CategoricalParameter(name, [label(c) for c in distribution.choices], active_if)
    if not isinstance(distribution, FloatDistribution | IntDistribution):
        raise TypeError(
            f"Parameter {name!r} has a {type(distribution).__name__}: only Optuna's float, int and "
            "categorical distributions can be used."
        )
    low, high, log, step = distribution.low, distribution.high, distribution.log, distribution.step
    whole = isinstance(distribution, IntDistribution)
    if step is not None and not (whole and step == 1):
        count = round((high - low) / step) + 1
        if count <= MAX_LISTED_VALUES:
            values = [value_of(distribution, low + rank * step) for rank in range(count)]
            return OrdinalParameter(name, values, active_if=active_if)
    if whole:
        return IntegerParameter(name, int(low), int(high), log, active_if)
    return FloatParameter(name, low, high, log, active_if)


def distribution_of(parameter: Parameter) -> BaseDistribution:
    """Describes a parameter as a distribution, as the objective function has to suggest it.

    Args:
        parameter: The parameter.

    Returns:
        Optuna's distribution. Ordered values that are not equally spaced numbers are choices.

    Raises:
        TypeError: If it is a composition, which Optuna does not know.

    Example:
        >>> from botorch_transfer import OrdinalParameter
        >>> distribution_of(OrdinalParameter("units", (32, 64, 96))).step
        32
    """
    if isinstance(parameter, FloatParameter):
        return FloatDistribution(parameter.lower, parameter.upper, log=parameter.log is True)
    if isinstance(parameter, IntegerParameter):
        return IntDistribution(int(parameter.lower), int(parameter.upper), log=parameter.log)
    if isinstance(parameter, OrdinalParameter) and not parameter.log and parameter.size > 1:
        values = parameter.values
        if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
            gaps = np.diff(np.array(values, dtype=np.float64))
            if np.allclose(gaps, gaps[0], rtol=1e-9):
                if all(isinstance(value, int) for value in values):
                    return IntDistribution(values[0], values[-1], step=values[1] - values[0])
                return FloatDistribution(values[0], values[-1], step=float(gaps[0]))
    if isinstance(parameter, OrdinalParameter | CategoricalParameter):
        return CategoricalDistribution(tuple(parameter.values))
    raise TypeError(
        f"Parameter {parameter.name!r} is a {type(parameter).__name__}, which Optuna does not "
        "know: leave it out of the search space."
    )


def merged(distributions: Sequence[BaseDistribution]) -> BaseDistribution | None:
    """Finds the distribution that contains all of one parameter's.

    Args:
        distributions: The distributions, at least one.

    Returns:
        Numbers from the lowest to the highest bound, with the step that all have; ``None`` if kind,
        scale or choices differ.

    Example:
        >>> merged([IntDistribution(1, 5), IntDistribution(3, 9)])
        IntDistribution(high=9, log=False, low=1, step=1)
    """
    first = distributions[0]
    if all(other == first for other in distributions):
        return first
    if not isinstance(first, FloatDistribution | IntDistribution):
        return None
    numeric = [d for d in distributions if isinstance(d, type(first)) and d.log == first.log]
    if len(numeric) < len(distributions):
        return None
    low, high = min(d.low for d in numeric), max(d.high for d in numeric)
    step = first.step
    if step is not None:
        offsets = [(d.low - low) / step for d in numeric]
        aligned = all(abs(offset - round(offset)) < 1e-8 for offset in offsets)
        if not aligned or any(d.step != step for d in numeric):
            step = None
    if isinstance(first, IntDistribution):
        return IntDistribution(int(low), int(high), log=first.log, step=int(step or 1))
    return FloatDistribution(low, high, log=first.log, step=step)


def label(choice: Any) -> Any:
    """What stands for a choice in a table: itself, or text if a cell cannot hold it, as None."""
    plain = isinstance(choice, str | bool | int | float) and choice == choice  # not NaN
    return choice if plain else str(choice)


def value_of(distribution: BaseDistribution, cell: Any) -> Any:
    """Turns the cell of a table into a value as Optuna has it, on the distribution's grid.

    Args:
        distribution: The distribution.
        cell: A number near the range, or the label of a choice.

    Returns:
        A value of the distribution, of Python's own type.
    """
    if isinstance(distribution, CategoricalDistribution):
        return next(choice for choice in distribution.choices if label(choice) == cell)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high, step = distribution.low, distribution.high, distribution.step
    value = float(cell)
    if step is not None:
        value = low + round((value - low) / step) * step
    number = int if isinstance(distribution, IntDistribution) else float
    return number(min(max(value, low), high))


def has_value(distribution: BaseDistribution, value: Any) -> bool:
    """Whether a value is one of the distribution's."""
    if isinstance(distribution, CategoricalDistribution):
        return label(value) in [label(choice) for choice in distribution.choices]
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not distribution.low <= value <= distribution.high:
        return False
    return abs(value_of(distribution, value) - value) <= 1e-8 * max(1.0, abs(value))
