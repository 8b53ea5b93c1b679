"""Pre-trained priors: training, the GP, presets, files."""

import pytest
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.exceptions.warnings import InputDataWarning
from gpytorch.kernels import MaternKernel, PeriodicKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean
from torch.testing import assert_close

from botorch_transfer.hyperbo.features import FeatureKernel, FeatureMean, FeatureNetwork
from botorch_transfer.models import PretrainedGP
from botorch_transfer.pretraining import PretrainedPrior, SourceGPs
from tests.hyperbo.pretrained_priors import FAMILY, PRESETS, TEST_X, assert_same, fit, own_modules


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
    assert_close(transform(Y)[0], expected)
    transform = prior.default_outcome_transform(torch.Size())
    assert_close(transform(Y[:0])[0], Y[:0])
    assert_close(transform.means.squeeze(), outcomes.mean())
    assert_close(transform.stdvs.squeeze(), outcomes.std())


def test_single_precision_data_are_trained_on_in_double():
    sources = {name: (X.float(), Y.float()) for name, (X, Y) in FAMILY.sources().items()}
    prior = PRESETS["hyperbo"]().fit(sources, steps=15)
    assert prior.noise.dtype == torch.double
    assert_close(prior.mean(TEST_X), fit(PRESETS["hyperbo"]()).mean(TEST_X), atol=1e-3, rtol=0)
    assert prior.mean(TEST_X.float()).dtype == torch.float


def test_all_outcomes_equal():
    X = FAMILY.inputs(4)
    prior = PRESETS["hyperbo"]().fit([(X, torch.full((4, 1), 7.0).double())] * 2, steps=15)
    posterior = PretrainedGP(X[:0], X[:0, :1], prior).posterior(TEST_X)
    assert_close(posterior.mean, torch.full((5, 1), 7.0).double(), atol=0.5, rtol=0)


def test_unfit_data_are_refused():
    with pytest.raises(InputDataError, match="3 inputs, but the prior was built for 2 inputs"):
        PRESETS["hyperbo"]().fit([(torch.rand(4, 3), torch.rand(4, 1))])
    with pytest.raises(InputDataError, match="no source tasks"):
        PRESETS["hyperbo"]().fit([])
    with pytest.raises(InputDataError, match="objective='nll'"):
        PRESETS["hyperbo"]().fit(FAMILY.sources(), "ekl")
    with pytest.raises(InputDataError, match="that share an input"):
        PRESETS["hyperbo"]().fit(FAMILY.sources(), "ekl", groups=[[0, 1]])


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


def test_fit_once_holds_out_a_quarter_of_many_tasks():
    X = FAMILY.inputs(6)
    history = [(X, FAMILY.value(X, 0.1 * shift)) for shift in range(8)]
    for tasks, options, looks in (
        (history, {}, True),
        (history[:7], {}, False),
        (history, {"hold_out": None}, False),
    ):
        prior = PretrainedPrior.fit_once(tasks, steps=3, **options)
        assert bool(prior.learning_curve.validation_steps) is looks
        assert prior.num_tasks == len(tasks)


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
    with pytest.warns(InputDataWarning, match="raw outcomes have mean"):
        PretrainedPrior.stationary(2).fit(history, outcome_scale="raw", steps=1)


def test_raw_inputs_without_a_transform_are_told():
    X = FAMILY.inputs(8)
    with pytest.warns(InputDataWarning, match="source tasks are not contained in the unit cube"):
        PretrainedPrior.stationary(2).fit([(300 * X, X[:, :1])], steps=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"max_points": 0}, "max_points=0"), ({"groups": []}, "groups= is empty")],
)
def test_impossible_options_are_refused(change, message):
    X = FAMILY.inputs(8)
    history = [(X, X[:, :1]), (X, X[:, 1:])]
    with pytest.raises(ValueError, match=message):
        PretrainedPrior.stationary(2).fit(history, "ekl", steps=1, **change)


