"""Finds columns of old runs that likely have another unit than the search space or other tasks.

A task is suspicious if more than a third of its values lie outside of a parameter's range, or if
its values differ much from the values of most tasks. A suspicious task is reported only if one of
the usual conversions makes its values fit.

A task is represented by the 10 % and 90 % quantiles of its values. Each of these quantiles has a
*reference*: its median over all tasks within the parameter's range. If fewer than three tasks are
within the range, the references are the 10 % and 90 % quantiles of the range. The *relative
difference* of a task is the larger difference between its two quantiles and their references,
divided by the distance between the two references.

Some problems are reported without a conversion: tasks whose values are far from all other tasks,
logarithms, a wrong sign, two groups of values in a task, fractions in an integer parameter, and two
exchanged columns.

Outcomes are searched for fractions among percentages, wrong signs, and values outside of their
range. Limits are compared with the outcomes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
from pandas import DataFrame, to_numeric

from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.data.measurements import Array, Outcome, Range, numbers
from botorch_transfer.search_space import IntegerParameter, Parameter, SearchSpace
from botorch_transfer.search_space.cells import PER_CENT, in_per_cent, rows_of_tasks, words_of

#: Patterns of names of parameters that may be temperatures, and times or speeds.
TEMPERATURE = (
    r"°|[(\[][CKF][)\]]|\w [CKF]$|\b(t|temp(s|[eé]r\w*)?|kelvin|celsius|fahrenheit|oven|bath)\b"
)
TIME = r"[(\[/](s|min|h)\b|\b(t|\w*(time|zeit|dauer)|dur[aé]\w*|sec(ond)?s?|min(s|utes?)|hrs?"
TIME += r"|hours?|residence|age|age?ing|bake|proof|speed|velocity|stir\w*|rpm|flow|hz|frequency)\b"

#: Factors of usual conversions, and patterns of names of the parameters to which they apply.
FACTORS = {10: "", 60: TIME, 100: f"^(?!.*(?:{TIME}))", 1_000: ""}

#: Usual conversions of units by description: a factor, an offset, and a pattern of names.
CONVERSIONS = {
    **{f"divided by {k:,}": (1 / k, 0.0, names) for k, names in FACTORS.items()},
    **{f"multiplied by {k:,}": (float(k), 0.0, names) for k, names in FACTORS.items()},
    "reduced by 273.15 (kelvin to °C)": (1.0, -273.15, TEMPERATURE),
    "increased by 273.15 (°C to kelvin)": (1.0, 273.15, TEMPERATURE),
    "reduced by 32 and divided by 1.8 (°F to °C)": (1 / 1.8, -32 / 1.8, TEMPERATURE),
    "multiplied by 1.8 and increased by 32 (°C to °F)": (1.8, 32.0, TEMPERATURE),
}

#: Outcomes may lie outside of their range by this share of the width of the range.
BEYOND = 0.05

#: Largest share of a task's values that may lie outside of a parameter's range.
MAX_OUTSIDE = 1 / 3

#: Bounds of the relative difference between a task and most tasks; the docstring of this module
#: defines this difference. A task is suspicious if its difference is above the first number of
#: ``DIFFERENT``. This study may explore a larger range: this study is suspicious if its difference
#: is above the second number, or above ``MULTIPLE`` for conversions without an offset. A conversion
#: fits if the difference after the conversion is less than ``ALIKE`` times the difference before.
DIFFERENT, MULTIPLE, ALIKE = (0.9, 2.0), 1.3, 0.3

#: A task is far from other tasks if their values differ by more than the factor ``FAR``.
#: ``GROUP_GAP`` is the minimum gap between two groups of values, on a logarithmic scale.
FAR, GROUP_GAP = 100.0, np.log(20)

#: Bases of logarithms that a task may have in place of the values themselves. The last two are for
#: decibels.
BASES = np.array([2.0, np.e, 10.0, 10**0.05, 10**0.1])

#: Quantiles that summarize the values of a task.
QUANTILES = [0.1, 0.9]

#: Maximum number of tasks whose units are checked.
MAX_LOOKED_AT = 1_000

#: Tasks are compared if at least ``MIN_COMPARABLE`` tasks have at least ``MIN_VALUES`` values each.
MIN_VALUES, MIN_COMPARABLE = 4, 3

#: Significance level of the tests for fractions and for negated outcomes. The tests compute the
#: probability that a group of outcomes is smaller than all other outcomes by chance.
MAX_CHANCE = 0.05

#: The number of decimals of fractions and percentages is counted up to this number.
MOST_DECIMALS = 8

#: Minimum gap between two groups of outcomes. Key 100 is for fractions and percentages, on a
#: logarithmic scale. Key -1 is for negative and positive outcomes, on a linear scale. The unit is
#: the distance between the 10 % and 90 % quantiles of the group in which this distance is larger.
FAR_APART = {100: 2.0, -1: 1.3}

#: Words in the names of outcomes that are never negative.
POSITIVE = {"yield", "conversion", "selectivity", "purity", "accuracy"}

#: ``SHARES`` has words in the names of outcomes that are often fractions or percentages.
#: ``NO_SHARES`` has words in the names of outcomes that are seldom fractions or percentages.
SHARES = PER_CENT | {"acc", "precision", "recall", "f1", "auc", "rate", "share", "fraction"}
SHARES |= {"efficiency", "recovery", "humidity", "scrap", "defects", "waste", "ctr"}
NO_SHARES = {"loss", "rmse", "mse", "mae", "nll", "cost", "price", "time", "seconds"}

#: Words in the names of outcomes that may be negative in some tasks and positive in other tasks.
SIGNED = {"r2", "reward", "return", "profit", "gain", "change", "likelihood", "elbo", "score"}

#: A limit that no run satisfies is far from the best value if the larger number is above
#: ``MANY_TIMES`` times the smaller number. For a limit that all runs satisfy, the worst value
#: counts, and the factor is twice as large. In a column in per cent, a task has another unit if its
#: large outcomes are above 100 and above ``MANY_TIMES`` times the large outcomes of most tasks.
MANY_TIMES = 5.0

#: Description of the runs of this study.
STUDY = "this study"


def wrong_units(
    history: DataFrame | None, space: SearchSpace, task: str | None, runs: DataFrame | None = None
) -> list[str]:
    """Finds tasks, or a study, whose values of a parameter likely have a wrong unit or type.

    The docstring of this module has the conditions. The runs of this study are one more task. They
    are checked less strictly: only values below half of a positive lower bound count as outside of
    the range.

    Args:
        history: Old runs, one row per run; ``None`` for no old runs.
        space: The search space.
        task: The column of ``history`` that names the task; ``None`` to ignore ``history``.
        runs: The runs of this study. If they are given, only problems of this study are returned.

    Returns:
        One sentence for each column and conversion. The sentence names the column, the tasks with
        the wrong unit, and the conversion that makes the values fit.

    Example:
        >>> from botorch_transfer.search_space import FloatParameter
        >>> runs = DataFrame({"task": "monday", "T": [300.0, 330.0, 350.0, 370.0]})
        >>> wrong_units(runs, SearchSpace([FloatParameter("T", 20, 110)]), "task")
        ["'T' of task 'monday' lies outside of the parameter's range, but fits if reduced by 273.15
        (kelvin to °C)"]
    """
    of_tasks = {} if history is None or task is None else rows_of_tasks(history[task])
    every = [(f"task {name!r}", rows) for name, rows in of_tasks.items()]
    looked: Any = [every[place] for place in evenly_spaced(len(every), MAX_LOOKED_AT)]
    values: dict[str, dict[str, Array]] = {}
    parameters = {p.name: p for p in space.parameters if p.is_numeric}
    for column in parameters:
        tasks = dict[str, Array]()
        for table, places in ((history, looked), (runs, [(STUDY, slice(None))])):
            if table is not None and column in table and table[column].dtype.kind not in "mM":
                cells = numbers(table, column)
                tasks |= {name: cells[rows][np.isfinite(cells[rows])] for name, rows in places}
        values[column] = {name: cells for name, cells in tasks.items() if len(cells)}
    problems = list[tuple[str, str, str]]()
    for name, column, other in _exchanged(values):
        values[column].pop(name, None), values[other].pop(name, None)
        text = f"seems to be exchanged with {other!r}: exchange the cells of the two columns"
        problems.append((column, name, text))
    for column, tasks in values.items():
        problems += [(column, *found) for found in _of_column(tasks, parameters[column])]
    names: dict[tuple[str, str], list[str]] = {}
    for column, name, problem in problems:
        if runs is None or name == STUDY:
            names.setdefault((column, problem), []).append(name)
    return [
        f"{column!r} of {first}{f' and {len(others):,} more' if others else ''} {problem}"
        for (column, problem), (first, *others) in names.items()
    ]


def wrong_outcomes(
    outcome: Outcome, history: DataFrame | None, runs: DataFrame | None
) -> str | None:
    """Checks whether outcomes suit their range and limit, and whether all runs have the same unit.

    Args:
        outcome: The outcome. If its range is unknown, an outcome with a name such as "yield" must
            be at least 0, and at most 100 if almost all values seem to be in per cent.
        history: Old runs, or ``None``. A table may lack the outcome's column.
        runs: The runs of this study, or ``None``.

    Returns:
        A sentence that describes the problem; ``None`` if there is no problem. There is a problem
        if an outcome is clearly outside of its range, if :func:`mixed_outcomes` finds a problem
        that involves the runs of this study, or if the range or the limit likely has another unit.

    Example:
        >>> old, runs = DataFrame({"yield": [35, 80, 61]}), DataFrame({"yield": [0.4, 0.7]})
        >>> wrong_outcomes(Outcome("yield", 1.0), old, runs)
        "'yield' seems to have fractions in this study and percentages in old runs: multiply the
        fractions by 100"
    """
    name, words = outcome.name, words_of(outcome.name)
    tables = {"old runs": history, STUDY: runs}
    columns = [(group, t[name]) for group, t in tables.items() if t is not None and name in t]
    groups = {group: to_numeric(cells, errors="coerce").dropna() for group, cells in columns}
    every = np.concatenate([*groups.values(), np.empty(0)])
    every = every[np.isfinite(every)]
    usual = -np.inf, np.inf
    if POSITIVE & words and in_per_cent(name):
        most = np.quantile(np.append(every, 0.0), 0.9, method="lower")
        usual = 0.0, 100.0 if 1 < most <= 100 else np.inf
    least, largest = outcome.within or usual
    for group, values in groups.items():
        finite, span = values[np.isfinite(values)], largest - least
        span = span if np.isfinite(span) else finite.max() - finite.min()
        margin = BEYOND * np.nan_to_num(span)
        if len(outside := values[~values.between(least - margin, largest + margin)]):
            text = f"{name!r} has {outside.iloc[0]:g} in row {outside.index[0]} of {group}, outside"
            text += f" of {'outcome_range' if outcome.within else 'the usual range'} {least:g} to "
            text += f"{largest:g}{', to which predictions are clipped' * bool(outcome.within)}"
            return f"{text}: correct the range or the values"
    old, own = (groups.get(group, every[:0]) for group in tables)
    is_new = len(old) > 2 * MIN_VALUES and min(old) > 0 and sum(own < 0) > 1 and max(own) > 0
    if is_new and not SIGNED & words:
        return f"{name!r} has negative values in this study only: use the unit of the old runs"
    is_fraction = (len(every) >= MIN_VALUES or runs is None) and 0 < every.max(initial=0.0) <= 1
    if is_fraction and (least, largest) == (0, 100) and not (SHARES - PER_CENT) & words:
        return f"{name!r} is never above 1, but has outcome_range 0 to 100: give percentages"
    arrays = {group: values.to_numpy(np.float64) for group, values in groups.items()}
    found = next((found for found in mixed_outcomes(arrays, name) if STUDY in found), None)
    if found or (bound := outcome.bound) is None or len(every) == 0:
        return found
    worst, best = sorted((every.min(), every.max()), key=lambda value: outcome.sign * value)
    is_far = abs(bound - best) > every.std()
    is_far |= bound * best > 0 and not 1 / MANY_TIMES <= best / bound <= MANY_TIMES
    if len(every) >= 5 and outcome.sign * (bound - best) > 0 and is_far:
        text = f"No run satisfies the limit {bound:g} of {name!r} (best value: {best:g})"
        return f"{text}: check the unit"
    least, low, most = np.quantile(every, (0.0, 0.1, 1.0))
    is_share = SHARES & words or (bound >= 0.8 and MANY_TIMES < least <= 100 * bound <= most)
    if outcome.sign > 0 < bound < 1 < low and most <= 105 and is_share and not NO_SHARES & words:
        text = f"{name!r} is in per cent, but the limit {bound:g} seems to be a fraction"
        return f"{text}: multiply the limit by 100"
    small, large = sorted((bound, worst))
    is_satisfied = len(every) >= 5 and outcome.sign * (worst - bound) > 0
    if is_satisfied and large > 2 * MANY_TIMES * small > 0:
        text = f"All runs are far from the limit {bound:g} of {name!r} (worst value: {worst:g})"
        return f"{text}: check the unit"
    return None


def mixed_outcomes(groups: Mapping[str, Array], name: str) -> Iterator[str]:
    """Finds fractions among percentages, values above 100 per cent, and outcomes of both signs.

    A group is a task or a table. If no group by itself has mixed outcomes, groups are compared with
    one another.

    Args:
        groups: Mapping from descriptions of tasks or tables to their finite outcomes.
        name: The column of the outcome.

    Yields:
        A sentence that describes the problem.

    Example:
        >>> groups = {"task 'a'": np.array([0.3, 0.5]), "task 'b'": -np.array([4, 3, 3, 5, 4]) / 10}
        >>> next(mixed_outcomes(groups, "loss"))
        "'loss' seems to have negative values in task 'b' and positive values in task 'a': check the
        sign"
    """
    tops = {key: _quantiles(v)[1] for key, v in groups.items() if len(v) and in_per_cent(name)}
    above = [key for key in tops if np.median(groups[key]) > 100]
    below = [key for key in tops if tops[key] <= 100]
    usual = np.median([tops[key] for key in below] or [np.inf])
    if 0 < len(above) <= len(below) and tops[above[0]] > MANY_TIMES * usual:
        yield f"{name!r} is mostly above 100 in {above[0]}, but not in {below[0]}: check the unit"
    for factor, bound, low, high, remedy in (
        (100, 1, "fractions", "percentages", "multiply the fractions by 100"),
        (-1, 0, "negative values", "positive values", "check the sign"),
    ):
        # Zero is the same number in every unit.
        parts = {key: (v[(v <= bound) & (v != 0)], v[v > bound]) for key, v in groups.items()}
        pairs = {f"and {high} in {key}": part for key, part in parts.items()}
        small = [key for key, (x, y) in parts.items() if len(x) and not len(y)]
        large = [key for key, (_, y) in parts.items() if len(y)]
        both = sum(len(parts[key][0]) > 0 for key in large)
        if factor < 0 and (both > 1 or SIGNED & words_of(name)):
            continue
        if small and large:
            x, y = (np.concatenate([v for k in keys for v in parts[k]]) for keys in (small, large))
            pairs[f"in {small[0]} and {high} in {large[0]}"] = x, y
        for where, (x, y) in pairs.items():
            if _fits(x, y, factor, name, where.startswith("and"), STUDY in groups):
                yield f"{name!r} seems to have {low} {where}: {remedy}"
                break


def _fits(x: Array, y: Array, factor: int, name: str, is_one: bool, of_study: bool) -> bool:
    """Returns whether outcomes ``y`` likely have the unit or the sign of ``factor * x``.

    The main conditions are:

    - The values ``factor * x`` are roughly in the range of ``y``. If ``factor`` is -1, and ``x``
      and ``y`` belong to two groups, it is enough that the two ranges overlap.
    - There is a clear gap between ``x`` and ``y``. If ``x`` has the smaller and ``y`` the larger
      values of one group (``is_one``), the gap must be larger than for two groups, because some gap
      then always exists.
    - Fractions have more decimals than percentages.
    - If ``name`` has no word in ``SHARES``, fractions and percentages must meet four further
      conditions: ``x`` and ``y`` belong to two groups, the gap is as large as is required within
      one group, at least one percentage is above 10, and all percentages are above 1.

    In one case, a single condition replaces the main conditions: few values of ``y`` are 1 or less.
    In this case, ``factor`` is 100, ``name`` has a word in ``SHARES``, one of two groups is this
    study (``of_study``), and at least one percentage is above 10.
    """
    is_share, words = factor > 1, words_of(name)
    enough = min(len(x), len(y) + (not is_one)) > is_share and len(x) + len(y) >= MIN_VALUES
    if not enough or min((factor * x).min(), y.min()) <= 0 or (is_share and y.max() > 100):
        return False
    is_vague = is_share and not SHARES & words
    if (is_share and NO_SHARES & words) or (is_vague and (is_one or y.min() <= 1 or y.max() <= 10)):
        return False
    if is_share and of_study and not (is_one or is_vague) and y.max() > 10:
        return bool((y <= 1).mean() ** len(x) < MAX_CHANCE)
    (low, high), (least, largest) = _quantiles(factor * x), _quantiles(y)
    is_apart = (((y <= x.max()).sum() + 1) / (len(y) + 2)) ** len(x) < MAX_CHANCE
    if is_one or is_vague:
        ends = np.stack([_quantiles(x), _quantiles(y)])
        ends = np.log(ends) if is_share else ends
        is_apart = ends[1, 0] - ends[0, 1] > FAR_APART[factor] * np.ptp(ends, axis=1).max()
    if is_share:
        known = _decimals(y) % MOST_DECIMALS  # 0 if percentages are not rounded
        is_apart &= _decimals(x) > known + is_one
    elif not is_one:  # two groups may have different signs by chance, and few values a small range
        ways = math.comb(min(len(x) + len(y), 20), min(len(x), len(y), 3))
        return bool(is_apart and ways * MAX_CHANCE >= 1 and least <= high and low <= largest)
    return bool(is_apart and least <= 2 * low and high <= 2 * largest)


def _decimals(values: Array) -> int:
    """Returns the number of decimals of values, at most ``MOST_DECIMALS``."""
    exact = (k for k in range(MOST_DECIMALS) if np.allclose(values, values.round(k), 0, 1e-9))
    return next(exact, MOST_DECIMALS)


def _exchanged(values: Mapping[str, Mapping[str, Array]]) -> Iterator[tuple[str, str, str]]:
    """Finds tasks in which two columns may be exchanged; yields a task and the two columns.

    Each column then has values as the other column has in most tasks, and the values of the two
    columns do not overlap in most tasks.
    """
    many = {c: tasks for c, tasks in values.items() if len(tasks) >= MIN_COMPARABLE}
    usual = {c: np.median([*map(_quantiles, tasks.values())], axis=0) for c, tasks in many.items()}
    middles = {c: {n: np.median(v) for n, v in tasks.items()} for c, tasks in many.items()}
    for a, b in combinations((c for c, ends in usual.items() if ends[0] < ends[1]), 2):
        (_, below), (above, _) = sorted((usual[a], usual[b]), key=tuple)
        for name in middles[a].keys() & middles[b].keys() if below < above else ():
            pairs = (middles[a][name], usual[b]), (middles[b][name], usual[a])
            if all(low <= middle <= high for middle, (low, high) in pairs):
                yield name, a, b


def _of_column(tasks: Mapping[str, Array], parameter: Parameter) -> Iterator[tuple[str, str]]:
    """Finds tasks in which a parameter likely has a wrong unit or type; yields (task, problem)."""
    unit = np.array([0.0, 1.0, *QUANTILES])[:, None]
    marks = parameter.decode(unit)[parameter.name].to_numpy(dtype=np.float64)
    (lower, upper), reference = marks[:2], marks[2:]
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[_\d]", " ", parameter.name)
    is_count = isinstance(parameter, IntegerParameter)
    usual = {
        text: (factor, offset)
        for text, (factor, offset, names) in CONVERSIONS.items()
        if re.search(names, words, re.IGNORECASE) and not (is_count and factor in (10.0, 0.1))
    }
    rounding = 1e-6 * max(abs(lower), abs(upper))
    strange, compared = dict[str, Array](), dict[str, Array]()
    for name, values in tasks.items():
        if is_count and 2 * np.mean(values % 1 > 0) > 1:
            yield name, "has fractions, but the parameter is an integer: use a real parameter"
        beyond = (values < lower - rounding) | (values > upper + rounding)
        beyond = beyond if name != STUDY else (2 * values < lower) & (lower > 0)
        if beyond.mean() > MAX_OUTSIDE:
            strange[name] = values
        elif len(values) >= MIN_VALUES:
            compared[name] = _quantiles(values)
    yield from _in_two_groups(tasks, lower, upper)
    yield from _unlike_others(tasks, parameter)
    if len(compared) >= MIN_COMPARABLE:
        ends = np.array(list(compared.values()))
        reference = np.median(ends, axis=0)
        fits = _likely_conversions(usual, ends, reference, DIFFERENT[STUDY in tasks], ALIKE)
        for name, found in zip(compared, fits, strict=True):
            if found is not None and (name != STUDY or reference[0] < reference[1]):
                yield name, f"differs from most tasks, but fits if {found}"
    together = np.concatenate([*strange.values(), []])
    if len(together) >= (2 if STUDY in strange else MIN_VALUES):
        # All tasks with values outside of the range are pooled, because the pooled values cover the
        # range best. These values are certainly wrong, so a looser fit is accepted.
        found = _likely_conversions(usual, _quantiles(together)[None], reference, 0.0, 0.6)[0]
        problem = found and f"lies outside of the parameter's range, but fits if {found}"
        if parameter.log is True and together.min() < together.max() <= 0:
            problem = "has no positive value: if the values are logarithms, undo the logarithm"
        if upper <= 0 < together.min():
            logs = np.log(together) / np.log(BASES)[:, None]
            if ((logs >= lower - 0.1) & (logs <= upper + 0.1)).all(axis=1).any():
                problem = "lies outside of the parameter's range: take the logarithms, which fit"
        yield from ((name, problem) for name in strange if problem)


def _in_two_groups(tasks: Mapping[str, Array], lower: float, upper: float) -> Iterator[Any]:
    """Finds tasks with values in two groups that are far apart; yields pairs of task and problem.

    Only positive values between ``lower`` and ``upper`` count. The gap between the groups is larger
    than twice the width of each group, on a logarithmic scale.
    """
    every = np.sort(np.concatenate([*tasks.values(), []]))
    every = every[(every > 0) & (every >= lower) & (every <= upper)]
    logs = np.log(every)
    place = int(np.diff(logs).argmax()) + 1 if len(logs) > 2 * MIN_VALUES else 0
    low, high = logs[:place], logs[place:]
    if min(len(np.unique(low)), len(np.unique(high))) < MIN_COMPARABLE:
        return
    ratio, width = np.exp(np.median(high) - np.median(low)), 2 * max(np.ptp(low), np.ptp(high))
    usual = [factor for factor in FACTORS if 2 / 3 < ratio / factor < 3 / 2]
    are_apart = bool(usual) and high[0] - low[-1] > max(width, GROUP_GAP)
    for name, values in tasks.items() if are_apart else ():
        if values.min() <= every[place - 1] < every[place] <= values.max():
            text = f"has two groups of values, about {usual[0]:,} times apart: convert one group"
            yield name, text


def _unlike_others(tasks: Mapping[str, Array], parameter: Parameter) -> Iterator[tuple[str, str]]:
    """Finds tasks with values that are far from other tasks, are logarithms, or have a wrong sign.

    Yields pairs of a task and a problem.
    """
    positive = np.concatenate([*(v for v in tasks.values() if v.min() > 0), []])
    is_wide = positive.max(initial=0.0) >= 10 * positive.min(initial=np.inf)
    whole = [values.min() for values in tasks.values() if not (values % 1).any()]
    least, largest = (sorted(map(f, tasks.values())) for f in (np.min, np.max))
    for name, values in tasks.items():
        is_small = len(least) > 2 and 0 < FAR * values.max() < least[1]
        if is_small or (len(least) > 2 and values.min() > FAR * largest[-2] > 0):
            yield name, "is far from the values of all other tasks: check the unit"
        is_negative = bool(len(least) > 2 and values.min() < 0 < least[1])  # in this task only
        are_logs = is_negative or (values.min() < 0 >= values.max() and not parameter.log)
        are_logs |= len(whole) > 1 and (values % 1).any() and 0 < values.max() < min(whole)
        bases = BASES if are_logs and is_wide else ()
        # Larger exponents would overflow.
        forms = [("logarithms", base ** np.minimum(values, 300.0)) for base in bases]
        for form, x in forms + [("the opposite sign", -values)] * is_negative:
            if positive.min() <= 2 * x.min() and x.max() <= 2 * positive.max():
                yield name, f"seems to have {form}, unlike other tasks: convert the values"
                break


def _quantiles(values: Array) -> Array:
    """Computes the 10 % and 90 % quantiles of values; faster than ``numpy.quantile``."""
    places = np.array(QUANTILES) * (len(values) - 1)
    return np.interp(places, np.arange(len(values)), np.sort(values))


def _likely_conversions(
    conversions: Mapping[str, Range], ends: Array, reference: Array, different: float, alike: float
) -> list[str | None]:
    """Finds, for each task, the unit conversion that brings its quantiles nearest to references.

    Args:
        conversions: The factors and the offsets to try, by description.
        ends: The ``m x 2`` quantiles of the values of ``m`` tasks.
        reference: The two reference quantiles, see the docstring of this module.
        different: See ``DIFFERENT``.
        alike: See ``ALIKE``.

    Returns:
        For each task, a key of ``conversions``. ``None`` if the task's quantiles are close to the
        reference quantiles, or if no conversion fits. Quantiles are compared on a logarithmic scale
        for conversions without an offset, and on a linear scale for all other conversions.
    """
    names, shares = [*conversions], []
    for factor, offset in conversions.values():
        numbers = np.stack([ends, factor * ends + offset, np.broadcast_to(reference, ends.shape)])
        with np.errstate(invalid="ignore", divide="ignore"):  # zeros have no logarithm
            numbers = np.log(numbers) if offset == 0 else numbers
            width = np.nan_to_num(np.ptp(numbers[2, 0])) or 1.0
            distances = np.abs(numbers[:2] - numbers[2]).max(axis=-1) / width
        off, left = np.nan_to_num(distances)
        is_likely = off > (different if offset else min(different, MULTIPLE))
        is_likely &= left < alike * off
        shares.append(np.where(is_likely, left / np.where(off > 0, off, 1.0), np.inf))
    best = np.argmin(shares, axis=0)
    return [names[i] if np.isfinite(shares[i][m]) else None for m, i in enumerate(best)]
