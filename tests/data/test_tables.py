import logging
import re

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_transfer import CategoricalParameter, FloatParameter, IntegerParameter, SearchSpace
from botorch_transfer.data import as_datasets, from_dataframe, task_names
from botorch_transfer.outcome_transforms import robust_limit
from botorch_transfer.pretraining import SourceGPs
from botorch_transfer.search_space.cells import likely_column

SPACE = SearchSpace(
    [
        CategoricalParameter("kernel", ("rbf", "linear")),
        FloatParameter("C", 1.0, 100.0, log=True),
        IntegerParameter("degree", 1, 3, active_if={"kernel": "linear"}),
    ]
)


def table(**columns):
    frame = pd.DataFrame(
        {
            "dataset": ["b", "a", "b", "a", "b"],
            "kernel": ["rbf", "linear", "rbf", "linear", "rbf"],
            "C": [1.0, 10.0, 100.0, 1.0, 10.0],
            "degree": [np.nan, 1, np.nan, 3, np.nan],
            "accuracy": [0.1, 0.2, 0.3, 0.4, 0.5],
        }
    )
    return frame.assign(**columns)


def read(frame, space=SPACE, **kwargs):
    return from_dataframe(frame, space, outcome="accuracy", task="dataset", **kwargs)


def test_a_loss_needs_a_goal(caplog):
    losses = table().rename(columns={"accuracy": "loss"})
    with pytest.raises(ValueError, match="The name 'loss' suggests that small values"):
        from_dataframe(losses, SPACE, "loss", "dataset")
    assert from_dataframe(losses, SPACE, "loss", "dataset", "max")["b"].Y[0] == 0.1
    assert "'loss' is maximized, but the name suggests" in caplog.text
    from_dataframe(losses.rename(columns={"loss": "v"}), SPACE, "v", "dataset")
    assert "Large values of v count as good: give goal='min' to minimize" in caplog.messages


def test_one_dataset_a_task_in_order_of_appearance():
    datasets = read(table())
    assert list(datasets) == ["b", "a"]
    assert datasets["b"].Y.tolist() == [[0.1], [0.3], [0.5]]
    assert datasets["b"].X.tolist() == [[1, 0, u, 0.5] for u in (0.0, 1.0, 0.5)]
    assert datasets["a"].X[:, 3].tolist() == [0.0, 1.0]
    assert datasets["a"].feature_names == SPACE.feature_names
    assert datasets["a"].Y.dtype == torch.float64
    assert datasets["a"].Yvar is None
    assert task_names(as_datasets(datasets)) == ["b", "a"]
    assert task_names(list(datasets.values())) == ["b", "a"]


def test_a_task_in_another_unit_is_told(caplog):
    height = np.tile([1.0, 1.5, 2.0, 1.2, 1.8], 3) + np.repeat([0.0, 0.1, 0.2], 5)
    frame = pd.DataFrame({"x": np.tile(np.linspace(0, 1, 5), 3), "task": [*"aaaaabbbbbccccc"]})
    for factor in (1, 1000):
        wrong = frame.assign(height=np.where(frame["task"] == "b", factor * height, height))
        from_dataframe(wrong, LINE.parameters[:1], "height", "task", goal="max")
    (message,) = caplog.messages
    assert message.startswith(
        "'height' of task 'b' is far from the outcomes of all old tasks, 1 to"
    )


def test_a_task_with_one_outcome_is_told(caplog):
    frame = table(dataset=[*"aaaab"], accuracy=[0.0] * 4 + [0.5])
    read(pd.concat([frame, frame.tail(1).assign(accuracy=0.7)], ignore_index=True))
    told = "All runs of task 'a' have one value of 'accuracy': empty cells without a true result"
    assert told in caplog.text


def test_failed_runs_are_dropped_and_counted(caplog):
    frame = table(accuracy=[0.1, np.nan, np.inf, 0.4, -np.inf])
    with caplog.at_level(logging.INFO, logger="botorch_transfer"):
        datasets = read(frame)
    assert datasets["b"].Y.tolist() == [[0.1]]
    assert datasets["a"].Y.tolist() == [[0.4]]
    assert caplog.messages == [
        "3 of 5 runs have no finite outcome 'accuracy': left out",
        "Each old task has only one value of 'accuracy', so old runs do not help",
    ]


def test_rows_that_occur_twice_are_warned_of_but_not_replicates(caplog):
    frame = table()
    read(frame)
    read(pd.concat([frame, frame.assign(accuracy=frame["accuracy"] + 0.05)]))
    read(pd.concat([frame, frame.head(1)]))
    read(pd.concat([frame, frame]).assign(batch=range(10)))
    assert not caplog.messages
    read(pd.concat([frame, frame]))  # task "a" has only two outcomes
    assert caplog.messages == ["6 rows occur more than once (task 'b' (6)): give each run once"]


