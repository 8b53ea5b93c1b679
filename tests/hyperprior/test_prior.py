"""Hyperpriors: learning them in two steps, asking, drawing, saving."""

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.transforms.input import Normalize
from gpytorch.priors import GammaPrior, NormalPrior, UniformPrior

from botorch_transfer.data import Domain, default_context
from botorch_transfer.hyperprior.fit import fit_gamma
from botorch_transfer.outcome_transforms import PooledStandardize
from botorch_transfer.pretraining import Hyperprior, NetworkOptions, SourceGPs
from tests.gp.tasks import draw_data
from tests.hyperprior.domains import draw_domain, draw_domains
from tests.hyperprior.hyperpriors import KINDS, assert_equal_states, fit, specified

# ---------------------------------------------------------------------------------------- two steps


def test_distributions_are_the_best_fits_of_the_estimates():
    found = fit()
    estimates = found.estimates
    for name in ("outputscale", "noise"):
        prior = found.priors[name]
        expected = fit_gamma(getattr(estimates, name))
        torch.testing.assert_close(torch.stack([prior.concentration, prior.rate]), expected)
    constant = found.priors["constant"]
    torch.testing.assert_close(constant.loc, estimates.constant.mean())
    torch.testing.assert_close(constant.scale, estimates.constant.std(correction=0))
    lengthscale = found.lengthscale_prior(7)
    assert len(estimates.lengthscale) == 6
    expected = fit_gamma(estimates.lengthscale)
    torch.testing.assert_close(torch.stack([lengthscale.concentration, lengthscale.rate]), expected)


@pytest.mark.parametrize(
    ("kind", "kernel"), [("mphd", "matern52"), ("universal", "matern32"), ("empirical", "matern32")]
)
def test_kernels_are_the_papers(kind, kernel):
    assert fit(kind).kernel == kernel
    assert fit(kind, kernel="rbf").kernel == "rbf"


def test_contexts_matter_to_mphd():
    discrete = [
        draw_domain([0.1, 2.0], sizes=(25, 25), seed=seed, discrete_dims=[0]) for seed in range(4)
    ]
    network = NetworkOptions(num_steps=150, learning_rate=4e-2)
    found = fit("mphd", discrete, network=network)
    prior = found.lengthscale_prior(2, default_context(2, [1]))
    assert isinstance(prior, GammaPrior)
    assert prior.mean[1] < 0.5 * prior.mean[0]


def test_one_domain_gives_broad_distributions(caplog):
    found = fit("universal", [draw_domain([0.3, 0.3])])
    assert "differ too little" in caplog.text
    for name in ("outputscale", "noise"):
        prior = found.priors[name]
        assert prior.concentration == 2
        torch.testing.assert_close(prior.mean, getattr(found.estimates, name)[0])
    scale = found.estimates.outputscale.sqrt()
    torch.testing.assert_close(found.priors["constant"].scale.reshape(1), scale)


def test_units_of_a_domain_do_not_matter_to_the_others():
    domains = draw_domains()
    data = [(task.X, 1e4 * task.Y + 7) for task in domains[0].datasets]
    moved = [Domain(data, name="one"), *domains[1:]]
    left, right = fit(domains=moved), fit()
    for name, tensor in left.state_dict().items():
        if "outcome" not in name:
            torch.testing.assert_close(tensor, right.state_dict()[name], rtol=1e-3, atol=1e-5)


def test_a_state_of_other_domains_is_refused():
    domains = draw_domains()
    found = fit(domains=domains)
    other = fit(domains=[draw_domain([0.3], name="1", seed=1), *domains[1:]])
    with pytest.raises(RuntimeError, match="the task '1', but this Hyperprior has the task 'one'"):
        found.load_state_dict(other.state_dict())
    found.load_state_dict(fit(domains=domains).state_dict())


def test_a_shared_transform_is_inherited():
    def domain(upper):
        bounds = torch.tensor([[0.0, 0.0], [upper, upper]], dtype=torch.double)
        return draw_domain([0.3, 0.4], input_transform=Normalize(2, bounds=bounds))

    assert fit(domains=[domain(2.0), domain(2.0)]).input_transform is not None
    assert fit(domains=[domain(2.0), domain(3.0)]).input_transform is None
    assert fit(domains=[domain(2.0), draw_domain([0.3])]).input_transform is None


