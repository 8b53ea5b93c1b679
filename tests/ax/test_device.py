"""Ax on an accelerator: ``torch_device`` for the models, their history and the optimizer."""

import pytest
import torch

from tests.ax.conftest import mixed_loss, mixed_space, plain_loss, plain_space

BRIEF = {"num_restarts": 1, "raw_samples": 8, "options": {"maxiter": 2}}


def trials(client, loss):
    """The numbers of the first trials, before and after the first outcome, and names."""
    numbers, names = [], []
    for _ in range(2):
        for trial, config in client.get_next_trials(1).items():
            client.complete_trial(trial, {"loss": loss(config, 0.1)})
            for value in config.values():
                (names if isinstance(value, str) else numbers).append(value)
    return numbers, names


@pytest.mark.parametrize("space", ["plain", "mixed"])
def test_trials_are_those_of_the_cpu(space, make_client, request, device):
    plain = space == "plain"
    runs = request.getfixturevalue("runs" if plain else "mixed_runs")
    make_space, loss = (plain_space, plain_loss) if plain else (mixed_space, mixed_loss)
    found = []
    for name in (device, "cpu"):
        client = make_client(
            make_space(),
            history=runs,
            optimizer_options=BRIEF,
            generator_options={"torch_device": torch.device(name)},
        )
        found.append(trials(client, loss))
        fitted = client._generation_strategy.adapter.generator.surrogate.model
        tensors = [*fitted.parameters(), *fitted.buffers()]
        tensors += [*fitted.train_inputs, fitted.train_targets]
        assert {tensor.device.type for tensor in tensors} == {name}
    (ours, our_names), (expected, names) = found
    assert our_names == names
    assert ours == pytest.approx(expected, rel=1e-5)
