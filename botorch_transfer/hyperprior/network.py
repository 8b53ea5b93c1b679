"""MPHD's network: it maps the context of an input to the Gamma distribution of its lengthscale.

Read this for step 2 of MPHD's pre-training [Fan2024mphd]_: the network, the hyperprior it gives a
target, and how it is trained. Training minimizes ``-Σ_j log Gamma(ℓ_j | network(s_j))`` over the
lengthscales ``ℓ_j`` of step 1 and their contexts ``s_j``. That alone is unbounded: a context with a
single lengthscale could get an arbitrarily narrow distribution. Two priors, which are not the
paper's, prevent it. A standard normal prior on the weights shrinks contexts towards a common
distribution. A log-normal prior on the shape of each context keeps distributions broad where a few
estimates happen to be close together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from botorch.optim.core import torch_minimize
from gpytorch.priors import GammaPrior
from torch import Tensor
from torch.distributions import Gamma
from torch.nn import Linear, Module, Sequential, Tanh
from torch.nn.functional import softplus

from botorch_transfer.gp.objective import drop_gradients, gradient_closure
from botorch_transfer.gp.state import freeze


class ContextNetwork(Module):
    r"""A small network that maps a context to a Gamma distribution [Fan2024mphd]_.

    Contexts are standardized by the training data and clipped to their range, so that the network
    does not extrapolate. The outputs are the logarithms of shape and mean relative to ``base``:
    with outputs of zero, all contexts have the Gamma distribution ``base``.

    Args:
        contexts: An ``n x s`` tensor: the contexts of the training data.
        base: A tensor of two: the shape and rate that the outputs are relative to.
        hidden: The widths of the hidden layers, which end in tanh.
        bounded_head: Whether to end in tanh and softplus as the authors' program does. This
            confines shape and rate to (0.31, 1.31), whatever ``base`` is.

    Example:
        >>> contexts = torch.tensor([[1.0, 2.0], [1.0, 5.0]])
        >>> network = ContextNetwork(contexts, base=torch.tensor([3.0, 6.0]))
        >>> shape, rate = network(contexts)
        >>> shape.shape, rate.shape
        (torch.Size([2]), torch.Size([2]))
    """

    offset: Tensor
    scale: Tensor
    lower: Tensor
    upper: Tensor
    base: Tensor

    def __init__(
        self,
        contexts: Tensor,
        base: Tensor,
        hidden: Sequence[int] = (16, 16),
        bounded_head: bool = False,
    ) -> None:
        super().__init__()
        contexts = contexts.detach()
        std = contexts.std(dim=0, correction=0)
        self.register_buffer("offset", contexts.mean(dim=0))
        # A constant feature stays at zero.
        self.register_buffer("scale", torch.where(std > 0, std, 1.0))
        self.register_buffer("lower", contexts.amin(dim=0))
        self.register_buffer("upper", contexts.amax(dim=0))
        self.register_buffer("base", base.detach().to(contexts).clone())
        self.hidden, self.bounded_head = tuple(hidden), bounded_head
        widths = [contexts.shape[-1], *hidden]
        layers = [part for pair in pairwise(widths) for part in (Linear(*pair), Tanh())]
        self.layers = Sequential(*layers, Linear(widths[-1], 2)).to(contexts)

    @property
    def context_size(self) -> int:
        """The number ``s`` of numbers in a context."""
        return self.offset.shape[-1]

    def forward(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the network.

        Args:
            contexts: A ``... x s`` tensor.

        Returns:
            Shapes and rates, two ``...`` tensors.
        """
        clipped = torch.maximum(torch.minimum(contexts, self.upper), self.lower)
        output = self.layers((clipped - self.offset) / self.scale)
        if self.bounded_head:
            shape, rate = softplus(torch.tanh(output)).unbind(dim=-1)
            return shape, rate
        log_shape, log_mean = output.unbind(dim=-1)
        shape = self.base[0] * log_shape.exp()
        return shape, shape * self.base[1] / self.base[0] * (-log_mean).exp()


