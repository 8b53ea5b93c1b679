r"""Step 2 of MPHD's pre-training: the network that maps contexts to Gamma distributions.

It minimizes ``-Σ_j log Gamma(ℓ_j | network(s_j))`` over the lengthscales ``ℓ_j`` of step 1 and
their contexts ``s_j`` [Fan2024mphd]_. By itself that is unbounded: a context that just one
lengthscale has could get a Gamma distribution as narrow as the network can make it. A standard
normal prior on the network's weights, half the sum of their squares, keeps contexts alike unless
the estimates say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Linear

from botorch_transfer.hyperpriors.context_network import ContextNetwork


@dataclass(frozen=True)
class NetworkOptions:
    """How MPHD's network is made and trained.

    Args:
        hidden: The widths of its hidden layers.
        bounded_head: Whether to confine shape and rate to (0.31, 1.31) as the authors' program
            does.
        num_steps: The number of steps of Adam, each on all lengthscales.
        learning_rate: Adam's learning rate.
        weight_penalty: The factor of half the weights' sum of squares; zero is the paper's
            objective, which overfits few domains.
        seed: The seed of the network's first weights.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> NetworkOptions(hidden=(8,)).num_steps
        10000
    """

    hidden: tuple[int, ...] = (16, 16)
    bounded_head: bool = False
    num_steps: int = 10_000
    learning_rate: float = 1e-3
    weight_penalty: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.num_steps < 1 or self.weight_penalty < 0 or not self.learning_rate > 0:
            raise ValueError(
                "num_steps and learning_rate must be positive, and weight_penalty not negative."
            )
        if any(width < 1 for width in self.hidden):
            raise ValueError("The widths of the hidden layers must be positive.")


def gamma_negative_log_likelihood(shape: Tensor, rate: Tensor, value: Tensor) -> Tensor:
    """Sums ``-log Gamma(value | shape, rate)``.

    Args:
        shape: An ``n`` tensor of shapes.
        rate: An ``n`` tensor of rates.
        value: An ``n`` tensor of positive values.

    Returns:
        A scalar tensor, differentiable in shapes and rates.

    Example:
        >>> ones = torch.ones(2)
        >>> gamma_negative_log_likelihood(ones, ones, 3 * ones)
        tensor(6.)
    """
    log_density = torch.special.xlogy(shape, rate) - torch.lgamma(shape)
    return -(log_density + torch.special.xlogy(shape - 1, value) - rate * value).sum()


def network_objective(
    network: ContextNetwork, context: Tensor, lengthscale: Tensor, weight_penalty: float
) -> Tensor:
    """Evaluates the objective of step 2.

    Args:
        network: The network.
        context: A ``D x s`` tensor.
        lengthscale: A ``D`` tensor of estimates.
        weight_penalty: The factor of half the weights' sum of squares; biases are free.

    Returns:
        A scalar tensor, differentiable in the network's parameters.
    """
    shape, rate = network(context)
    loss = gamma_negative_log_likelihood(shape, rate, lengthscale)
    weights = [layer.weight for layer in network.layers if isinstance(layer, Linear)]
    squares = torch.stack([weight.square().sum() for weight in weights]).sum()
    return loss + 0.5 * weight_penalty * squares


def fit_network(
    context: Tensor, lengthscale: Tensor, base: Tensor, options: NetworkOptions
) -> ContextNetwork:
    """Trains a network on the estimates of step 1.

    Args:
        context: A ``D x s`` tensor.
        lengthscale: A ``D`` tensor of estimates.
        base: A tensor of two: shape and rate of one Gamma distribution for all lengthscales, from
            which the network starts.
        options: How to train.

    Returns:
        The network, with nothing left to fit.

    Example:
        >>> context = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.double)
        >>> lengthscale = torch.tensor([0.1, 0.2, 0.4], dtype=torch.double)
        >>> base = torch.tensor([3.0, 12.0], dtype=torch.double)
        >>> network = fit_network(context, lengthscale, base, NetworkOptions(num_steps=10))
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(options.seed)
        network = ContextNetwork(context, base, options.hidden, options.bounded_head)
    adam = torch.optim.Adam(network.parameters(), lr=options.learning_rate, fused=True)
    for _ in range(options.num_steps):
        adam.zero_grad()
        network_objective(network, context, lengthscale, options.weight_penalty).backward()
        adam.step()
    return network.freeze()
