from __future__ import annotations

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import Normalize
from botorch.utils.datasets import SupervisedDataset

from botorch_transfer import PopulationGP, SourcePopulation
from tests.gp.padded import points
from tests.gp.tasks import draw_data
from tests.population.twin import Sources, Units

DATA = draw_data([6, 3, 8], known_noise=[1])
X = points(5, 2, seed=7)


def fit(data=DATA, **options) -> SourcePopulation:
    return SourcePopulation.fit(data, **{"max_iter": 8, **options})


PRIOR = fit()


def assert_same(first: SourcePopulation, second: SourcePopulation, **close) -> None:
    torch.testing.assert_close(first.mean(X), second.mean(X), **close)
    torch.testing.assert_close(first.variance(X), second.variance(X), **close)
    units = [
        [each.typical_scale, each.typical_level, each.scale_log_std, each.level_variance]
        for each in (first, second)
    ]
    assert units[0] == pytest.approx(units[1])


def test_posterior_of_what_the_tasks_share():
    mean, covariance = Sources.of(PRIOR).posterior(X, X)
    torch.testing.assert_close(PRIOR.mean(X), mean)
    torch.testing.assert_close(PRIOR.variance(X), covariance.diagonal())
    torch.testing.assert_close(PRIOR.mean(X.reshape(5, 1, 1, 2)).reshape(5), mean)


def test_outcomes_are_standardized_task_by_task():
    outcomes = torch.cat([Y.squeeze(-1) for _, Y, *_ in DATA.values()])
    torch.testing.assert_close(PRIOR.outcomes(), outcomes)
    for index, (_, Y, *_) in enumerate(DATA.values()):
        rows = PRIOR.observed.task == index
        expected = ((Y - Y.mean()) / Y.std()).squeeze(-1)
        torch.testing.assert_close(PRIOR.observed.Y[rows], expected)


def test_known_noise_is_used():
    _, Y, Yvar = DATA["task 1"]
    rows = PRIOR.observed.task == 1
    torch.testing.assert_close(PRIOR.observed.noise[rows], (Yvar / Y.var()).squeeze(-1))
    others = PRIOR.observed.noise[~rows].unique()
    assert len(others) == 2  # one a task


def test_scales_and_levels():
    expected = Units.of(list(DATA.values()))
    assert PRIOR.typical_scale == pytest.approx(expected.scale)
    assert PRIOR.typical_level == pytest.approx(expected.level)
    assert PRIOR.scale_log_std == pytest.approx(expected.log_std)
    assert PRIOR.level_variance == pytest.approx(expected.level_variance)
    transform = PRIOR.default_outcome_transform(torch.Size())
    Y = torch.tensor([[expected.level], [expected.level + expected.scale]]).double()
    torch.testing.assert_close(transform(Y)[0].squeeze(-1), torch.tensor([0.0, 1.0]).double())
    torch.testing.assert_close(transform(3 * Y[:0])[0], Y[:0])


def test_data_sets_and_tensors_are_alike():
    names = {"feature_names": ["a", "b"], "outcome_names": ["y"]}
    datasets = {
        name: SupervisedDataset(part[0], part[1], Yvar=part[2] if len(part) > 2 else None, **names)
        for name, part in DATA.items()
    }
    assert_same(fit(datasets), PRIOR)
    assert fit(list(DATA.values())).task_names == (
        "source task 0",
        "source task 1",
        "source task 2",
    )


def test_order_of_tasks_does_not_matter():
    moved = fit({name: DATA[name] for name in ("task 2", "task 0", "task 1")}, max_iter=100)
    assert_same(moved, fit(max_iter=100), rtol=1e-6, atol=1e-6)


def test_all_points_count_beyond_max_inducing():
    data = draw_data([40, 20])
    prior, exact = (fit(data, max_inducing=most, fit_points=20) for most in (30, 60))
    assert prior.num_points.tolist() == [40, 20]
    assert len(prior.gps.points) == 30
    error = (prior.mean(X) - exact.mean(X)) / exact.variance(X).sqrt()
    assert error.abs().max() < 0.3
    torch.testing.assert_close(prior.variance(X), exact.variance(X), rtol=0.2, atol=0)
    assert prior.typical_scale == pytest.approx(Units.of(list(data.values())).scale)


def test_many_small_tasks():
    prior = fit(draw_data([6] * 30), max_inducing=50, fit_points=25, max_iter=2)
    assert prior.num_tasks == 30
    assert int(prior.num_points.sum()) == 180
    assert PopulationGP(X[:2], X[:2, :1], prior).posterior(X).variance.isfinite().all()


def test_raw_inputs():
    bounds = torch.tensor([[-5.0, 100.0], [5.0, 300.0]]).double()
    raw = {
        name: (bounds[0] + (bounds[1] - bounds[0]) * part[0], *part[1:])
        for name, part in DATA.items()
    }
    prior = fit(raw, input_transform=Normalize(2, bounds=bounds))
    expected = PRIOR.mean(X)
    torch.testing.assert_close(prior.mean(bounds[0] + (bounds[1] - bounds[0]) * X), expected)


# -------------------------------------------------------------------------------------- odd data


def odd(**changed):
    return {**draw_data([6, 5]), **changed}