class ContextGammaPrior(GammaPrior):
    r"""A Gamma hyperprior of ARD lengthscales whose shape and rate depend on each input's context.

    It is an ordinary GPyTorch prior of ``d`` independent Gamma distributions. The network is
    evaluated once, and is not fitted with the model.

    Args:
        network: MPHD's network.
        context: A ``d x s`` tensor: the context of each input.

    Raises:
        ValueError: If the context has another size than the network's contexts.

    Example:
        >>> contexts = torch.tensor([[1.0, 2.0], [1.0, 5.0]])
        >>> network = ContextNetwork(contexts, base=torch.tensor([3.0, 6.0]))
        >>> prior = ContextGammaPrior(network, contexts[[0, 0, 1]])
        >>> kernel = MaternKernel(ard_num_dims=3, lengthscale_prior=prior)
    """

    def __init__(self, network: ContextNetwork, context: Tensor) -> None:
        if context.ndim != 2 or context.shape[-1] != network.context_size:
            raise ValueError(
                f"The context is {tuple(context.shape)}, but the network was trained on contexts "
                f"of {network.context_size} numbers: give a d x {network.context_size} tensor."
            )
        with torch.no_grad():
            shape, rate = network(context.to(network.offset))
        if len(shape) == 1:
            # BoTorch draws starts from a univariate prior in the shape of the hyperparameter.
            shape, rate = shape.squeeze(0), rate.squeeze(0)
        super().__init__(shape, rate)


@dataclass(frozen=True)
class NetworkOptions:
    """Options of MPHD's network and of its training.

    Args:
        hidden: The widths of its hidden layers.
        bounded_head: Whether to confine shape and rate to (0.31, 1.31) as the authors' program
            does.
        num_steps: The number of steps of Adam, each on all lengthscales.
        learning_rate: Adam's learning rate.
        weight_penalty: The factor of half the weights' sum of squares.
        shape_spread: The prior standard deviation of each context's log shape around the common
            one; without effect on a bounded head. The paper's objective is ``weight_penalty=0,
            shape_spread=math.inf``; it overfits few domains.
        seed: The seed of the initial weights.

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


def context_shares(context: Tensor) -> Tensor:
    """Gives the lengthscales of each context equal weights that sum to one.

    Args:
        context: A ``D x s`` tensor.

    Returns:
        A ``D`` tensor: for each row, one over the number of equal rows.

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
        share: The result of :func:`context_shares`, so that the prior of a shape counts once a
            context.
        options: The priors' options. The network's biases have no prior.

    Returns:
        A scalar tensor, differentiable in the network's parameters.
    """
    shape, rate = network(context)
    loss = -Gamma(shape, rate, validate_args=False).log_prob(lengthscale).sum()
    layers = [layer for layer in network.layers if isinstance(layer, Linear)]
    squares = torch.stack([layer.weight.square().sum() for layer in layers]).sum()
    loss = loss + 0.5 * options.weight_penalty * squares
    if network.bounded_head or math.isinf(options.shape_spread):
        return loss
    scaled = (shape / network.base[0]).log() / options.shape_spread
    return loss + 0.5 * (share * scaled.square()).sum()


def fit_network(
    context: Tensor, lengthscale: Tensor, base: Tensor, options: NetworkOptions
) -> ContextNetwork:
    """Trains a network on the estimates of step 1.

    Args:
        context: A ``D x s`` tensor.
        lengthscale: A ``D`` tensor of estimates.
        base: A tensor of two: shape and rate of one Gamma distribution for all lengthscales, which
            the network starts from.
        options: How to train.

    Returns:
        The frozen network.

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
    parameters: dict[str, Tensor] = dict(network.named_parameters())

    def evaluate() -> Tensor:
        loss = network_objective(network, context, lengthscale, share, options)
        loss.backward()
        return loss

    torch_minimize(
        gradient_closure(evaluate, parameters),
        parameters,
        optimizer=partial(torch.optim.Adam, lr=options.learning_rate, fused=True),
        step_limit=options.num_steps,
    )
    drop_gradients(parameters)
    freeze(network)
    return network
