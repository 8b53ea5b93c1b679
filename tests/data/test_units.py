"""Wrong units: random tables with and without one."""

import numpy as np
import pandas as pd
import pytest
from botorch.exceptions.errors import InputDataError

from botorch_transfer import ScaMLGP, suggest
from botorch_transfer.data import from_dataframe
from botorch_transfer.data.measurements import Outcome
from botorch_transfer.data.units import mixed_outcomes, wrong_outcomes, wrong_units
from botorch_transfer.datasets import load_tuning_history, tuning_search_space
from botorch_transfer.search_space import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    SearchSpace,
    guess_space,
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
    told = "'yield' seems to have fractions in this study and percentages in old runs: multiply "
    assert caplog.messages == [told + "the fractions by 100"]


def test_nothing_is_left_of_the_history():
    runs = pd.DataFrame({"task": "a", "C": [-2.0, -1.5, -1.2, 0.0], "loss": 1.0})
    with pytest.raises(InputDataError, match=r"No run is left.*'C' .* has no positive value"):
        from_dataframe(runs, [FloatParameter("C", 0.01, 1.0, log=True)], "loss", "task", "min")
    kind = CategoricalParameter("kind", ("x",))
    space = SearchSpace([OrdinalParameter("T", (90, 105, 120)), kind])
    runs = pd.DataFrame({"task": "a", "T": [363.15, 378.15, 393.15, 363.15], "kind": "y"})
    runs["yield"] = [5, 70, 20, 30]
    with pytest.raises(InputDataError, match=r"No run is left, .*'T' of task 'a' .* by 273\.15"):
        from_dataframe(runs, space, "yield", "task")


def problem(old, new, name, within=None, limit=None, sign=1.0):
    return wrong_outcomes(Outcome(name, sign, limit, within=within), old, new)


def test_outcomes_that_are_only_small():
    rng, names = np.random.default_rng(0), ("rate", "y", "value", "loss")
    percent = pd.DataFrame({name: [0.5, 3, 40, 90, 70] for name in names})
    fraction, some = percent / 100, percent[2:]
    assert "in old runs and percentages in" in problem(fraction, percent, "rate")
    assert [bool(problem(some, some / 100, n)) for n in names] == [True, True, True, False]
    pairs = (fraction, "y"), (fraction, "z"), (fraction[:1], "rate"), (percent, "rate")
    assert [problem(percent, new, name) for new, name in pairs] == [None] * 4
    for mean in (0.0, 1.0, 2.0):  # the new runs are good
        old = pd.DataFrame({name: np.sort(rng.lognormal(mean, 1.0, 50)) for name in names})
        assert not any(problem(old[20:], old[:4] / 3, name) for name in names[1:])


def test_outcomes_outside_of_what_they_can_be(caplog):
    percent = pd.DataFrame({"y": [0.5, 3, 40, 90, 70]})
    told = "'y' has 3 in row 1 of this study, outside of outcome_range 0 to 1, to which predictions"
    assert problem(None, percent, "y", [0.0, 1.0]).startswith(told)
    assert "'y' has 90 in row 3 of old" in problem(percent, percent, "y", (0, 80))
    for within in ((0, 86), (0, np.inf), (-np.inf, 90)):  # 90 may be an error of measurement
        assert problem(percent, percent, "y", within) is None
    assert "'y' has 0.5 in" in problem(percent, percent, "y", (10, np.inf))
    assert problem(None, pd.DataFrame({"y": [-1e-9, 0.4, 1.0]}), "y", (0, np.inf)) is None
    assert problem(None, None, "y", (0, 1)) is None
    runs, space = percent.assign(x=0.5), SearchSpace([FloatParameter("x", 0, 1)])
    read_study(space, None, runs, "y", "max", outcome_range=(0, 1))
    assert caplog.messages[0].startswith(told)
    yields = pd.DataFrame({"yield": [-0.5, 60, 80, -20]})  # -0.5 may be an error of measurement
    told = "'yield' has -20 in row 3 of this study, outside of the usual range 0 to 100: correct"
    assert problem(None, yields, "yield").startswith(told)
    for name in ("ee", "yield strength", "yield_change"):
        assert problem(None, yields.rename(columns={"yield": name}), name) is None
    large = [pd.DataFrame({"purity": [60, 70, 80, value]}) for value in (104, 150)]
    found = [problem(None, runs, "purity") for runs in large]
    assert [text is None for text in found] == [True, False]  # 104 may be an error of measurement
    told = "'purity' is never above 1, but has outcome_range 0 to 100: give percentages"
    assert problem(large[0] / 104, None, "purity", [0, 100]) == told
    assert problem(large[0] / 104, None, "purity", [0, 1]) is None


