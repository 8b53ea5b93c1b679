"""Pre-training by gradients: options, optimizers, early stopping, checkpoints, held-out tasks."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from botorch.exceptions.errors import InputDataError, ModelFittingError
from torch.nn import Linear, Parameter

from botorch_transfer.data import as_datasets
from botorch_transfer.gp.tasks import PaddedTasks
from botorch_transfer.hyperbo.fit import (
    FlatParameters,
    GradientFit,
    LearningCurve,
    adam_steps,
    lbfgs_steps,
    read_checkpoint,
    split,
    write_checkpoint,
)
from botorch_transfer.hyperbo.objectives import SourceLoss, TaskNLL
from botorch_transfer.pretraining import PretrainedPrior, PretrainingOptions
from tests.families import ShiftedSines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "sgd"}, "Unknown optimizer 'sgd'"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be positive"),
        ({"batch_size": 0}, "batch_size=0 must be positive"),
        ({"task_batch_size": 0}, "task_batch_size=0 must be positive"),
        ({"patience": 0}, "patience=0 must be positive"),
        ({"steps": -1}, "steps=-1 is out of range"),
        ({"validation_every": 0}, "validation_every=0 is out of range"),
        ({"checkpoint_every": 0}, "checkpoint_every=0 is out of range"),
        ({"objective": "mll"}, "Unknown objective 'mll'"),
        ({"objective": "nll+ekl", "nll_weight": 0.0}, "nll_weight=0.0 must be positive"),
    ],
)
def test_options_out_of_range(options, message):
    X = torch.rand(4, 2, dtype=torch.double)
    with pytest.raises(ValueError, match=message):
        PretrainedPrior.stationary(2).fit([(X, X[:, :1])], **options)


def test_content_is_all_but_how():
    options = PretrainingOptions(optimizer="adam")
    how = {"progress": True, "checkpoint": "run", "checkpoint_every": 3}
    assert replace(options, **how).content() == options.content()
    for field in fields(options):
        if field.name not in how:
            other = "lbfgs" if field.name == "optimizer" else 12
            assert replace(options, **{field.name: other}).content() != options.content()


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
    curve = prior.learning_curve.loss
    assert len(curve) < 200
    again = prior.fit(HISTORY, optimizer="lbfgs", steps=500).learning_curve.loss
    assert again[0] <= curve[-1] + 1e-6
    assert abs(again[-1] - curve[-1]) < 1e-3


def test_adam_and_lbfgs_find_the_same_optimum():
    fits = [
        PretrainedPrior.stationary(2).fit(
            HISTORY, optimizer=optimizer, steps=steps, learning_rate=0.3
        )
        for optimizer, steps in (("adam", 400), ("lbfgs", 200))
    ]
    losses = [fit.learning_curve.loss[-1] for fit in fits]
    assert losses[0] == pytest.approx(losses[1], abs=1e-2)


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
    mean, std = {
        "raw": (0.0, 1.0),
        "per_task": (Y0.mean(), Y0.std()),
        "pooled": (pooled.mean(), pooled.std()),
    }[scale]
    parts = PretrainedPrior.stationary(2).gp(torch.Size(), fit=False)
    expected = float(parts.nll(X0, ((Y0 - mean) / std).squeeze(-1)))
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


# ------------------------------------------------------------------------------- checkpoints


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize(
    ("objective", "optimizer"), [("nll", "adam"), ("nll", "lbfgs"), ("ekl", "lbfgs")]
)
def test_an_interrupted_run_ends_at_the_same_numbers(objective, optimizer, tmp_path, monkeypatch):
    options = {"optimizer": optimizer}
    expected = fit(objective, **options)
    options |= {"checkpoint": tmp_path / "run", "checkpoint_every": 7}
    note, steps = GradientFit._note, []

    def interrupted(self, loss):
        steps.append(1)
        if len(steps) in (17, 19):
            raise Interrupted
        return note(self, loss)

    monkeypatch.setattr(GradientFit, "_note", interrupted)
    for _ in range(2):
        with pytest.raises(Interrupted):
            fit(objective, **options)
    assert_equal_bits(expected, fit(objective, **options))
    assert len(steps) < 50  # not from the beginning
    steps.clear()
    assert_equal_bits(expected, fit(objective, **options))
    assert not steps  # finished


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    fit(checkpoint=tmp_path / "run")
    for change in ({"seed": 1}, {"steps": 31}, {"objective": "ekl"}, {"outcome_scale": "raw"}):
        with pytest.raises(ValueError, match="other source data, starting values or options"):
            fit(checkpoint=tmp_path / "run", **change)
    fit(checkpoint=tmp_path / "run", progress=True, checkpoint_every=3)  # how, not what


def test_a_checkpoint_of_another_kernel_or_noise_is_refused(tmp_path):
    def fit_stationary(kernel="rbf", noise=None, file="run"):
        noise = [] if noise is None else [torch.full((6, 1), noise, dtype=torch.double)]
        X = torch.linspace(0, 1, 12, dtype=torch.double).reshape(6, 2)
        history = [*HISTORY, (X, X[:, :1], *noise)]
        prior = PretrainedPrior.stationary(2, kernel=kernel)
        prior.fit(history, steps=3, checkpoint=tmp_path / file)

    fit_stationary()
    for change in ({"kernel": "matern12"}, {"noise": 0.5}):
        with pytest.raises(ValueError, match="other source data, starting values or options"):
            fit_stationary(**change)


def test_a_damaged_checkpoint_is_refused(tmp_path):
    (tmp_path / "run").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="damaged"):
        fit(checkpoint=tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="no folder"):
        fit(checkpoint=tmp_path / "missing" / "run")


# ---------------------------------------------------------------------------------- trouble


def test_a_step_without_a_finite_loss_is_skipped(monkeypatch):
    sampled, calls = SourceLoss.sampled, []

    def sometimes(self, parts, step):
        loss = sampled(self, parts, step)
        calls.append(1)
        return loss * torch.nan if len(calls) % 3 == 0 else loss

    monkeypatch.setattr(SourceLoss, "sampled", sometimes)
    prior = fit()
    assert [loss != loss for loss in prior.learning_curve.loss] == 10 * [False, False, True]
    assert all(
        tensor.isfinite().all() for name, tensor in parameters(prior).items() if "bound" not in name
    )


@pytest.mark.parametrize("optimizer", ["adam", "lbfgs"])
def test_no_finite_loss_at_all_is_an_error(optimizer, monkeypatch):
    prior = untrained()
    before = parameters(prior)
    for name in ("sampled", "full"):
        monkeypatch.setattr(
            SourceLoss, name, lambda self, parts, *_: parts.noise.detach().sum() * torch.nan
        )
    with pytest.raises(ModelFittingError, match="no finite loss"):
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
    loss = SourceLoss.of(tasks, objective, 0.1, 5, 64, 3, None, 1e-8, 1000)
    how = PretrainingOptions(optimizer, 20, 0.05, batch_size=5, seed=3, validation_every=5)
    parts = PretrainedPrior.hyperbo(2, hidden=(6,))._thawed().double()
    trial = GradientFit(parts, loss, TaskNLL(others), how, "key").run()
    assert curve.validation_steps == trial.validation_steps
    assert curve.validation_loss == pytest.approx(trial.validation_loss, rel=1e-6)
    assert curve.best_step == trial.best_step
    assert len(curve.loss) == curve.best_step
    whole = fit_held_out(
        **options, outcome_scale=scale
    ).learning_curve  # the schedule is that of all steps
    assert curve.loss == whole.loss[: len(curve.loss)]
    assert prior.num_tasks == 8


@pytest.mark.parametrize("when", [13, 23])
def test_an_interrupted_pair_of_runs_ends_at_the_same_numbers(when, tmp_path, monkeypatch):
    options = {"hold_out": 0.25, "patience": 100, "batch_size": 5}
    expected = fit_held_out(**options)
    assert expected.learning_curve.best_step > 12  # both parts are interrupted here
    options |= {"checkpoint": tmp_path / "run", "checkpoint_every": 4}
    note, steps = GradientFit._note, []

    def interrupted(self, loss):
        steps.append(1)
        if len(steps) == when:
            raise Interrupted
        return note(self, loss)

    monkeypatch.setattr(GradientFit, "_note", interrupted)
    with pytest.raises(Interrupted):
        fit_held_out(**options)
    assert_equal_bits(expected, fit_held_out(**options))
    total = 20 + expected.learning_curve.best_step
    assert len(steps) <= total + 5  # not from the beginning
    with pytest.raises(ValueError, match="other source data"):
        fit_held_out(**{**options, "hold_out": 0.5})


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
    with pytest.raises(ValueError, match="leave out groups"):
        fit_held_out(hold_out=0.2, objective="ekl", groups=[[0, 1]])


# -------------------------------------------------------------------------------------- checkpoints


OPTIMIZERS = {
    "adam": partial(torch.optim.Adam, fused=True),
    "lbfgs": partial(torch.optim.LBFGS, max_iter=1, line_search_fn="strong_wolfe"),
}


def step(module: Linear, optimizer: torch.optim.Optimizer) -> None:
    X = torch.linspace(-1, 1, 6).reshape(3, 2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (module(X) - X.prod(dim=-1, keepdim=True)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)


def module() -> Linear:
    torch.manual_seed(0)
    return Linear(2, 1)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_goes_on_where_it_was(kind, tmp_path: Path) -> None:
    whole, first, second = module(), module(), module()
    optimizers = [OPTIMIZERS[kind](each.parameters(), lr=0.1) for each in (whole, first, second)]
    for _ in range(3):
        step(whole, optimizers[0])
    for _ in range(2):
        step(first, optimizers[1])
    curve = LearningCurve([3.0, torch.nan], [0], [4.0], best_step=1)
    written = {
        "step": 2,
        "parameters": dict(first.named_parameters()),
        "optimizer": optimizers[1].state_dict()["state"],
        "curve": vars(curve),
    }
    write_checkpoint(tmp_path / "run", "key", written)
    found = read_checkpoint(tmp_path / "run", "key")
    assert found is not None
    assert found["step"] == 2
    assert repr(LearningCurve(**found["curve"])) == repr(curve)
    second.load_state_dict(found["parameters"])
    optimizers[2].load_state_dict({**optimizers[2].state_dict(), "state": found["optimizer"]})
    step(second, optimizers[2])
    assert torch.equal(second.weight, whole.weight)
    assert torch.equal(second.bias, whole.bias)


def test_another_runs_checkpoint_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "run", "key", {"step": 2})
    with pytest.raises(ValueError, match="other source data, starting values or options"):
        read_checkpoint(tmp_path / "run", "another key")


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    torch.save({"key": "key", "state": Path("harmful")}, tmp_path / "run")
    with pytest.raises(ValueError, match="is damaged: delete it"):
        read_checkpoint(tmp_path / "run", "key")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_a_damaged_file_is_refused(share, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "run", "key", {"parameters": {"x": torch.rand(99)}})
    content = (tmp_path / "run").read_bytes()
    (tmp_path / "run").write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="damaged"):
        read_checkpoint(tmp_path / "run", "key")
    torch.save({"step": 3}, tmp_path / "run")
    with pytest.raises(ValueError, match="damaged"):
        read_checkpoint(tmp_path / "run", "key")


# ------------------------------------------------------------------------ loops and flat parameters


@pytest.fixture
def x():
    return Parameter(torch.tensor([1.0, -2.0], dtype=torch.double))


def quartic(x):
    loss = (x**4).sum() + (x[0] - x[1]) ** 2
    loss.backward()
    return loss


def test_adam_takes_the_steps_of_a_plain_loop(x):
    twin = Parameter(x.detach().clone())
    adam = torch.optim.Adam([x], fused=True)
    losses = list(adam_steps(adam, lambda _: quartic(x), range(20), lambda step: 0.1 / (1 + step)))
    expected, plain = [], torch.optim.Adam([twin], foreach=False)
    for step in range(20):
        plain.param_groups[0]["lr"] = 0.1 / (1 + step)
        plain.zero_grad()
        expected.append(quartic(twin).item())
        plain.step()
    torch.testing.assert_close(x, twin, rtol=1e-12, atol=1e-12)
    assert losses == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", ["loss", "gradient"])
def test_adam_skips_a_step_that_is_not_finite(x, bad):
    def evaluate(step):
        loss = quartic(x)
        if step == 1:
            if bad == "loss":
                return loss * math.inf
            x.grad[0] = math.nan
        return loss

    seen = []
    adam = torch.optim.Adam([x], lr=0.1, fused=True)
    for loss in adam_steps(adam, evaluate, range(3)):
        seen.append((math.isfinite(loss), x.detach().clone()))
    assert [finite for finite, _ in seen] == [True, False, True]
    assert torch.equal(seen[0][1], seen[1][1])
    assert seen[2][1].isfinite().all()
    assert not torch.equal(seen[1][1], seen[2][1])


def lbfgs(x):
    return torch.optim.LBFGS([x], max_iter=1, line_search_fn="strong_wolfe")


def test_lbfgs_stops_at_the_minimum(x):
    losses = list(lbfgs_steps(lbfgs(x), lambda: quartic(x)))
    assert 3 < len(losses) < 60
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-6
    assert list(lbfgs_steps(lbfgs(x), lambda: quartic(x), previous=losses[-1])) == [losses[-1]]


def test_lbfgs_turns_back_from_where_the_loss_is_undefined(x):
    def evaluate():
        loss = quartic(x)
        return loss if float(x[1].detach()) < 0 else loss * math.nan

    losses = list(lbfgs_steps(lbfgs(x), evaluate))
    assert losses[-1] < 1e-3
    assert x[1] <= 0
    x.data[1] = 1.0
    before = x.detach().clone()
    (loss,) = lbfgs_steps(lbfgs(x), evaluate)
    assert math.isnan(loss)
    assert torch.equal(x, before)


def test_lbfgs_evaluates_no_point_twice(monkeypatch):
    family, points, full = ShiftedSines(), [], SourceLoss.full

    def seen(self, parts):
        points.append(torch.cat([p.detach().flatten() for p in parts.parameters()]))
        return full(self, parts)

    monkeypatch.setattr(SourceLoss, "full", seen)
    PretrainedPrior.stationary(2).fit(family.sources(), optimizer="lbfgs", steps=10)
    assert len(torch.stack(points).unique(dim=0)) == len(points)
    assert len(points) > 10


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return Linear(2, 1, dtype=torch.double)


def test_vector_and_parameters_are_one(layer):
    before = {name: p.detach().clone() for name, p in layer.named_parameters()}
    flat = FlatParameters(layer.parameters())
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter, before[name])
    flat.vector.data += 1
    for name, parameter in layer.named_parameters():
        assert torch.equal(parameter, before[name] + 1)
    layer.bias.data.fill_(5.0)
    assert flat.vector[-1] == 5


def test_gradients_add_up_in_the_vector(layer):
    flat = FlatParameters(layer.parameters())
    layer.weight.sum().mul(3.0).backward()  # the bias has none
    assert flat.vector.grad.tolist() == [3.0, 3.0, 0.0]
    layer.bias.sum().backward()
    assert flat.vector.grad.tolist() == [3.0, 3.0, 1.0]
    flat.vector.grad.zero_()
    assert layer.weight.grad.tolist() == [[0.0, 0.0]]


def test_released_parameters_have_memory_of_their_own(layer):
    flat = FlatParameters(layer.parameters())
    flat.vector.data.fill_(2.0)
    layer.weight.sum().backward()
    flat.release()
    flat.vector.data.fill_(7.0)
    assert layer.weight.tolist() == [[2.0, 2.0]]
    assert layer.bias.untyped_storage().nbytes() == 8
    assert layer.weight.grad is None


def test_no_parameters():
    flat = FlatParameters([])
    assert flat.vector.shape == (0,)
    flat.release()