# ------------------------------------------------------------------------------------------ refused


def test_what_is_no_domain_is_refused():
    with pytest.raises(InputDataError, match="one or more Domain objects"):
        Hyperprior.fit([])
    with pytest.raises(InputDataError, match="put a single domain into a list"):
        Hyperprior.fit(draw_domain([0.3]))
    with pytest.raises(InputDataError, match=r"a domain for each search space by Domain\("):
        Hyperprior.fit(list(draw_data([4]).values()))
    with pytest.raises(InputDataError, match="Two domains have the name 'lab'"):
        Hyperprior.fit([draw_domain([0.3], name="lab"), draw_domain([0.4], name="lab")])
    with pytest.raises(InputDataError, match="contexts differ in size"):
        Hyperprior.fit([draw_domain([0.3]), draw_domain([0.3], context=torch.zeros(1, 4))])
    with pytest.raises(InputDataError, match="contexts of one size for all domains"):
        Hyperprior.fit([draw_domain([0.3], context=torch.zeros(1, size)) for size in (1, 2)])
    with pytest.raises(InputDataError, match="put a single domain into a list"):
        Hyperprior.fit(draw_data([4]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "mhpd"}, "Unknown kind 'mhpd': choose one of 'mphd'"),
        ({"kernel": "cosine"}, "Unknown kernel 'cosine'"),
        ({"outcome_scale": "pooled"}, "'pooled': choose one of 'per_task', 'raw'"),
        ({"outcome_scale": "log"}, "Unknown outcome_scale 'log'"),
    ],
)
def test_unfit_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Hyperprior.fit(draw_domains(), **options)


@pytest.mark.parametrize("prior", [NormalPrior(1.0, 0.1), UniformPrior(-1.0, 1.0)])
@pytest.mark.parametrize("name", ["lengthscale", "outputscale", "noise"])
def test_positive_hyperparameters_need_positive_distributions(name, prior):
    with pytest.raises(ValueError, match=f"hyperprior of the {name} must allow positive values"):
        specified(**{name: prior})


def test_kinds_are_checked():
    priors = {name: GammaPrior(2.0, 4.0) for name in ("outputscale", "noise")}
    with pytest.raises(ValueError, match="Unknown kind 'Empirical': choose one of"):
        Hyperprior("Empirical", "matern52", priors)
    with pytest.raises(ValueError, match="needs the hyperparameters of each domain: give"):
        Hyperprior("empirical", "matern52", priors)


def test_a_positive_constant_is_refused():
    with pytest.raises(ValueError, match="of the constant mean must allow negative values: give"):
        specified(constant=GammaPrior(2.0, 4.0))


def test_raw_inputs_of_a_domain_are_told():
    X = torch.rand(6, 2, dtype=torch.double)
    with pytest.warns(InputDataWarning, match="the domain 'lab' are not contained in the unit"):
        Hyperprior.fit([Domain([(300 * X, X[:, :1])], name="lab")], "universal", num_restarts=0)


@pytest.fixture(scope="module", params=KINDS)
def hyperprior(request) -> Hyperprior:
    return fit(request.param)


# ---------------------------------------------------------------------------------------- contexts


def test_contexts_of_the_domains_own():
    domains = [
        draw_domain([0.3, 0.5], context=torch.tensor([[1.0, 0.0, 2.0]] * 2)),
        draw_domain([0.2], context=torch.tensor([[0.0, 1.0, 3.0]])),
    ]
    found = fit("mphd", domains)
    assert found.lengthscale_prior(4, torch.zeros(4, 3)).concentration.shape == (4,)
    with pytest.raises(InputDataError, match="so it needs the target's context"):
        found.lengthscale_prior(4)
    with pytest.raises(InputDataError, match="inputs, which need 3 numbers each"):
        found.lengthscale_prior(4, torch.zeros(4, 2))


@pytest.mark.parametrize("context", [torch.zeros(3, 4), torch.zeros(4)])
def test_contexts_of_another_target_are_refused(hyperprior, context):
    if hyperprior.kind == "empirical":
        pytest.skip("it has no distribution of lengthscales")
    with pytest.raises(InputDataError, match="the target has 4 inputs"):
        hyperprior.lengthscale_prior(4, context)