def test_limits_in_another_unit():
    for name, values, limit, told in (
        ("memory", (2e3, 5e3, 9e3, 3e3, 7e3), -16, "limit 16 of 'memory' (best value: 2000)"),
        ("purity", (0.9, 0.95, 0.99, 0.8, 0.97), 95, "limit 95 of 'purity' (best value: 0.99)"),
        ("purity", (91, 97, 96), 0.95, "in per cent, but the limit 0.95 seems to be a fraction"),
        ("assay", (55, 97, 96), 0.9, "in per cent, but the limit 0.9 seems to be a fraction"),
        ("purity", (0.91, 0.97, 0.96), 0.95, "None"),
        ("excess", (0.2, 5, 9, 3, 7), -0.0, "None"),
        (
            "time",
            (55, 97, 96, 80, 70),
            0.9,
            "far from the limit 0.9 of 'time' (worst value: 55): check",
        ),
        (
            "waste",
            (0.04, 0.12, 0.07, 0.1, 0.05),
            -3,
            "far from the limit 3 of 'waste' (worst value: 0.12)",
        ),
        ("impurity", (0.5, 9, 20, 3, 7), -0.05, "limit 0.05 of 'impurity' (best value: 0.5)"),
    ):
        sign = 1.0 if limit > 0 else -1.0
        assert told in str(problem(pd.DataFrame({name: values}), None, name, None, limit, sign))


SCRAP = np.array([3.92, 8.18, 2.9, 6.79, 6.32, 5.64, 4.0, 5.41])


@pytest.mark.parametrize(
    ("told", "groups"),
    [
        ("fractions in b and percentages in a: multi", [np.append(SCRAP, 0), SCRAP[:3] / 100]),
        ("fractions in a and percentages in b", [SCRAP / 100, SCRAP + 1 / 7]),
        ("fractions and percentages in a", [np.append(SCRAP[:2] / 100, SCRAP[2:4])]),
        ("negative values in b and positive values in a: check the sign", [SCRAP, -SCRAP]),
        ("negative values and positive values in a", [np.append(SCRAP, -4.5)]),
        ("negative values in a and positive values in b", [-(SCRAP**2), 2 * SCRAP[1:3]]),
        ("", [-SCRAP, SCRAP[:1]]),  # the sign of one value may change by chance
        ("", [SCRAP, (SCRAP / 100).round(2)]),  # 100 times better, with the decimals of a
        ("", [SCRAP - 4.5, SCRAP - 5, -SCRAP]),  # outcomes around zero
        ("", [np.append(SCRAP, -4.5), np.append(SCRAP, -4.5)]),
        ("", [SCRAP, SCRAP / 20]),
        ("", [SCRAP, SCRAP / 1000]),
        ("", [SCRAP, SCRAP / 10, SCRAP / 100]),  # tasks differ by factors
        ("", [np.array([0.3, 0.5, 70, 80, 45])]),  # two failures
        ("", [np.array([0.1, 0.2, 0.5, 4, 20, 60]), np.array([0.15, 0.25])]),
        ("", [np.array([-0.8, -0.4, 0.1, 0.6, 1.2, 0.9]), np.zeros(4), SCRAP, np.zeros(0)]),
    ],
)
def test_mixed_units_and_signs(told, groups):
    named = dict(zip("abcd", groups, strict=False))
    assert [told in text for text in mixed_outcomes(named, "scrap")] == [True] * bool(told)
    assert "negative" in told or not list(mixed_outcomes(named, "RMSE"))
    assert "negative" not in told or not list(mixed_outcomes(named, "test reward"))


