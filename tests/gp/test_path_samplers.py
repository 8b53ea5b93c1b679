import pytest
import torch
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.thompson_sampling import PathwiseThompsonSampling
from botorch.acquisition.utils import get_optimal_samples
from botorch.models.transforms.input import Normalize
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.sampling.pathwise import (
    draw_kernel_feature_paths,
    draw_matheron_paths,
    get_matheron_path_model,
)
from gpytorch.distributions import MultivariateNormal
from gpytorch.priors import GammaPrior

from botorch_transfer import (
    FullyBayesianHyperpriorGP,
    GuardedTransferGP,
    MeanHierarchicalGP,
    RankWeightedGP,
    SourceGPs,
    SourceHierarchy,
    TwoStageTransferGP,
)
from botorch_transfer.average.base import AveragedPath
from botorch_transfer.gp.paths import ModelPath, RescaledPath
from tests import members
from tests.families import ShiftedSines
from tests.gp.drawn_functions import assert_moments
from tests.models.contract import bounds

FAMILY = ShiftedSines()

PRIOR = SourceGPs.fit(FAMILY.sources(), num_restarts=0)

TEST_X = FAMILY.inputs(4, seed=5)

NUM_PATHS = torch.Size([1500])

CLASSES = [RankWeightedGP, TwoStageTransferGP]

