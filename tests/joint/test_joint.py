"""Joint models against their dense twins, and what they share."""

import pickle
from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.outcome import Standardize
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.errors import NanError

from botorch_transfer import JointHierarchicalGP, JointScaMLGP, ScaMLGP, SourceGPs, WeightedSourceGP
from botorch_transfer.gp.hyperpriors import RESIDUAL_HYPERPARAMETERS
from botorch_transfer.joint import models as joint
from botorch_transfer.joint.models import SourceMarginalLogLikelihood
from tests.fits import fit_model
from tests.joint.joint_models import (
    BLOCKS,
    FAMILY,
    MODELS,
    SIZES,
    TEST_X,
    build,
    model_of,
    scattered,
    sources,
)
from tests.joint.joint_twin import JointTwin, standardized
from tests.models.contract import copy_hyperparameters


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def marginal_likelihood(model):
    """The objective of a fit without hyperpriors and without the division by the target's size."""
    model.train()
    output = model.likelihood(model(*model.train_inputs))
    (added,) = model.added_loss_terms()
    return output.log_prob(model.train_targets) + added.loss()


# ---- the dense twins


def assert_equals_twin(model):
    mean, covariance = JointTwin(model).posterior(TEST_X)
    posterior = model.posterior(TEST_X).distribution
    torch.testing.assert_close(posterior.mean, mean)
    torch.testing.assert_close(posterior.covariance_matrix, covariance)


@pytest.mark.parametrize(
    ("num_tasks", "n", "noise"),
    [(1, 0, "known"), (1, 4, "inferred"), (2, 1, "mixed"), (5, 4, "mixed"), (5, 0, "inferred")],
)
def test_equals_its_dense_twin(name, num_tasks, n, noise):
    model = build(name, num_tasks, n, noise)
    X, twin_X = TEST_X.clone().requires_grad_(), TEST_X.clone().requires_grad_()
    posterior = model.posterior(X).distribution
    mean, covariance = JointTwin(model).posterior(twin_X)
    torch.testing.assert_close(posterior.mean, mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(posterior.covariance_matrix, covariance, rtol=1e-6, atol=1e-6)
    weights = torch.rand(6, 6, dtype=torch.double)
    for ours, theirs in ((posterior.mean, mean), (posterior.covariance_matrix, covariance)):
        weigh = weights if ours.dim() == 2 else weights[0]
        (gradient,) = torch.autograd.grad((weigh * ours).sum(), X, retain_graph=True)
        (expected,) = torch.autograd.grad((weigh * theirs).sum(), twin_X, retain_graph=True)
        torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("num_tasks", "noise"), [(1, "inferred"), (5, "mixed")])
def test_marginal_likelihood_is_the_joint_one(name, num_tasks, noise):
    model = build(name, num_tasks, 4, noise)
    value, expected = marginal_likelihood(model), JointTwin(model).log_likelihood()
    torch.testing.assert_close(value, expected, rtol=1e-8, atol=1e-8)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(value, parameters)
    references = torch.autograd.grad(expected, parameters)
    torch.testing.assert_close(gradients, references, rtol=1e-6, atol=1e-6)


def test_objective_of_the_fit_has_hyperpriors_and_the_sources(name):
    model = build(name)
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    value = mll(model(*model.train_inputs), model.train_targets)
    expected = JointTwin(model).log_likelihood()
    for kernel in model.covar_modules:
        base = getattr(kernel, "base_kernel", kernel)
        expected = expected + base.lengthscale_prior.log_prob(base.lengthscale).sum()
        if base is not kernel:
            expected = expected + kernel.outputscale_prior.log_prob(kernel.outputscale)
    for noise in (model.likelihood.noise_covar, model.conditional.noise):
        expected = expected + noise.noise_prior.log_prob(noise.noise).sum()
    if name == "ScaML":
        weights = model.conditional.kernel.task_weights
        expected = expected + weights.weights_prior.log_prob(weights.weights).sum()
    torch.testing.assert_close(value, expected / 4)


