"""The contract of every model, 5: states, copies, pickles, devices, cross-validation."""

import io
import pickle
from copy import deepcopy

import pytest
import torch
from botorch.cross_validation import batch_cross_validation, gen_loo_cv_folds, loo_cv
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.outcome import Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch.testing import assert_close

from botorch_transfer import FullyBayesianHyperpriorGP, HyperpriorGP, PretrainedGP
from tests.families import SCALE, ShiftedSines
from tests.fits import fit_model
from tests.models.contract import (
    BRIEFLY,
    assert_same_posterior,
    copy_hyperparameters,
    in_users_units,
    load_member,
    noise_in_users_units,
    on_every_model,
    own_units,
    parts,
    variants,
    where,
)

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(5, seed=51)


def move(case, model):
    """Gives a model other hyperparameters than it starts with, without the time of a fit."""
    if case.fit_only or case.ensemble:  # what their fit leaves is more than hyperparameters
        fit_model(model, **BRIEFLY)
        return model
    with torch.no_grad():
        for parameter in filter(lambda parameter: parameter.requires_grad, model.parameters()):
            parameter.add_(0.2 * torch.rand_like(parameter))
    if hasattr(model, "update_weights"):  # they follow the hyperparameters
        model.update_weights()
    return model


def leave_one_out(case, model):
    """The model's own closed form of leave-one-out predictions, noise included."""
    return loo_cv(model).posterior if case.exact else model.loo_posterior()


@variants("n", everywhere=[5], representatives=[0], siblings=[5])
def test_state_dict_round_trip(case, n):
    model, other = move(case, case.target(n)), case.target(n)
    assert other.load_state_dict(model.state_dict()) is None
    assert_same_posterior(other.posterior(TEST_X), model.posterior(TEST_X))


KEEPS_NO_NAMES = (PretrainedGP, HyperpriorGP, FullyBayesianHyperpriorGP)


@where(lambda case: case.model_class not in KEEPS_NO_NAMES and not case.sibling)
def test_a_state_of_other_tasks_is_refused(case):
    sources = FAMILY.sources()
    model, renamed, numbered = (
        case.target(3),
        *(
            case.target(3, prior=case.pretrain(tasks))
            for tasks in ({f"old {k}": sources[k] for k in sources}, list(sources.values()))
        ),
    )
    before = model.posterior(TEST_X)
    with pytest.raises(RuntimeError, match=r"the task 'old .*load the state_dict into an"):
        model.load_state_dict(renamed.state_dict())
    assert_same_posterior(model.posterior(TEST_X), before)
    model.load_state_dict(dict(renamed.state_dict()))  # which knows of no names
    model.load_state_dict(numbered.state_dict())  # whose names only count
    assert_same_posterior(model.posterior(TEST_X), before)


@pytest.mark.parametrize("n", [0, 3])
def test_the_only_outcome_can_be_selected(representative, n):
    model = representative.target(n)
    for index in (0, -1):
        subset = model.subset_output([index])
        assert subset is not model
        assert_same_posterior(subset.posterior(TEST_X), model.posterior(TEST_X))
    for indices in ([1], [0, 0], []):
        with pytest.raises(ValueError, match="has one outcome: idcs"):
            model.subset_output(indices)


@pytest.mark.gaussian
@variants(
    "n, m, known_noise",
    everywhere=[(5, 4, False)],
    representatives=[(0, 5, True), (5, 0, True), (1, 0, False)],
)
def test_state_dict_of_other_data(case, n, m, known_noise):
    """As in Ax, which loads the state of all data into the model of a fold."""
    X, Y = FAMILY.target(5)
    noise = torch.full_like(Y, 0.4) if known_noise else None
    model, other = (
        case.build(X[:size], Y[:size], train_Yvar=None if noise is None else noise[:size])
        for size in (n, m)
    )
    move(case, model).posterior(TEST_X)
    other.posterior(TEST_X)
    other.load_state_dict(deepcopy(model.state_dict()))
    targets = own_units(model, Y[:m]).squeeze(-1)
    own_noise = None if noise is None else other.likelihood.noise_covar.noise
    twin = case.rebuild(model, X[:m], targets, own_noise)
    expected = in_users_units(model, twin.posterior(TEST_X))
    assert_same_posterior(other.posterior(TEST_X), expected)


@on_every_model
def test_states_have_no_shape_of_the_targets(case):
    small, large = case.target(1).state_dict(), case.target(6).state_dict()
    assert {name: tensor.shape for name, tensor in small.items()} == {
        name: tensor.shape for name, tensor in large.items()
    }


def test_loading_leaves_other_models_of_the_prior_alone(case):
    bystander, target = case.target(3), case.target(3)
    before = bystander.posterior(TEST_X)
    state = {
        name: tensor + 0.1 if tensor.is_floating_point() and "prior" in name else tensor
        for name, tensor in target.state_dict().items()
    }
    target.load_state_dict(state)
    after = bystander.posterior(TEST_X)
    assert torch.equal(before.mean, after.mean)
    again = case.target(3).posterior(TEST_X)
    assert torch.equal(before.mean, again.mean)
    assert torch.equal(before.variance, again.variance)


def _deepcopied(model):
    return deepcopy(model)


def _pickled(model):
    return pickle.loads(pickle.dumps(model))


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@variants(
    "copied, n, used",
    everywhere=[(_pickled, 4, True)],
    representatives=[(_deepcopied, 0, False), (_deepcopied, 4, True), (_saved, 0, True)],
)
def test_copies(case, copied, n, used):
    model = move(case, case.target(n))
    if used:
        model.posterior(TEST_X.clone().requires_grad_())
        model.posterior(TEST_X)
    twin, before = copied(model), model.posterior(TEST_X)
    assert_same_posterior(twin.posterior(TEST_X), before, rtol=1e-12)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.add_(0.01)
    twin.train()
    assert not torch.equal(twin.posterior(TEST_X).variance, before.variance)
    model.train()  # forgets what it remembers
    model.eval()
    assert_same_posterior(model.posterior(TEST_X), before, rtol=1e-12)


