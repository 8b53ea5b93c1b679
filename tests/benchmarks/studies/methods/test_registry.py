from dataclasses import replace

import pytest
import torch

import botorch_transfer
from benchmarks.studies.methods import METHODS, MODELS, methods, models, registry
from benchmarks.studies.methods.optimization import THRIFTY, THRIFTY_JOINT
from benchmarks.styles import STYLES, style_of
from tests.benchmarks.studies.toy import table

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


def test_every_model_class_is_among_the_methods():
    classes = [name for name in botorch_transfer.__all__ if name.endswith("GP")]
    looks = {style_of(name) for name in MODELS}
    # Averaging over hyperparameters belongs to other search spaces.
    assert [c for c in classes if style_of(c) not in looks] == ["FullyBayesianHyperpriorGP"]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_style_of_its_own(name):
    assert list(STYLES.values()).count(STYLES[name]) == 1


def test_unknown_methods_are_refused():
    with pytest.raises(ValueError, match="No method is called 'mine': choose of ScaML-GP, "):
        methods(["random search", "mine"])