def test_task_names_are_compared_as_text(caplog):
    datasets = read(table(dataset=[3, "x", "3", "x", 3]))
    assert {name: len(ds.X) for name, ds in datasets.items()} == {"3": 3, "x": 2}
    categories = pd.Categorical(["b", "a", "b", "a", "b"], categories=["a", "b", "unused"])
    assert list(read(table(dataset=categories))) == ["b", "a"]
    read(table(dataset=["P 1", "01", "p1", "1.0", "P 1"]))
    (told,) = caplog.messages
    assert "Task names differ only in spelling ('P 1' and 'p1'; '01' and '1.0'): use" in told


def test_summary_rows_are_warned_of(caplog):
    read(table(dataset=["a", "Average", "Average", "Average", "mean dose"]))
    assert not caplog.messages
    for names in (["a", "a", "a", "a", "Mean:"], ["a", "a", "b", "Mean:", "Mean:"]):
        read(table(dataset=names))
    told = "Task 'Mean:' in row {} is named like a summary: drop rows that summarize other rows"
    assert caplog.messages == [told.format(4), told.format(3)]


def test_columns_with_two_levels_are_refused():
    frame = table()
    frame.columns = pd.MultiIndex.from_product([["runs"], frame.columns])
    with pytest.raises(InputDataError, match="The column names have 2 levels: flatten the names"):
        read(frame)


@pytest.mark.parametrize(("goal", "worst"), [("max", 0.1), ("min", -0.3)])
def test_failed_runs_get_the_worst_finite_outcome(caplog, goal, worst):
    frame = table(accuracy=[0.1, 0.2, 0.3, 0.4, np.inf])
    with caplog.at_level(logging.INFO, logger="botorch_transfer"):
        datasets = read(frame, goal=goal, failed="worst")
    assert datasets["b"].Y[2].item() == worst
    assert len(datasets["b"].X) == 3
    told = "1 of 5 runs have no finite outcome 'accuracy': failed runs get the worst outcome "
    assert caplog.messages[-1] == told + "of their task"


def test_logarithms_are_advised_where_the_best_losses_are_tiny(caplog):
    def advice(*losses, goal="min", **options):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="botorch_transfer"):
            read(table(accuracy=losses), goal=goal, **options)
        return [text for text in caplog.messages if "consider log=True" in text]

    tiny = (0.02, 0.02, 0.3, 0.6, 0.4)  # of b: 1st, 3rd and 5th
    assert len(advice(*tiny)) == 1
    assert not advice(*tiny, log=True)
    assert not advice(*tiny, goal="max")
    assert not advice(0.2, 0.02, 0.3, 0.6, 0.4)  # only in one task of two, on average 8 times
    assert not advice(0.0, 0.02, 0.3, 0.6, 0.4)  # zero has no logarithm


@pytest.mark.parametrize(("failed", "kept"), [("drop", 2), ("worst", 3)])
def test_logarithms_have_relative_standard_errors(failed, kept):
    frame = table(accuracy=[1.0, 0.5, np.nan, 4.0, 10.0], sem=[0.1, 0.1, 0.3, 0.8, 5.0])
    datasets = read(frame, failed=failed, noise="sem", log=True)
    assert datasets["a"].Y.exp().flatten().tolist() == pytest.approx([0.5, 4.0])
    assert datasets["a"].Yvar.sqrt().flatten().tolist() == pytest.approx([0.2, 0.2])
    # A failed run gets the worst outcome, and the largest relative error.
    worst = [(1.0, 0.5)][: kept - 2]
    expected = sorted([(1.0, 0.1), (10.0, 0.5), *worst])
    found = zip(datasets["b"].Y.exp().flatten(), datasets["b"].Yvar.sqrt().flatten(), strict=True)
    close = [pytest.approx(pair) for pair in expected]
    assert sorted((y.item(), error.item()) for y, error in found) == close


@pytest.mark.parametrize("cell", ["1,234", "12 or 13"])
def test_what_only_begins_like_a_number_is_no_failed_run(cell):
    told = rf"'accuracy' has '{cell}' .*in row 2, which has digits but is not a number: write"
    with pytest.raises(InputDataError, match=told):
        read(table(accuracy=["0.1", "0.2", cell, "0.4", "crashed"]))


