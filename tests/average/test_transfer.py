from functools import partial
from itertools import pairwise

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.outcome import Log, Standardize
from gpytorch.kernels import MaternKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood

from botorch_transfer import (
    BoostedHierarchicalGP,
    FullyBayesianHyperpriorGP,
    GuardedTransferGP,
    JointScaMLGP,
    PopulationGP,
    PretrainedGP,
    RankWeightedGP,
    ScaMLGP,
    SequentialHierarchicalGP,
    SourceGPs,
    SourcePopulation,
    TransferGP,
)
from botorch_transfer.average.base import PLAIN_MEMBER, PlainGP
from botorch_transfer.average.transfer import MEMBERS, PATIENCE, member_shares
from botorch_transfer.outcome_transforms import PooledStandardize
from botorch_transfer.pretraining import PretrainedPrior
from tests.families import ShiftedSines
from tests.fits import fit_model

FAMILY = ShiftedSines()
SOURCES = FAMILY.sources()
POPULATION = SourcePopulation.fit(SOURCES)
PRIOR = {"population": POPULATION, "scaml": SourceGPs.fit(SOURCES, num_restarts=0)}
TEST_X = FAMILY.inputs(2, 4, seed=5)


fit = partial(fit_model, num_restarts=0, max_iter=10)


def naive(model, X):
    """The moments of a mixture in the users' units, one entry after another."""
    members = [each.posterior(X) for each in model.members.values()]
    shares = model.shares.tolist()
    mean = sum(p * each.mean for p, each in zip(shares, members, strict=True))
    covariance = 0.0
    for p, each in zip(shares, members, strict=True):
        apart = each.mean - mean
        covariance = covariance + p * (each.distribution.covariance_matrix + apart @ apart.mT)
    return mean, covariance


def assert_naive(model, X):
    posterior, (mean, covariance) = model.posterior(X), naive(model, X)
    torch.testing.assert_close(posterior.mean, mean)
    torch.testing.assert_close(posterior.distribution.covariance_matrix, covariance)
    torch.testing.assert_close(posterior.variance.squeeze(-1), covariance.diagonal(0, -1, -2))


def target(n):
    """Data in other units than the sources', so that no two models have the same."""
    X, Y = FAMILY.target(n)
    return X, 3.0 * Y + 20.0


# ------------------------------------------------------------------------------------------ moments


@pytest.mark.parametrize("n", [0, 1, 5])
def test_moments_are_those_of_the_members_in_the_users_units(n):
    model = fit(TransferGP(*target(n), PRIOR))
    scales = [each.outcome_transform.stdvs.item() for each in model.members.values()]
    if n > 1:
        assert min(abs(a - b) for a, b in pairwise(scales)) > 0.1
    assert_naive(model, TEST_X)
    assert list(map(type, model.members.values())) == [PopulationGP, ScaMLGP, PlainGP]


OTHERS = {
    "one": {"members": {"shgp": SequentialHierarchicalGP}},
    "one that predicts otherwise": {"members": {"bhgp": BoostedHierarchicalGP}},
    "ensemble and joint": {"members": {"rgpe": RankWeightedGP, "joint": JointScaMLGP}},
    "guarded": {"members": {"guarded": GuardedTransferGP, "population": PopulationGP}},
    "options": {
        "members": {
            "scaml": partial(ScaMLGP, covar_module=MaternKernel(ard_num_dims=2).double()),
            "paper": partial(ScaMLGP, hyperparameters="paper"),
        }
    },
    "priors' units": {"outcome_transform": None},
    "the user's": {"outcome_transform": Standardize(1)},
    "not linear": {"outcome_transform": Log()},
    "known noise": {"train_Yvar": torch.full((5, 1), 2.0, dtype=torch.double)},
    "kernel": {"covar_module": MaternKernel(ard_num_dims=2).double()},
    "likelihood": {"likelihood": GaussianLikelihood().double()},
}


