from pathlib import Path

import pytest
import torch

from benchmarks.studies import suites
from benchmarks.studies.methods import methods
from benchmarks.studies.problems import PoolProblem
from benchmarks.studies.run import calibration
from benchmarks.studies.suites import Suite, SuiteProblem, problems, targets
from tests.tables_folder import FOLDER, needs_tables

TOY = Suite("svm", "svm", num_sources=3, num_points=12)


def draw(suite: Suite, target: str, seed: int, folder: Path) -> PoolProblem:
    return SuiteProblem(suite, target, folder).instance(seed, None)


def test_a_draw_leaves_the_target_out_and_repeats_itself(folder):
    case, again, other = (draw(TOY, "t03", seed, folder) for seed in (0, 0, 1))
    assert len(case.history) == 3
    assert "t03" not in case.history
    assert all(X.shape == (12, 2) and Y.shape == (12, 1) for X, Y in case.history.values())
    assert case.X.shape == (30, 2)
    assert list(case.history) == list(again.history) != list(other.history)
    assert all(torch.equal(case.history[s][1], again.history[s][1]) for s in case.history)
    assert case.generator.random() == again.generator.random()


def test_targets_are_from_all_over_a_table(folder):
    names = [f"{number:03d}" for number in range(157)]
    chosen = targets(names[::-1])
    assert sorted(chosen) == names[::9][:16]
    assert chosen[:2] == ["000", "018"]
    assert targets(names[:3]) == ["000", "002", "001"]
    first, *_ = found = problems([TOY], folder)
    assert [problem.name for problem in found][:3] == ["svm: t00", "svm: t02", "svm: t04"]
    assert first.key() != problems([Suite("svm", "svm", 3, 13)], folder)[0].key()
    with pytest.raises(ValueError, match="The study needs the tables: add --data FOLDER"):
        problems([TOY], None)


def test_calibration_is_that_of_the_predictions():
    X = torch.rand(30, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    model = methods(["plain GP"])["plain GP"].build(X[:10], X[:10, :1], None)
    posterior = model.posterior(X[10:].unsqueeze(1), observation_noise=True)
    z = 3.0 * torch.ones(20, 1, dtype=torch.double)
    z[:5] = 0.0
    found = calibration(model, X[10:], posterior.mean[:, 0] + z * posterior.variance[:, 0].sqrt())
    assert found == {"z": pytest.approx(3 * 0.75**0.5), "covered": 0.25}


@needs_tables
def test_draws_stay_as_they_were():
    """Runs of other days and other programs are compared with those of today."""
    problem = SuiteProblem(suites.TUNING[0], "A9A", FOLDER)
    assert problem.key() == "ef0034940b04d94b9d542a0991366216"
    case = problem.instance(1, None)
    assert list(case.history)[:3] == ["ring", "breast-cancer", "diabetes"]
    assert float(sum(Y.sum() for _, Y in case.history.values())) == pytest.approx(287.223518)
    assert case.generator.random() == pytest.approx(0.44309554385208627)
