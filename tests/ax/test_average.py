"""The average of several models, ``TransferGP``, in Ax."""

from typing import Any

import numpy as np
import pytest
import torch
from ax.api.client import Client
from ax.exceptions.core import UserInputError
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement

from botorch_transfer import (
    PopulationGP,
    RankWeightedGP,
    ScaMLGP,
    SourceGPs,
    SourcePopulation,
    TransferGP,
)
from botorch_transfer.acquisition import AveragedImprovement, PriorUpperConfidenceBound
from botorch_transfer.average.transfer import member_shares
from botorch_transfer.ax import transfer_generation_strategy
from tests.ax.conftest import FAST, plain_loss, plain_space


def adapter_of(client: Any) -> Any:
    return client._generation_strategy.adapter


def model_of(client: Any) -> Any:
    return adapter_of(client).generator.surrogate.model


def members_of(client: Any) -> list[type]:
    """Of an average, without the plain GP."""
    return [type(member) for member in model_of(client).members.values()][:-1]


def acquisition_of(client: Any) -> Any:
    return adapter_of(client).generator._acquisition


def test_a_history_has_averaged_improvements(make_client, complete, old_clients, runs):
    client = make_client(model=TransferGP, history=old_clients(runs, plain_space()))
    ((C, gamma),) = (config.values() for config in complete(client))
    assert isinstance(acquisition_of(client).acqf, PriorUpperConfidenceBound)
    assert plain_loss({"C": C, "gamma": gamma}, 0.1) < 2
    complete(client)
    acquisition, model = acquisition_of(client), model_of(client)
    assert isinstance(acquisition.acqf, AveragedImprovement)
    assert isinstance(model, TransferGP)
    assert [type(prior) for prior in model.prior.values()] == [SourcePopulation, SourceGPs]
    assert_shares(client, member_shares(-model.train_targets, 3))


def assert_shares(client, expected):
    """In units of the largest values all over the space and at what was observed."""
    acquisition = acquisition_of(client)
    reference = torch.cat([acquisition._spread_out(), acquisition.X_observed])
    parts = torch.stack([part(reference.unsqueeze(-2)) for part in acquisition.acqf.acquisitions])
    offsets = expected.to(parts).log() - parts.amax(dim=-1)
    torch.testing.assert_close(acquisition.acqf._offsets.to(parts), offsets)


def test_batches_and_pending_trials_are_improvements_under_the_average(make_client, complete, runs):
    client = make_client(model=TransferGP, history=runs)
    complete(client)
    pending = list(client.get_next_trials(1).values())
    batch = list(client.get_next_trials(2).values())
    assert isinstance(acquisition_of(client).acqf, AveragedImprovement)
    points = np.log10([list(config.values()) for config in pending + batch])
    distances = np.linalg.norm(points[:, None] - points, axis=-1)[np.triu_indices(3, 1)]
    assert distances.min() > 1e-3


def test_two_objectives(make_client, runs):
    client = make_client(model=TransferGP, objective="-loss, -cost", history=runs)
    for _ in range(2):
        ((trial, config),) = client.get_next_trials(1).items()
        cost = np.log10(config["C"]) + 2
        client.complete_trial(trial, {"loss": plain_loss(config, 0.1), "cost": cost})
    assert isinstance(acquisition_of(client).acqf, qLogNoisyExpectedHypervolumeImprovement)
    assert [type(part) for part in model_of(client).models] == [TransferGP, TransferGP]


@pytest.mark.parametrize(("objective", "sign"), [("-loss", -1.0), ("loss", 1.0)])
def test_shares_follow_the_direction_in_the_order_of_trials(make_client, runs, objective, sign):
    client = make_client(model=TransferGP, objective=objective, history=runs)
    # More than ten trials, whose names have another order.
    losses = [9.0, 8.0, 2.0, *np.linspace(3.0, 6.0, 9)]
    for number, loss in enumerate(losses):
        trial = client.attach_trial({"C": 10.0 ** (number / 3 - 2), "gamma": 0.01})
        client.complete_trial(trial, {"loss": loss})
    client.get_next_trials(1)
    order = np.argsort(model_of(client).train_targets.tolist())
    assert order.tolist() == np.argsort(losses).tolist()
    expected = member_shares(sign * torch.tensor(losses).double(), 3)
    assert_shares(client, expected)


def test_members_are_chosen_by_an_option_that_is_stored(make_client, runs, tmp_path):
    members = {"scaml": ScaMLGP, "population": PopulationGP}
    client = make_client(model=TransferGP, model_options={"members": members}, history=runs)
    ((index, _),) = client.get_next_trials(1).items()
    client.complete_trial(index, {"loss": 2.5})  # stored with all its decimals
    path = str(tmp_path / "average.json")
    client.save_to_json_file(path)
    loaded = Client.load_from_json_file(path)
    points = []
    for each in (client, loaded):
        torch.manual_seed(0)  # of `make_client`
        ((_, config),) = each.get_next_trials(1).items()
        assert members_of(each) == [ScaMLGP, PopulationGP]
        points.append(np.log10(list(config.values())))
    np.testing.assert_allclose(*points, rtol=0, atol=1e-6)


def test_it_is_the_default(make_client, complete, runs):
    client = make_client()
    strategy = transfer_generation_strategy(history=runs, optimizer_options=FAST)
    client.set_generation_strategy(strategy)
    complete(client)
    client.get_next_trials(1)
    assert type(model_of(client)) is TransferGP


def test_options_of_pretraining_are_of_the_members_given(make_client, complete, runs):
    members = {"tasks": PopulationGP, "ranks": RankWeightedGP}
    options = {"model": TransferGP, "history": runs, "model_options": {"members": members}}
    client = make_client(pretraining={"tasks": {"max_inducing": 12}}, **options)
    complete(client)
    client.get_next_trials(1)
    tasks, ranks = model_of(client).prior.values()
    assert (len(tasks.gps.points), sum(ranks.num_points)) == (12, len(runs))
    client = make_client(pretraining={"population": {"max_inducing": 12}}, **options)
    with pytest.raises(UserInputError, match="names 'population', which is not a member"):
        client.get_next_trials(1)
