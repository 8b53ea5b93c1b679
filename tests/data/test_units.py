"""Wrong units: random tables with and without one."""

import numpy as np
import pandas as pd
import pytest
from botorch.exceptions.errors import InputDataError

from botorch_transfer import ScaMLGP, suggest
from botorch_transfer.data import from_dataframe
from botorch_transfer.data.units import wrong_outcomes, wrong_units
from botorch_transfer.datasets import load_tuning_history, tuning_search_space
from botorch_transfer.search_space import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    SearchSpace,
)
from botorch_transfer.suggestion import read_study
from tests.suggestion.brief_search import brief_search

#: Of each column the range, whether it is logarithmic, and wrong units: factors and offsets.
COLUMNS = {
    "temperature": (20, 120, False, ((1, 273.15), (1.8, 32))),
    "time": (5, 120, False, ((60, 0), (1 / 60, 0))),
    "loading": (0.5, 10, False, ((0.01, 0),)),
    "concentration": (0.01, 2, True, ((1000, 0),)),
    "pressure": (1, 50, False, ((100, 0), (1000, 0))),
    "kelvin": (280, 400, False, ((1, -273.15),)),
    "speed": (100, 1500, False, ((1 / 60, 0),)),
}


def random_table(rng: np.random.Generator) -> tuple[pd.DataFrame, SearchSpace]:
    """3 to 8 tasks, each of which tried a part of each range, at least half of it."""
    names = [str(name) for name in rng.choice(list(COLUMNS), 4, replace=False)]
    tasks = []
    for task in range(rng.integers(3, 9)):
        runs = pd.DataFrame({"task": [f"task {task}"] * rng.integers(8, 50)})
        for name in names:
            lower, upper, log, _ = COLUMNS[name]
            start = rng.uniform(0, 0.5)
            unit = start + rng.uniform(0.5, 1 - start) * rng.random(len(runs))
            ratio = upper / lower
            runs[name] = lower * ratio**unit if log else lower + unit * (upper - lower)
        tasks.append(runs)
    parameters = [
        FloatParameter(name, COLUMNS[name][0], COLUMNS[name][1] * rng.uniform(1, 1.5))
        for name in names
    ]
    return pd.concat(tasks, ignore_index=True), SearchSpace(parameters)


@pytest.mark.parametrize("wide", [False, True])
def test_random_tables(wide):
    # In a wide space, wrong values lie inside of the range, and only other tasks tell.
    rng, tables = np.random.default_rng(0), 40
    found = right = alarms = 0
    for number in range(tables):
        runs, space = random_table(rng)
        if wide:
            space = SearchSpace([FloatParameter(name, -500, 1e7) for name in space.columns])
        alarms += bool(wrong_units(runs, space, "task"))
        column = str(rng.choice(space.columns))
        wrong = COLUMNS[column][3]
        factor, offset = wrong[rng.integers(len(wrong))]
        names = runs["task"].unique()
        changed = runs["task"].isin(names[-1:] if wide or number % 2 else names)
        runs[column] = runs[column].where(~changed, factor * runs[column] + offset)
        said = wrong_units(runs, space, "task")
        found += any(sentence.startswith(repr(column)) for sentence in said)
        right += any(remedy(factor, offset) in sentence for sentence in said)
    assert found >= 0.9 * tables
    assert right >= 0.75 * tables  # 60 and 100 are hard to tell apart
    assert alarms <= 0.05 * tables


@pytest.mark.parametrize("space", ["svm", "gbm", "mlp", "forest"])
def test_no_false_alarm_on_parts_of_the_shipped_history(space):
    # On a logarithmic scale, an offset can make anything alike.
    history = load_tuning_history(space)
    for size, seed in ((8, 0), (15, 0), (30, 0), (60, 1), (150, 0)):
        part = history.sample(frac=1.0, random_state=seed).groupby("task").head(size)
        assert wrong_units(part, tuning_search_space(space), "task") == []