def test_what_has_no_logarithm_is_named():
    with pytest.raises(InputDataError, match=r"'accuracy' has 0\.0 in row 1, but log= needs"):
        read(table(accuracy=[0.1, 0.0, 0.3, 0.4, 0.5]), log=True)


@pytest.mark.parametrize("failed", ["drop", "worst"])
def test_tasks_without_any_outcome_are_left_out_and_named(caplog, failed):
    frame = table(accuracy=[np.nan, 0.2, np.nan, 0.4, np.nan])
    assert list(read(frame, failed=failed)) == ["a"]
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("3 of 5 runs have no finite outcome 'accuracy'")
    assert caplog.messages[0].endswith("tasks without a finite outcome: 'b'")
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize(("failed", "left"), [("drop", [0.1]), ("worst", [0.1, 0.1, 0.1])])
def test_only_failed_and_empty_outcomes_get_the_worst_one(failed, left, caplog):
    """A word says that nothing was measured, and not that the run was bad."""
    frame = table(accuracy=["0.1", "0.2", "crashed", "0.4", np.nan])
    frame = pd.concat([frame, frame.tail(1).assign(accuracy="?")], ignore_index=True)
    with caplog.at_level(logging.INFO, logger="botorch_transfer"):
        assert read(frame, failed=failed)["b"].Y.flatten().tolist() == left
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert warned == [
        "Words such as n.d. count as missing outcomes of runs that ended without failure: 1 in "
        "'accuracy', as '?' in row 5 of task 'b'"
    ]
    assert "such as failed: 1 in 'accuracy', as 'crashed' in row 2 of task 'b'" in caplog.text
    assert caplog.messages[-1].startswith("3 of 6 runs have no finite outcome 'accuracy'")


def test_standard_errors_become_variances():
    datasets = read(table(sem=[0.1, np.nan, 0.2, np.nan, 0.3]), noise="sem")
    torch.testing.assert_close(datasets["b"].Yvar[:, 0], torch.tensor([0.01, 0.04, 0.09]).double())
    assert datasets["a"].Yvar is None


@pytest.mark.parametrize("error", [np.nan, 0.0, "", "0.0", 9999.0])
def test_empty_and_zero_standard_errors_are_the_pooled_one(error, caplog):
    frame = table(sem=pd.Series([0.1, error, error, 0.1, 0.3], dtype=object))
    with caplog.at_level(logging.INFO, logger="botorch_transfer"):
        data = read(frame, noise="sem")
    torch.testing.assert_close(data["b"].Yvar[:, 0], torch.tensor([0.01, 0.05, 0.09]).double())
    torch.testing.assert_close(data["a"].Yvar[:, 0], torch.tensor([0.01, 0.01]).double())
    told = "2 runs have no standard error in 'sem': they get their task's pooled standard error"
    assert caplog.messages[-1] == told


@pytest.mark.parametrize("error", [-0.1, 1e-200, 1e200])
def test_impossible_standard_errors_are_refused(error):
    frame = table(sem=[0.1, 0.1, error, 0.1, 0.1])
    told = f"The column 'sem' has {error} in row 2, which is not a standard error"
    with pytest.raises(InputDataError, match=re.escape(told)):
        read(frame, noise="sem")


def test_large_standard_errors_and_standard_errors_in_words_are_warned_of(caplog):
    for few in (0.1, 5000):
        read(table(dataset="a", sem=[5000, 5000, few, 0.1, 0.1]), noise="sem")
    (told,) = caplog.messages
    assert told.startswith("Check 'sem': most standard errors, such as 5000.0 in row 0 of task 'a'")
    data = read(table(sem=["low", "low", "high", "low", "high"]), noise="sem")
    assert data["b"].Yvar is data["a"].Yvar is None
    assert "5 in 'sem', as 'low' in row 0 of task 'b'" in caplog.messages[1]
    read(table(sem=[0.11, 0.22, 0.33, 0.44, 0.55]), noise="sem")
    assert caplog.messages[2].endswith("exceed the outcomes or their differences")


def test_a_task_that_lacks_a_parameter_is_refused_or_filled():
    frame = table(C=[np.nan, 10.0, np.nan, 1.0, np.nan])
    with pytest.raises(InputDataError, match=r"'b' has no values of parameter 'C': .* missing="):
        read(frame)
    datasets = read(frame, missing={"C": 100.0})
    assert datasets["b"].X[:, 2].tolist() == [1.0, 1.0, 1.0]
    torch.testing.assert_close(datasets["a"].X[:, 2], torch.tensor([0.5, 0.0]).double())
    assert frame["C"].isna().sum() == 3  # the argument isn't changed


