r"""Step 2 of MPHD's pre-training: the network that maps contexts to Gamma distributions.

It minimizes ``-Σ_j log Gamma(ℓ_j | network(s_j))`` over the lengthscales ``ℓ_j`` of step 1 and
their contexts ``s_j`` [Fan2024mphd]_. By itself that is unbounded: a context that just one
lengthscale has could get a Gamma distribution as narrow as the network can make it. Two priors,
which are not the paper's, keep it from that: a standard normal one on the network's weights makes
contexts alike unless the estimates say otherwise, and a log-normal one on each context's shape
makes a few estimates that happen to be close together no reason to be sure of the next one.
"""

from __future__ import annotations

import math
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
        weight_penalty: The factor of half the weights' sum of squares.
        shape_spread: How far the logarithms of contexts' shapes deviate, a priori, from that of the
            shape of all lengthscales; without effect on a bounded head. The paper's objective,
            which overfits few domains, is ``weight_penalty=0, shape_spread=math.inf``.
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
    shape_spread: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        positive = min(self.num_steps, self.learning_rate, self.shape_spread) > 0
        if not positive or self.weight_penalty < 0:
            raise ValueError(
                "num_steps, learning_rate and shape_spread must be positive, and weight_penalty "
                "not negative."
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


def context_shares(context: Tensor) -> Tensor:
    """Divides one among the lengthscales of each context.

    Args:
        context: A ``D x s`` tensor.

    Returns:
        A ``D`` tensor: one over the number of rows that are equal to a row.

    Example:
        >>> context_shares(torch.tensor([[1.0], [2.0], [1.0]]))
        tensor([0.5000, 1.0000, 0.5000])
    """
    _, inverse, count = context.unique(dim=0, return_inverse=True, return_counts=True)
    return 1.0 / count[inverse].to(context)


def network_objective(
    network: ContextNetwork,
    context: Tensor,
    lengthscale: Tensor,
    share: Tensor,
    options: NetworkOptions,
) -> Tensor:
    """Evaluates the objective of step 2.

    Args:
        network: The network.
        context: A ``D x s`` tensor.
        lengthscale: A ``D`` tensor of estimates.
        share: What :func:`context_shares` says: the prior of a shape counts once a context.
        options: The priors; the network's biases are free.

    Returns:
        A scalar tensor, differentiable in the network's parameters.
    """
    shape, rate = network(context)
    loss = gamma_negative_log_likelihood(shape, rate, lengthscale)
    weights = [layer.weight for layer in network.layers if isinstance(layer, Linear)]
    squares = torch.stack([weight.square().sum() for weight in weights]).sum()
    loss = loss + 0.5 * options.weight_penalty * squares
    if network.bounded_head or math.isinf(options.shape_spread):
        return loss
    deviation = (shape / network.base[0]).log() / options.shape_spread
    return loss + 0.5 * (share * deviation.square()).sum()


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
    share = context_shares(context)
    adam = torch.optim.Adam(network.parameters(), lr=options.learning_rate, fused=True)
    for _ in range(options.num_steps):
        adam.zero_grad()
        network_objective(network, context, lengthscale, share, options).backward()
        adam.step()
    return network.freeze()