SCALES = {
    "per_task": lambda Y, pooled: standardized([Y])[0],
    "pooled": lambda Y, pooled: (Y - pooled.mean()) / pooled.std(),
    "raw": lambda Y, pooled: Y,
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(("scale", "n"), [("per_task", 4), ("pooled", 0), ("raw", 4)])
def test_outcome_scales(name, scale, n):
    """Each is the raw one of outcomes that were scaled before."""
    history, (X, Y) = sources(2, "known"), FAMILY.target(n)
    Yvar = torch.full_like(Y, 0.3)
    model = scattered(model_of(name, X, Y, history, train_Yvar=Yvar, outcome_scale=scale))
    pooled, scaled = torch.cat([source_Y for _, source_Y, _ in history.values()]), {}
    for task, (source_X, source_Y, noise) in history.items():
        own = SCALES[scale](source_Y, pooled)
        factor = (own[0] - own[1]) / (source_Y[0] - source_Y[1])
        scaled[task] = source_X, own, noise * factor.square()
    if hasattr(model, "outcome_transform"):
        Y, Yvar = model.outcome_transform.eval()(Y, Yvar)
    raw = {"outcome_scale": "raw", "outcome_transform": None}
    twin = scattered(model_of(name, X, Y, scaled, train_Yvar=Yvar, **raw))
    copy_hyperparameters(model, twin)  # the residual starts with the variance of the outcomes
    found, expected = model(TEST_X), twin(TEST_X)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance_matrix, expected.covariance_matrix)


def test_the_default_transform_fits_the_scale():
    X, Y = FAMILY.target(4)
    history = sources(2)
    outcomes = torch.cat([Y for _, Y in history.values()])
    models = {scale: JointHierarchicalGP(X, Y, history, outcome_scale=scale) for scale in SCALES}
    assert not hasattr(models["raw"], "outcome_transform")
    torch.testing.assert_close(models["raw"].train_targets, Y.squeeze(-1))
    for scale, values in {"pooled": outcomes, "per_task": torch.cat([outcomes, Y])}.items():
        expected = (Y - values.mean()) / values.std()
        torch.testing.assert_close(models[scale].train_targets, expected.squeeze(-1))
    own = JointHierarchicalGP(X, Y, history, outcome_scale="raw", outcome_transform=Standardize(1))
    torch.testing.assert_close(own.train_targets, standardized([Y])[0].squeeze(-1))
    with pytest.raises(ValueError, match="Unknown outcome_scale 'own': choose one of 'per_task'"):
        JointHierarchicalGP(X, Y, history, outcome_scale="own")


# ---- data and their units


@pytest.mark.parametrize("name", BLOCKS)
def test_too_many_points_are_refused(name):
    X, Y = torch.zeros(1, 2).double().expand(40_000, 2), torch.zeros(40_000, 1).double()
    with pytest.raises(InputDataError, match=r"40,004 points together.*GiB.*ScaMLGP"):
        model_of(name, *FAMILY.target(4), [(X, Y)])


def test_block_diagonal_sources_take_less_memory():
    limit = 10 * 8 * 13**2  # 7² + 4² + ... entries, not (7 + 4)²
    for model_class in (WeightedSourceGP, JointScaMLGP):
        model = model_class(*FAMILY.target(4), sources(2), max_bytes=limit)
        assert model.num_restarts == 0
    with pytest.raises(InputDataError):
        JointHierarchicalGP(*FAMILY.target(4), sources(2), max_bytes=limit)


