"""Kernels on learned features."""

from __future__ import annotations

from typing import Any, Self

import torch
from gpytorch.constraints import Interval, Positive
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.nn import Module, Parameter

from botorch_transfer.kernels.feature_network import FeatureNetwork


class FeatureKernel(Kernel):
    r"""A kernel on features, ``k(φ(x), φ(x'))``, also known as deep kernel.

    Args:
        base_kernel: The kernel ``k`` on the features.
        network: The features ``φ``, maps ``... x n x d`` to ``... x n x f`` tensors. A mean may
            read the same ones, see :class:`~.means.features.FeatureMean`.

    Raises:
        ValueError: If the base kernel selects some of the features.

    Example:
        >>> network = FeatureNetwork(dim=3)
        >>> base = RBFKernel(ard_num_dims=network.num_features).double()
        >>> FeatureKernel(base, network)(torch.rand(5, 3, dtype=torch.double)).shape
        torch.Size([5, 5])
    """

    def __init__(self, base_kernel: Kernel, network: FeatureNetwork) -> None:
        super().__init__(batch_shape=base_kernel.batch_shape)
        if base_kernel.active_dims is not None:
            raise ValueError("The base kernel has active_dims: give the network fewer features.")
        self.base_kernel = base_kernel
        self.network = network

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Any:
        """Evaluates the kernel.

        Args:
            x1: A ``... x n1 x d`` tensor of inputs.
            x2: A ``... x n2 x d`` tensor of inputs.
            diag: Whether to evaluate pairs of rows only.
            **params: Handed to the base kernel.

        Returns:
            A ``... x n1 x n2`` tensor or linear operator, ``... x n`` if ``diag``.
        """
        z1 = self.network(x1)
        z2 = z1 if x1 is x2 else self.network(x2)
        return self.base_kernel.forward(z1, z2, diag=diag, **params)

    def __getitem__(self, index: Any) -> Self:
        """Selects members of a batch."""
        if len(self.batch_shape) == 0:
            return self
        return type(self)(self.base_kernel[index], self.network[index])


class BiasedLinearKernel(Kernel):
    r"""``σ_0² + zᵀz' / λ²``: Bayesian linear regression with an intercept.

    Args:
        bias_variance: The starting value of ``σ_0²``.
        weight_variance: The starting value of ``1 / λ²``.

    Example:
        >>> kernel = BiasedLinearKernel(bias_variance=1.0, weight_variance=2.0)
        >>> kernel(torch.eye(2)).to_dense()
        tensor([[3., 1.],
                [1., 3.]], grad_fn=<AddBackward0>)
    """

    raw_bias_variance: Parameter
    raw_weight_variance: Parameter

    def __init__(self, bias_variance: float = 1.0, weight_variance: float = 1.0) -> None:
        super().__init__()
        for name, value in (
            ("raw_bias_variance", bias_variance),
            ("raw_weight_variance", weight_variance),
        ):
            constraint = Positive(initial_value=value)
            self.register_parameter(name, Parameter(torch.zeros(())))
            self.register_constraint(name, constraint)

    @property
    def bias_variance(self) -> Tensor:
        """The intercept's variance ``σ_0²``."""
        return _transformed(self, "raw_bias_variance")

    @property
    def weight_variance(self) -> Tensor:
        """The variance ``1 / λ²`` of each feature's weight."""
        return _transformed(self, "raw_weight_variance")

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Evaluates the kernel.

        Args:
            x1: A ``... x n1 x f`` tensor of features.
            x2: A ``... x n2 x f`` tensor of features.
            diag: Whether to evaluate pairs of rows only.
            **params: Ignored.

        Returns:
            A ``... x n1 x n2`` tensor, ``... x n`` if ``diag``.
        """
        products = (x1 * x2).sum(dim=-1) if diag else x1 @ x2.mT
        trailing = (..., None) if diag else (..., None, None)
        return self.bias_variance[trailing] + self.weight_variance[trailing] * products


def _transformed(module: Module, name: str) -> Tensor:
    constraint: Interval = getattr(module, f"{name}_constraint")
    return constraint.transform(getattr(module, name))
