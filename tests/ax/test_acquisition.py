"""What Ax asks for first, and points to avoid."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.generators.torch.botorch_modular.acquisition import Acquisition, determine_optimizer
from ax.generators.utils import mk_discrete_choices
from botorch.acquisition import LogExpectedImprovement, PosteriorMean, qLogNoisyExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler

from botorch_transfer import models
from botorch_transfer.acquisition import AveragedImprovement
from botorch_transfer.ax.acquisition import AvoidingAcquisition, TransferAcquisition
from tests.ax.conftest import bowl, bowls, corner_space, dependent_space, plain_loss
from tests.ax.signatures import parameters
from tests.devices import DEVICE

POINTS = torch.rand(8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
BOUNDS = torch.tensor([[0.0, -1.0], [2.0, 1.0]], dtype=torch.double)


def model() -> SingleTaskGP:
    return SingleTaskGP(POINTS, POINTS.sum(-1, keepdim=True)).eval()


def avoiding(mean: Any, avoid: torch.Tensor, radius: float, **options: Any) -> AvoidingAcquisition:
    """One with a floor of -2."""
    bounds = options.pop("bounds", BOUNDS)
    made = AvoidingAcquisition(mean, bounds, avoid, radius, bounds, **options)
    made.floor = -2.0
    return made


@pytest.mark.parametrize("radius", [0.3, 0.01])
def test_it_is_what_the_formula_says(radius):
    mean, avoid = PosteriorMean(model()), POINTS[:3]
    found = avoiding(mean, avoid, radius)(POINTS.unsqueeze(-2))
    for x, value, usual in zip(POINTS, found, mean(POINTS.unsqueeze(-2)), strict=True):
        factor = 1.0
        for a in avoid:
            near = min(1.0, float(((x - a) / 2).square().sum() / radius**2))
            factor *= near * (2 - near)
        assert value.item() == pytest.approx(-2 + (usual.item() + 2) * factor)
    torch.testing.assert_close(found[:3], torch.full((3,), -2.0, dtype=torch.double))


def test_another_category_is_not_near():
    mean, avoid = PosteriorMean(model()), torch.tensor([[0.5, 0.0]], dtype=torch.double)
    test_X = torch.tensor([[[0.5, 0.1]], [[0.5, 0.0]]], dtype=torch.double)
    found = avoiding(mean, avoid, 0.3, categorical=[1])(test_X)
    torch.testing.assert_close(found[0], mean(test_X)[0])
    assert float(found[1]) == -2.0


def test_one_hot_inputs_are_rounded():
    """Points between categories are what they will become."""
    Z = torch.rand(8, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    mean = PosteriorMean(SingleTaskGP(Z, Z.sum(-1, keepdim=True)).eval())
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, 4)
    avoid = torch.tensor([[0.5, 0.0, 1.0, 0.0]]).double()
    options: dict[str, Any] = {"bounds": bounds, "one_hot_blocks": [[1, 2, 3]]}
    near = avoiding(mean, avoid, 0.9, **options)
    test_X = torch.tensor([[[0.5, 0.2, 0.8, 0.1]], [[0.5, 0.0, 0.3, 0.2]]], dtype=torch.double)
    torch.testing.assert_close(near(test_X), torch.full((2,), -2.0, dtype=torch.double))
    between = torch.tensor([[[0.5, 0.81, 0.8, 0.1]]], dtype=torch.double)
    other = torch.tensor([[[0.5, 1.0, 0.0, 0.0]]], dtype=torch.double)
    torch.testing.assert_close(near(between), mean(other))
    test_X = torch.tensor([[[0.6, 0.2, 0.8, 0.1]]], dtype=torch.double, requires_grad=True)
    near(test_X).sum().backward()
    assert test_X.grad[0, 0, 0] > 0
    assert not test_X.grad[0, 0, 1:].any()
    wider = avoiding(mean, avoid, 1.1, **options)
    assert -2 < float(wider(other)) < float(mean(other))  # categories are one width apart


def test_what_does_not_matter_is_near_whatever_it_is():
    mean, avoid = PosteriorMean(model()), torch.tensor([[0.5, torch.nan]], dtype=torch.double)
    near = avoiding(mean, avoid, 0.3)
    test_X = torch.tensor([[[0.5, -1.0]], [[0.5, 1.0]], [[1.5, 1.0]]], dtype=torch.double)
    torch.testing.assert_close(near(test_X)[:2], torch.full((2,), -2.0, dtype=torch.double))
    torch.testing.assert_close(near(test_X)[2], mean(test_X)[2])
    test_X = torch.tensor([[[0.6, 0.3]]], dtype=torch.double, requires_grad=True)
    near(test_X).sum().backward()
    assert test_X.grad.isfinite().all()


def test_pending_points_are_avoided_and_told_to_the_acquisition():
    """The floor is found anew: they may lower the acquisition everywhere."""
    sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
    usual = qLogNoisyExpectedImprovement(model(), POINTS, sampler)
    reference = torch.rand(32, 2, dtype=torch.double)
    near = AvoidingAcquisition(usual, BOUNDS, POINTS[:0], 0.1, reference)
    assert float(near.floor) == float(usual(reference.unsqueeze(-2)).min())
    torch.testing.assert_close(near(POINTS.unsqueeze(-2)), usual(POINTS.unsqueeze(-2)))
    before, pending = float(near.floor), torch.tensor([[1.0, 1.0]], dtype=torch.double)
    near.set_X_pending(pending)
    assert float(near(pending.unsqueeze(0))) == float(near.floor) < before
    test_X = (pending - 0.02).unsqueeze(0).requires_grad_()
    near(test_X).sum().backward()
    assert test_X.grad.isfinite().all()
    assert bool((test_X.grad < 0).any())
    near.set_X_pending(None)
    assert usual.X_pending is None


def test_ax_is_as_it_is_overridden():
    assert parameters(Acquisition._instantiate_acquisition) == ["self"]
    given = ["search_space_digest", "acqf", "discrete_choices"]
    assert parameters(determine_optimizer) == given
    assert parameters(mk_discrete_choices)[:2] == ["ssd", "fixed_features"]
    expected = set(parameters(Acquisition.optimize))
    assert set(parameters(TransferAcquisition.optimize)) - {"kwargs"} <= expected


@pytest.fixture(scope="module")
def corner() -> pd.DataFrame:
    """Old runs of ``a + b``."""
    a, b = np.random.default_rng(0).random((2, 12))
    return pd.DataFrame({"task": "monday", "a": a, "b": b, "y": a + b})


@pytest.fixture
def client(make_client, corner):
    return make_client(corner_space(), objective="y", history=corner)


def next_point(client) -> tuple[int, np.ndarray]:
    ((trial, config),) = client.get_next_trials(1).items()
    return trial, np.array([config["a"], config["b"]])


def test_a_side_that_fails_is_left_and_abandoning_says_nothing(make_client, corner):
    """The old optimum is where both are one."""
    first = {}
    for mark in ("mark_trial_failed", "mark_trial_abandoned"):
        client = make_client(corner_space(), objective="y", history=corner)
        for a, b in ((0.95, 0.6), (0.97, 0.97)):
            getattr(client, mark)(client.attach_trial({"a": a, "b": b}))
        first[mark] = next_point(client)[1][0]
    assert first["mark_trial_failed"] < 0.9 < first["mark_trial_abandoned"]


@pytest.mark.parametrize("mark", ["mark_trial_failed", "mark_trial_abandoned", None])
def test_with_outcomes_points_that_fail_or_are_pending_do_not_come_again(client, mark):
    for a, b in ((0.2, 0.3), (0.8, 0.4), (0.5, 0.9)):
        client.complete_trial(client.attach_trial({"a": a, "b": b}), {"y": a + b})
    tried: list[np.ndarray] = []
    for _ in range(2):
        trial, point = next_point(client)
        assert all(np.linalg.norm(point - other) > (0.01 if mark else 0.001) for other in tried)
        tried.append(point)
        if mark is not None:
            getattr(client, mark)(trial)


def test_a_trial_of_several_arms_after_a_failure(client):
    """An analytic improvement takes pending points, also with a probability of success."""
    for a, b in ((0.2, 0.3), (0.8, 0.4)):
        client.complete_trial(client.attach_trial({"a": a, "b": b}), {"y": a + b})
    client.mark_trial_failed(client.attach_trial({"a": 0.9, "b": 0.9}))
    ((run,),) = client._generation_strategy.gen(client._experiment, n=2)
    assert len({str(arm.parameters) for arm in run.arms}) == 2


def category_client(make_client, outcomes: bool) -> Any:
    """Three categories that have no order, one of which was best by far."""
    x, kind = np.linspace(0.0, 1.0, 9), np.resize(list("pqr"), 9)
    table = pd.DataFrame({"task": "a", "x": x, "kind": kind, "y": x + 3.0 * (kind == "r")})
    space = [
        RangeParameterConfig("x", (0.0, 1.0), parameter_type="float"),
        ChoiceParameterConfig("kind", list("pqr"), parameter_type="str", is_ordered=False),
    ]
    client = make_client(space, objective="y", history=table)
    for config in table[["x", "kind"]].iloc[:3].to_dict("records") if outcomes else []:
        client.complete_trial(client.attach_trial(config), {"y": config["x"]})
    return client


@pytest.mark.parametrize(
    ("outcomes", "mark"), [(False, "mark_trial_failed"), (False, None), (True, "mark_trial_failed")]
)
def test_categories_that_fail_or_are_pending_are_left(make_client, outcomes, mark):
    """Ax rounds one-hot inputs, so that what is beside a failed point may become it."""
    client = category_client(make_client, outcomes)
    tried: list[tuple[str, float]] = []
    for _ in range(3):
        ((trial, config),) = client.get_next_trials(1).items()
        others = [x for kind, x in tried if kind == config["kind"]]
        distance = 0.05 if not outcomes else 0.01 if mark else 0.001
        assert all(abs(config["x"] - x) > distance for x in others)
        tried.append((config["kind"], config["x"]))
        if mark is not None:
            getattr(client, mark)(trial)


@pytest.mark.parametrize(("kinds", "count"), [("pq", 4), ("pqr", 1)])
def test_points_with_dependent_parameters_that_fail_are_left(make_client, kinds, count):
    """Where one does not matter, no value of it makes another point."""
    table = bowls().assign(kind=list("pq") * 15)
    client = make_client(dependent_space(kinds), history=table)
    tried: list[tuple[str, float]] = []
    for _ in range(4 // count):
        for trial, config in client.get_next_trials(count).items():
            point = (config["kind"], config.get("a", config.get("b", 0.0)))
            assert all(abs(point[1] - x) > 0.05 for kind, x in tried if kind == point[0])
            tried.append(point)
            client.mark_trial_failed(trial)


def test_nothing_but_dependent_steps(make_client):
    table = pd.DataFrame({"task": "x", "kind": list("pqpqpq"), "y": range(6)})
    table = table.assign(a=[1, 1, 2, 2, 3, 3], b=[1, 1, 2, 2, 3, 3])
    (kind, *_), steps = dependent_space(), [1, 3]
    space = [kind, *(RangeParameterConfig(n, steps, parameter_type="int") for n in "ab")]
    client = make_client(space, objective="y", history=table)
    tried = set()
    for _ in range(6):
        ((trial, config),) = client.get_next_trials(1).items()
        tried.add(tuple(config.items()))
        client.mark_trial_failed(trial)
    assert len(tried) == 6


def test_in_fine_discrete_spaces_neighbours_are_not_avoided(make_client):
    n = np.linspace(1, 100, 8).round().astype(int)
    table = pd.DataFrame({"task": "x", "n": n, "y": n / 100})
    space = [RangeParameterConfig("n", (1, 100), parameter_type="int")]
    client = make_client(space, objective="y", history=table)
    client.get_next_trials(1)
    acquisition = client._generation_strategy.adapter.generator._acquisition
    digest = acquisition.search_space_digest
    choices = torch.tensor(digest.discrete_choices[0][50:53]).to(acquisition._spread_out())
    avoiding = acquisition._avoiding(choices[1].reshape(1, 1), None)
    X = choices.reshape(3, 1, 1)
    found, usual = avoiding(X), acquisition.acqf(X)
    assert found[1] == avoiding.floor < usual[1]
    torch.testing.assert_close(found[::2], usual[::2])


def test_references_are_rounded_as_suggestions_are(make_client):
    """What an acquisition says between categories holds of none."""
    client = category_client(make_client, outcomes=False)
    client.get_next_trials(1)
    acquisition = client._generation_strategy.adapter.generator._acquisition
    X = acquisition._spread_out()
    one_hot = X[:, 1:]
    assert ((one_hot == 0) | (one_hot == 1)).all()
    assert (one_hot.sum(dim=-1) == 1).all()
    assert (one_hot.sum(dim=0) > 10).all()


def test_within_a_constraint_a_suggestion_is_no_worse_than_random_ones(make_client):
    """SLSQP, given several restarts as one problem, throws them into a far corner."""
    constraint = ["a - b >= 0.1"]
    client = make_client(corner_space(), parameter_constraints=constraint, history=bowls())
    random = torch.rand(500, 1, 2, dtype=torch.double, device=DEVICE)
    random = random[random[:, 0, 0] - random[:, 0, 1] >= 0.1]
    for _ in range(3):
        trial, point = next_point(client)
        assert point[0] - point[1] > 0.1 - 1e-6
        acquisition = client._generation_strategy.adapter.generator._acquisition.acqf
        with torch.no_grad():
            here = acquisition(torch.from_numpy(point).view(1, 1, 2).to(random))
            assert here > acquisition(random).max() - 0.1
        client.complete_trial(trial, {"loss": bowl(*point, 0.03)})


@pytest.mark.parametrize("steps", [3, 12])
def test_constraints_in_mixed_spaces(make_client, steps):
    """Of more than ten combinations, Ax uses another optimizer, which takes other options."""
    rows = bowls().assign(n=[1, 2, 3] * 10)
    n = RangeParameterConfig("n", (1, steps), parameter_type="int")
    client = make_client([*corner_space(), n], parameter_constraints=["a + b <= 0.6"], history=rows)
    trial = client.attach_trial({"a": 0.3, "b": 0.2, "n": 1})
    client.complete_trial(trial, {"loss": bowl(0.3, 0.2, 0.03)})
    ((_, config),) = client.get_next_trials(1).items()
    assert config["a"] + config["b"] < 0.6 + 1e-6


@pytest.mark.parametrize(("steps", "outcomes"), [(3, 0), (3, 1), (12, 1)])
def test_a_trial_of_several_arms_in_a_mixed_space(make_client, steps, outcomes):
    """BoTorch's searches end with the value of the whole batch."""
    n = RangeParameterConfig("n", (1, steps), parameter_type="int")
    client = make_client([*corner_space(), n], history=bowls().assign(n=[1, 2, 3] * 10))
    for _ in range(outcomes):
        trial = client.attach_trial({"a": 0.3, "b": 0.2, "n": 1})
        client.complete_trial(trial, {"loss": bowl(0.3, 0.2, 0.03)})
    ((run,),) = client._generation_strategy.gen(client._experiment, n=3)
    assert len({str(arm.parameters) for arm in run.arms}) == 3


