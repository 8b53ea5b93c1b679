"""Linear constraints between parameters."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from botorch_transfer import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    ScaMLGP,
    SearchSpace,
    suggest,
)
from botorch_transfer.suggestion import search
from botorch_transfer.suggestion.linear import Repair, read_constraint
from botorch_transfer.suggestion.region import Region
from tests.suggestion.brief_search import brief_search
from tests.suggestion.random_constraints import num_infeasible

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
        ("`flow rate` > a*4", {"flow rate": 1, "a": -4}, 0, False),
    ],
)
def test_texts_are_read_as_sums(text, weights, bound, is_equality):
    (found,) = read_constraint(text, SPACE)
    assert (found.weights, found.bound, found.is_equality) == (weights, bound, is_equality)


def test_a_chain_is_two_constraints():
    lower, upper = read_constraint("0.2 <= a + b <= 1", SPACE)
    frame = pd.DataFrame({"a": [0.1, 0.5, 0.9], "b": [0.05, 0.5, 0.2]})
    assert (lower.holds(frame) & upper.holds(frame)).tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a * b <= 1", "not a linear one"),
        ("a <= 1 / b", "not a linear one"),
        ("a / 0 <= 1", "not a linear one"),
        ("a + q <= 1", "there are a, b, k"),
        ("a = 1", "write it as 'a \\+ 2 \\* b <= 1'"),
        ("__import__('os').getcwd() <= a", "not a linear one"),
        ("a - a <= 1", "names no parameter"),
        ("c <= 1", "'c', which does not have a number"),
        ("a + lr <= 1", "logarithm of 'lr': write this parameter without log"),
        ("a + b >= 3", "No configuration of the search space satisfies 'a \\+ b >= 3'"),
        ("2 * k == 5", "contradict one another"),
    ],
)
def test_what_cannot_be_kept_is_one_sentence(text, message):
    with pytest.raises(ValueError, match=message):
        Region(SPACE, constraints=read_constraint(text, SPACE))


def test_repair_moves_as_little_as_it_can():
    constraints = read_constraint("a + b + k == `flow rate`", SPACE)
    frame = SPACE.sample(20, seed=1)
    moved = Repair(SPACE, constraints, fixed=["k"]).nearest(frame)
    assert (moved["k"] == frame["k"][moved.index]).all()
    assert constraints[0].holds(moved).all()
    assert moved["flow rate"].isin([1, 2, 5, 10]).all()
    # Rows that are feasible already stay.
    again = Repair(SPACE, constraints).nearest(moved)
    np.testing.assert_allclose(again[["a", "b", "k"]], moved[["a", "b", "k"]], atol=1e-7)


def test_random_problems_have_feasible_rows():
    with brief_search(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "POOL", 8)
        patch.setattr(search, "NUM_CHOICES", 1)
        patch.setattr(search, "MAX_ITER", 2)
        assert sum(num_infeasible(seed, num_rows=1) for seed in range(10)) == 0


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