# ------------------------------------------------------------------------------------------ drawing


def test_draws_have_the_hyperpriors_moments():
    draws = specified().sample(20_000, dim=3, seed=1)
    assert draws.lengthscale.shape == (20_000, 3)
    close = {"rtol": 0.03, "atol": 0}
    third = torch.full((3,), 1 / 3, dtype=torch.double)
    torch.testing.assert_close(draws.lengthscale.mean(dim=0), third, **close)
    correlation = torch.corrcoef(draws.lengthscale.mT) - torch.eye(3)
    assert correlation.abs().max() < 0.03
    for name, mean, std in (
        ("constant", 2.0, 0.5),
        ("outputscale", 0.5, 8**-0.5),
        ("noise", 5.05e-3, 9.9e-3 / 12**0.5),
    ):
        tensor = getattr(draws, name)
        assert float(tensor.mean()) == pytest.approx(mean, rel=0.03)
        assert float(tensor.std()) == pytest.approx(std, rel=0.05)


def test_draws_follow_contexts():
    found = fit("mphd")
    prior = found.lengthscale_prior(2, default_context(2, [0]))
    draws = found.sample(20_000, 2, default_context(2, [0]))
    torch.testing.assert_close(draws.lengthscale.mean(dim=0), prior.mean, rtol=0.1, atol=0)


def test_empirical_draws_are_estimates():
    found = fit("empirical")
    estimates, draws = found.estimates, found.sample(200, dim=4)
    shared = torch.stack([draws.constant, draws.outputscale, draws.noise], dim=-1)
    expected = torch.stack([estimates.constant, estimates.outputscale, estimates.noise], dim=-1)
    assert (shared.unsqueeze(1) == expected).all(dim=-1).any(dim=-1).all()
    assert torch.isin(draws.lengthscale, estimates.lengthscale).all()
    assert len(draws.lengthscale.unique()) == 6


def test_a_seed_decides(hyperprior):
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    first, same, other = (hyperprior.sample(5, 2, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(first.lengthscale, same.lengthscale)
    assert not torch.equal(first.lengthscale, other.lengthscale)


# ---------------------------------------------------------------------------------- what it is like


def test_outcome_transforms(hyperprior):
    transform = hyperprior.default_outcome_transform(torch.Size([2]))
    assert isinstance(transform, PooledStandardize)
    estimates = hyperprior.estimates
    none, _ = transform(torch.zeros(2, 0, 1, dtype=torch.double))
    assert none.shape == (2, 0, 1)
    torch.testing.assert_close(transform.means[0, 0, 0], estimates.outcome_mean.mean())
    spread = estimates.outcome_std.square().mean().sqrt()
    torch.testing.assert_close(transform.stdvs[1, 0, 0], spread)
    assert specified().default_outcome_transform(torch.Size()) is None
    standardized = specified(outcome_scale="per_task").default_outcome_transform(torch.Size())
    standardized(torch.zeros(0, 1))
    assert (standardized.means, standardized.stdvs) == (0, 1)


# ------------------------------------------------------------------------------------------- saving


def test_other_hyperpriors_are_saved_too(tmp_path):
    path = tmp_path / "hyperprior.safetensors"
    bounds = torch.tensor([[0.0, 0.0], [2.0, 3.0]], dtype=torch.double)
    raw = draw_domain([0.3, 0.4], input_transform=Normalize(2, bounds=bounds))
    options = NetworkOptions(num_steps=3, hidden=(4,), bounded_head=True)
    for original in (specified(), fit("mphd", [raw, raw], network=options)):
        original.save(path)
        assert_equal_states(Hyperprior.load(path), original)
    with pytest.raises(ValueError, match="holds a Hyperprior, not a SourceGPs"):
        SourceGPs.load(path)


def test_no_observation_is_saved(tmp_path):
    path = tmp_path / "hyperprior.safetensors"
    domains = draw_domains()
    fit(domains=domains).save(path)
    content = path.read_bytes()
    for domain in domains:
        for task in domain.datasets:
            for value in [*task.X.flatten(), *task.Y.flatten()]:
                assert value.numpy().tobytes() not in content