def test_discrete_spaces_are_tried_out(make_client):
    table = pd.DataFrame({"task": "a", "n": [1, 2, 3], "k": list("xyx"), "y": [1.0, 2.0, 3.0]})
    space = [
        RangeParameterConfig("n", (1, 3), parameter_type="int"),
        ChoiceParameterConfig("k", ["x", "y"], parameter_type="str", is_ordered=False),
    ]
    client = make_client(space, objective="y", history=table)
    tried = []
    for trial, config in client.get_next_trials(2).items():
        tried.append((config["n"], config["k"]))
        client.mark_trial_failed(trial)
    tried += [(c["n"], c["k"]) for c in client.get_next_trials(4).values()]
    assert sorted(tried) == [(n, k) for n in (1, 2, 3) for k in "xy"]


#: A model of each kind of prior; the contract tests ask all for posteriors without a point.
KINDS = [
    "ScaMLGP",
    "SequentialHierarchicalGP",
    "JointHierarchicalGP",
    "PretrainedGP",
    "RankWeightedGP",
    "GuardedTransferGP",
]


@pytest.mark.filterwarnings("ignore:The effective sample size is only")
@pytest.mark.parametrize("name", KINDS)
def test_every_model_makes_the_first_suggestion(make_client, corner, name):
    options: dict[str, Any] = {"pretraining": {"steps": 5}} if name == "PretrainedGP" else {}
    model = getattr(models, name)
    client = make_client(corner_space(), objective="y", model=model, history=corner, **options)
    _, point = next_point(client)
    assert ((point >= 0) & (point <= 1)).all()


