"""What every prior must do, whatever it was learned from."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.models.transforms.input import InputTransform, Normalize
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.priors import Prior
from torch import Tensor

from botorch_transfer.data import Domain
from botorch_transfer.pretraining import (
    Hyperprior,
    NetworkOptions,
    PretrainedPrior,
    SourceGPs,
    SourceHierarchy,
    SourcePopulation,
)
from botorch_transfer.prior import TransferPrior
from tests.gp.padded import points
from tests.gp.tasks import draw_data

BOUNDS = torch.tensor([[0.0, 0.0], [2.0, 4.0]], dtype=torch.double)
DATA = draw_data([6, 3, 8], known_noise=[1])
X = points(4, 2)
TINY_NETWORK = NetworkOptions(hidden=(4,), num_steps=3)


def raw() -> dict[str, tuple[Tensor, ...]]:
    return {name: (BOUNDS[1] * x, *rest) for name, (x, *rest) in DATA.items()}


def transform() -> Normalize:
    return Normalize(2, bounds=BOUNDS)


def learn(kind: Any) -> Hyperprior:
    other = Domain({"one": tuple(part[:, :1] for part in DATA["task 0"])}, name="other")
    here = Domain(raw(), name="here", input_transform=transform())
    return Hyperprior.fit([here, other], kind, num_restarts=0, network=TINY_NETWORK)


def pretrain(preset: PretrainedPrior) -> PretrainedPrior:
    return preset.fit(raw(), steps=3, hold_out=0.3, input_transform=transform())


BUILDERS: dict[str, Callable[[], TransferPrior]] = {
    "sources": lambda: SourceGPs.fit(raw(), num_restarts=0, input_transform=transform()),
    "hierarchy": lambda: SourceHierarchy.fit(
        raw(), "covariance", kernel="matern52", num_restarts=0, input_transform=transform()
    ),
    "boosted hierarchy": lambda: SourceHierarchy.fit(
        raw(), "mean", num_restarts=0, input_transform=transform()
    ),
    "population": lambda: SourcePopulation.fit(raw(), input_transform=transform()),
    "hyperbo": lambda: pretrain(PretrainedPrior.hyperbo(2, hidden=(4,))),
    "ablr": lambda: pretrain(PretrainedPrior.ablr(2, hidden=(4,))),
    "fsbo": lambda: pretrain(PretrainedPrior.fsbo(2, hidden=(4,), kernel="matern32")),
    "stationary": lambda: pretrain(PretrainedPrior.stationary(2, kernel="rbf", mean="zero")),
    "mphd": lambda: learn("mphd"),
    "universal": lambda: learn("universal"),
}


@cache
def build(name: str) -> TransferPrior:
    return BUILDERS[name]()


@pytest.fixture(params=BUILDERS)
def prior(request) -> TransferPrior:
    """Shared by all tests: none may change it."""
    return build(request.param)


def answers(prior: Any) -> list[Tensor]:
    if isinstance(prior, Hyperprior):
        return [*prior.sample(5, 2)]
    second = prior.covariance if isinstance(prior, PretrainedPrior) else prior.variance
    return [prior.mean(X).detach(), second(X).detach()]


def assert_same(ours: TransferPrior, theirs: TransferPrior) -> None:
    state, expected = ours.state_dict(), theirs.state_dict()
    assert list(state) == list(expected)
    for left, right in zip(state.values(), expected.values(), strict=True):
        assert left.dtype is right.dtype
        assert torch.equal(left.nan_to_num(7.0), right.nan_to_num(7.0))
    assert repr(ours) == repr(theirs)
    if isinstance(ours, PretrainedPrior):
        assert ours.learning_curve == theirs.learning_curve
    for left, right in zip(answers(ours), answers(theirs), strict=True):
        assert torch.equal(left, right)


def test_a_file_is_the_prior(prior, tmp_path: Path) -> None:
    prior.save(tmp_path / "prior")
    loaded = type(prior).load(tmp_path / "prior")
    assert_same(loaded, prior)
    loaded.load_state_dict(prior.state_dict())
    other = SourcePopulation if isinstance(prior, SourceGPs) else SourceGPs
    name = type(prior).__name__
    with pytest.raises(ValueError, match=rf"holds a {name}, not a .*{name}.load\(path\)"):
        other.load(tmp_path / "prior")


@pytest.mark.parametrize(
    "copy", [deepcopy, TransferPrior.view, lambda prior: pickle.loads(pickle.dumps(prior))]
)
def test_copies_are_the_same_and_stand_alone(copy, prior) -> None:
    before = deepcopy(prior)
    twin = copy(prior)
    assert type(twin) is type(prior)
    assert_same(twin, prior)
    entries = prior.state_dict().items()
    twin.load_state_dict({n: t + 0.125 if t.is_floating_point() else t for n, t in entries})
    twin.float()
    assert_same(prior, before)
    assert not torch.equal(answers(twin)[1], answers(prior)[1])


def test_nothing_is_fitted_in_a_model(prior) -> None:
    assert list(prior.parameters()) == []
    assert not any(isinstance(part, Prior) for part in prior.modules())
    assert not any(answer.requires_grad for answer in answers(prior))


def test_a_state_in_other_units_is_refused(prior) -> None:
    state = prior.state_dict()
    state["outcome_scale_index"] = torch.tensor(2)
    with pytest.raises(ValueError, match="outcome_scale 'raw', but this"):
        deepcopy(prior).load_state_dict(state)


OPTIONS: dict[type[TransferPrior], dict[str, Any]] = {
    SourceGPs: {"num_restarts": 0},
    SourceHierarchy: {"num_restarts": 0},
    SourcePopulation: {"max_iter": 9},
    PretrainedPrior: {"steps": 2},
    Hyperprior: {"num_restarts": 0},
}


@pytest.mark.parametrize("prior_class", OPTIONS, ids=lambda each: each.__name__)
def test_the_same_content_is_learned_once(prior_class, monkeypatch, nothing_remembered) -> None:
    calls = []
    original = prior_class._pretrain.__func__

    def count(cls: Any, *args: Any, **options: Any) -> Any:
        calls.append(1)
        return original(cls, *args, **options)

    monkeypatch.setattr(prior_class, "_pretrain", classmethod(count))
    options = OPTIONS[prior_class]
    first = prior_class.fit_once(raw(), input_transform=transform(), **options)
    assert prior_class.fit_once(raw(), input_transform=transform(), **options) is first
    assert len(calls) == 1
    renamed = {f"new {name}": data for name, data in raw().items()}
    name, value = next(iter(options.items()))
    for data, changed in ((renamed, options), (raw(), {name: value + 1})):
        other = prior_class.fit_once(data, input_transform=transform(), **changed)
        assert other is not first
    assert len(calls) == 3


class AnotherPrior(TransferPrior):
    """A prior of the user's own: one class, and nothing else."""

    def __init__(
        self, level: Tensor, input_transform: InputTransform | None = None, size: int = 1
    ) -> None:
        super().__init__("raw", input_transform)
        self.size = size
        self.register_buffer("level", level)

    @classmethod
    def fit(cls, source_data: dict[str, Any], size: int = 1) -> AnotherPrior:
        return cls(torch.stack([data.Y.mean() for data in source_data.values()]), size=size)

    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        return None


def test_a_prior_of_the_users_own(tmp_path: Path) -> None:
    found = AnotherPrior.fit_once(DATA, size=3)
    assert AnotherPrior.fit_once(DATA, size=3) is found
    found.save(tmp_path / "prior")
    loaded = AnotherPrior.load(tmp_path / "prior")
    assert (loaded.size, loaded.dim) == (3, None)
    assert torch.equal(loaded.level, found.level)