def test_conditional_parameters_may_be_absent_where_inactive():
    frame = table(kernel="rbf").drop(columns="degree")
    assert (read(frame)["a"].X[:, 3] == 0.5).all()
    with pytest.raises(InputDataError, match="Task 'a': The table has no column 'degree'"):
        read(table().drop(columns="degree"))
    filled = read(table().drop(columns="degree"), missing={"degree": 3})
    assert filled["a"].X[:, 3].tolist() == [1.0, 1.0]
    assert filled["b"].X[:, 3].tolist() == [0.5, 0.5, 0.5]


def test_values_outside_of_the_space_are_kept_where_they_are(caplog):
    frame = table(C=[1.0, 10.0, 100.0, 1000.0, 10.0])
    data = read(frame)
    assert data["a"].X.max().item() == pytest.approx(1.5)
    told = "1 runs lie outside of the search space, and their values are kept: check the ranges"
    assert caplog.messages == [told + ", or give changed=True (task 'a' (1), from row 3 on)"]
    caplog.clear()
    read(frame, changed=True)
    assert caplog.messages == []
    with caplog.at_level(logging.INFO, logger="botorch_transfer"):
        read(frame, changed=True)
    assert caplog.messages[0].endswith("check the ranges (task 'a' (1), from row 3 on)")
    read(table(C=[1000.0, 1000.0, 1000.0, 10.0, 1000.0]), changed=True)  # no run of b is inside
    assert caplog.messages[-1].endswith("check the ranges (task 'b' (3), from row 0 on)")
    caplog.clear()
    read(table(C=1000.0), changed=True)  # all runs are outside
    assert "5 runs lie outside of the search space" in caplog.text


def test_values_without_a_place_are_left_out_and_counted(caplog):
    data = read(table(C=[1.0, 10.0, 100.0, -1.0, 10.0]))
    assert [len(task.X) for task in data.values()] == [3, 1]
    told = "1 runs are left out, because each has a value that the search space lacks: 'C' is -1.0 "
    assert caplog.messages == [told + "(1) (task 'a' (1), from row 3 on)"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"goal": "minimize"}, ValueError, "goal is 'minimize': use 'min' or 'max'"),
        ({"failed": "keep"}, ValueError, "failed= is 'keep': use 'drop' or 'worst'"),
        ({"missing": {"c": 1}}, ValueError, "missing= names 'c', .* use one of kernel, C, deg"),
        ({"noise": "sem"}, InputDataError, "no column 'sem': choose an existing column for noise="),
        ({"noise": "C"}, InputDataError, "is both a parameter and"),
        ({"outcome": "C"}, InputDataError, "is both a parameter and"),
        ({"outcome": {"accuracy"}}, TypeError, "give a name, or a list of names"),
        ({"task": None}, InputDataError, "no column None: choose an existing column for task="),
        ({"task": "accuracy"}, InputDataError, "'accuracy' is both the column of outcome="),
        ({"outcome": "y"}, InputDataError, "no column 'y': choose an existing column for outcome="),
        ({"frame": table(dataset=[*"ba", None, "a", "b"])}, InputDataError, "2, so .* no task"),
        ({"frame": table(accuracy=np.nan)}, InputDataError, "No run has a finite .* 'accuracy'"),
        ({"frame": table()[:0]}, InputDataError, "No run has a finite outcome"),
        ({"missing": ["C"]}, TypeError, "missing is .*: give a dict"),
        ({"rename": ["C"]}, TypeError, "rename is .*: give a dict"),
        ({"space": {"C": (0, 1)}}, ValueError, "'C' has the type None: use one of float, int"),
        ({"space": "space.json"}, TypeError, "not 'space.json': .*SearchSpace.from_json"),
        ({"frame": {"C": [1.0]}}, InputDataError, "is a dict: give a pandas"),
    ],
)
def test_impossible_arguments_are_refused(arguments, error, message):
    given = {"frame": table(), "space": SPACE, "outcome": "accuracy", "task": "dataset"}
    with pytest.raises(error, match=message):
        from_dataframe(**{**given, **arguments})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"accuracy": [1 + 1j] * 5}, "type complex128: convert it"),
        ({"accuracy": pd.Timestamp("2020-01-01")}, "type datetime64.*: convert it"),
        ({"accuracy": pd.Timedelta("1s")}, "type timedelta64.*: convert it"),
        ({"C": [[1], [2], [3], [4], [5]]}, "not a number: correct the cell"),
    ],
)
def test_columns_of_impossible_types_are_refused(columns, message):
    with pytest.raises(InputDataError, match=message):
        read(table(**columns))