def test_starts_share_the_memory():
    X, Y = FAMILY.target(4)
    bytes_of_one = 10 * 8 * 15**2
    for starts in (1, 2, 3, 4):
        model = JointHierarchicalGP(X, Y, sources(2), max_bytes=starts * bytes_of_one)
        assert model.num_restarts == min(starts - 1, joint.MAX_RESTARTS)


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize(("most", "sizes"), [(11, (7, 4)), (10, (6, 4)), (7, (3, 3)), (2, (1, 1))])
def test_source_points_are_thinned_out_evenly(name, most, sizes):
    history = sources(2, "mixed")
    model = model_of(name, *FAMILY.target(4), history, max_points=most)
    points = model.conditional.points
    assert points.sizes == sizes
    assert points.task_names == tuple(history)
    for (X, Y, *_), rows in zip(history.values(), points.X.split(sizes), strict=True):
        order = Y.squeeze(-1).argsort()
        places = [(row == X).all(dim=-1)[order].nonzero().item() for row in rows]
        gaps = torch.tensor(places).sort().values.diff()
        assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1
        # The worst and the best, or the one in the middle.
        assert {0, len(Y) - 1} <= set(places) if len(places) > 1 else places == [(len(Y) - 1) // 2]


@pytest.mark.parametrize("name", BLOCKS)
def test_thinned_source_data_are_those_that_were_left(name):
    X, Y = FAMILY.target(4)
    (A, of_A), (B, of_B) = sources(2).values()
    order = of_A.squeeze(-1).argsort()[[0, 3, 6]]
    thinned = model_of(name, X, Y, [(A, of_A), (B, of_B)], max_points=7)
    three = of_B.squeeze(-1).argsort()[torch.tensor([0, 2, 3])]
    expected = model_of(name, X, Y, [(A[order], of_A[order]), (B[three], of_B[three])])
    torch.testing.assert_close(thinned.posterior(TEST_X).mean, expected.posterior(TEST_X).mean)


@pytest.mark.parametrize("name", BLOCKS)
def test_fewer_points_than_tasks_are_refused(name):
    with pytest.raises(ValueError, match="max_points=1 is less than the number of source tasks, 2"):
        model_of(name, *FAMILY.target(4), sources(2), max_points=1)


# ---- the user's parts


def test_kernels_of_the_users_own(name):
    kernels = [ScaleKernel(RBFKernel(ard_num_dims=2)) for _ in range(1 if name == "MTKGP" else 3)]
    model = model_of(name, *FAMILY.target(4), sources(2), covar_modules=kernels)
    assert all(one is other for one, other in zip(model.covar_modules, kernels, strict=True))
    assert_equals_twin(scattered(model))


@pytest.mark.parametrize("name", BLOCKS)
def test_another_kind_of_kernel(name):
    kernels = [MaternKernel(1.5) for _ in range(3)]
    model = model_of(name, *FAMILY.target(4), sources(2), covar_modules=kernels)
    assert (fit_model(model, max_iter=3).posterior(TEST_X).variance > 0).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MTKGP", "needs 1. Give a single kernel for IntrinsicCoregionalizationGP"),
        ("MTGP", "covar_modules= has 2 kernels"),
        ("HGP", "covar_modules= has 2 kernels"),
    ],
)
def test_a_wrong_number_of_kernels_is_refused(name, message):
    kernels = [RBFKernel(), RBFKernel()]
    with pytest.raises(ValueError, match=message):
        model_of(name, *FAMILY.target(2), sources(2), covar_modules=kernels)


# ---- fitting


@pytest.mark.parametrize("name", BLOCKS)
def test_fit_keeps_to_the_bounds(name, monkeypatch):
    """The source noise would leave the paper's bounds: the data have a hundred times as much."""
    paper = replace(joint.SOURCE_HYPERPARAMETERS, noise=RESIDUAL_HYPERPARAMETERS.noise)
    monkeypatch.setattr(joint, "SOURCE_HYPERPARAMETERS", paper)
    history = FAMILY.sources((15,))["task 0"]
    repeated = (history[0][:5].repeat(3, 1), torch.randn(15, 1).double())
    model = fit_model(model_of(name, *FAMILY.target(5), [repeated]), num_restarts=0)
    torch.testing.assert_close(model.source_noise, torch.full((1,), 1e-2, dtype=torch.double))


@pytest.mark.parametrize("name", BLOCKS)
def test_added_loss_term_ends_with_training(name):
    model = build(name)
    marginal_likelihood(model)
    twin, again = deepcopy(model), pickle.loads(pickle.dumps(model))  # with a graph in the term
    (term,), (other,), (third,) = (m.added_loss_terms() for m in (model, twin, again))
    assert torch.equal(term.loss(), other.loss())
    assert torch.equal(term.loss(), third.loss())
    assert not other.loss().requires_grad
    model.eval()
    assert list(model.added_loss_terms()) == []


# ---- what is remembered, when


def count_factorizations(model, monkeypatch):
    calls = []
    kind = type(model.conditional)
    original = kind._factorize
    monkeypatch.setattr(kind, "_factorize", lambda self: calls.append(1) or original(self))
    return calls


