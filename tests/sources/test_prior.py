from copy import deepcopy

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Normalize
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS
from botorch_transfer.outcome_transforms import PooledStandardize
from botorch_transfer.pretraining import SourceGPs
from tests.gp.padded import plain_kernel, points
from tests.gp.sources import DATA, X, check_predictions, count_fits, fit

pytestmark = pytest.mark.usefixtures("nothing_remembered")


def predictions_by_formula(sources: SourceGPs, index: int, Y: Tensor, noise: Tensor) -> Tensor:
    """The mean in the user's units, of a task without known noise or with."""
    gps, name = sources.gps, sources.task_names[index]
    lengthscale, outputscale = gps.lengthscale[index], gps.outputscale[index]
    train_X = DATA[name][0] / lengthscale
    K = outputscale * plain_kernel("rbf", train_X, train_X) + torch.diag(noise)
    k = outputscale * plain_kernel("rbf", X / lengthscale, train_X)
    return sources.outcome_mean[index] + sources.outcome_std[index] * k @ torch.linalg.solve(K, Y)


def test_predictions_in_the_users_units() -> None:
    sources = fit()
    for index, (_, Y, *Yvar) in enumerate(DATA.values()):
        standardized = (Y.squeeze(-1) - Y.mean()) / Y.std()
        noise = sources.observed.noise[sources.observed.task == index]
        if Yvar:
            torch.testing.assert_close(noise, Yvar[0].squeeze(-1) / Y.var())
        else:
            assert (noise == noise[0]).all()
        expected = predictions_by_formula(sources, index, standardized, noise)
        scale = sources.outcome_std[index]
        ours = sources.outcome_mean[index] + scale * sources.mean(X)[index]
        torch.testing.assert_close(ours, expected, atol=1e-8, rtol=1e-8)


def test_questions_in_single_precision_change_nothing() -> None:
    sources = fit(input_transform=Normalize(2, bounds=torch.tensor([[-0.1, 0], [1.3, 3]]).double()))
    before, expected = deepcopy(sources.state_dict()), sources.mean(X)
    sources.mean(X.float())
    sources.covariance(X.float())
    assert torch.equal(sources.mean(X), expected)
    assert sources.input_transform.bounds.dtype == torch.double
    for name, tensor in sources.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])


def test_outcome_scales() -> None:
    raw, pooled = fit(outcome_scale="raw"), fit(outcome_scale="pooled")
    assert (raw.outcome_mean == 0).all()
    assert (raw.outcome_std == 1).all()
    Y = torch.cat([data[1] for data in DATA.values()])
    torch.testing.assert_close(pooled.outcome_mean, Y.mean().expand(3))
    torch.testing.assert_close(pooled.outcome_std, Y.std().expand(3))
    noise = raw.observed.noise[raw.observed.task == 1]
    torch.testing.assert_close(noise, DATA["task 1"][2].squeeze(-1))


def test_maximum_likelihood() -> None:
    without = SOURCE_HYPERPARAMETERS.without_priors()
    check_predictions(fit(hyperparameters=None), fit(hyperparameters=without), tolerance=0.0)
    assert (fit(hyperparameters=None).log_posterior != fit().log_posterior).all()


def test_bounds_are_learned_once_and_said(caplog) -> None:
    caplog.set_level("INFO")
    transform = Normalize(2)
    prior = fit(input_transform=transform)
    assert [r.message for r in caplog.records if "is fitted to" in r.message] == [
        f"Normalize is fitted to the {int(prior.num_points.sum())} points of the source tasks."
    ]
    assert transform.learn_coefficients


def test_odd_tasks() -> None:
    odd = {
        "constant": (points(4, 2), torch.full((4, 1), 3.0).double()),
        "single": (points(1, 2), torch.full((1, 1), 5.0).double()),
        "duplicates": (points(1, 2).repeat(4, 1), points(4, 1)),
    }
    sources = fit(odd)
    mean = sources.outcome_mean.unsqueeze(-1) + sources.outcome_std.unsqueeze(-1) * sources.mean(X)
    assert sources.covariance(X).isfinite().all()
    torch.testing.assert_close(mean[0], torch.full((5,), 3.0).double())
    torch.testing.assert_close(mean[1], torch.full((5,), 5.0).double())
    at_data = sources.outcome_mean[2] + sources.outcome_std[2] * sources.mean(points(1, 2))[2]
    torch.testing.assert_close(at_data, points(4, 1).mean().reshape(1), atol=0.05, rtol=0)


