"""A hyperprior of other search spaces for source GPs, for the population and for a residual."""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior, NormalPrior, UniformPrior

from botorch_transfer import Hyperprior, ScaMLGP, SourceGPs, SourcePopulation
from botorch_transfer.gp.hyperpriors import (
    GPHyperparameters,
    Hyperparameter,
    LogDensityGammaPrior,
    LogDensityLogNormalPrior,
)
from botorch_transfer.hyperprior.models import HyperpriorGP, hyperprior_noise
from botorch_transfer.hyperprior.prior import LEAST_NOISE
from botorch_transfer.population.fit import PopulationObjective
from botorch_transfer.pretraining import clear_memos
from tests.gp.sources import DATA, X, check_predictions, count_fits
from tests.gp.tasks import draw_data
from tests.hyperprior.hyperpriors import fit

GAMMAS = {"lengthscale": (3.0, 6.0), "outputscale": (2.0, 1.5), "noise": (2.0, 100.0)}


def known(kernel="rbf", outcome_scale="per_task", **other) -> Hyperprior:
    priors = {name: GammaPrior(*numbers) for name, numbers in GAMMAS.items()} | other
    return Hyperprior.specified(
        NormalPrior(0.0, 1.0), **priors, kernel=kernel, outcome_scale=outcome_scale
    )


def by_hand() -> GPHyperparameters:
    """What the hyperprior means: MAP by the density of the logarithm, from the mean."""
    parts = {
        name: Hyperparameter(partial(LogDensityGammaPrior, a, b), a / b, 1e-4 * a / b, 1e3 * a / b)
        for name, (a, b) in GAMMAS.items()
    }
    return GPHyperparameters(**parts)


@pytest.fixture(scope="module")
def learned():
    return fit("universal", kernel="rbf")


def test_source_gps_have_the_same_fit_as_with_its_densities():
    options = {"num_restarts": 1, "max_iter": 500}
    found = SourceGPs.fit(DATA, hyperparameters=known(), **options)
    check_predictions(found, SourceGPs.fit(DATA, hyperparameters=by_hand(), **options))
    default = SourceGPs.fit(DATA, **options)
    assert (found.gps.lengthscale - default.gps.lengthscale).abs().max() > 1e-2


def test_raw_estimates_are_brought_to_units_of_standardized_tasks(learned):
    estimates = learned.estimates
    factor = torch.linspace(2.0, 5.0, len(estimates.names), dtype=torch.double)
    raw = replace(
        estimates,
        outputscale=estimates.outputscale * factor.square(),
        noise=estimates.noise * factor.square(),
        outcome_std=factor,
    )
    raw = Hyperprior._from_estimates(raw, "universal", "rbf", None, outcome_scale="raw")
    expected, found = (each.gp_hyperparameters(2) for each in (learned, raw))
    for name in GAMMAS:
        ours, theirs = (getattr(each, name) for each in (found, expected))
        assert ours.start == pytest.approx(theirs.start, rel=1e-4)
        for attribute in ("concentration", "rate"):
            torch.testing.assert_close(
                getattr(ours.prior(), attribute),
                getattr(theirs.prior(), attribute),
                rtol=1e-3,
                atol=0,
            )
    in_raw_units = raw.gp_hyperparameters(2, outcome_scale="raw")
    assert in_raw_units.outputscale.start == pytest.approx(
        float(raw.hyperprior_of("outputscale").mean)
    )


@pytest.mark.parametrize(
    ("hyperprior", "options", "message"),
    [
        (known("matern52"), {}, "give kernel='matern52'"),
        (known(outcome_scale="raw"), {}, "can't be brought to 'per_task'"),
        (known(), {"outcome_scale": "pooled"}, "can't be brought to 'pooled'"),
        (known(), {"outcome_scale": "raw"}, "can't be brought to 'raw'"),
    ],
)
def test_what_cannot_be_translated_is_refused(hyperprior, options, message):
    with pytest.raises(ValueError, match=message):
        SourceGPs.fit(DATA, hyperparameters=hyperprior, **options)


def test_other_refusals(learned):
    with pytest.raises(ValueError, match="no density"):
        SourceGPs.fit(DATA, hyperparameters=learned.refit("empirical"))
    with pytest.raises(ValueError, match="give kernel='rbf'"):
        SourcePopulation.fit(DATA, hyperparameters=learned)
    for prior_class in (SourceGPs, SourcePopulation):
        with pytest.raises(TypeError, match="must be a Hyperprior"):
            prior_class.fit(DATA, hyperparameters="paper")


def test_contexts_have_lengthscales_of_their_own():
    hyperprior = fit("mphd", kernel="rbf")
    own = hyperprior.gp_hyperparameters(2).lengthscale
    prior = own.prior()
    assert isinstance(prior, LogDensityGammaPrior)
    assert prior.batch_shape == (2,)
    draws = own.sample(torch.Size([7, 2]), torch.Generator().manual_seed(0))
    assert draws.shape == (7, 2)
    found = SourceGPs.fit(DATA, kernel="rbf", hyperparameters=hyperprior, num_restarts=1)
    assert found.log_posterior.isfinite().all()


def test_files_and_new_tasks(tmp_path):
    options = {"hyperparameters": known(), "num_restarts": 0}
    found = SourceGPs.fit(DATA, **options)
    found.save(tmp_path / "sources.safetensors")
    check_predictions(SourceGPs.load(tmp_path / "sources.safetensors"), found, tolerance=0.0)
    names = list(DATA)
    first = SourceGPs.fit({name: DATA[name] for name in names[:2]}, **options)
    check_predictions(first.append({names[2]: DATA[names[2]]}, **options), found)