@pytest.mark.parametrize("name", ["C", "accuracy", "dataset"])
def test_columns_that_are_there_twice_are_refused(name):
    with pytest.raises(InputDataError, match=f"several columns '{name}': keep one"):
        read(pd.concat([table(), table()[[name]]], axis=1))


LINE = SearchSpace([FloatParameter("x", 0.0, 1.0), FloatParameter("wd", 1e-6, 0.1, log=True)])


def old_runs(n=24, **columns):
    x = np.linspace(0, 1, n)
    frame = pd.DataFrame({"dataset": ["a", "b"] * (n // 2), "x": x, "accuracy": np.sin(4 * x)})
    return frame.assign(**columns)


def test_an_unknown_value_is_spread_so_that_sources_do_not_depend_on_it():
    data = read(old_runs(), LINE, missing={"wd": None})
    for task in data.values():
        assert task.X[:, 1].sort().values.diff().max() < 2 / 12
        assert task.X[:, 1].min() < 1 / 12 < 11 / 12 < task.X[:, 1].max()
    again = read(old_runs(), LINE, changed=True)
    assert torch.equal(again["b"].X, data["b"].X)
    assert not torch.equal(data["a"].X[:, 1], data["b"].X[:, 1])
    sources = SourceGPs.fit(data)
    rows = torch.tensor([[0.4, u] for u in (0.0, 0.5, 1.0)], dtype=torch.double)
    assert sources.mean(rows).std(dim=-1).max() < 0.05
    assert sources.variance(rows).max() < 0.05


def test_unknown_choices_and_conditional_parameters():
    nested = IntegerParameter("depth", 1, 9, active_if={"kind": "b"})
    letters = CategoricalParameter("kind", ("a", "b"))
    space = SearchSpace([FloatParameter("x", 0.0, 1.0), letters, nested])
    X = read(old_runs(), space, changed=True)["a"].X
    assert X[:, 1].unique().tolist() == [0.0, 1.0]
    assert len(X[X[:, 2] == 1, 3].unique()) > 2
    assert (X[X[:, 2] == 0, 3] == 0.5).all()


def test_a_task_that_does_not_record_what_others_do():
    frame = old_runs(wd=1e-4)
    frame.loc[frame["dataset"] == "b", "wd"] = np.nan
    data = read(frame, LINE, changed=True)
    assert len(data["a"].X[:, 1].unique()) == 1
    assert len(data["b"].X[:, 1].unique()) == 12
    known = read(frame, LINE, missing={"wd": 1e-2}, changed=True)
    assert known["b"].X[:, 1].unique().tolist() == pytest.approx([0.8])


def test_values_outside_of_a_changed_space(caplog):
    frame = old_runs(wd=[1.0] * 12 + [1e-3] * 12, kind=["b", "b", *["a"] * 22])
    space = SearchSpace([*LINE.parameters, CategoricalParameter("kind", ("a", "B"))])
    with caplog.at_level(logging.INFO, logger="botorch_transfer"):
        data = read(frame, space, changed=True)
    assert caplog.messages == [
        "Maybe another unit: 'wd' of task 'a' and 1 more lies outside of the parameter's range, "
        "but fits if divided by 100",
        "2 runs are left out, because each has a value that the search space lacks: 'kind' is 'b' "
        "(2) (a similar value is 'B') (task 'a' (1), 'b' (1), from row 0 on)",
        "10 runs lie outside of the search space, and their values are kept: check the ranges "
        "(task 'a' (5), 'b' (5), from row 2 on)",
    ]
    assert [len(task.X) for task in data.values()] == [11, 11]
    assert data["a"].X[:, 1].max().item() == pytest.approx(1.2)
    assert (data["a"].X[:, 3] == 0).all()
    with pytest.raises(InputDataError, match="No run is left"):
        read(frame.assign(kind="z"), space, changed=True)


def test_old_runs_that_lack_a_number_are_left_out(caplog):
    frame = old_runs(wd=1e-3)
    frame.loc[[2, 4], "wd"], frame.loc[[4, 7], "x"] = np.nan, np.nan
    data = read(frame, LINE, changed=True)
    assert [len(task.X) for task in data.values()] == [10, 11]
    assert all(task.X.isfinite().all() for task in data.values())
    assert "3 runs are left out, because each has a value that the search" in caplog.text
    told = "'x' is empty (2); 'wd' is empty (2) (task 'a' (2), 'b' (1), from row 2 on)"
    assert told in caplog.text
    caplog.clear()
    malt = CategoricalParameter("malt", ("yes", "none"))  # an empty cell is a choice
    read(frame.assign(malt=None), SearchSpace([*LINE.parameters, malt]), changed=True)
    assert told in caplog.text


def test_runs_without_a_place_take_their_standard_errors_with_them():
    frame = old_runs(wd=1e-3, kind=["b", *["a"] * 23], sem=np.linspace(0.1, 0.2, 24))
    space = SearchSpace([*LINE.parameters, CategoricalParameter("kind", ("a", "c"))])
    data = read(frame, space, changed=True, noise="sem")
    torch.testing.assert_close(data["a"].Yvar[:, 0], torch.tensor(frame["sem"].values[2::2] ** 2))


def test_renamed_columns():
    frame = old_runs(weight_decay=1e-3)
    data = read(frame, LINE, rename={"weight_decay": "wd"})
    assert data["a"].X[0, 1].item() == pytest.approx(0.6)
    with pytest.raises(InputDataError, match=r"'wd', but it has a column 'weight_decay'.*rename="):
        read(frame, LINE, changed=True)
    assert read(frame, LINE, changed=True, missing={"wd": None})["a"].X[:, 1].std() > 0.2
    with pytest.raises(InputDataError, match="a column 'c': if both mean the same, pass rename"):
        read(table().rename(columns={"C": "c"}))


def test_a_new_name_with_another_unit_gives_a_warning(caplog):
    pairs = [("T [K]", "T [°C]"), ("hours", "t_min"), ("t [h]", "t (hours)"), ("C", "K")]
    for old, new in [*pairs, ("V (mL)", "V (l)")]:
        space = SearchSpace([LINE.parameters[0], FloatParameter(new, 1e-4, 0.1)])
        read(old_runs(**{old: 0.05}), space, rename={old: new})
    assert [text.split("'")[3] for text in caplog.messages] == ["T [°C]", "t_min", "V (l)"]
    with pytest.raises(InputDataError, match="same, convert the values, and name the column 'V "):
        read(old_runs(**{old: 0.05}), space)


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"weight_decai": "wd"}, r"a similar column is 'weight_decay'\): correct the"),
        ({"weight_decay": "x"}, "gives two columns the name 'x': drop one column"),
        ({"weight_decay": "wd", "accuracy": "wd"}, "two columns the name 'wd': drop"),
    ],
)
def test_wrong_new_names_are_refused(rename, message):
    with pytest.raises(InputDataError, match=message):
        read(old_runs(weight_decay=1e-3), LINE, rename=rename)