def test_one_task_far_above_100_per_cent():
    groups = {"a": 100 * SCRAP, "b": SCRAP, "c": 3 * SCRAP}
    told = "'yield' is mostly above 100 in a, but not in b: check the unit"
    assert [*mixed_outcomes(groups, "yield"), *mixed_outcomes(groups, "yield stress")] == [told]
    assert not list(mixed_outcomes({"a": 20 * SCRAP, "b": 4 * SCRAP}, "yield"))


def test_minutes_in_a_wide_range_of_seconds(caplog):
    space = SearchSpace([FloatParameter("time", 1, 100)])
    for minutes in ([0.15, 0.4, 1.4], [0.8, 0.9, 0.95], [5.0, 7.0, 0.1]):
        read_study(space, None, pd.DataFrame({"time": minutes, "loss": 1.0}))
    told = "of this study lies outside of the parameter's range, but fits if multiplied by 60"
    assert caplog.messages == [f"Maybe another unit: 'time' {told}"]


@pytest.mark.parametrize(
    ("values", "range_", "remedy", "others", "names"),
    [
        ([16, 32, 64, 48], (1, 4), "°F to °C", ["layers"], ["Ofen T1"]),
        (
            [99, 200, 150, 120],
            (35, 95),
            "°F to °C",
            ["template_size"],
            ["jacketTemp", "a [°C]", "nozzle_C"],
        ),
        ([5, 6, 7, 8, 9], (32, 512, True), "by 60", ["min_samples"], ["Gärzeit", "n (1/min)"]),
        ([700, 3600, 6000, 9500], (1, 100), "by 60", [], ["minutes"]),
    ],
)
def test_conversions_suit_the_name(values, range_, remedy, others, names):
    runs = pd.DataFrame(dict.fromkeys((*others, *names), values)).assign(task="a")
    space = SearchSpace([IntegerParameter(name, *range_) for name in (*others, *names)])
    found = wrong_units(runs, space, "task")
    assert [text.split("'")[1] for text in found] == names
    assert all(remedy in text for text in found)


def test_a_study_is_compared_with_old_tasks():
    space, T = SearchSpace([FloatParameter("T", 0, 500)]), np.linspace(20, 110, 12)
    old = pd.DataFrame({"task": [*"abc"] * 4, "T": T})
    found = [wrong_units(old, space, "task", pd.DataFrame({"T": t})) for t in (T, 2 * T, T + 273)]
    told = "'T' of this study differs from most tasks, but fits if reduced by 273.15 (kelvin to °C)"
    assert found == [[], [], [told]]
    wrong = old.assign(T=T + 300 * (old["task"] == "a"))  # an old task does not concern the study
    assert wrong_units(wrong, space, "task") != wrong_units(wrong, space, "task", old[["T"]]) == []


def test_a_task_in_kelvin_within_a_guessed_range():
    T = np.array([20, 25, 35, 50, 80, 120.0])
    old = pd.DataFrame({"task": np.repeat([*"abcd"], 6), "T": np.concatenate([T, T, T, T + 273])})
    space = guess_space(old, task="task")
    assert space.parameters[0].log
    (found,) = wrong_units(old, space, "task")
    assert found.startswith(
        "'T' of task 'd' differs from most tasks, but fits if reduced by 273.15"
    )


def test_a_study_in_another_unit_on_a_wide_range():
    space = SearchSpace([FloatParameter("hours", 0.5, 2000, log=True)])
    hours = np.geomspace(0.6, 19, 12)
    old = pd.DataFrame({"task": [*"abc"] * 4, "hours": hours})
    (found,) = wrong_units(old, space, "task", pd.DataFrame({"hours": 60 * hours}))
    assert "of this study differs from most tasks, but fits if divided by 60" in found


