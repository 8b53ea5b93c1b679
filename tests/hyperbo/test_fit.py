"""Pre-training by gradients: options, optimizers, early stopping, held-out tasks."""

import math

import pytest
import torch
from botorch.exceptions.errors import InputDataError, ModelFittingError

from botorch_transfer.data import as_datasets
from botorch_transfer.gp.likelihood import nll
from botorch_transfer.gp.tasks import PaddedTasks
from botorch_transfer.hyperbo.fit import GradientFit, SourceLoss, split
from botorch_transfer.pretraining import PretrainedPrior, PretrainingOptions
from tests.families import ShiftedSines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "sgd"}, "Unknown optimizer 'sgd': choose one of 'adam', 'lbfgs'"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be positive"),
        ({"batch_size": 0}, "batch_size=0 must be positive"),
        ({"task_batch_size": 0}, "task_batch_size=0 must be positive"),
        ({"patience": 0}, "patience=0 must be positive"),
        ({"batch_size": None}, "batch_size=None must be positive"),
        ({"steps": -1}, "steps=-1 must not be negative"),
        ({"validation_every": 0}, "validation_every=0 must be positive"),
        ({"objective": "mll"}, "Unknown objective 'mll': choose one of 'nll'"),
        ({"objective": "nll+ekl", "nll_weight": 0.0}, "nll_weight=0.0 must be positive"),
    ],
)
def test_options_out_of_range(options, message):
    X = torch.rand(4, 2, dtype=torch.double)
    with pytest.raises(ValueError, match=message):
        PretrainedPrior.stationary(2).fit([(X, X[:, :1])], **options)


FAMILY = ShiftedSines()
X = FAMILY.inputs(12)
HISTORY = [(X, FAMILY.value(X, shift)) for shift in (0.1, 0.3, 0.6, 0.8)]


def untrained():
    return PretrainedPrior.hyperbo(2, hidden=(6,))


def fit(objective="nll", **options):
    return untrained().fit(HISTORY, objective, **{"steps": 30, "batch_size": 5, **options})


def parameters(prior):
    return {name: tensor.clone() for name, tensor in prior.parts.state_dict().items()}


def assert_equal_bits(left, right):
    for name, tensor in parameters(left).items():
        assert torch.equal(tensor, parameters(right)[name]), name
    assert left.learning_curve == right.learning_curve


@pytest.mark.parametrize(
    ("objective", "optimizer"), [("nll", "lbfgs"), ("ekl", "adam"), ("nll+ekl", "adam")]
)
def test_loss_falls(objective, optimizer):
    prior = fit(objective, optimizer=optimizer, steps=60, batch_size=50)
    curve = prior.learning_curve.loss
    assert curve[-1] < curve[0] - 1
    assert prior.learning_curve.best_step == len(curve)


