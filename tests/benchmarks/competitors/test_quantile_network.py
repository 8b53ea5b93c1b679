from __future__ import annotations

import torch

from benchmarks.competitors.quantile_network import (
    MIN_DEVIATION,
    QuantileNetwork,
    fit_quantile_network,
)


def noisy_line(n=400):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 1, generator=generator, dtype=torch.double)
    error = torch.randn(n, 1, generator=generator, dtype=torch.double)
    return X, 2 * X - 1 + (0.1 + 0.5 * X) * error


def test_mean_and_deviation_are_learned():
    network = fit_quantile_network(*noisy_line(), seed=0, steps=200)
    x = torch.tensor([[0.1], [0.5], [0.9]], dtype=torch.double)
    mean, deviation = network(x)
    torch.testing.assert_close(mean, 2 * x[:, 0] - 1, rtol=0, atol=0.25)
    torch.testing.assert_close(deviation, 0.1 + 0.5 * x[:, 0], rtol=0, atol=0.2)
    assert deviation[0] < deviation[2]


def test_training_follows_from_the_seed_and_leaves_the_global_generator_alone():
    data = noisy_line(50)
    state = torch.get_rng_state()
    first, second, other = (fit_quantile_network(*data, seed=s, steps=5) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    x = torch.rand(3, 1, dtype=torch.double)
    assert torch.equal(first(x)[0], second(x)[0])
    assert not torch.equal(first(x)[0], other(x)[0])
    assert not any(parameter.requires_grad for parameter in first.parameters())


def test_deviations_are_positive():
    network = QuantileNetwork(2).double()
    torch.nn.init.constant_(network.head.bias, -100.0)
    _, deviation = network(torch.rand(4, 5, 2, dtype=torch.double))
    assert deviation.shape == (4, 5)
    assert (deviation >= MIN_DEVIATION).all()
