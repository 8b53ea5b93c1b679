import numpy as np
import pytest
import torch

from benchmarks.studies.development import suites
from benchmarks.studies.development.suites import (
    FEW_SOURCES,
    GROUPS,
    SUITES,
    Case,
    Suite,
    draw,
    targets,
    tasks,
)
from tests.tables_folder import FOLDER, needs_tables

TOY = Suite("svm", "svm", num_sources=3, num_points=12)


def test_groups_hold_what_they_promise():
    assert len(GROUPS["development"]) == 10
    assert len(FEW_SOURCES) == 12
    assert {suite.num_sources for suite in FEW_SOURCES} == {1, 2, 3}
    names = {suite.full_name for group in GROUPS.values() for suite in group}
    assert names == set(SUITES)
    assert SUITES["svm_flipped"].unspoiled == SUITES["svm"]
    assert all(suite.unspoiled.full_name in SUITES for suite in GROUPS["stress"])


def test_small_tasks_are_left_out_and_bad_outcomes_clipped(folder):
    found = tasks(TOY, folder)
    assert "few" not in found
    assert len(found) == 20
    _, y = found["t03"]
    clipped = np.isclose(y, y.min()).sum()
    assert clipped == 2  # 5 % of 30, rounded up


def test_a_draw_leaves_the_target_out_and_repeats_itself(folder):
    case, again, other = (draw(TOY, "t03", seed, folder) for seed in (0, 0, 1))
    assert len(case.history) == 3
    assert "t03" not in case.history
    assert all(X.shape == (12, 2) and Y.shape == (12, 1) for X, Y in case.history.values())
    assert case.X.shape == (30, 2)
    assert list(case.history) == list(again.history) != list(other.history)
    assert all(torch.equal(case.history[s][1], again.history[s][1]) for s in case.history)
    assert case.generator.random() == again.generator.random()


def test_large_tasks_are_sampled(folder, monkeypatch):
    monkeypatch.setattr(suites, "POOL_SIZE", 20)
    whole = tasks(TOY, folder)["t03"][0]
    case = draw(TOY, "t03", 0, folder)
    assert case.X.shape == (20, 2)
    assert (torch.cdist(case.X, torch.tensor(whole)).min(dim=-1).values == 0).all()
    monkeypatch.setattr(suites, "MAX_ROWS", 25)
    suites._read.cache_clear()
    assert {len(y) for _, y in tasks(TOY, folder).values()} == {25}
    suites._read.cache_clear()


@pytest.mark.parametrize("history", ["shuffled", "flipped"])
def test_spoiled_histories_differ_in_nothing_but_outcomes(folder, history):
    suite = Suite("svm", "svm", 3, 12, history=history)
    spoiled, case = draw(suite, "t03", 0, folder), draw(TOY, "t03", 0, folder)
    assert torch.equal(spoiled.X, case.X)
    assert torch.equal(spoiled.Y, case.Y)
    assert spoiled.generator.random() == case.generator.random()
    for name, (X, Y) in case.history.items():
        assert torch.equal(spoiled.history[name][0], X)
        bad = spoiled.history[name][1]
        if history == "flipped":
            assert torch.equal(bad, -Y)
        else:
            assert not torch.equal(bad, Y)
            assert torch.equal(bad.sort(dim=0).values, Y.sort(dim=0).values)


def test_fewer_targets_are_the_first_of_more():
    names = [f"{number:03d}" for number in range(157)]
    most = targets(names[::-1], 16)
    assert len(most) == 16
    assert sorted(most) == names[::9][:16]
    assert most[:2] == ["000", "018"]
    assert targets(names, 5) == most[:5]
    assert targets(names[:3], 16) == ["000", "002", "001"]
    assert len(targets(names, 50)) == 16


def test_regret_is_one_at_the_median_and_below():
    Y = torch.tensor([[0.0], [1.0], [2.0], [3.0], [7.0]], dtype=torch.double)
    case = Case(Y, Y, {}, np.random.default_rng(0))
    assert [case.regret(y) for y in (7.0, 4.5, 2.0, 0.0)] == [0.0, 0.5, 1.0, 1.0]
    assert Case(Y[:1], Y[:1], {}, case.generator).regret(0.0) == 0.0


@needs_tables
def test_draws_stay_as_they_were():
    """Runs of other days and other programs are compared with those of today."""
    case = draw(SUITES["svm"], "A9A", 1, FOLDER)
    assert list(case.history)[:3] == ["ring", "breast-cancer", "diabetes"]
    assert float(sum(Y.sum() for _, Y in case.history.values())) == pytest.approx(287.223518)
    assert case.generator.random() == pytest.approx(0.44309554385208627)