ONE = (X[:1], torch.tensor([[12.0]]).double())
CONSTANT = (X, torch.full((5, 1), 9.0).double())
REPEATED = (X[:1].repeat(6, 1), 10 + points(6, 1))
ODD = {
    "a constant task": odd(odd=CONSTANT),
    "a single point": odd(odd=ONE),
    "a repeated point": odd(odd=REPEATED),
    "single points only": {"a": ONE, "b": (X[1:2], ONE[1] + 1)},
    "constant tasks only": {"a": CONSTANT, "b": (X, CONSTANT[1] + 1)},
    "one point in all": {"a": ONE},
}


@pytest.mark.parametrize("name", ODD)
def test_odd_tasks(name):
    prior = fit(ODD[name], max_iter=100)
    for n in (0, 1, 3):
        posterior = PopulationGP(X[:n], 10 + X[:n, :1], prior).posterior(points(4, 2, seed=9))
        assert posterior.mean.isfinite().all()
        assert (posterior.variance > 0).all()


@pytest.mark.parametrize("name", ["a constant task", "a single point"])
def test_tasks_that_do_not_vary_have_no_scale(name):
    prior, without = fit(ODD[name]), fit(odd())
    assert prior.typical_scale == pytest.approx(without.typical_scale)
    assert prior.scale_log_std == pytest.approx(without.scale_log_std)


def test_without_any_scale_it_is_one():
    prior = fit(ODD["constant tasks only"])
    assert prior.typical_scale == 1.0
    assert prior.scale_log_std == pytest.approx(1.0)


def test_single_precision():
    data = {name: tuple(part.float() for part in parts) for name, parts in DATA.items()}
    prior = fit(data)
    assert prior.outcome_mean.dtype == torch.float
    assert prior.gps.inverse_root.dtype == torch.double
    assert prior.mean(X.float()).dtype == torch.float
    torch.testing.assert_close(prior.mean(X.float()).double(), PRIOR.mean(X), rtol=1e-2, atol=1e-2)


# ------------------------------------------------------------------------------ append and select


def test_append_keeps_the_hyperparameters():
    first = fit({name: DATA[name] for name in ("task 0", "task 1")})
    longer = first.append({"task 2": DATA["task 2"]})
    assert longer.task_names == ("task 0", "task 1", "task 2")
    assert first.num_tasks == 2
    for mine, theirs in zip(longer.hyperparameters, first.hyperparameters, strict=True):
        assert torch.equal(mine, theirs)
    assert longer.num_points.tolist() == [6, 3, 8]
    torch.testing.assert_close(longer.observed.Y, PRIOR.observed.Y)
    torch.testing.assert_close(longer.observed.noise[:9], first.observed.noise)
    assert (longer.observed.noise[9:] == first.gps.own_noise).all()
    mean, covariance = Sources.of(longer).posterior(X, X)
    torch.testing.assert_close(longer.mean(X), mean)
    torch.testing.assert_close(longer.variance(X), covariance.diagonal())
    assert longer.typical_scale == pytest.approx(PRIOR.typical_scale)


def test_append_knows_noise_and_names():
    longer = PRIOR.append([DATA["task 1"], (X, X[:, :1])])
    assert longer.task_names[3:] == ("source task 0", "source task 1")
    rows = longer.observed.task == 3
    torch.testing.assert_close(
        longer.observed.noise[rows], PRIOR.observed.noise[PRIOR.observed.task == 1]
    )


def test_append_refuses_names_that_are_taken():
    with pytest.raises(InputDataError, match="has a source task 'task 0' already: give the new"):
        PRIOR.append({"task 0": DATA["task 0"]})


def test_append_keeps_all_points():
    longer = PRIOR.append(draw_data([30])["task 0"], max_inducing=25)
    assert longer.num_points.tolist() == [6, 3, 8, 30]
    assert len(longer.gps.points) == 25


def test_append_of_other_inputs_is_refused():
    with pytest.raises(InputDataError, match=r"'source task 3' has 3 inputs, but the prior has 2"):
        PRIOR.append((points(4, 3), points(4, 1)))


def test_select():
    chosen = PRIOR.select([2, 0])
    assert chosen.task_names == ("task 2", "task 0")
    assert chosen.num_points.tolist() == [8, 6]
    mean, covariance = Sources.of(chosen).posterior(X, X)
    torch.testing.assert_close(chosen.mean(X), mean)
    torch.testing.assert_close(chosen.variance(X), covariance.diagonal())
    data = [DATA["task 2"], DATA["task 0"]]
    assert chosen.typical_scale == pytest.approx(Units.of(data).scale)
    assert chosen.level_variance == pytest.approx(Units.of(data).level_variance)
    assert_same(PRIOR.select([0, 1, 2]), PRIOR)


def test_selecting_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        PRIOR.select([])


# ------------------------------------------------------------------------------ states and copies


def test_immutable():
    before = {name: tensor.clone() for name, tensor in PRIOR.state_dict().items()}
    PopulationGP(X[:3], X[:3, :1], PRIOR).float().posterior(X.float())
    PRIOR.select([0])
    for name, tensor in PRIOR.state_dict().items():
        assert torch.equal(tensor.nan_to_num(), before[name].nan_to_num()), name
    assert not any(parameter.requires_grad for parameter in PRIOR.parameters())


# --------------------------------------------------------------------------------------- refusals


def test_refusals():
    with pytest.raises(InputDataError, match="no source tasks"):
        SourcePopulation.fit([])
    with pytest.raises(ValueError, match="kernel"):
        fit(kernel="periodic")
    with pytest.raises(TypeError, match="sauce"):
        fit(sauce=1)