@pytest.mark.parametrize("base", [2, np.e, 10])
def test_logarithms_in_one_task_are_told(base):
    space, x = SearchSpace([FloatParameter("lr", -4, 0.1)]), np.geomspace(1e-3, 0.1, 8)
    old = pd.DataFrame({"task": [*"aabb"] * 4, "lr": np.repeat(x, 2)})
    logs = old.assign(lr=old["lr"].where(old["task"] == "a", np.log(old["lr"]) / np.log(base)))
    (found,) = wrong_units(logs, space, "task")
    assert "'lr' of task 'b' seems to have logarithms, unlike other tasks" in found
    assert wrong_units(logs.assign(lr=100 * logs["lr"]), space, "task") == []
    whole = pd.DataFrame({"task": [*"abcd"] * 4, "n": range(64, 4064, 250)})
    whole["n"] = whole["n"].where(whole["task"] != "a", np.log(whole["n"]) / np.log(base))
    found, *_ = wrong_units(whole, SearchSpace([FloatParameter("n", 1, 4000)]), "task")
    assert "'n' of task 'a' seems to have logarithms" in found
    exponents = SearchSpace([FloatParameter("lr", np.log(1e-3) / np.log(base), 0)])
    (found,) = wrong_units(old[::-1], exponents, "task")
    assert "'lr' of task 'b' and 1 more lies outside" in found
    assert "take the logarithms, which fit" in found


GAIN = np.array([0.6, 5.0, 12.0, 50.0])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (20 * np.log10(GAIN), "seems to have logarithms, unlike other tasks: convert the values"),
        (np.log10(GAIN), "seems to have logarithms, unlike other tasks: convert the values"),
        (-GAIN, "seems to have the opposite sign, unlike other tasks: convert the values"),
        (1e-7 * GAIN, "is far from the values of all other tasks: check the unit"),
        (1e7 * GAIN, "is far from the values of all other tasks: check the unit"),
        (GAIN, None),
    ],
)
def test_a_task_unlike_all_other_tasks_is_told(values, told):
    table = pd.DataFrame({"task": np.repeat([*"abcd"], 4), "kp": np.tile(GAIN, 4)})
    table.loc[table["task"] == "c", "kp"] = values
    space = SearchSpace([FloatParameter("kp", table["kp"].min(), table["kp"].max())])
    found = [text for text in wrong_units(table, space, "task") if "differs from" not in text]
    assert found == ([] if told is None else [f"'kp' of task 'c' {told}"])


def test_two_groups_of_values_in_a_task_are_told():
    percent = pd.DataFrame({"task": [*"ab"] * 6, "water": np.linspace(55, 80, 12)})
    for wrong in ([0, 2, 5], [1, 3, 7]):
        mixed = percent["water"].where(~percent.index.isin(wrong), percent["water"] / 100)
        found = wrong_units(percent.assign(water=mixed), guess_space(mixed.to_frame()), "task")
        names = "task 'a' and 1 more" if 0 in wrong else "task 'b'"
        told = "has two groups of values, about 100 times apart: convert one group"
        assert found == [f"'water' of {names} {told}"]


def test_exchanged_columns_are_told():
    space = SearchSpace([FloatParameter("T", 20, 900), FloatParameter("p", 20, 900)])
    old = pd.DataFrame({"task": [*"abc"] * 4, "T": np.linspace(20, 90, 12)})
    old["p"] = 900 - 3 * old["T"]
    assert wrong_units(old, space, "task") == []
    turned = old.rename(columns={"T": "p", "p": "T"})
    found = wrong_units(old.where(old["task"] != "b", turned), space, "task")
    told = "'T' of task 'b' seems to be exchanged with 'p': exchange the cells of the two columns"
    assert found == [told]
    constant = pd.DataFrame({"task": [*"abc"], "T": [2, 4, 2], "p": [4, 2, 4]})
    assert wrong_units(constant, space, "task") == []


def test_fractions_in_an_integer_parameter_are_named():
    table = pd.DataFrame({"task": [*"aab"], "n": [0.5, 1.2, 2.0]})
    (found,) = wrong_units(table, SearchSpace([IntegerParameter("n", 0, 2)]), "task")
    assert found.startswith("'n' of task 'a' has fractions, but the parameter is an integer")
