"""Pre-training on an accelerator: CUDA, or the simulated device."""

from functools import partial

import pytest
from torch.testing import assert_close

from botorch_transfer.data import Domain
from botorch_transfer.gp.fit import TaskObjective
from botorch_transfer.models import HyperpriorGP
from botorch_transfer.pretraining import (
    Hyperprior,
    NetworkOptions,
    PretrainedPrior,
    SourceGPs,
    SourceHierarchy,
    SourcePopulation,
    clear_memos,
)
from tests.devices import waits
from tests.families import ShiftedSines

pytestmark = pytest.mark.usefixtures("nothing_remembered")

CPU = ShiftedSines(device="cpu")


@pytest.fixture
def there(device):
    return ShiftedSines(device=device)


def pretrained(preset, objective, sources, **options):
    options = {"steps": 4, "objective": objective, **options}
    return getattr(PretrainedPrior, preset)(2, hidden=(4,)).fit(sources, **options)


def hyperprior(kind, sources, **options):
    domains = [Domain(sources, name="all"), Domain(dict(list(sources.items())[:1]), name="one")]
    network = NetworkOptions(num_steps=3) if kind == "mphd" else None
    return Hyperprior.fit(domains, kind, network=network, num_restarts=0, **options)


FITS = {
    "SourceGPs": partial(SourceGPs.fit, num_restarts=1, max_iter=4),
    "SourceGPs, one chunk a task": partial(SourceGPs.fit, chunk_elements=1, max_iter=4),
    "SourceHierarchy, mean": partial(SourceHierarchy.fit, propagate="mean", max_iter=4),
    "SourceHierarchy, covariance": partial(SourceHierarchy.fit, propagate="covariance", max_iter=4),
    "SourcePopulation": partial(SourcePopulation.fit, max_iter=4),
    "SourcePopulation, distilled": partial(SourcePopulation.fit, max_iter=4, max_inducing=10),
    "HyperBO": partial(pretrained, "hyperbo", "nll"),
    "HyperBO, H-EKL": partial(pretrained, "hyperbo", "nll+ekl"),
    "HyperBO, held out": partial(pretrained, "hyperbo", "nll", hold_out=0.4),
    "FSBO": partial(pretrained, "fsbo", "nll", batch_size=3),
    "ABLR": partial(pretrained, "ablr", "nll"),
    "Hyperprior": partial(hyperprior, "universal", max_iter=4),
    "MPHD": partial(hyperprior, "mphd", max_iter=4),
    "Hyperprior, some points": partial(hyperprior, "universal", fit_points=3, max_iter=4),
}


def sources_of(family, num_tasks=3):
    """Tasks with common inputs, as EKL needs them; the last one has fewer."""
    X = family.inputs(6, seed=3)
    sizes = [6] * (num_tasks - 1) + [4]
    return {
        f"task {shift}": (X[:size], family.value(X[:size], 0.1 * shift))
        for shift, size in enumerate(sizes)
    }


@pytest.mark.parametrize("name", FITS)
def test_priors_are_those_of_the_cpu(name, there, tmp_path):
    ours, expected = (FITS[name](sources_of(family)) for family in (there, CPU))
    state = ours.state_dict()
    assert {tensor.device.type for tensor in state.values()} == {there.device}
    close = 1e-6 if there.device == "cuda" else 1e-10  # a GPU's rounding errors, once optimized
    for key, tensor in expected.state_dict().items():
        assert_close(state[key].cpu(), tensor, rtol=close, atol=close, equal_nan=True, msg=key)
    ours.save(tmp_path / "prior")
    loaded = type(ours).load(tmp_path / "prior", device=there.device)
    assert {tensor.device.type for tensor in loaded.state_dict().values()} == {there.device}
    assert {t.device.type for t in type(ours).load(tmp_path / "prior").buffers()} == {"cpu"}


def test_hyperpriors_are_used_where_they_are(there):
    prior = FITS["MPHD"](sources_of(there))
    assert len(prior.estimates.lengthscale) == 4
    posterior = HyperpriorGP(*there.target(3), prior).posterior(there.inputs(2))
    assert posterior.mean.device.type == there.device


# The fit, its number of steps, and how often a step may wait: for the loss with its gradient, and
# for whether each Cholesky factorization failed.
STEPS = {
    "HyperBO": (partial(pretrained, "hyperbo", "nll"), "steps", 2),
    "HyperBO, H-EKL": (partial(pretrained, "hyperbo", "nll+ekl"), "steps", 3),
    "ABLR": (partial(pretrained, "ablr", "nll"), "steps", 2),
}


@pytest.mark.parametrize("name", STEPS)
def test_tasks_cost_no_waits_in_a_step(name, there):
    fit, steps, most = STEPS[name]
    counts = []
    for num_tasks in (3, 6):
        totals = []
        for number in (3, 5):
            clear_memos()
            run = partial(fit, sources_of(there, num_tasks), **{steps: number})
            totals.append(waits(run).total())
        counts.append((totals[1] - totals[0]) / 2)
    assert counts[0] == counts[1] <= most


def test_tasks_cost_no_waits_in_a_fit_of_source_gps(there, monkeypatch):
    evaluate, counts = TaskObjective.__call__, {}

    def counted(objective, theta, index):
        results = []
        found = waits(lambda: results.append(evaluate(objective, theta, index))).total()
        counts.setdefault(len(objective.tasks.X), set()).add(found)
        return results[0]

    monkeypatch.setattr(TaskObjective, "__call__", counted)
    for num_tasks in (3, 6):
        SourceGPs.fit(sources_of(there, num_tasks), num_restarts=0, max_iter=4)
    # The priors' coefficients go to the device at the first evaluation.
    assert min(counts[3]) == min(counts[6]) <= 3
    assert max(counts[3]) == max(counts[6]) <= 5