def remedy(factor: float, offset: float) -> str:
    if offset:
        signs = {273.15: "reduced by 273.15", -273.15: "increased by 273.15", 32: "divided by 1.8"}
        return signs[offset]
    return f"divided by {factor:,}" if factor > 1 else f"multiplied by {round(1 / factor)}"


def test_it_is_said(caplog):
    space = SearchSpace([FloatParameter("T", 20, 120), IntegerParameter("n", 1, 9)])
    rng = np.random.default_rng(0)
    runs = pd.DataFrame({"task": ["a"] * 8 + ["b"] * 8, "T": rng.uniform(290, 390, 16)})
    runs = runs.assign(n=rng.integers(1, 10, 16), **{"yield": rng.uniform(5, 95, 16)})
    from_dataframe(runs, space, "yield", "task")
    assert caplog.messages[0] == (
        "Maybe another unit: 'T' of task 'a' and 1 more lies outside of the parameter's range, but "
        "fits if reduced by 273.15 (kelvin to °C)"
    )
    caplog.clear()
    own = pd.DataFrame({"T": [30.0, 60.0], "n": [1, 2], "yield": [0.2, 0.4]})
    with brief_search():
        suggest(space, runs.assign(T=runs["T"] - 273), own, "yield", "max", model=ScaMLGP)
    told = "Maybe another unit: 'yield' has fractions in this study and percentages in old runs: "
    assert caplog.messages == [told + "multiply this study's values by 100"]


def test_nothing_is_left_of_the_history():
    kind = CategoricalParameter("kind", ("x",))
    space = SearchSpace([OrdinalParameter("T", (90, 105, 120)), kind])
    runs = pd.DataFrame({"task": "a", "T": [363.15, 378.15, 393.15, 363.15], "kind": "y"})
    runs["yield"] = [5, 70, 20, 30]
    with pytest.raises(InputDataError, match=r"No run is left, .*'T' of task 'a' .* by 273\.15"):
        from_dataframe(runs, space, "yield", "task")


def test_outcomes_that_are_only_small():
    percent, rng = pd.DataFrame({"y": [0.5, 3, 40, 90, 70]}), np.random.default_rng(0)
    fraction = percent / 100
    assert wrong_outcomes(fraction, percent, "y").endswith(": divide this study's values by 100")
    assert wrong_outcomes(percent, fraction[:1], "y") is None
    assert wrong_outcomes(percent, fraction, "z") is None
    losses = pd.DataFrame({"y": rng.lognormal(0, 2, 50)})
    assert wrong_outcomes(losses, pd.DataFrame({"y": [0.2, 0.9, 0.4]}), "y") is None
    assert wrong_outcomes(percent, percent, "y") is None


def test_outcomes_outside_of_what_they_can_be(caplog):
    percent = pd.DataFrame({"y": [0.5, 3, 40, 90, 70]})
    told = "'y' has values outside of outcome_range, 0 to 1, such as 3 in row 1 of the runs"
    assert wrong_outcomes(None, percent, "y", [0.0, 1.0]).startswith(told)
    found = wrong_outcomes(percent, percent, "y", (0, 80))  # a single value
    assert "such as 90 in row 3 of the history, but predictions stay within" in found
    for within in ((0, 86), (0, np.inf), (-np.inf, 90)):  # 90 may be an error of measurement
        assert wrong_outcomes(percent, percent, "y", within) is None
    assert "such as 0.5" in wrong_outcomes(percent, percent, "y", (10, np.inf))
    losses = pd.DataFrame({"y": [-1e-9, 0.4, 1.0]})
    assert wrong_outcomes(None, losses, "y", (0, np.inf)) is None
    assert wrong_outcomes(None, None, "y", (0, 1)) is None
    runs, space = percent.assign(x=0.5), SearchSpace([FloatParameter("x", 0, 1)])
    read_study(space, None, runs, "y", "max", outcome_range=(0, 1))
    assert caplog.messages[0].startswith(f"Maybe another unit: {told}")