def test_counts_are_part_of_the_state():
    X = FAMILY.inputs(8)
    many, few = (
        PretrainedPrior.stationary(2).fit([(X, X[:, :1] + k) for k in range(m)], steps=1)
        for m in (6, 2)
    )
    few.load_state_dict(many.state_dict())
    assert (few.num_tasks, few.num_points) == (6, 48)


def test_an_untrained_prior_is_the_gp_as_built():
    kernel = ScaleKernel(RBFKernel())
    mean = ConstantMean()
    mean.constant = 3.0
    model = PretrainedGP(
        torch.zeros(0, 2).double(), torch.zeros(0, 1).double(), PretrainedPrior(mean, kernel, dim=2)
    )
    posterior = model.posterior(TEST_X)
    assert_close(posterior.mean, torch.full((5, 1), 3.0).double())
    expected = kernel.double()(TEST_X).to_dense()
    assert_close(posterior.distribution.covariance_matrix, expected)
    assert not hasattr(model, "outcome_transform")


def test_mean_and_kernel_read_one_network():
    prior = fit(PretrainedPrior.hyperbo(2, hidden=(4,)))
    assert prior.parts.mean_module.network is prior.parts.covar_module.network
    names = [name for name, _ in prior.named_buffers() if "network" in name]
    assert len(names) == 2


def test_nothing_to_fit():
    modules = ConstantMean(), RBFKernel()
    for module in modules:
        module.requires_grad_(False)
    prior = PretrainedPrior(*modules, dim=2)
    prior.trainable = dict.fromkeys(prior.trainable, False)  # nor the noise
    fit(prior)
    assert prior.learning_curve.loss == []
    assert float(prior.noise) == pytest.approx(1e-2)


def test_frozen_modules_of_the_users_own_serve_all_members():
    prior = fit(PretrainedPrior(*own_modules(), dim=2))
    parts = prior.gp(torch.Size([3]), fit=False)
    assert parts.likelihood.noise.shape == (3, 1)
    assert parts.covar_module.batch_shape == torch.Size()
    assert prior.gp(torch.Size([3]), fit=True).covar_module.batch_shape == (3,)


@pytest.mark.parametrize("noise", [0.0, -1.0, 1e-6, torch.inf, torch.nan])
def test_too_little_noise_is_refused(noise):
    with pytest.raises(ValueError, match=f"noise={noise} must be finite and greater than 1e-06"):
        PretrainedPrior.stationary(2, noise=noise)


def test_inputs_of_another_dimension_are_refused(preset):
    for evaluate in (preset.mean, preset.covariance):
        with pytest.raises(BotorchTensorDimensionError, match=r"3 columns, but.*built for 2"):
            evaluate(torch.rand(4, 3))


def test_repr():
    assert "tasks=3, points=27, inputs=2" in repr(fit(PRESETS["stationary"]()))


def test_ablr_s_kernel():
    prior = fit(PRESETS["ablr"]())
    z, kernel = prior.parts.covar_module.network(TEST_X), prior.parts.covar_module.base_kernel
    expected = kernel.outputscale * (kernel.base_kernel.offset + z @ z.T)
    assert_close(prior.covariance(TEST_X), expected)


@pytest.mark.parametrize(
    ("name", "default"), [("hyperbo", 0.01), ("fsbo", 0.01), ("ablr", 0.3), ("stationary", 0.01)]
)
def test_noise_to_start_from(name, default):
    build = getattr(PretrainedPrior, name)
    assert float(build(2).noise) == pytest.approx(default)
    assert float(build(2, noise=0.05).noise) == pytest.approx(0.05)