@pytest.mark.parametrize("name", OTHERS)
def test_moments_with_other_members_and_options(name):
    model = fit(TransferGP(*target(5), SOURCES, **OTHERS[name]))
    model._shares.fill_(1.0 / model._shares.shape[-1])  # the plain GP's, too
    if name == "not linear":
        model.train()
        for each in (model, *model.members.values()):
            del each.outcome_transform  # the mixture's is taken after mixing
    assert_naive(model, TEST_X)
    X, Y = target(7)
    noise = {"noise": model.likelihood.noise[..., :1].expand(2, 1)} if "noise" in name else {}
    near = model.condition_on_observations(X[5:], Y[5:], **noise)
    assert_naive(near, TEST_X)
    assert torch.equal(near.shares, model.shares)
    assert {each.num_target_points for each in near.members.values()} == {7}


def test_members_get_copies_of_what_is_given():
    likelihood = GaussianLikelihood().double()
    model = TransferGP(*target(3), PRIOR, likelihood=likelihood)
    likelihoods = {id(each.likelihood) for each in (model, *model.members.values())}
    assert len(likelihoods - {id(likelihood)}) == 4
    kernel = MaternKernel(ard_num_dims=2).double()
    model = TransferGP(*target(3), PRIOR, covar_module=kernel)
    assert model.plain.covar_module is model.residual_covar_module is kernel


def test_known_noise_is_in_each_models_units():
    X, Y = target(4)
    Yvar = torch.linspace(1.0, 4.0, 4).double().unsqueeze(-1)
    model = TransferGP(X, Y, PRIOR, Yvar)
    for each in model.members.values():
        expected = Yvar.squeeze(-1) / each.outcome_transform.stdvs.squeeze() ** 2
        torch.testing.assert_close(each.likelihood.noise, expected)
    model.posterior(TEST_X)
    more = model.condition_on_observations(
        *(values[:2] for values in target(4)), noise=model.likelihood.noise[:2].unsqueeze(-1)
    )
    for each, old in zip(more.members.values(), model.members.values(), strict=True):
        torch.testing.assert_close(each.likelihood.noise[4:], old.likelihood.noise[:2])


# ----------------------------------------------------------------------------------- the plain GP


def test_the_plain_model_is_that_of_botorch():
    X, Y = target(6)
    model, plain = TransferGP(X, Y, PRIOR), SingleTaskGP(X, Y)
    own, theirs = model.plain.eval(), plain.eval()
    assert isinstance(own.outcome_transform, PooledStandardize)
    for name, value in (("lengthscale", 0.4), ("mean", 0.1), ("noise", 0.02)):
        for each in (own, plain):
            if name == "lengthscale":
                each.covar_module.lengthscale = value
            elif name == "mean":
                each.mean_module.constant.data.fill_(value)
            else:
                each.likelihood.noise = value
    torch.testing.assert_close(own.posterior(TEST_X).mean, theirs.posterior(TEST_X).mean)
    torch.testing.assert_close(own.posterior(TEST_X).variance, theirs.posterior(TEST_X).variance)
    mlls = [ExactMarginalLogLikelihood(each.likelihood, each).train() for each in (own, plain)]
    values = [
        mll(each(*each.train_inputs), each.train_targets)
        for mll, each in zip(mlls, (own, plain), strict=True)
    ]
    torch.testing.assert_close(*values)  # the same hyperpriors


@pytest.mark.parametrize("n", [0, 1])
def test_few_outcomes_are_standardized_by_the_first_member(n):
    X, Y = target(n)
    members = list(TransferGP(X, Y, PRIOR).members.values())
    plain, first = members[-1].outcome_transform, members[0].outcome_transform
    torch.testing.assert_close(plain.stdvs, first.stdvs)
    torch.testing.assert_close(plain.means, first.means if n == 0 else Y)


