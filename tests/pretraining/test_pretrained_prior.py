"""Pre-training: units, odd data, once, on a GPU."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.transforms.input import Normalize

from botorch_transfer.models import PretrainedGP
from botorch_transfer.pretraining import PretrainedPrior, SourceGPs, clear_memos
from tests.pretraining.pretrained import FAMILY, PRESETS, TEST_X, fit, own_modules


@pytest.fixture(params=PRESETS)
def preset(request):
    return PRESETS[request.param]()


def test_any_mean_and_kernel():
    mean, kernel = own_modules()
    prior = fit(PretrainedPrior(mean, kernel, dim=2, noise=0.1))
    assert prior.learning_curve.loss[-1] < prior.learning_curve.loss[0]
    # Those of the user stay as they were.
    assert mean.weights.dtype == torch.float
    assert not torch.equal(mean.weights.double(), prior.parts.mean_module.weights)
    PretrainedGP(*FAMILY.target(3), prior).posterior(TEST_X)


# ----------------------------------------------------------------------------------- units


@pytest.mark.parametrize("scale", ["pooled", "per_task", "raw"])
def test_outcome_scales(scale):
    prior = fit(PRESETS["stationary"](), outcome_scale=scale)
    outcomes = torch.cat([Y for _, Y in FAMILY.sources().values()])
    assert prior.num_tasks == 3
    assert prior.num_points == len(outcomes)
    transform = prior.default_outcome_transform(torch.Size())
    _, Y = FAMILY.target(4)
    if scale == "raw":
        assert transform is None
        return
    together = outcomes if scale == "pooled" else torch.cat([outcomes, Y])
    expected = (Y - together.mean()) / together.std()
    torch.testing.assert_close(transform(Y)[0], expected)
    transform = prior.default_outcome_transform(torch.Size())
    torch.testing.assert_close(transform(Y[:0])[0], Y[:0])
    torch.testing.assert_close(transform.means.squeeze(), outcomes.mean())
    torch.testing.assert_close(transform.stdvs.squeeze(), outcomes.std())


def test_raw_inputs():
    bounds = torch.tensor([[-5.0, 100.0], [5.0, 300.0]], dtype=torch.double)
    transform = Normalize(2, bounds=bounds)
    raw = {name: (transform.untransform(X), Y) for name, (X, Y) in FAMILY.sources().items()}
    prior = fit(PRESETS["hyperbo"]())
    raw_prior = PRESETS["hyperbo"]().fit(raw, steps=15, input_transform=transform)
    torch.testing.assert_close(raw_prior.mean(transform.untransform(TEST_X)), prior.mean(TEST_X))


def test_single_precision_data_are_trained_on_in_double():
    sources = {name: (X.float(), Y.float()) for name, (X, Y) in FAMILY.sources().items()}
    prior = PRESETS["hyperbo"]().fit(sources, steps=15)
    assert prior.noise.dtype == torch.double
    torch.testing.assert_close(
        prior.mean(TEST_X), fit(PRESETS["hyperbo"]()).mean(TEST_X), atol=1e-3, rtol=0
    )
    assert prior.mean(TEST_X.float()).dtype == torch.float


@pytest.mark.parametrize("objective", ["nll", "nll+ekl"])
def test_odd_tasks(objective):
    X = FAMILY.inputs(4)
    sources = [
        (X, FAMILY.value(X)),
        (X[:1], FAMILY.value(X[:1])),
        (X, torch.full((4, 1), 3.0).double()),
        (X[:1].repeat(4, 1), FAMILY.value(FAMILY.inputs(4))),
    ]
    for scale in ("pooled", "per_task"):
        prior = PRESETS["hyperbo"]().fit(sources, objective, steps=15, outcome_scale=scale)
        assert prior.covariance(TEST_X).isfinite().all()
        assert all(loss == loss for loss in prior.learning_curve.loss)


def test_all_outcomes_equal():
    X = FAMILY.inputs(4)
    prior = PRESETS["hyperbo"]().fit([(X, torch.full((4, 1), 7.0).double())] * 2, steps=15)
    posterior = PretrainedGP(X[:0], X[:0, :1], prior).posterior(TEST_X)
    torch.testing.assert_close(posterior.mean, torch.full((5, 1), 7.0).double(), atol=0.5, rtol=0)


def test_unfit_data_are_refused():
    X = FAMILY.inputs(4)
    with pytest.raises(InputDataError, match="3 inputs, but the prior was built for 2"):
        PRESETS["hyperbo"]().fit([(torch.rand(4, 3), torch.rand(4, 1))])
    with pytest.raises(InputDataError, match="no source tasks"):
        PRESETS["hyperbo"]().fit([])
    with pytest.raises(InputDataError, match="objective='nll'"):
        PRESETS["hyperbo"]().fit(FAMILY.sources(), "ekl")
    with pytest.raises(InputDataError, match="share no input"):
        PRESETS["hyperbo"]().fit(FAMILY.sources(), "ekl", groups=[[0, 1]])
    with pytest.raises(ValueError, match="give it bounds"):
        PRESETS["hyperbo"]().fit([(X, X[:, :1])], input_transform=Normalize(2))


def test_known_noise_is_taken_as_it_is():
    X = FAMILY.inputs(30)
    noise = 4.0 * torch.randn(8, 30, 1, dtype=torch.double)
    tasks = [(X, 50 + own, torch.full_like(own, 16.0)) for own in noise]
    prior = PretrainedPrior.stationary(2).fit(tasks, optimizer="lbfgs")
    own = PretrainedPrior.stationary(2).fit([task[:2] for task in tasks], optimizer="lbfgs")
    assert float(prior.noise) == pytest.approx(1e-2)  # nothing to learn it from
    assert float(own.noise) == pytest.approx(1.0, abs=0.3)
    assert float(prior.covariance(TEST_X)[0, 0]) < 0.1


# --------------------------------------------------------------------------- once, and again


def test_fit_once_recalls_by_content():
    clear_memos()
    first = PretrainedPrior.fit_once(FAMILY.sources(), steps=3)
    assert PretrainedPrior.fit_once(FAMILY.sources(), steps=3, progress=False) is first
    assert PretrainedPrior.fit_once(FAMILY.sources(), steps=4) is not first
    with pytest.raises(TypeError, match="Expected a PretrainedPrior"):
        PretrainedGP(*FAMILY.target(2), SourceGPs.fit(FAMILY.sources(), num_restarts=0))


def test_fit_once_holds_out_a_quarter_of_many_tasks():
    X = FAMILY.inputs(6)
    history = [(X, FAMILY.value(X, 0.1 * shift)) for shift in range(8)]
    for tasks, options, looks in (
        (history, {}, True),
        (history[:7], {}, False),
        (history, {"hold_out": None}, False),
        (history, {"validation_data": history[:1]}, True),
    ):
        prior = PretrainedPrior.fit_once(tasks, steps=3, **options)
        assert bool(prior.learning_curve.validation_steps) is looks
        assert prior.num_tasks == len(tasks)


def test_fitting_again_goes_on():
    prior = fit(PRESETS["stationary"](), optimizer="lbfgs", steps=100)
    view, models = prior.view(), PretrainedGP(*FAMILY.target(3), prior)
    before = models.posterior(TEST_X).mean
    fit(prior, optimizer="lbfgs", steps=100, outcome_scale="raw")
    assert torch.equal(models.posterior(TEST_X).mean, before)
    assert view.outcome_scale == "pooled"
    assert prior.outcome_scale == "raw"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("objective", ["nll", "nll+ekl"])
def test_on_a_gpu(preset, objective):
    X = FAMILY.inputs(8)
    sources = [(X, FAMILY.value(X, shift)) for shift in (0.1, 0.4, 0.8)]
    on_gpu = [(X.cuda(), Y.cuda()) for X, Y in sources]
    options = {"steps": 10, "batch_size": 50, "objective": objective}
    expected = deepcopy(preset).fit(sources, **options)
    prior = preset.fit(on_gpu, **options)
    assert {tensor.device.type for tensor in prior.state_dict().values()} == {"cuda"}
    torch.testing.assert_close(
        prior.covariance(TEST_X.cuda()).cpu(), expected.covariance(TEST_X), rtol=1e-5, atol=1e-7
    )


NEAR = (0.0, 6e-8, -6e-8)


def test_matching_inputs_in_single_precision():
    X = FAMILY.inputs(8).float()
    history = [(X + shift, FAMILY.value(X.double(), k).float()) for k, shift in enumerate(NEAR)]
    assert PretrainedPrior.stationary(2).fit(history, "ekl", steps=1).num_tasks == len(NEAR)
    doubles = [(X.double() + shift, Y.double()) for shift in NEAR for _, Y in history[:1]]
    with pytest.raises(InputDataError, match="No two source tasks share an input"):
        PretrainedPrior.stationary(2).fit(doubles, "ekl", steps=1)


@pytest.mark.parametrize(("scale", "offset"), [(1e4, 0.0), (1.0, 1e3), (1e-4, 0.0)])
def test_raw_outcomes_far_from_order_one_are_told(scale, offset):
    X = FAMILY.inputs(8)
    history = [(X, offset + scale * X.sin().sum(-1, keepdim=True))]
    with pytest.warns(InputDataWarning, match="outcomes are raw, of mean"):
        PretrainedPrior.stationary(2).fit(history, outcome_scale="raw", steps=1)


def test_raw_inputs_without_a_transform_are_told():
    X = FAMILY.inputs(8)
    with pytest.warns(InputDataWarning, match="source tasks are not contained in the unit cube"):
        PretrainedPrior.stationary(2).fit([(300 * X, X[:, :1])], steps=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"max_points": 0}, "max_points=0"), ({"groups": []}, "groups is empty")],
)
def test_impossible_options_are_refused(change, message):
    X = FAMILY.inputs(8)
    history = [(X, X[:, :1]), (X, X[:, 1:])]
    with pytest.raises(ValueError, match=message):
        PretrainedPrior.stationary(2).fit(history, "ekl", steps=1, **change)


def test_a_prior_in_single_precision_can_be_trained():
    prior = PretrainedPrior.hyperbo(2, hidden=(4,)).float().fit(FAMILY.sources(), steps=2)
    assert prior.noise.dtype == torch.double


def test_counts_are_part_of_the_state():
    X = FAMILY.inputs(8)
    many, few = (
        PretrainedPrior.stationary(2).fit([(X, X[:, :1] + k) for k in range(m)], steps=1)
        for m in (6, 2)
    )
    few.load_state_dict(many.state_dict())
    assert (few.num_tasks, few.num_points) == (6, 48)