def test_copies_fit_on_their_own(representative):
    model = representative.target(4)
    twin = deepcopy(model)
    before = model.posterior(TEST_X)
    fit_model(twin, **BRIEFLY)
    assert torch.equal(before.mean, model.posterior(TEST_X).mean)
    assert not torch.equal(before.mean, twin.posterior(TEST_X).mean)


@pytest.mark.filterwarnings("ignore:The model inputs are of type")
def test_a_model_in_use_is_converted(representative):
    model = representative.target(4)
    expected, remembered = model.posterior(TEST_X), parts(model)[0].prediction_strategy
    model.to(TEST_X)  # as acquisitions do at every evaluation
    assert parts(model)[0].prediction_strategy is remembered
    posterior = model.to(torch.float).posterior(TEST_X.float())
    assert_close(posterior.mean.double(), expected.mean, atol=0.03 * SCALE, rtol=0)


@variants("n", everywhere=[4], representatives=[0])
def test_conversion_to_single_precision(case, n):
    model = move(case, case.target(n))
    expected = model.posterior(TEST_X)
    prior = case.prior()
    # Joint models have no prior of their own to move.
    state = prior.state_dict() if isinstance(prior, torch.nn.Module) else {}
    before = {name: tensor.clone() for name, tensor in state.items()}
    single = deepcopy(model).to(torch.float)
    posterior = single.posterior(TEST_X.float())
    assert posterior.mean.dtype == torch.float
    assert {p.dtype for p in single.parameters()} <= {torch.float}
    assert_close(posterior.mean.double(), expected.mean, atol=0.03 * SCALE, rtol=0)
    for name, tensor in before.items():
        own = prior.state_dict()[name]
        assert own.dtype == tensor.dtype, "moving a model moved the prior"
        assert torch.equal(own.nan_to_num(), tensor.nan_to_num())


ONCE = {"max_attempts": 1, "optimizer_kwargs": BRIEFLY["optimizer_kwargs"]}


@pytest.mark.gaussian
@variants("known_noise", everywhere=[False], representatives=[True])
def test_batch_cross_validation(case, known_noise):
    X, Y = FAMILY.target(5)
    noise = torch.full_like(Y, 0.4) if known_noise else None
    folds = gen_loo_cv_folds(X, Y, noise)
    results = batch_cross_validation(
        case.model_class,
        ExactMarginalLogLikelihood,
        folds,
        fit_args=BRIEFLY if known_noise else ONCE,
        model_init_kwargs={"prior": case.prior(), **case.options},
    )
    assert results.posterior.mean.shape == (5, 1, 1)
    for fold in range(5):
        Yvar = None if noise is None else folds.train_Yvar[fold]
        single = case.build(folds.train_X[fold], folds.train_Y[fold], train_Yvar=Yvar)
        load_member(results.model, single, fold)
        expected = single.posterior(folds.test_X[fold])
        assert_close(results.posterior.mean[fold], expected.mean, rtol=1e-6, atol=1e-6)
        assert_close(results.posterior.variance[fold], expected.variance, rtol=1e-4, atol=1e-6)


@pytest.mark.gaussian
@variants(
    "n, known_noise", everywhere=[(4, False)], representatives=[(2, True)], siblings=[(4, False)]
)
def test_leave_one_out(case, n, known_noise):
    X, Y = FAMILY.target(n)
    noise = torch.full_like(Y, 0.4) if known_noise else None
    model = case.build(X, Y, train_Yvar=noise)
    move(case, model).posterior(TEST_X)
    predictions = leave_one_out(case, model)
    targets, own_noise = own_units(model, Y).squeeze(-1), model.likelihood.noise.expand(n)
    for left_out in range(n):
        rows = torch.arange(n, device=X.device) != left_out
        twin = case.rebuild(model, X[rows], targets[rows], own_noise[rows] if known_noise else None)
        latent = twin.posterior(X[left_out : left_out + 1])
        expected = in_users_units(model, latent)
        added = noise[left_out] if known_noise else noise_in_users_units(model)
        mean, variance = predictions.mean[left_out], predictions.variance[left_out]
        assert_close(mean, expected.mean, rtol=1e-5, atol=1e-6)
        assert_close(variance, expected.variance + added, rtol=1e-4, atol=1e-7)


def test_botorchs_leave_one_out_is_right_or_refused(case):
    model = move(case, case.target(4))
    own = model.loo_posterior()
    for mode in (model.train, model.eval):
        if case.exact:
            theirs = loo_cv(mode()).posterior
            assert_close(theirs.mean, own.mean)
            assert_close(theirs.variance, own.variance)
        else:
            message = f"{case.name} is not one exact GP, .*do not apply: call loo_posterior\\(\\)"
            with pytest.raises(UnsupportedError, match=message):
                loo_cv(mode())
    assert torch.equal(own.mean, model.loo_posterior().mean)


def test_an_outcome_transform_of_the_users_own(representative):
    X, Y = FAMILY.target(5)
    model = representative.build(X, Y, outcome_transform=Standardize(1))
    assert isinstance(model.outcome_transform, Standardize)
    assert_close(model.train_targets.mean(), torch.zeros_like(Y[0, 0]))
    twin = representative.build(X, (Y - Y.mean()) / Y.std(), outcome_transform=None)
    copy_hyperparameters(model, twin)
    expected = twin.posterior(TEST_X).mean * Y.std() + Y.mean()
    assert_close(model.posterior(TEST_X).mean, expected)
