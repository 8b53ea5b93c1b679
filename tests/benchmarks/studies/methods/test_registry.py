from dataclasses import replace

import cloudpickle
import pytest
import torch
from botorch.acquisition import (
    LogExpectedImprovement,
    ProbabilityOfImprovement,
    UpperConfidenceBound,
)

import botorch_transfer
from benchmarks.studies.methods import METHODS, MODELS, OTHERS, methods, models, registry
from benchmarks.studies.methods.acquisitions import log_ei_or_ucb
from benchmarks.studies.methods.optimization import THRIFTY, THRIFTY_JOINT
from benchmarks.styles import STYLES, style_of
from botorch_transfer import ScaMLGP
from tests.benchmarks.studies.toy import history, live, table

NOTHING = torch.empty(0, 2, dtype=torch.double), torch.empty(0, 1, dtype=torch.double)


@pytest.fixture(autouse=True)
def _brief_fits(monkeypatch):
    monkeypatch.setattr(models, "PRETRAINING_STEPS", 3)
    monkeypatch.setattr(registry, "THRIFTY", replace(THRIFTY, max_iterations=3))
    monkeypatch.setattr(registry, "THRIFTY_JOINT", replace(THRIFTY_JOINT, max_iterations=3))


@pytest.mark.parametrize("name", METHODS)
def test_suggestions_are_allowed_new_and_reproducible(name):
    problem, X, Y = table(), *NOTHING
    method, twin = (methods([name], fitting="thrifty")[name] for _ in range(2))
    if method.initial_design:
        X = table().X[::5]
        Y = torch.tensor([[problem.evaluate(x)] for x in X], dtype=torch.double)
    suggested = []
    for each in (method, twin):
        torch.manual_seed(0)
        suggested.append(each.suggest(problem, X, Y, seed=3))
    x = suggested[0]
    assert torch.equal(x, suggested[1])
    X = torch.cat([X, x.unsqueeze(0)])
    Y = torch.cat([Y, torch.tensor([[problem.evaluate(x)]], dtype=torch.double)])
    assert not (method.suggest(problem, X, Y, seed=3) == X).all(dim=-1).any()
    assert not (x == X[:-1]).all(dim=-1).any()


@pytest.mark.parametrize("name", METHODS)
def test_methods_travel_to_other_processes(name):
    pickled = cloudpickle.dumps(METHODS[name])  # what joblib sends
    assert len(pickled) < 10_000  # nor does what was pre-trained here travel with them
    assert repr(cloudpickle.loads(pickled)) == repr(METHODS[name])


@pytest.mark.parametrize("name", ["ScaML-GP", "plain GP", *OTHERS])
def test_live_suggestions_lie_in_the_cube(name):
    X = table().X[::5]
    Y = torch.tensor([[live().evaluate(x)] for x in X], dtype=torch.double)
    x = METHODS[name].suggest(live(), X, Y, seed=3)
    assert x.shape == (2,)
    assert x.dtype == torch.double
    assert x.min() >= 0
    assert x.max() <= 1


@pytest.mark.parametrize("name", ["ScaML-GP", "plain GP", "multi-task GP", *OTHERS])
def test_methods_go_on_where_everything_has_failed(name):
    X = torch.rand(2, 2, dtype=torch.double)
    x = METHODS[name].suggest(live(), X, torch.full((2, 1), torch.nan, dtype=torch.double), seed=0)
    assert x.isfinite().all()


def test_transfer_without_target_data_finds_the_optimum_of_the_sources():
    x = METHODS["ScaML-GP"].suggest(live(), *NOTHING, seed=0)
    bound = log_ei_or_ucb(ScaMLGP(*NOTHING, history()), NOTHING[1], NOTHING[0])
    grid = table(n=20).X.unsqueeze(1)
    with torch.no_grad():
        assert bound(x.reshape(1, 1, 2)) >= bound(grid).max() - 1e-6


def test_every_model_class_is_among_the_methods():
    classes = [name for name in botorch_transfer.__all__ if name.endswith("GP")]
    looks = {style_of(name) for name in MODELS}
    # Averaging over hyperparameters belongs to other search spaces.
    assert [c for c in classes if style_of(c) not in looks] == ["FullyBayesianHyperpriorGP"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_style_of_its_own(name):
    assert list(STYLES.values()).count(STYLES[name]) == 1


def test_acquisition_is_common_or_the_paper_s():
    X, Y = history()["source 0"]
    expected = {
        "log_ei": (LogExpectedImprovement, LogExpectedImprovement),
        "ucb": (UpperConfidenceBound, UpperConfidenceBound),
        "paper": (UpperConfidenceBound, ProbabilityOfImprovement),
    }
    for acquisition, classes in expected.items():
        chosen = methods(["ScaML-GP", "H-NLL"], acquisition=acquisition)
        for method, kind in zip(chosen.values(), classes, strict=True):
            model = method.build(X[:2], Y[:2], live())
            assert isinstance(method.acquire(model, Y[:2], X), kind)


def test_settings_tell_runs_apart():
    settings = {
        methods(["MHGP"], acquisition, fitting)["MHGP"].settings
        for acquisition in ("log_ei", "mean_log_ei", "ucb", "paper")
        for fitting in ("thorough", "thrifty")
    }
    assert len(settings) == 8


def test_unknown_methods_are_refused():
    with pytest.raises(ValueError, match="No method is called 'mine': choose of ScaML-GP, "):
        methods(["random search", "mine"])