def test_two_columns_may_swap_their_names():
    frame = old_runs(wd=np.linspace(0.1, 1e-3, 24))
    turned = read(frame.rename(columns={"x": "wd", "wd": "x"}), LINE, rename={"x": "wd", "wd": "x"})
    torch.testing.assert_close(turned["a"].X, read(frame, LINE)["a"].X)


def test_errors_name_the_likely_column():
    with pytest.raises(InputDataError, match=r"no column 'acuracy' .a similar column is 'accu"):
        from_dataframe(table(), SPACE, outcome="acuracy", task="dataset")
    with pytest.raises(InputDataError, match="none of the parameters x, wd"):
        read(old_runs().drop(columns="x"), LINE, changed=True)


@pytest.mark.parametrize(
    ("name", "columns", "expected"),
    [
        ("lr", ["learning_rate", "loss"], "learning_rate"),
        ("learning_rate", ["lr", "loss"], "lr"),
        ("max_depth", ["depth", "maxDepth"], "maxDepth"),
        ("gamma", ["gama", "alpha"], "gama"),
        ("gamma", ["C", "loss", "seconds"], None),
        ("temperature", ["pressure", "Temp"], "Temp"),
        ("C", ["Cache"], None),
        ("dropout", [], None),
    ],
)
def test_likely_column(name, columns, expected):
    assert likely_column(name, columns) == expected


def test_empty_cells_of_choices_are_counted(caplog):
    runs = pd.DataFrame({"task": list("aaabbb"), "kind": ["x", "y", None, None, None, None]})
    runs["loss"] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    few = runs.iloc[:3]
    letters = SearchSpace([CategoricalParameter("kind", ["x", "y"])])
    source = from_dataframe(few, letters, "loss", "task", "min")
    assert len(source["a"].X) == 2
    told = "1 runs are left out, because each has a value that the search space lacks: 'kind' "
    assert caplog.messages == [told + "is empty (1) (task 'a' (1), from row 2 on)"]
    space = SearchSpace([CategoricalParameter("kind", ("x", "y", "none"))])
    source = from_dataframe(runs, space, "loss", "task", "min")
    assert source["b"].X.tolist() == [[0, 0, 1]] * 3
    assert source["a"].X.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]


