"""Constraints between parameters: sums, combinations, mixtures of few."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_transfer import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    ScaMLGP,
    SearchSpace,
    backtest,
    suggest,
)
from botorch_transfer.suggestion import constraints as room
from botorch_transfer.suggestion import read_study, search
from botorch_transfer.suggestion import region as region_room
from botorch_transfer.suggestion.constraints import Repair, read_constraint
from botorch_transfer.suggestion.region import Region
from botorch_transfer.suggestion.search import maximize, spread_out
from tests.suggestion.brief_search import brief_search
from tests.suggestion.random_constraints import _Nearness, num_infeasible

SPACE = SearchSpace(
    [
        FloatParameter("a", 0, 1),
        FloatParameter("b", 0, 1),
        IntegerParameter("k", 1, 9),
        OrdinalParameter("flow rate", (1, 2, 5, 10)),
        FloatParameter("lr", 0.001, 1, log=True),
        CategoricalParameter("c", ("x", "y")),
    ]
)


@pytest.mark.parametrize(
    ("text", "weights", "bound", "is_equality"),
    [
        ("a + b <= 1", {"a": -1, "b": -1}, -1, False),
        ("a >= 2 * b", {"a": 1, "b": -2}, 0, False),
        ("-(a - 3*k)/2 + 1 == b", {"a": -0.5, "k": 1.5, "b": -1}, -1, True),
        ("“flow rate” ≥ a − k", {"flow rate": 1, "a": -1, "k": 1}, 0, False),
        ("a + b =< 1", {"a": -1, "b": -1}, -1, False),
        ("`flow rate` > a*4", {"flow rate": 1, "a": -4}, 0, False),
    ],
)
def test_texts_are_read_as_sums(text, weights, bound, is_equality):
    (found,) = read_constraint(text, SPACE)
    assert (found.weights, found.bound, found.is_equality) == (weights, bound, is_equality)


def test_a_chain_is_two_constraints(caplog):
    lower, upper = read_constraint("0.2 <= a + b <= 1", SPACE)
    frame = pd.DataFrame({"a": [0.1, 0.5, 0.9], "b": [0.05, 0.5, 0.2]})
    assert (lower.holds(frame) & upper.holds(frame)).tolist() == [False, True, False]
    some = "not (c == 'x' and a > 9)", "not (c == 'x' and a > 0.9)"
    texts = "-1 < a < 9", "0 <= a <= 1", "a < 9 or a + b < 1", "-1 < a < 0.5", "not a > 9", *some
    for text in texts:
        read_constraint(text, SPACE)
    told = [text for text in texts if any(f"constraint {text!r}, or" in m for m in caplog.messages)]
    assert told == ["-1 < a < 9", "a < 9 or a + b < 1", "not a > 9", some[0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a * b <= 1", "not a linear comparison"),
        ("a <= 1 / b", "not a linear comparison"),
        ("a / 0 <= 1", "not a linear comparison"),
        ("a + q <= 1", "The parameters are a, b, k"),
        ("a = 1", "has = in place of ==: write a constraint as 'a \\+ 2 \\* b <= 1'"),
        ("not (lrr > 1)", "names 'lrr', which is not a parameter .a similar column is 'lr'."),
        ("at_most(1, a, bb)", "names 'bb', which is not a parameter"),
        ("__import__('os').getcwd() <= a", "not a linear comparison"),
        ("a - a <= 1", "names no parameter"),
        ("c <= 1", "'c', which does not have a number"),
        ("c + a <= 1", "'c', which does not have a number"),
        ("c == x", "Put text values, reserved words"),
        ("c == 'z'", "'c' with 'z', which is not a value of the parameter: use one of 'x', 'y'"),
        ("at_most(1, a, k)", "only if 'k' can be zero"),
        ("at_most(1, a, lr)", "only if 'lr' can be zero"),
        ("at_most(1, a, c)", "'c', which does not have a number"),
        ("at_most(1, a, b, a)", "may name 'a' only once"),
        ("at_most(1)", "at_most\\(2, a, b\\)"),
        ("at_most(1, a, **b)", "not a linear comparison"),
        ("a and b > 1", "not a linear comparison"),
        ("a is 1", "not a linear comparison"),
        ("__import__('os').getcwd() in ['x']", "not a linear comparison"),
        ("__import__('os').getcwd() in []", "not a linear comparison"),
        ("c in __import__('os').environ", "not a linear comparison"),
        ("lambda <= 1", "reserved words such as lambda, and names with spaces into quot"),
        ("not (c == 'x' or c == 'y')", "No configuration of the search space satisfies"),
        ("at_most(0, a, b) and a > 0.5", "No configuration of the search space satisfies"),
        ("a + lr <= 1", "on 'lr' is not linear, because the parameter has log=True"),
        ("a + b >= 3", "No configuration of the search space satisfies 'a \\+ b >= 3'"),
        ("2 * k == 5", "contradict one another"),
    ],
)
def test_what_cannot_be_kept_is_one_sentence(text, message):
    with pytest.raises(ValueError, match=message):
        Region(SPACE, constraints=read_constraint(text, SPACE))


def test_a_sum_beside_a_choice_is_linear():
    choice, total = read_constraint("c == 'x' and a + b == 1", SPACE)
    assert (choice.weights, total.weights) == ({}, {"a": 1.0, "b": 1.0})
    region = Region(SPACE, constraints=[choice, total])
    frame = region.decode(region.sample(4, 0))
    assert (frame["c"] == "x").all()
    np.testing.assert_allclose(frame["a"] + frame["b"], 1.0, rtol=1e-9)


def test_repair_moves_as_little_as_it_can():
    constraints = read_constraint("a + b + k == `flow rate`", SPACE)
    frame = SPACE.sample(20, seed=1)
    moved = frame.assign(**Repair(SPACE, constraints, fixed=["k"]).nearest(frame))
    assert (moved["k"] == frame["k"][moved.index]).all()
    possible = [any(0 <= rate - k <= 2 for rate in (1, 2, 5, 10)) for k in frame["k"]]
    assert constraints[0].holds(moved).tolist() == possible
    moved = moved[possible]
    assert moved["flow rate"].isin([1, 2, 5, 10]).all()
    # Rows that are feasible already stay.
    again = Repair(SPACE, constraints).nearest(moved)
    np.testing.assert_allclose(again[["a", "b", "k"]], moved[["a", "b", "k"]], atol=1e-7)


def test_random_problems_have_feasible_rows():
    with brief_search(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "POOL", 8)
        patch.setattr(search, "NUM_CHOICES", 1)
        patch.setattr(search, "MAX_ITER", 2)
        assert sum(num_infeasible(seed, num_rows=1) for seed in range(4)) == 0


def test_constraints_change_what_is_found():
    space = SearchSpace([FloatParameter("a", 0, 1), FloatParameter("b", 0, 1)])
    history = space.sample(30, seed=0)
    history["task"] = "old"
    history["loss"] = (history["a"] - 0.7) ** 2 + (history["b"] - 0.7) ** 2
    options = {"model": ScaMLGP, "robust": False}
    with brief_search():
        free = suggest(space, history, **options)
        bound = suggest(space, history, constraints=["a + b <= 1"], **options)
        equal = suggest(space, history, constraints=["a == 3 * b"], **options)
        fixed = suggest(space, history, constraints=["a <= 2*b"], fixed={"a": 0.9}, **options)
    assert (free["a"] + free["b"]).item() == pytest.approx(1.4, abs=0.2)
    assert (bound["a"] + bound["b"]).item() == pytest.approx(1.0, abs=1e-3)
    assert bound["a"].item() == pytest.approx(0.5, abs=0.1)
    assert equal["a"].item() == pytest.approx(3 * equal["b"].item(), abs=1e-9)
    assert fixed["a"].item() == 0.9
    assert fixed["b"].item() >= 0.45


# ------------------------------------------------------------------------------------ combinations

MIXED = SearchSpace(
    [
        FloatParameter("a", 0, 1),
        FloatParameter("b", -0.3, 1),
        FloatParameter("class", 0, 3, step=0.5),
        IntegerParameter("k", 1, 9),
        FloatParameter("lr", 0.001, 1, log=True),
        CategoricalParameter("c", ("x", "y", "z")),
        OrdinalParameter("flow rate", (0, 1, 4)),
        *(FloatParameter(name, 0, 1) for name in "pqrs"),
    ]
)

#: Each holds where a is 0.3, k is 2, lr is 0.01, c is x, p and r are 0.5, and the rest is 0.
TEXTS = [
    "not (c == 'y' and k > 4)",
    "not (k > 3 or c in ['y', 'z'])",
    "c not in ('z', 'y') or lr >= 0.1",
    "a + b <= 0.7",
    "0.2 <= a + b < 0.9",
    "3 * a - k / 7 <= 0.5",
    "a - `flow rate` == 0.3",
    "not (a > 0.5 and lr > 0.01) and k < 7",
    "lr <= 0.1",
    "not (a > 0.6 or `class` >= 2.5)",
    "b == 0 or `flow rate` == 1 or k != 2",
    "p + 2 * r <= 1.6",
    "p + q + r + s == 1",
    "c == 'x' and a <= 0.5",
    "at_most(2, a, b, `class`, `flow rate`)",
    "at_most(2, p, q, r, s)",
    'at_most(1, b, "class")',
]


def holds(text: str, frame: pd.DataFrame) -> pd.Series:
    """Evaluates a constraint with pandas, as users do; an equality up to rounding errors."""
    if text.startswith("at_most"):
        most, *names = text[8:-1].replace("`", "").replace('"', "").split(", ")
        return (frame[names] != 0).sum(axis=1) <= int(most)
    if "== 0.3" in text or "== 1" in text[-4:]:
        left, right = text.split(" == ")
        return (frame.eval(left) - float(right)).abs() < 1e-9
    return frame.eval(text, engine="python")


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.sets(st.sampled_from(TEXTS), min_size=1, max_size=4), st.integers(0, 99))
def test_all_rows_of_a_region_satisfy_what_is_asked(texts, seed):
    region = Region(MIXED, constraints=[c for t in texts for c in read_constraint(t, MIXED)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_room, "MAX_REPAIRED", 8)
        none = torch.empty(0, MIXED.dim, dtype=torch.double)
        frame = region.decode(torch.cat([region.sample(16, seed), none]))
        frame.loc[len(frame)] = region.decode(spread_out(region, 3, none, seed)[None]).iloc[0]
    for text in texts:
        assert holds(text, frame).all(), text
    assert frame["k"].between(1, 9).all()


def test_inequalities_hold_exactly_and_numbers_have_few_digits():
    space = SearchSpace([FloatParameter(name, 0, 1) for name in "abc"])
    texts = ["0.1 * a + 0.7 * b + c / 3 <= 0.4", "a - b >= 0.1", "a + b + c < 0.9"]
    region = Region(space, constraints=[c for t in texts for c in read_constraint(t, space)])
    frame = region.decode(region.nearest(space.encode(space.sample(60, seed=1))))
    assert len(frame) == 60
    for text in texts:
        assert frame.eval(text, engine="python").all()
    shortened = frame.map(lambda value: float(f"{value:.12g}"))
    pd.testing.assert_frame_equal(shortened, frame, check_exact=True)


def test_candidates_satisfy_inequalities_as_they_are_written():
    space = SearchSpace([FloatParameter("a", 0, 1), CategoricalParameter("c", ("x", "y"))])
    stock = pd.DataFrame({"a": [0.1, 0.1 + 1e-14, 0.5, 0.05], "c": ["x", "x", "y", "y"]})
    texts = ["a <= 0.1 or c == 'y'", "a >= 0.1"]
    constraints = [c for t in texts for c in read_constraint(t, space)]
    for table in (stock, stock.astype({"a": str})):
        assert Region(space, None, constraints, table).table.index.tolist() == [0, 2]


def test_few_of_many_are_found_together_with_a_sum():
    space = SearchSpace([FloatParameter(name, 0, 1) for name in "abcdef"])
    texts = ["at_most(2, a, b, c, d, e, f)", "a + b + c + d + e + f == 1"]
    region = Region(space, constraints=[c for t in texts for c in read_constraint(t, space)])
    rows = region.sample(48, seed=0)
    counts = (region.decode(rows) != 0).sum(axis=1)
    assert counts.max() == 2
    assert len((region.decode(rows) != 0).drop_duplicates()) > 5
    best = torch.tensor([0.0, 0.7, 0.0, 0.0, 0.3, 0.0], dtype=torch.double)
    x = maximize(_Nearness(best), region, rows[:0], rows[:0], False, seed=0)
    assert _Nearness(best)(x[None, None]).item() > -1e-4
    assert region.decode(x[None]).to_numpy()[0, [0, 2, 3, 5]].tolist() == [0.0] * 4


@pytest.mark.parametrize(
    "options",
    [
        {"n": 3, "same_in_batch": ["c"]},
        {"fixed": {"c": "y"}, "repeats": True},
        {"model": "sorted"},
        {"model": "SingleTaskGP"},
    ],
)
def test_suggestions_leave_out_combinations(options):
    letters = CategoricalParameter("c", ("x", "y"))
    warm = FloatParameter("temp", 20, 90)
    space = SearchSpace([letters, warm, FloatParameter("m", 0, 1), FloatParameter("w", 0, 1)])
    old = space.sample(20, seed=0)
    old = old.assign(loss=-old["temp"] / 90 - old["m"] - old["w"] + (old["c"] == "x"), task="a")
    texts = ["not (c == 'y' and temp > 50)", "at_most(1, m, w)", "not (temp > 80)"]
    runs = old.head(2) if "repeats" in options else None
    given = {"model": ScaMLGP, "n": 2, **options}
    history = None if given["model"] == "SingleTaskGP" else old
    with brief_search():
        rows = suggest(space, history, runs, constraints=texts, **given)
    assert not ((rows["c"] == "y") & (rows["temp"] > 50)).any()
    assert ((rows["m"] == 0) | (rows["w"] == 0)).all()
    assert (rows["temp"] <= 80).all()


def test_only_other_names_are_limits_of_outcomes():
    space = SearchSpace([FloatParameter("a b", 0, 1), FloatParameter("t", 0, 100)])
    texts = ["not (t > 80)", "t - 'a b' >= 0.5", '"a b" <= 0.5', "pressure drop <= 5"]
    outcomes = read_study(space, None, constraints=texts).outcomes
    assert [outcome.name for outcome in outcomes] == ["loss", "pressure drop"]


def test_a_backtest_chooses_among_rows_that_satisfy():
    space = SearchSpace([FloatParameter("x", 0, 1), CategoricalParameter("c", ("u", "v"))])
    old = space.sample(36, seed=0).assign(task=["a", "b", "c"] * 12)
    old = old.assign(loss=old["x"] + 2 * (old["c"] == "v"))
    found = backtest(space, old, models=["sorted"], constraints=["not (c == 'u')"])
    assert (found.table["best_1"] >= 2).all()
    with pytest.raises(ValueError, match="omit further outcomes and all limits"):
        backtest(space, old.assign(size=1.0), models=["sorted"], constraints=["size <= 2"])


def test_a_listed_value_of_a_sum_may_be_zero():
    region = Region(MIXED, constraints=read_constraint("a - `flow rate` == 0.3", MIXED))
    rows = region.decode(region.nearest(MIXED.encode(MIXED.sample(4, seed=0))))
    assert rows["flow rate"].tolist() == [0] * 4


def test_typographic_operators_are_read():
    found = room.with_operators("a ≤ 2 and b ≥ 1 and kind == “≤x”")
    assert found == 'a <= 2 and b >= 1 and kind == "≤x"'