def test_with_priors_in_raw_units_the_plain_model_is_standardized_all_the_same():
    prior = {"scaml": SourceGPs.fit(SOURCES, num_restarts=0, outcome_scale="raw")}
    model = TransferGP(*target(5), prior, members={"scaml": ScaMLGP})
    assert not hasattr(model.members["scaml"], "outcome_transform")
    torch.testing.assert_close(model.train_targets.std(), torch.tensor(1.0).double())
    assert_naive(model, TEST_X)
    state = TransferGP(*target(3), prior, members={"scaml": ScaMLGP}).state_dict()
    model.load_state_dict(state)
    torch.testing.assert_close(model.members["scaml"].train_targets, target(5)[1].squeeze(-1))


# ------------------------------------------------------------------------------------------- shares


def test_shares_by_hand():
    Y = torch.tensor([[0.0, 1.0, 0.5, 0.2], [0.0, 0.1, 0.2, 0.3]]).double()
    found = member_shares(Y, num_members=3, patience=6)
    expected = torch.tensor([[2.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).double()
    torch.testing.assert_close(found, expected / expected.sum(-1, keepdim=True))


@pytest.mark.parametrize(
    ("outcomes", "since"), [([], 0), ([3.0], 0), ([1.0, 3.0], 0), ([3.0, 1.0], 1)]
)
def test_shares_of_few_outcomes(outcomes, since):
    other = (1 + since) / PATIENCE
    found = member_shares(torch.tensor(outcomes).double(), 3)
    expected = torch.tensor([1.0, other, other]).double() / (1 + 2 * other)
    torch.testing.assert_close(found, expected)


def test_an_outcome_that_only_equals_the_best_is_no_improvement():
    Y = torch.tensor([1.0, 2.0, 2.0, 2.0])
    torch.testing.assert_close(member_shares(Y, 2), torch.tensor([5.0, 3.0]) / 8)


def test_without_improvement_for_long_all_count_alike():
    Y = torch.arange(20.0).flip(0)
    assert torch.equal(member_shares(Y, 4), torch.full((4,), 0.25))


def test_batches_have_shares_of_their_own():
    X = FAMILY.inputs(2, 3, seed=1)
    Y = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]).double().unsqueeze(-1)
    model = TransferGP(X, Y, PRIOR)
    assert model.improvement_shares.shape == (2, 3)
    together = model.posterior(TEST_X)
    for row in range(2):
        single = TransferGP(X[row], Y[row], PRIOR)
        torch.testing.assert_close(model.improvement_shares[row], single.improvement_shares)
        torch.testing.assert_close(together.mean[row], single.posterior(TEST_X[row]).mean)


def test_shares_are_computed_by_fits_and_kept_in_between():
    X, Y = target(4)
    model = TransferGP(X, Y, PRIOR)
    before = model.improvement_shares.clone()
    model.posterior(TEST_X)
    worse = Y.min() - torch.arange(1.0, 4.0).double().unsqueeze(-1)
    more = model.condition_on_observations(FAMILY.inputs(3, seed=8), worse)
    assert torch.equal(more.improvement_shares, before)
    model.set_train_data(more.train_inputs[0], more.train_targets, strict=False)
    assert torch.equal(model.improvement_shares, before)
    fit(model)
    torch.testing.assert_close(model.improvement_shares.data, member_shares(model.train_targets, 3))
    assert model.improvement_shares[0] < before[0]


@pytest.mark.parametrize(
    ("names", "expected"),
    [("a", [1.0, 0.0]), ("ab", [0.2, 0.8, 0.0]), ("abc", [1 / 9, 4 / 9, 4 / 9, 0.0])],
)
def test_shares_of_the_prediction_are_constants(names, expected):
    X, Y = target(4)
    priors, members = dict.fromkeys(names, PRIOR["scaml"]), dict.fromkeys(names, ScaMLGP)
    model = TransferGP(X, Y, priors, members=members)
    expected = torch.tensor(expected).double()
    torch.testing.assert_close(model.shares, expected)
    model.set_train_data(X, -model.train_targets)
    torch.testing.assert_close(fit(model).shares, expected)
    assert "_shares" not in model.state_dict()