@pytest.mark.parametrize("name", BLOCKS)
def test_source_factor_is_reused(name, monkeypatch):
    model = build(name)
    calls = count_factorizations(model, monkeypatch)
    model.posterior(TEST_X)
    model.posterior(FAMILY.inputs(3, 2))
    more = model.condition_on_observations(TEST_X[:2], FAMILY.value(TEST_X[:2]))
    more.posterior(TEST_X)
    deepcopy(model).posterior(TEST_X)
    assert len(calls) == 1


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("way", ["initialize", "in place", "state_dict", "data", "double"])
def test_source_factor_follows_the_hyperparameters(name, way):
    model, other = build(name), scattered(build(name), seed=1)
    model.posterior(TEST_X)
    if way == "state_dict":
        model.load_state_dict(other.state_dict())
    elif way == "double":
        model.float().double()
    else:
        for key, parameter in model.named_parameters():
            value = other.get_parameter(key).detach()
            if way == "in place":
                with torch.no_grad():
                    parameter.copy_(value)
            elif way == "data":
                parameter.data.copy_(value)
            else:
                model.initialize(**{key: value})
    model.train()  # GPyTorch's own caches go only then
    assert_equals_twin(model.eval())


@pytest.mark.parametrize("name", BLOCKS)
def test_other_source_data_can_be_loaded(name):
    other_sources = {key: (X, Y.flip(0)) for key, (X, Y) in sources(2).items()}
    other = scattered(model_of(name, *FAMILY.target(0), other_sources))
    model = build(name, n=0)
    twin = deepcopy(model)
    before = twin.posterior(TEST_X).mean
    model.posterior(TEST_X)
    model.load_state_dict(other.state_dict())
    torch.testing.assert_close(model.posterior(TEST_X).mean, other.posterior(TEST_X).mean)
    assert torch.equal(twin.posterior(TEST_X).mean, before)


@pytest.mark.parametrize(
    ("model_class", "names"),
    [(JointScaMLGP, "task 'task 1'"), (JointHierarchicalGP, "tasks 'task 0', 'task 1'")],
)
def test_a_failed_factorization_names_its_tasks(model_class, names):
    model = model_class(*FAMILY.target(2), sources(2))
    model.covar_modules[1].raw_outputscale.data.fill_(torch.nan)
    with pytest.raises(InputDataError, match=f"source {names} is not positive definite"):
        model.posterior(TEST_X)


def test_a_fit_recovers_from_a_failed_factorization():
    model = JointScaMLGP(*FAMILY.target(2), sources(2)).train()
    model.covar_modules[1].raw_outputscale.data.fill_(torch.nan)
    with pytest.raises(NanError):  # which BoTorch's optimizers answer with a smaller step
        model(*model.train_inputs)


# ---- without target points: fits to the source data alone


def source_objective(model):
    mll = SourceMarginalLogLikelihood(model.likelihood, model).train()
    return mll(model(*model.train_inputs), model.train_targets)


def test_the_sources_are_fitted(name):
    model = build(name, n=0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    start = source_objective(model)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    options = {"options": {"maxiter": 5}}
    assert fit_gpytorch_mll(mll, num_restarts=0, optimizer_kwargs=options) is mll
    assert not model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    changed = {key for key, value in model.state_dict().items() if not value.equal(before[key])}
    assert any("data_kernels.0" in key for key in changed)
    assert any("conditional.noise" in key for key in changed)
    # What relates the target to the sources, and what is its own, is not known yet.
    own = ["task_weights", "raw_factors", "likelihood"]
    own += [] if name.startswith("MT") else [f"data_kernels.{len(model.covar_modules) - 1}."]
    assert not [key for key in changed if any(part in key for part in own)]
    assert source_objective(model) > start


def test_modular_and_joint_fits_are_the_same():
    """ScaML-GP's theorem, once more: there is nothing yet that could tell them apart."""
    X, Y = FAMILY.target(0)
    history = FAMILY.sources((12, 15))
    model = fit_model(JointScaMLGP(X, Y, history, hyperparameters="paper"))
    found = model.posterior(TEST_X)
    expected = ScaMLGP(X, Y, SourceGPs.fit(history), hyperparameters="paper").posterior(TEST_X)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(found.variance, expected.variance, rtol=1e-3, atol=1e-3)


def test_the_objective_is_that_of_the_sources(name):
    model = build(name, n=0)
    hyperparameters = sum(
        prior.log_prob(closure(module)).sum()
        for _, module, prior, closure, _ in model.named_priors()
    )
    expected = (JointTwin(model).log_likelihood() + hyperparameters) / sum(SIZES[2])
    torch.testing.assert_close(source_objective(model), expected, rtol=1e-8, atol=1e-8)