def test_fit_leaves_the_data_and_the_random_numbers_alone() -> None:
    copies = {name: tuple(tensor.clone() for tensor in data) for name, data in DATA.items()}
    before = torch.random.get_rng_state()
    sources = fit(num_restarts=2)
    sources.gps.points.fill_(0.0)
    sources.observed.X.fill_(0.0)
    assert torch.equal(torch.random.get_rng_state(), before)
    for name, data in DATA.items():
        for tensor, expected in zip(data, copies[name], strict=True):
            assert torch.equal(tensor, expected)


def test_source_data_are_checked() -> None:
    for learn in (fit, SourceGPs.fit_once):
        with pytest.raises(InputDataError, match="There are no source tasks: pass at least one"):
            learn([])


def test_source_data_too_large_for_the_memory(monkeypatch) -> None:
    calls = count_fits(monkeypatch)
    message = r"'task 2' has 8 points. A padded batch of 3 tasks .* raise max_bytes"
    with pytest.raises(InputDataError, match=message):
        fit(max_bytes=1000)
    assert not calls


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"kernel": "cubic"}, ValueError, "Unknown kernel 'cubic'"),
        ({"outcome_scale": "both"}, ValueError, "Unknown outcome_scale 'both'"),
        ({"num_restarts": -1}, ValueError, "num_restarts= must not be negative"),
        ({"max_inducing": 0}, ValueError, "max_inducing=0 must be positive"),
        ({"restarts": 3}, TypeError, "restarts"),
    ],
)
def test_bad_arguments(kwargs, error, message: str) -> None:
    with pytest.raises(error, match=message):
        fit(**kwargs)


def test_append_equals_fitting_all() -> None:
    names = list(DATA)
    first = fit({name: DATA[name] for name in names[:2]})
    ours = first.append({names[2]: DATA[names[2]]}, num_restarts=0)
    assert ours.task_names == tuple(names)
    assert ours.num_points.tolist() == [6, 3, 8]
    check_predictions(ours, fit())


def test_append_keeps_the_old_tasks_hyperparameters(monkeypatch) -> None:
    first = fit()
    state = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    calls = count_fits(monkeypatch)
    ours = first.append({"new": (points(20, 2), points(20, 1, seed=3))})
    assert calls == [1]
    assert torch.equal(ours.gps.lengthscale[:3], first.gps.lengthscale)
    assert torch.equal(ours.gps.outputscale[:3], first.gps.outputscale)
    assert torch.equal(ours.log_posterior[:3], first.log_posterior)
    torch.testing.assert_close(ours.mean(X)[:3], first.mean(X), atol=1e-12, rtol=0)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, state[name])


def test_append_one_task_in_every_form() -> None:
    first, (train_X, Y) = fit(), DATA["task 0"]
    dataset = SupervisedDataset(train_X, Y, feature_names=["a", "b"], outcome_names=["tuesday"])
    expected = first.append({"tuesday": (train_X, Y)}, num_restarts=0)
    for task in ((train_X, Y), [(train_X, Y)], dataset, [dataset]):
        check_predictions(first.append(task, num_restarts=0), expected, tolerance=0.0)
    assert expected.task_names[-1] == "tuesday"
    assert first.append(dataset).task_names[-1] == "tuesday"
    assert first.append((train_X, Y)).task_names[-1] == "source task 3"
    known = first.append((train_X, Y, 0.1 + Y.abs()))
    noise = known.observed.noise[known.observed.task == 3]
    torch.testing.assert_close(noise, (0.1 + Y.abs()).squeeze(-1) / Y.var())


def test_append_refuses_names_that_are_taken() -> None:
    with pytest.raises(InputDataError, match="has a source task 'task 1' already: give the new"):
        fit().append({"new": DATA["task 0"], "task 1": DATA["task 0"]})
    numbered = SourceGPs.fit([DATA["task 0"]], num_restarts=0)
    longer = numbered.append([DATA["task 1"]], num_restarts=0)
    assert longer.task_names == ("source task 0", "source task 0 (1)")