# ------------------------------------------------------------------------------- priors and members


def test_source_data_and_a_mapping_of_priors_are_the_same():
    of_data, of_priors = TransferGP(*target(4), SOURCES), TransferGP(*target(4), PRIOR)
    kinds = {name: type(prior) for name, prior in of_data.prior.items()}
    assert kinds == {"population": SourcePopulation, "scaml": SourceGPs}
    again = TransferGP(*target(4), of_data.prior).posterior(TEST_X)
    assert torch.equal(again.mean, of_data.posterior(TEST_X).mean)
    population, given = (each.prior["population"] for each in (of_data, of_priors))
    assert torch.equal(population.gps.alpha, given.gps.alpha)
    assert given is not PRIOR["population"]  # a view


@pytest.mark.parametrize("name", ["population", "scaml"])
def test_of_a_single_prior_there_are_the_models_that_take_it(name):
    X, Y = target(3)
    model = TransferGP(X, Y, PRIOR[name])
    assert list(model.members) == [name, PLAIN_MEMBER]
    assert model.shares.shape == (2,)
    expected = TransferGP(X, Y, {name: PRIOR[name]}, members={name: MEMBERS[name]})
    assert torch.equal(model.posterior(TEST_X).mean, expected.posterior(TEST_X).mean)


def _refused(error, message, *given, **options):
    with pytest.raises(error, match=message):
        TransferGP(*target(3), *given, **options)


def test_what_is_no_prior_of_the_members_is_refused():
    other, sources = PretrainedPrior.hyperbo(target(3)[0].shape[-1]), PRIOR["scaml"]
    _refused(TypeError, r"members \(population, scaml\) accepts a Pretr", other)
    _refused(ValueError, "prior= has priors for scaml, but the members are", {"scaml": sources})
    members = {"guarded": GuardedTransferGP}
    _refused(ValueError, "for population, scaml, but the members are g", PRIOR, members=members)
    twice = {"population": sources, "scaml": sources}
    _refused(TypeError, "but this model needs a SourcePopulation", twice)


def _no_noise(train_X, train_Y, prior):
    return ScaMLGP(train_X, train_Y, prior)


def test_members_that_do_not_fit_are_refused():
    log = {"population": PopulationGP, "log": partial(ScaMLGP, outcome_transform=Log())}
    mixture = partial(FullyBayesianHyperpriorGP, num_samples=8, num_members=2)
    for error, message, members in (
        (ValueError, "There are no members", {}),
        (TypeError, "members is .*: give a dictionary from names to model classes", [ScaMLGP]),
        (TypeError, "A str object is not a class: use a model class", {"scaml": "ScaMLGP"}),
        (ValueError, "'plain' is reserved for the plain GP", {PLAIN_MEMBER: ScaMLGP}),
        (ValueError, "FullyBayesianHyperpriorGP predicts a mixture", {"averaged": mixture}),
        (ValueError, "member 'log' has its own outcome transform Log: give", log),
    ):
        _refused(error, message, SOURCES, members=members)
    noise, members = torch.ones(3, 1).double(), {"none": _no_noise}
    _refused(ValueError, "has no option 'train_Yvar'", SOURCES, noise, members=members)


def test_members_of_other_priors():
    """Of inputs that a prior does not keep there is no range."""
    prior = {"hyperbo": PretrainedPrior.hyperbo(2, hidden=(4,)), "scaml": PRIOR["scaml"]}
    members = {"hyperbo": PretrainedGP, "scaml": ScaMLGP}
    assert_naive(TransferGP(*target(4), prior, members=members), TEST_X)
    del prior["scaml"], members["scaml"]
    assert TransferGP(*target(3), prior, members=members).source_range() is None