def test_all_runs_without_a_task_are_counted():
    runs = pd.DataFrame({"task": ["a", None, "b", None, None], "x": 0.5, "loss": 1.0})
    space = SearchSpace([FloatParameter("x", 0, 1)])
    with pytest.raises(InputDataError, match=r"'task' has no value in row 1 \(and 2 more rows\)"):
        from_dataframe(runs, space, "loss", "task", "min")


def test_columns_that_are_not_read_may_have_one_name():
    notes = table()[[]].assign(note="")
    frame = pd.concat([table(), notes, notes], axis=1)
    assert read(frame).keys() == {"a", "b"}


def test_blanks_and_two_forms_of_accents_do_not_matter():
    one, two = "\u00e9", "e\u0301"  # the same letter
    space = SearchSpace([*SPACE.parameters, CategoricalParameter(one, ("x", one))])
    expected = read(table(**{one: ["x", one, "x", one, one]}), space)
    blanks = table(
        dataset=["b", "a ", "b", "a", " b"], kind=["x ", f" {two}", "x", f"{two}\t", two]
    )
    for rename in ({"kind": one}, {"kind": two}, {"kind": f"k{two}"}):
        frame = blanks.rename(columns=rename)
        found = read(frame, space, rename={f"k{one}": two} if len(rename["kind"]) > 2 else None)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name].X, expected[name].X) for name in expected)
    assert read(table(), space, missing={two: two})["a"].X.equal(expected["a"].X)


# ------------------------------------------------------------------------------- very bad outcomes


def diverged(bad=-54_321.0, sign=1.0, **columns):
    """Runs of two tasks with outcomes in [-1, 1], one of which in task b is far worse."""
    frame = old_runs(wd=1e-3, accuracy=np.linspace(-1, 1, 24), **columns)
    frame.loc[5, "accuracy"] = bad
    return frame.assign(accuracy=sign * frame["accuracy"])


@pytest.mark.parametrize("goal", ["max", "min"])
def test_very_bad_outcomes_are_limited_or_warned_of(goal, caplog):
    frame = diverged(sign=1.0 if goal == "max" else -1.0)
    data = {}
    told = "1 values of 'accuracy' are far worse than their task's median"
    for robust, level, line in (
        (True, "INFO", f"{told}, and are clipped (task 'b' (1))"),
        (False, "WARNING", f"{told}: consider robust=True (task 'b' (1))"),
        (None, None, None),
    ):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="botorch_transfer"):
            data[robust] = read(frame, LINE, goal=goal, robust=robust)
        found = [(record.levelname, record.getMessage()) for record in caplog.records]
        logged = [(level, text) for level, text in found if told in text]
        assert logged == ([] if line is None else [(level, line)])
    raw = data[False]["b"].Y
    assert raw.min() == -54_321
    assert all(torch.equal(data[None][name].Y, data[False][name].Y) for name in "ab")
    assert torch.equal(data[True]["a"].Y, data[False]["a"].Y)
    assert torch.equal(data[True]["b"].Y, raw.clamp_min(robust_limit(raw)))
    assert -5 < robust_limit(raw) < -1
    assert torch.equal(data[True]["b"].X, data[False]["b"].X)
    assert data[True]["b"].Yvar is None


@pytest.mark.parametrize("robust", [True, False])
def test_very_good_outcomes_stay_as_they_are(robust, caplog):
    frame = diverged(bad=54_321.0)
    with caplog.at_level(logging.INFO, logger="botorch_transfer"):
        data = read(frame, LINE, robust=robust)
    assert data["b"].Y.flatten().tolist() == frame["accuracy"][1::2].tolist()
    assert ["54321, far better than all other" in text for text in caplog.messages] == [True]


@pytest.mark.parametrize(
    ("loss", "goal", "told"),
    [
        ([0.4, 0.9, 0.0, 0.7, 0.8, 1.3, 0.5], "min", True),
        ([0.4, 0.9, 0.0, 0.7, 0.8, 0.0, 0.0], "min", True),
        ([0.4, 0.9, 0.0, 0.7, 0.8, 1.3, 0.2], "max", False),
        ([0.1, 0.9, 0.0, 0.7, 0.8, 1.3, 0.3], "min", False),
        ([4, 9, 0, 7, 8, 13, 5], "min", False),
    ],
)
def test_a_loss_of_zero_far_below_the_others_is_told(loss, goal, told, caplog):
    frame = pd.DataFrame({"x": np.linspace(0, 1, 7), "dataset": "a", "accuracy": loss})
    from_dataframe(frame, LINE.parameters[:1], "accuracy", "dataset", goal=goal)
    assert ("which may mean a missing outcome" in caplog.text) == told