def test_append_to_models() -> None:
    train_X, Y = DATA["task 0"]
    for Y_, kwargs in ((Y, {}), ((Y - Y.mean()) / Y.std(), {"outcome_transform": None})):
        first = SourceGPs.from_models({"model": SingleTaskGP(train_X, Y_, **kwargs)})
        ours = first.append({"new": DATA["task 2"]}, num_restarts=0)
        assert ours.outcome_scale == first.outcome_scale
        torch.testing.assert_close(ours.mean(X)[:1], first.mean(X), atol=1e-10, rtol=0)
        alone = fit({"new": DATA["task 2"]}, outcome_scale=first.outcome_scale)
        torch.testing.assert_close(ours.mean(X)[1:], alone.mean(X), atol=1e-6, rtol=0)


def test_append_uses_the_priors_kernel_and_transform() -> None:
    transform = Normalize(2, bounds=torch.tensor([[-1.0, 0.0], [1.0, 3.0]]).double())
    first = fit({"a": DATA["task 0"]}, kernel="matern32", input_transform=transform)
    two = {"a": DATA["task 0"], "b": DATA["task 2"]}
    whole = fit(two, kernel="matern32", input_transform=transform)
    check_predictions(first.append({"b": DATA["task 2"]}, num_restarts=0), whole)


def test_append_on_a_device(device: str) -> None:
    appended = fit().to(device).append(DATA["task 0"], num_restarts=0)
    assert appended.gps.alpha.device.type == device


def test_append_in_another_precision() -> None:
    ours = fit().append(tuple(tensor.float() for tensor in DATA["task 0"]), num_restarts=0)
    assert ours.mean(X).dtype is torch.double


def test_other_hyperparameters_are_refused() -> None:
    X = torch.rand(4, 1, dtype=torch.double)
    with pytest.raises(TypeError, match="hyperparameters=3 must be a GPHyperparameters or None"):
        SourceGPs.fit([(X, X)], hyperparameters=3)  # type: ignore[arg-type]


def test_append_to_pooled_outcomes_is_refused() -> None:
    with pytest.raises(ValueError, match="A new task would change the units of the old tasks"):
        fit(outcome_scale="pooled").append(DATA["task 0"])


def test_append_of_another_dimension_is_refused(monkeypatch) -> None:
    first, calls = fit(), count_fits(monkeypatch)
    with pytest.raises(InputDataError, match="'new' has 3 inputs, but the prior has 2 inputs:"):
        first.append({"new": (points(4, 3), points(4, 1))})
    assert not calls


def test_append_of_bad_data_is_refused() -> None:
    with pytest.raises(InputDataError, match=r"'new': Y has a value that is NaN, .* in row 1"):
        fit().append({"new": (points(2, 2), torch.tensor([[0.0], [torch.nan]]).double())})


# ----------------------------------------------------------------------- what all such priors have


def test_how_it_is_computed_is_no_content(monkeypatch) -> None:
    first = SourceGPs.fit_once(DATA, num_restarts=0)
    calls = count_fits(monkeypatch)
    assert SourceGPs.fit_once(DATA, num_restarts=0, progress=False, n_jobs=None) is first
    assert not calls


def test_default_outcome_transforms() -> None:
    assert fit(outcome_scale="raw").default_outcome_transform(torch.Size()) is None
    for scale in ("per_task", "pooled"):
        prior = fit(outcome_scale=scale)
        transform = prior.default_outcome_transform(torch.Size([2]))
        assert isinstance(transform, PooledStandardize)
        assert transform.include_target is (scale == "per_task")
        transform(torch.empty(2, 0, 1, dtype=torch.double))
        outcomes = prior.outcomes()
        torch.testing.assert_close(transform.means, outcomes.mean().expand(2, 1, 1))
        torch.testing.assert_close(transform.stdvs, outcomes.std().expand(2, 1, 1))


def test_says_what_it_is() -> None:
    text = repr(fit())
    assert "tasks=3, points=17, inputs=2, kernel='rbf', outcome_scale='per_task'" in text


def test_what_is_known_of_each_task() -> None:
    prior = fit()
    assert (prior.num_tasks, prior.dim) == (3, 2)
    assert prior.task_names == tuple(DATA)
    raw = torch.cat([Y for _, Y, *_ in DATA.values()]).squeeze(-1)
    torch.testing.assert_close(prior.outcomes(), raw)
