r"""Families of draws from Gaussian processes.

.. [Rahimi2007random]
    A. Rahimi and B. Recht. Random Features for Large-Scale Kernel Machines. NeurIPS 2007.
"""

from __future__ import annotations

import math
from typing import Any, Self, cast

import torch
from botorch.sampling.pathwise.features.generators import gen_kernel_features
from botorch.utils.sampling import manual_seed
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from botorch_transfer.test_functions.family import TaskFamily

LENGTHSCALE = 0.3


class GaussianProcessFamily(TaskFamily):
    r"""A task drawn from a Gaussian process, so that a model may know the truth about it.

    .. code-block:: text

        f_i(x) = √ρ g_0(x) + √(1 - ρ) g_i(x),    g_0, g_1, … ~ GP(0, k)

    on the unit cube, to be minimized. Given ``g_0``, the tasks are draws of one Gaussian process
    with the mean ``√ρ g_0`` and the kernel ``(1 - ρ) k``; without, any two tasks have the
    correlation ``ρ`` at every point. Draws are made of Fourier features of the kernel
    [Rahimi2007random]_, so they are smooth, cheap functions. Take :meth:`sample`, not the
    constructor.

    Args:
        frequencies: An ``m x d`` tensor of the features' frequencies.
        weights: A ``2 m`` tensor of the weights of their sines and cosines.
        **options: ``noise_std``, ``negate``, ``bounds`` and ``dtype``; see :class:`TaskFamily`.

    Example:
        >>> target, sources = GaussianProcessFamily.sample_problem(
        ...     num_sources=3, seed=0, dim=2, covar_module=MaternKernel(nu=2.5), correlation=0.8
        ... )
        >>> X, Y = sources["source 0"].sample_data(20, seed=0)
        >>> X.shape
        torch.Size([20, 2])
    """

    study_noise_std = 0.1
    _check_grad_at_opt = False

    def __init__(self, frequencies: Tensor, weights: Tensor, **options: Any) -> None:
        self.dim = frequencies.shape[-1]
        self._bounds = [(0.0, 1.0)] * self.dim
        super().__init__(**options)
        self.register_buffer("frequencies", frequencies)
        self.register_buffer("weights", weights)

    @classmethod
    def sample(
        cls,
        num_tasks: int,
        seed: int,
        dim: int = 2,
        covar_module: Kernel | None = None,
        correlation: float = 0.9,
        num_features: int = 1024,
        **options: Any,
    ) -> list[Self]:
        """Draws tasks of the family.

        Args:
            num_tasks: Their number.
            seed: The seed; the first tasks are the same whatever their number.
            dim: The number of inputs ``d``.
            covar_module: An RBF or Matérn kernel, scaled or not; by default RBF with the
                lengthscale 0.3.
            correlation: The correlation ``ρ`` between tasks, from 0 (unrelated) to 1 (the same).
            num_features: The number of features ``2 m``.
            **options: Further arguments of the constructor, as ``negate``.

        Returns:
            The tasks.

        Raises:
            ValueError: If the correlation is not between 0 and 1, or the kernel is another one.
        """
        if not 0 <= correlation <= 1:
            raise ValueError(f"The correlation between tasks is {correlation}: give 0 to 1.")
        frequencies, scale = _spectrum(covar_module, dim, num_features, seed)
        generator = torch.Generator().manual_seed(seed)
        draws = [
            scale * torch.randn(2 * len(frequencies), generator=generator, dtype=torch.double)
            for _ in range(num_tasks + 1)
        ]
        shared = math.sqrt(correlation) * draws[0]
        own = math.sqrt(1 - correlation)
        return [cls(frequencies, shared + own * weights, **options) for weights in draws[1:]]

    def _evaluate_true(self, X: Tensor) -> Tensor:
        angles = X @ cast(Tensor, self.frequencies).to(X).T
        return torch.cat([angles.sin(), angles.cos()], dim=-1) @ cast(Tensor, self.weights).to(X)


def _spectrum(
    covar_module: Kernel | None, dim: int, num_features: int, seed: int
) -> tuple[Tensor, float]:
    """Frequencies drawn from a kernel's spectral density, and the weights' standard deviation."""
    variance, kernel = 1.0, covar_module
    if kernel is None:
        kernel = RBFKernel()
        kernel.lengthscale = LENGTHSCALE
    if isinstance(kernel, ScaleKernel):
        variance, kernel = kernel.outputscale.item(), kernel.base_kernel
    if not isinstance(kernel, RBFKernel | MaternKernel) or kernel.active_dims is not None:
        raise ValueError(
            f"No tasks can be drawn for the kernel {type(kernel).__name__}: take an RBF or Matérn "
            "kernel over all inputs, scaled or not."
        )
    with manual_seed(seed), torch.no_grad():
        features = gen_kernel_features(kernel, num_inputs=dim, num_outputs=num_features)
        frequencies = features.weight.double() / kernel.lengthscale.double()
    return frequencies.cpu(), math.sqrt(2 * variance / num_features)