@pytest.mark.parametrize(("objective", "optimizer"), [("nll", "adam"), ("ekl", "lbfgs")])
def test_seeds(objective, optimizer):
    torch.manual_seed(1)
    first = fit(objective, optimizer=optimizer)
    torch.manual_seed(2)
    assert_equal_bits(first, fit(objective, optimizer=optimizer))
    state = torch.get_rng_state()
    other = fit(objective, optimizer=optimizer, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    if "nll" in objective and optimizer == "adam":
        assert other.learning_curve.loss != first.learning_curve.loss


def test_default_optimizers():
    assert len(fit("ekl", steps=None, batch_size=50).learning_curve.loss) <= 100
    assert len(fit("nll", steps=7).learning_curve.loss) == 7


def test_lbfgs_stops_where_it_converges():
    prior = PretrainedPrior.stationary(2).fit(HISTORY, optimizer="lbfgs", steps=500)
    curve = prior.learning_curve
    assert 5 < curve.best_step == len(curve.loss) < 200
    assert curve.loss == sorted(curve.loss, reverse=True)
    assert curve.loss[-2] - curve.loss[-1] < 1e-3


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_losses_are_those_before_each_step(optimizer):
    short, long = (fit(optimizer=optimizer, batch_size=50, steps=n, decay=False) for n in (3, 5))
    curve = long.learning_curve.loss
    assert len(curve) == 5
    assert short.learning_curve.loss == pytest.approx(curve[:3])
    Y = torch.stack([Y.squeeze(-1) for _, Y in HISTORY])
    mean, covariance = short.parts(X.expand(4, -1, -1))
    loss = nll(mean, covariance, (Y - Y.mean()) / Y.std(), noise=short.parts.noise).mean()
    assert float(loss) == pytest.approx(curve[3])


def test_no_steps():
    prior, start = fit(steps=0), untrained()
    assert prior.learning_curve.loss == []
    assert all(torch.equal(t, parameters(start)[n].to(t)) for n, t in parameters(prior).items())


def test_a_trained_prior_is_not_fitted_again():
    prior = fit(steps=1)
    before = parameters(prior)
    with pytest.raises(ValueError, match=r"trained already.*PretrainedPrior.hyperbo\(d=2\)"):
        prior.fit(HISTORY, steps=1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in parameters(prior).items())


def test_adam_is_pytorch_s_on_the_whole_loss():
    """With all points in each step, nothing is random: the steps are those of a plain loop."""
    prior = fit(batch_size=50, steps=5, decay=False, learning_rate=0.02)
    parts = untrained().gp(torch.Size([]), fit=True)
    optimizer = torch.optim.Adam([p for p in parts.parameters() if p.requires_grad], 0.02)
    Y = torch.stack([Y.squeeze(-1) for _, Y in HISTORY])
    Y = (Y - Y.mean()) / Y.std()
    for _ in range(5):
        optimizer.zero_grad()
        covariance = parts.covar_module(X).to_dense() + parts.noise * torch.eye(12).double()
        mvn = torch.distributions.MultivariateNormal(parts.mean_module(X), covariance)
        (-mvn.log_prob(Y).mean()).backward()
        optimizer.step()
    for name, tensor in parts.state_dict().items():
        torch.testing.assert_close(parameters(prior)[name], tensor, rtol=1e-5, atol=1e-7)


# ------------------------------------------------------------------------------- validation


@pytest.mark.parametrize("scale", ["pooled", "per_task", "raw"])
def test_held_out_tasks_are_in_the_units_of_the_source_tasks(scale):
    data = [(X, (Y - 50) / 10) for X, Y in HISTORY]
    prior = PretrainedPrior.stationary(2).fit(data, hold_out=0.25, steps=1, outcome_scale=scale)
    pooled = torch.cat([Y for _, Y in data])
    X0, Y0 = data[int(split(4, 0.25, seed=0)[1])]
    own = (Y0.mean(), Y0.std())
    mean, std = {"raw": (0.0, 1.0), "per_task": own, "pooled": (pooled.mean(), pooled.std())}[scale]
    parts = PretrainedPrior.stationary(2).gp(torch.Size(), fit=False)
    scaled = ((Y0 - mean) / std).squeeze(-1)
    expected = float(nll(*parts(X0), scaled, noise=parts.noise))
    assert prior.learning_curve.validation_loss[0] == pytest.approx(expected, rel=1e-8)


def test_the_best_step_is_found_and_patience_ends_the_search():
    how = {"hold_out": 0.25, "steps": 60, "validation_every": 5}
    how |= {"learning_rate": 0.3, "decay": False}
    curve = fit(**how, patience=100).learning_curve
    assert curve.validation_steps == list(range(0, 61, 5))
    best = min(range(13), key=curve.validation_loss.__getitem__)
    assert curve.best_step == len(curve.loss) == curve.validation_steps[best]
    assert 0 < curve.best_step < 50
    stopped = fit(**how, patience=2).learning_curve
    assert stopped.validation_steps[-1] == stopped.best_step + 10


# ---------------------------------------------------------------------------------- trouble


def test_a_step_without_a_finite_loss_is_skipped(monkeypatch):
    evaluate, calls = SourceLoss.evaluate, []

    def sometimes(self, parts, step):
        loss = evaluate(self, parts, step)
        calls.append(1)
        return loss * torch.nan if len(calls) % 3 == 0 else loss

    monkeypatch.setattr(SourceLoss, "evaluate", sometimes)
    prior = fit()
    assert [loss != loss for loss in prior.learning_curve.loss] == 10 * [False, False, True]
    assert all(t.isfinite().all() for name, t in parameters(prior).items() if "bound" not in name)


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_no_finite_loss_at_all_is_an_error(optimizer, monkeypatch):
    prior = untrained()
    before = parameters(prior)
    monkeypatch.setattr(
        SourceLoss, "evaluate", lambda self, parts, *_: parts.noise.detach().sum() * torch.nan
    )
    with pytest.raises(ModelFittingError, match="not finite after"):
        prior.fit(HISTORY, optimizer=optimizer)
    assert all(torch.equal(tensor, parameters(prior)[name]) for name, tensor in before.items())
    assert prior.num_tasks == 0


def test_progress(capsys):
    fit(progress=True)
    assert "pre-training" in capsys.readouterr().err


# ----------------------------------------------------------------------------- held-out tasks

MANY = [(X, FAMILY.value(X, 0.1 * shift)) for shift in range(8)]


def fit_held_out(data=MANY, objective="nll", **options):
    options = {"steps": 20, "validation_every": 5, "learning_rate": 0.05, **options}
    return PretrainedPrior.hyperbo(2, hidden=(6,)).fit(data, objective, **options)


@pytest.mark.parametrize(
    ("objective", "optimizer", "scale"),
    [("nll", "adam", "per_task"), ("ekl", "lbfgs", "pooled"), ("nll+ekl", "adam", "pooled")],
)
def test_it_is_a_trial_and_a_run_of_as_many_steps(objective, optimizer, scale):
    options = {"optimizer": optimizer, "batch_size": 5, "seed": 3, "objective": objective}
    prior = fit_held_out(**options, hold_out=0.25, outcome_scale=scale)
    curve = prior.learning_curve
    kept, held_out = split(8, 0.25, seed=3)
    # In units that are those of all tasks.
    outcomes = torch.cat([Y for _, Y in MANY])

    def scaled(numbers):
        tasks = [MANY[number] for number in numbers.tolist()]
        if scale == "per_task":
            return [(X, (Y - Y.mean()) / Y.std()) for X, Y in tasks]
        return [(X, (Y - outcomes.mean()) / outcomes.std()) for X, Y in tasks]

    tasks, others = (
        PaddedTasks.from_datasets(as_datasets(scaled(numbers))) for numbers in (kept, held_out)
    )
    how = PretrainingOptions(
        optimizer, 20, 0.05, batch_size=5, seed=3, validation_every=5, objective=objective
    )
    parts = PretrainedPrior.hyperbo(2, hidden=(6,))._thawed().double()
    trial = GradientFit(parts, SourceLoss(tasks, how), others, how).run()
    assert curve.validation_steps == trial.validation_steps
    assert curve.validation_loss == pytest.approx(trial.validation_loss, rel=1e-6)
    assert curve.best_step == trial.best_step
    assert len(curve.loss) == curve.best_step
    whole = fit_held_out(
        **options, outcome_scale=scale
    ).learning_curve  # the schedule is that of all steps
    assert curve.loss == whole.loss[: len(curve.loss)]
    assert prior.num_tasks == 8


def test_splits():
    kept, held_out = split(10, 0.3, seed=1)
    assert sorted(kept.tolist() + held_out.tolist()) == list(range(10))
    assert len(held_out) == 3
    assert torch.equal(split(10, 0.3, seed=1)[1], held_out)
    assert not torch.equal(split(10, 0.3, seed=2)[1], held_out)
    assert len(split(10, 0.01, seed=1)[1]) == 1


def test_what_cannot_be_held_out_is_refused():
    with pytest.raises(ValueError, match=r"hold_out=1.5 must lie between"):
        fit_held_out(hold_out=1.5)
    with pytest.raises(InputDataError, match="leaves 1 of 2 source tasks"):
        fit_held_out(MANY[:2], hold_out=0.2)
    with pytest.raises(ValueError, match="does not work with hold_out="):
        fit_held_out(hold_out=0.2, objective="ekl", groups=[[0, 1]])


def test_patience_ends_lbfgs():
    how = {"optimizer": "lbfgs", "steps": 40, "validation_every": 1, "patience": 2}
    curve = fit_held_out(hold_out=0.25, **how).learning_curve
    assert curve.validation_steps[-1] <= curve.best_step + 2
    assert len(curve.loss) == curve.best_step < 40


def test_lbfgs_turns_back_from_where_the_loss_is_undefined(monkeypatch):
    evaluate, calls = SourceLoss.evaluate, []

    def sometimes(self, parts):
        calls.append(1)
        loss = evaluate(self, parts)
        return loss * torch.nan if len(calls) == 4 else loss

    monkeypatch.setattr(SourceLoss, "evaluate", sometimes)
    curve = fit(optimizer="lbfgs", steps=20).learning_curve.loss
    assert len(calls) > 4
    assert all(map(math.isfinite, curve))
    assert curve[-1] < curve[0]
