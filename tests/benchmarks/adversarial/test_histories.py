from __future__ import annotations

import pytest
import torch

from benchmarks.adversarial.histories import (
    FAMILIES,
    HISTORIES,
    NUM_TASKS,
    POINTS_A_TASK,
    POOL_SIZE,
    random_function,
    synthetic_problem,
)


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("family", FAMILIES)
def test_problems_of_a_seed_share_their_target(family, history):
    problem, bare = (synthetic_problem(family, h, 3) for h in (history, "none"))
    assert torch.equal(problem.X, bare.X)
    assert torch.equal(problem.Y, bare.Y)
    assert problem.Y.shape == (POOL_SIZE, 1)
    assert len(bare.history) == 0
    assert len(problem.history) == NUM_TASKS
    kinds = [name.split(" ")[0] for name in problem.history]
    if history == "mixed":
        assert kinds.count("helpful") == 1
        assert {kinds.count(kind) for kind in ("irrelevant", "inverted", "shifted")} == {3}
    else:
        assert set(kinds) == {history}
    for X, Y in problem.history.values():
        assert X.shape == (POINTS_A_TASK, problem.dim)
        assert ((X >= 0) & (X <= 1)).all()
        assert Y.shape == (POINTS_A_TASK, 1)
    again = synthetic_problem(family, history, 3)
    assert again.key() == problem.key()
    assert synthetic_problem(family, history, 4).key() != problem.key()


def _correlations(family, history):
    """Of each source's outcomes with the target's at the nearest pool points."""
    values = []
    for seed in range(3):
        problem = synthetic_problem(family, history, seed)
        for X, Y in problem.history.values():
            near = torch.cdist(X, problem.X).argmin(dim=-1)
            pair = torch.cat([Y, problem.Y[near]], dim=-1)
            values.append(torch.corrcoef(pair.mT)[0, 1])
    return torch.stack(values)


@pytest.mark.parametrize("family", FAMILIES)
def test_histories_are_what_they_are_called(family):
    assert _correlations(family, "helpful").median() > 0.7
    assert _correlations(family, "inverted").median() < -0.7
    assert _correlations(family, "irrelevant").abs().median() < 0.4
    assert _correlations(family, "shifted").median() < 0.6
    assert _correlations(family, "shuffled").abs().median() < 0.2


def test_shuffled_outcomes_are_those_of_other_points():
    shuffled, helpful = (synthetic_problem("branin", kind, 3) for kind in ("shuffled", "helpful"))
    for task, as_it_was in zip(shuffled.history.values(), helpful.history.values(), strict=True):
        (X, Y), (same_X, before) = task, as_it_was
        assert torch.equal(X, same_X)
        assert not torch.equal(Y, before)
        assert torch.equal(Y.sort(dim=0).values, before.sort(dim=0).values)


def test_random_functions_have_unit_variance():
    X = torch.rand(200, 2, dtype=torch.double)
    values = torch.stack([random_function(2, seed)(X) for seed in range(50)])
    assert float(values.var()) == pytest.approx(1.0, abs=0.15)
    assert float(values.mean()) == pytest.approx(0.0, abs=0.15)