def test_limited_outcomes_have_no_larger_errors_than_others():
    frame = diverged(sem=[0.1, 0.2] * 12)
    frame.loc[[3, 5], "sem"] = [0.3, 400.0]
    data = {robust: read(frame, LINE, noise="sem", robust=robust)["b"] for robust in (True, False)}
    expected = data[False].Yvar.clone()
    assert expected[2].item() == 160_000
    expected[2] = 0.09
    torch.testing.assert_close(data[True].Yvar, expected)


def test_outcomes_are_limited_after_the_logarithm():
    frame = diverged()
    losses = frame.assign(accuracy=np.exp(frame["accuracy"].clip(-600)))
    data = read(losses, LINE, log=True, robust=True)["b"].Y
    logs = read(frame.assign(accuracy=frame["accuracy"].clip(-600)), LINE)["b"].Y
    torch.testing.assert_close(data, logs.clamp_min(robust_limit(logs)))


@pytest.mark.parametrize("failures", [2, 9])
def test_failed_runs_get_the_worst_outcome_that_is_left(failures):
    """Failed runs do not count for the limit."""
    frame = diverged()
    failed = [1, 3, *range(7, 24, 2)][:failures]
    frame.loc[failed, "accuracy"] = np.nan
    lowest = robust_limit(read(frame, LINE)["b"].Y)
    Y = read(frame, LINE, robust=True, failed="worst")["b"].Y
    assert Y.min().item() == lowest > -5
    assert (len(Y), int(Y.eq(lowest).sum())) == (12, failures + 1)


def test_moderately_bad_outcomes_are_not_warned_of(caplog):
    read(diverged(bad=-10.0), LINE)
    assert not caplog.messages
    read(diverged(bad=-60.0), LINE)
    assert "consider robust=True" in caplog.text


def test_names_of_columns_are_compared_as_text():
    frame = pd.DataFrame([["a", 1.0, 0.5], ["a", 2.0, 0.7]])
    space = (FloatParameter(name, 1.0, 3.0) for name in ["1"])
    data = from_dataframe(frame, SearchSpace(space), outcome="2", task="0")
    assert data["a"].X.flatten().tolist() == [0.0, 0.5]
    listed = from_dataframe(frame, [FloatParameter("1", 1.0, 3.0)], outcome="2", task="0")
    assert listed["a"].X.equal(data["a"].X)
    with pytest.raises(ValueError, match="has a name that is not text: write '1'"):
        FloatParameter(1, 1.0, 3.0)


@pytest.mark.parametrize("value", ["room", [80], float("nan"), {"a": 1}])
def test_wrong_values_of_missing_name_the_argument(value):
    with pytest.raises(ValueError, match=r"missing= gives the parameter 'C' the invalid .*: give"):
        read(table().drop(columns="C"), missing={"C": value})


@pytest.mark.parametrize("name", [["C"], 3, None])
def test_new_names_that_are_no_text_are_refused(name):
    with pytest.raises(InputDataError, match=r"rename= gives 'C' the name .*: give one name"):
        read(table(), rename={"C": name})


def test_codes_of_missing_parameters_are_left_out(caplog):
    frame = table()
    frame["C"] = frame["C"].astype(float)
    frame.loc[frame.index[1], "C"] = -999.0
    assert sum(len(data.X) for data in read(frame).values()) == len(frame) - 1
    assert "1 runs are left out, because" in caplog.text
    assert "a value that the search space lacks: 'C' is -999.0" in caplog.text


@pytest.mark.parametrize(
    ("outcome", "error", "message"),
    [
        ("50", "5%", "maybe a relative error: write the standard error in the outcome's unit"),
        ("50", "5 pct", "maybe a relative error: write the standard error in the outcome's unit"),
        ("50 mg", "5%", "unit 'mg' in the outcomes, but '%' in the standard errors: convert all"),
        ("50 mg", "0.1 g", "has the unit 'mg' in the outcomes, but 'g' in the standard errors"),
    ],
)
def test_standard_errors_in_another_unit_are_refused(outcome, error, message):
    frame = table().drop(columns="accuracy").assign(mass=outcome, sem=error)
    with pytest.raises(InputDataError, match=message.replace("accuracy", "mass")):
        from_dataframe(frame, SPACE, "mass", "dataset", noise="sem")
    same = frame.assign(mass="50 %", sem="5 %")
    data = from_dataframe(same, SPACE, "mass", "dataset", noise="sem")
    assert next(iter(data.values())).Yvar.unique().tolist() == [25.0]