@pytest.mark.usefixtures("nothing_remembered")
def test_equal_hyperpriors_are_fitted_once(monkeypatch):
    clear_memos()
    calls = count_fits(monkeypatch)

    def once(hyperprior):
        return SourceGPs.fit_once(DATA, hyperparameters=hyperprior, num_restarts=0)

    assert once(known()) is once(known())
    number = len(calls)
    assert once(known(noise=GammaPrior(2.0, 50.0))) is not once(known())
    assert len(calls) > number


def test_scaml_gp_has_it_in_its_sources_and_its_residual():
    hyperprior, target = known("matern52"), draw_data([5])["task 0"]
    model = ScaMLGP(*target, DATA, hyperparameters=hyperprior)
    sources = SourceGPs.fit(DATA, kernel="matern52", hyperparameters=hyperprior)
    check_predictions(model.prior, sources, tolerance=0.0)
    residual = model.residual_covar_module
    assert isinstance(residual.base_kernel, MaternKernel)
    prior = residual.base_kernel.lengthscale_prior
    assert isinstance(prior, LogDensityGammaPrior)
    assert (float(prior.concentration), float(prior.rate)) == GAMMAS["lengthscale"]
    # The variance of what the sources don't explain is not that of whole functions.
    assert isinstance(residual.outputscale_prior, LogDensityLogNormalPrior)
    cautious = ScaMLGP(*target, sources)
    torch.testing.assert_close(residual.outputscale, cautious.residual_covar_module.outputscale)
    assert model.likelihood.noise.item() == pytest.approx(0.02)
    new = model.state_dict().keys() - cautious.state_dict().keys()
    assert all("_prior." in name for name in new)  # the hyperprior itself is no part of it


def test_scaml_gp_by_hand_has_the_same_fit():
    hyperprior, target = known("matern52"), draw_data([5])["task 0"]
    sources = SourceGPs.fit(DATA, kernel="matern52", hyperparameters=hyperprior)
    model = ScaMLGP(*target, sources, hyperparameters=hyperprior)
    kernel = deepcopy(model.residual_covar_module)
    likelihood = deepcopy(model.likelihood)
    twin = ScaMLGP(*target, sources, covar_module=kernel, likelihood=likelihood)
    for each in (model, twin):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(each.likelihood, each), num_restarts=0)
    torch.testing.assert_close(model.posterior(X).mean, twin.posterior(X).mean)
    copy = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(copy.posterior(X).mean, model.posterior(X).mean)


def test_screening_knows_the_residual():
    model = ScaMLGP(
        *draw_data([5])["task 0"], DATA, hyperparameters=known("matern52"), max_sources=1
    )
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), num_restarts=0)
    assert (model.weights > 0).sum() == 1


def test_scaml_gp_refuses_other_units():
    sources = SourceGPs.fit(DATA, outcome_scale="raw", num_restarts=0)
    with pytest.raises(ValueError, match="can't be brought to 'raw'"):
        ScaMLGP(*draw_data([5])["task 0"], sources, hyperparameters=known())


def test_population_has_the_moments_of_its_logarithms(monkeypatch):
    objectives = []
    start = PopulationObjective.start
    monkeypatch.setattr(
        PopulationObjective, "start", lambda self: objectives.append(self) or start(self)
    )
    hyperprior = known("matern52", noise=UniformPrior(1e-3, 1e-1))
    found = SourcePopulation.fit(DATA, hyperparameters=hyperprior)
    default = SourcePopulation.fit(DATA)
    assert (found.hyperparameters.lengthscale - default.hyperparameters.lengthscale).norm() > 1e-3
    ours, _ = objectives
    # The penalties differ by those of the common lengthscales and of the noise alone.
    theta = start(ours) + 0.3
    rows = torch.tensor([0])
    values = [each(theta.unsqueeze(0), rows)[0] * len(each.tasks.Y) for each in objectives]
    lengthscale = torch.distributions.Gamma(*torch.tensor(GAMMAS["lengthscale"]).double())
    noise = torch.distributions.Uniform(*torch.tensor([1e-3, 1e-1]).double())
    torch.manual_seed(0)
    penalties = []
    for part, prior, mean, std in (
        (theta[:2], lengthscale, 2**0.5 + 0.5 * torch.tensor(2.0).log(), 3**0.5),
        (theta[6:7], noise, torch.tensor(0.01).log(), 1.5),
    ):
        draws = prior.sample(torch.Size([400_000])).log()
        learned_z = (part - draws.mean()) / draws.std()
        penalties.append(0.5 * (learned_z.square() - ((part - mean) / std).square()).sum())
    assert float(values[0] - values[1]) == pytest.approx(float(sum(penalties)), rel=0.02)


def test_noise_of_a_model_and_of_source_gps_is_the_same():
    hyperprior = known(noise=GammaPrior(2.0, 1e9))
    assert hyperprior.gp_hyperparameters(2).noise.content() == (
        hyperprior_noise(hyperprior).content()
    )
    assert hyperprior_noise(hyperprior).start == pytest.approx(LEAST_NOISE * 2.0 / 1.5)
    model = HyperpriorGP(*draw_data([5])["task 0"], known())
    assert model.likelihood.noise.item() == pytest.approx(known().gp_hyperparameters(2).noise.start)