def test_improvement_is_analytic_where_it_can_be(make_client, complete, runs):
    client = make_client(history=runs)
    complete(client)
    complete(client)
    acquisition = client._generation_strategy.adapter.generator._acquisition
    assert isinstance(acquisition.acqf, LogExpectedImprovement)
    first = client.get_next_trials(1)
    ((_, config),) = client.get_next_trials(1).items()
    acquisition = client._generation_strategy.adapter.generator._acquisition
    assert isinstance(acquisition.acqf, LogExpectedImprovement)
    assert len(acquisition.acqf.X_pending) == 1
    assert config not in list(first.values())
    assert plain_loss(config, 0.1) < 20


def test_batches_take_the_averaged_improvement(make_client, complete, runs, monkeypatch):
    """Pending trials and earlier ones of the batch are to be improved on, too."""
    client = make_client(history=runs, model=models.TransferGP)
    complete(client, 2)
    client.get_next_trials(1)
    known = list[int]()
    set_pending = AveragedImprovement.set_X_pending

    def spy(self: AveragedImprovement, X_pending: torch.Tensor | None = None) -> None:
        known.append(0 if X_pending is None else len(X_pending))
        set_pending(self, X_pending)

    monkeypatch.setattr(AveragedImprovement, "set_X_pending", spy)
    batch = list(client.get_next_trials(3).values())
    assert {1, 2, 3} <= set(known)
    assert all(plain_loss(config, 0.1) < 20 for config in batch)
