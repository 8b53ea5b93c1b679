from __future__ import annotations

import pytest
import torch

from botorch_transfer import Hyperprior, HyperpriorGP, SourceGPs
from botorch_transfer.ax import domain_from_ax, encode_history
from botorch_transfer.ax.experiments import experiment_of
from botorch_transfer.data import default_context
from tests.ax.conftest import mixed_space, plain_space


def test_every_way_to_say_the_space(make_client, runs):
    client = make_client()
    expected = encode_history(plain_space(), runs, "loss")
    for space in (client, experiment_of(client), experiment_of(client).search_space):
        found = encode_history(space, runs, "loss")
        for task, data in expected.source_data.items():
            assert all(map(torch.equal, found.source_data[task], data))
        assert torch.equal(found.input_transform.bounds, expected.input_transform.bounds)


def test_priors_of_it_know_the_transform(runs, tmp_path):
    encoded = encode_history(plain_space(), runs, "loss", goal="min")
    prior = SourceGPs.fit(
        encoded.source_data, input_transform=encoded.input_transform, num_restarts=0
    )
    prior.save(tmp_path / "prior.safetensors")
    loaded = SourceGPs.load(tmp_path / "prior.safetensors").input_transform
    assert torch.equal(loaded.bounds, torch.tensor([[-2.0, -5.0], [3.0, 1.0]]).double())


def test_domains_have_the_context_of_ax_inputs(mixed_runs):
    domain = domain_from_ax(mixed_space(), mixed_runs, "loss", goal="min", name="mixed")
    assert domain.discrete_dims == (1,)
    torch.testing.assert_close(domain.context, default_context(5, [1]))
    assert domain.task_names == ["monday", "tuesday"]
    X = domain.datasets[0].X[:3]
    hyperprior = Hyperprior.fit([domain], kind="universal")
    model = HyperpriorGP(X, domain.datasets[0].Y[:3], hyperprior, context=domain.context)
    assert model.posterior(X).mean.isfinite().all()


def test_goal_is_checked(runs):
    with pytest.raises(ValueError, match="goal"):
        encode_history(plain_space(), runs, "loss", goal="low")
