"""The lengthscales' hyperprior where each input has a Gamma distribution of its own."""

from __future__ import annotations

import torch
from gpytorch.priors import GammaPrior
from torch import Tensor

from botorch_transfer.hyperpriors.context_network import ContextNetwork


class ContextGammaPrior(GammaPrior):
    r"""A Gamma hyperprior of ARD lengthscales whose shape and rate depend on each input's context.

    It is an ordinary GPyTorch prior of ``d`` independent Gamma distributions; the network is
    evaluated once, and nothing of it is left to be fitted with the model.

    Args:
        network: MPHD's network.
        context: A ``d x s`` tensor: the context of each input.

    Raises:
        ValueError: If the context is of another kind than the network's.

    Example:
        >>> contexts = torch.tensor([[1.0, 2.0], [1.0, 5.0]])
        >>> network = ContextNetwork(contexts, base=torch.tensor([3.0, 6.0]))
        >>> prior = ContextGammaPrior(network, contexts[[0, 0, 1]])
        >>> kernel = MaternKernel(ard_num_dims=3, lengthscale_prior=prior)
    """

    context: Tensor

    def __init__(self, network: ContextNetwork, context: Tensor) -> None:
        if context.ndim != 2 or context.shape[-1] != network.context_size:
            raise ValueError(
                f"The context is {tuple(context.shape)}, but the network was trained on contexts "
                f"of {network.context_size} numbers: give a d x {network.context_size} tensor."
            )
        with torch.no_grad():
            shape, rate = network(context.to(network.offset))
        if len(shape) == 1:
            # BoTorch draws the starts of univariate priors in the shape of the hyperparameter.
            shape, rate = shape.squeeze(0), rate.squeeze(0)
        super().__init__(shape, rate)
        self.register_buffer("context", context.detach().to(shape).clone())
