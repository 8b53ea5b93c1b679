"""The parametric prior of [Salinas2020quantile], Section 4: what score a point has on any task.

    z | x ~ N(μ(x), σ(x)²),    μ = w_μᵀ h(x) + b_μ,    σ = softplus(w_σᵀ h(x) + b_σ)

with a network `h` learned by the Gaussian likelihood of all source tasks' scores together.

[Salinas2020quantile]: D. Salinas, H. Shen, V. Perrone. A Quantile-based Approach for Hyperparameter
Transfer Learning. ICML 2020.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from botorch.utils.sampling import manual_seed
from torch import Tensor, nn
from torch.nn.functional import gaussian_nll_loss, softplus

LAYERS = (50, 50, 50)
DROPOUT = 0.1
BATCH_SIZE = 64
STEPS = 300  # more overfit the few hundred evaluations that our studies' histories have
LEARNING_RATES = (1e-2, 1e-3, 1e-4)
"""`STEPS` steps of Adam at each."""

MIN_DEVIATION = 0.1  # residuals are divided by it; neighbouring ranks are further apart


class QuantileNetwork(nn.Module):
    """Mean and deviation of a point's normal score.

    Args:
        dim: The number of inputs `d`.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        widths = pairwise((dim, *LAYERS))
        layers = [(nn.Linear(a, b), nn.ReLU(), nn.Dropout(DROPOUT)) for a, b in widths]
        self.hidden = nn.Sequential(*(part for layer in layers for part in layer))
        self.head = nn.Linear(LAYERS[-1], 2)

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Predicts scores.

        Args:
            X: A `... x d` tensor of inputs in the unit cube.

        Returns:
            Mean and standard deviation, two tensors without the last dimension.
        """
        mean, raw = self.head(self.hidden(X)).unbind(dim=-1)
        return mean, softplus(raw) + MIN_DEVIATION


def fit_quantile_network(X: Tensor, Z: Tensor, seed: int, steps: int = STEPS) -> QuantileNetwork:
    """Learns the network.

    Args:
        X: An `N x d` tensor of all source tasks' inputs in the unit cube.
        Z: An `N x 1` tensor of their normal scores, task by task.
        seed: The seed of weights, batches and dropout; the global generator is left alone.
        steps: The number of steps of Adam at each learning rate.

    Returns:
        The network, in evaluation mode and not to be trained further.
    """
    with manual_seed(seed):
        network = QuantileNetwork(X.shape[-1]).to(X)
        optimizer = torch.optim.Adam(network.parameters())
        for rate in LEARNING_RATES:
            optimizer.param_groups[0]["lr"] = rate
            for _ in range(steps):
                rows = torch.randint(len(X), (min(BATCH_SIZE, len(X)),))
                mean, deviation = network(X[rows])
                loss = gaussian_nll_loss(mean, Z[rows, 0], deviation.square())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return network.eval().requires_grad_(False)