#: Of the three sources, and the target's own GP last.
SHARES = [[0.5, 0.2, 0.1, 0.2], [0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def build(model_class, n, shares=SHARES[0]):
    model = model_class(*FAMILY.target(n), PRIOR).eval()
    model.ensemble_weights.set(torch.tensor(shares, dtype=torch.double))
    return model


# The contract draws with the weights that a fit leaves.
@pytest.mark.parametrize(("n", "shares"), [(0, SHARES[0]), *((3, shares) for shares in SHARES)])
@pytest.mark.parametrize("model_class", CLASSES)
def test_moments_with_any_weights(model_class, n, shares):
    model = build(model_class, n, shares)
    draws = draw_matheron_paths(model, NUM_PATHS)(TEST_X)
    assert_moments(draws, model.posterior(TEST_X), tolerance=0.15)


@pytest.mark.parametrize("model_class", CLASSES)
def test_moments_of_prior_paths(model_class):
    draws = draw_kernel_feature_paths(build(model_class, 3), NUM_PATHS)(TEST_X)
    assert_moments(draws, build(model_class, 0).posterior(TEST_X), tolerance=0.15)


def test_sources_deviate_where_they_are_part_of_the_covariance():
    ours, theirs = (draw_matheron_paths(build(c, 3), torch.Size([2]))["own units"] for c in CLASSES)
    assert set(ours.paths) == {"own", "sources"}
    assert isinstance(theirs, RescaledPath)


def test_without_points_the_prior_is_all():
    model = build(RankWeightedGP, 0)
    torch.manual_seed(1)
    prior = draw_kernel_feature_paths(model, torch.Size([3]))(TEST_X)
    torch.manual_seed(1)
    assert torch.equal(draw_matheron_paths(model, torch.Size([3]))(TEST_X), prior)


def guarded(n, weight, inverted=False):
    X, Y = FAMILY.target(n)
    model = GuardedTransferGP(X, 100 - Y if inverted else Y, PRIOR).eval()
    model.transfer_weight.data.fill_(weight)
    return model


# The contract draws with the weight that a fit leaves, which is close to one.
@pytest.mark.parametrize(("n", "weight"), [(0, 0.3), (3, 0.0), (3, 0.3), (3, 1.0)])
def test_moments_with_any_weight(n, weight):
    model = guarded(n, weight, inverted=True)
    draws = draw_matheron_paths(model, NUM_PATHS)(TEST_X)
    assert_moments(draws, model.posterior(TEST_X), tolerance=0.15)


def test_moments_of_guarded_prior_paths():
    draws = draw_kernel_feature_paths(guarded(3, 0.4), NUM_PATHS)(TEST_X)
    assert_moments(draws, guarded(0, 0.4).posterior(TEST_X), tolerance=0.15)


class Predicted(ModelPath):
    """A model's mean."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).mean


def test_which_model_is_right_is_drawn_once_a_function():
    model = guarded(3, 0.5, inverted=True)
    means = [Predicted(each) for each in model.members.values()]
    path = AveragedPath(model, means, torch.Size([200]), prior=False)
    with torch.no_grad():
        draws, (transfer, plain) = path(TEST_X), (mean(TEST_X) for mean in means)
    # Draws that do not deviate from their means lie on one line through these.
    side = (draws - 0.5 * (transfer + plain)) / (transfer - plain)
    torch.testing.assert_close(side, side[:, :1].expand_as(side))
    assert side[:, 0].std() == pytest.approx(0.5, abs=0.1)


STACK = SourceHierarchy.fit(FAMILY.sources(), propagate="mean", num_restarts=0)

NUM_COMBINED = torch.Size([1000])


def combined(n, weight=0.3):
    return MeanHierarchicalGP(*FAMILY.target(n), STACK, deviation_weight=weight).eval()


@pytest.mark.parametrize("n", [0, 3])
def test_moments(n):
    posterior = combined(n).posterior(TEST_X)
    ratio = posterior.variance / combined(n, None).posterior(TEST_X).variance
    assert ((ratio - 1).abs() > 0.3).any()  # or the exact model's draws would do
    paths = draw_matheron_paths(combined(n), NUM_COMBINED)
    assert_moments(paths(TEST_X), posterior, tolerance=0.15)


def test_moments_of_combined_prior_paths():
    model, expected = combined(3), combined(0)
    expected.outcome_transform = model.outcome_transform  # else it standardizes without the target
    draws = draw_kernel_feature_paths(model, NUM_COMBINED)(TEST_X)
    assert_moments(draws, expected.posterior(TEST_X), tolerance=0.15)


# ------------------------------------------------------------ the fully Bayesian model's members

NUM_MEMBERS = 8


@pytest.mark.parametrize("n", [0, 4])
def test_paths_of_members_have_their_moments(n):
    """On raw inputs: only they show that the transform is applied once."""
    transform = Normalize(2, bounds=torch.tensor([[-5.0, 100.0], [5.0, 300.0]]).double())
    X, Y = members.data(n)
    model = FullyBayesianHyperpriorGP(
        transform.untransform(X),
        Y,
        members.hyperprior(noise=GammaPrior(20.0, 100.0)),
        input_transform=transform,
        num_samples=64,
        num_members=3,
    ).eval()
    points = transform.untransform(TEST_X)
    draws = draw_matheron_paths(model, NUM_PATHS)(points)
    exact = model.posterior(points).distribution
    for index in range(3):
        mvn = MultivariateNormal(exact.mean[index], exact.covariance_matrix[index])
        assert_moments(draws[:, index], GPyTorchPosterior(mvn), tolerance=0.15)


@pytest.mark.parametrize("n", [0, 4])
@pytest.mark.parametrize("q", [1, 2])
def test_thompson_samples_are_those_of_single_points(n, q):
    """Also where there are as many points as members."""
    acquisition = PathwiseThompsonSampling(members.build(n).eval())
    X = FAMILY.inputs(NUM_MEMBERS, q, seed=3)
    values = acquisition(X)
    assert values.shape == (NUM_MEMBERS,)
    torch.testing.assert_close(values, torch.cat([acquisition(x) for x in X]))
    draws = acquisition.samples(X.unsqueeze(-2)).squeeze((-1, -2))
    assert draws.shape == (NUM_MEMBERS, q, NUM_MEMBERS)
    chosen = acquisition.ensemble_indices.squeeze(-1).expand(NUM_MEMBERS, q, 1)
    torch.testing.assert_close(values, draws.gather(-1, chosen).squeeze(-1).sum(dim=-1))


@pytest.mark.parametrize("sample_shape", [(), (3,)])
def test_members_may_have_their_own_points(sample_shape):
    """As where BoTorch looks for the optimum of each member's path."""
    model = members.build(4).eval()
    paths = get_matheron_path_model(model, torch.Size(sample_shape), ensemble_as_batch=True)
    X = FAMILY.inputs(5, 2).reshape(5, *[1] * len(sample_shape), 1, 2, 2)
    own = X.expand(5, *sample_shape, NUM_MEMBERS, 2, 2)
    values = paths.posterior(own).mean
    assert values.shape == (5, *sample_shape, NUM_MEMBERS, 2, 1)
    paths._path.set_ensemble_as_batch(False)
    torch.testing.assert_close(paths.posterior(X.squeeze(-3)).mean, values)


def test_joint_entropy_search_averages_over_members():
    model = members.build(4).eval()
    optima = get_optimal_samples(model, bounds(), num_optima=3, raw_samples=16, num_restarts=2)
    assert optima[0].shape == (3, NUM_MEMBERS, 2)
    X = FAMILY.inputs(5, 1)
    alone = []
    for index in range(NUM_MEMBERS):
        one, at = members.build(4, num_members=1).eval(), slice(index, index + 1)
        for parameter, ours in zip(one.parameters(), model.parameters(), strict=True):
            parameter.copy_(ours if ours.shape == parameter.shape else ours[at])
        alone.append(qJointEntropySearch(one, *(values[:, at] for values in optima))(X))
    averaged = qJointEntropySearch(model, *optima)(X)
    torch.testing.assert_close(averaged, torch.stack(alone).mean(dim=0))