@pytest.mark.parametrize("name", ["hyperbo", "fsbo", "ablr"])
def test_the_seed_is_that_of_the_weights(name):
    build = getattr(PretrainedPrior, name)
    first, same, other = (build(2, seed=seed).covariance(TEST_X) for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_unknown_presets_are_refused():
    with pytest.raises(ValueError, match="Unknown mean 'linear'"):
        PretrainedPrior.stationary(2, mean="linear")
    with pytest.raises(ValueError, match="Unknown kernel 'cosine'"):
        PretrainedPrior.hyperbo(2, kernel="cosine")
    with pytest.raises(ValueError, match="dim=0"):
        PretrainedPrior(ConstantMean(), RBFKernel(), dim=0)


def test_source_observations_are_not_kept(tmp_path):
    prior = fit(PRESETS["hyperbo"](), hold_out=0.25, objective="nll")
    sizes = {tensor.numel() for tensor in prior.state_dict().values()}
    total = sum(len(Y) for _, Y in FAMILY.sources().values())
    assert not sizes & {total, 2 * total}
    everything = torch.cat([tensor.flatten().double() for tensor in prior.state_dict().values()])
    for X, Y in FAMILY.sources().values():
        assert not torch.isin(torch.cat([X.flatten(), Y.flatten()]), everything).any()


def modules_of_one_network():
    network = FeatureNetwork(2, hidden=(3,))
    return FeatureMean(network), FeatureKernel(MaternKernel(ard_num_dims=3), network)


@pytest.mark.parametrize("modules", [own_modules, modules_of_one_network])
def test_modules_of_the_user_are_handed_over(modules, tmp_path):
    prior = fit(PretrainedPrior(*modules(), dim=2))
    prior.save(tmp_path / "prior")
    mean, kernel = modules()
    before = [(part.dtype, part.tolist()) for part in mean.parameters()]
    loaded = PretrainedPrior.load(tmp_path / "prior", mean_module=mean, covar_module=kernel)
    assert_same(loaded, prior)
    # Copies are loaded into.
    assert [(part.dtype, part.tolist()) for part in mean.parameters()] == before


def test_what_the_user_froze_stays_so(tmp_path):
    mean, kernel = own_modules()
    prior = PretrainedPrior(mean, kernel.requires_grad_(False), dim=2)
    prior.save(tmp_path / "prior")
    mean, kernel = own_modules()
    loaded = PretrainedPrior.load(tmp_path / "prior", mean_module=mean, covar_module=kernel)
    assert loaded.trainable == prior.trainable
    trained = fit(loaded, steps=2)
    assert torch.equal(trained.covariance(TEST_X), prior.covariance(TEST_X))
    assert not torch.equal(trained.mean(TEST_X), prior.mean(TEST_X))


def test_wrong_modules_are_refused(tmp_path):
    fit(PretrainedPrior(*own_modules(), dim=2)).save(tmp_path / "prior")
    mean, kernel = own_modules()
    message = "LinearMean {}; .* ScaleKernel {}; .*: pass both to"
    for given in ({}, {"mean_module": mean}, {"covar_module": kernel}):
        with pytest.raises(ValueError, match=message):
            PretrainedPrior.load(tmp_path / "prior", **given)
    with pytest.raises(ValueError, match="differ from the saved mean and kernel"):
        PretrainedPrior.load(tmp_path / "prior", mean_module=ConstantMean(), covar_module=kernel)
    with pytest.raises(ValueError, match="other parameters"):
        PretrainedPrior.load(
            tmp_path / "prior", mean_module=mean, covar_module=ScaleKernel(PeriodicKernel())
        )
    fit(PretrainedPrior(mean, MaternKernel(nu=2.5), dim=2)).save(tmp_path / "nu")
    with pytest.raises(ValueError, match="differ from the saved mean and kernel"):
        PretrainedPrior.load(tmp_path / "nu", mean_module=mean, covar_module=MaternKernel(nu=0.5))
    fit(PRESETS["ablr"]()).save(tmp_path / "preset")
    with pytest.raises(ValueError, match="is a preset, leave out both"):
        PretrainedPrior.load(tmp_path / "preset", mean_module=mean)
    with pytest.raises(ValueError, match=r"PretrainedPrior.load\(path\)"):
        SourceGPs.load(tmp_path / "preset")
