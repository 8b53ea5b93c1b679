"""What all conditioned Gaussian processes share: their posteriors at new inputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar, cast

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor
from torch.nn import Module

from botorch_transfer.kernels.stationary import (
    STATIONARY_FUNCTIONS,
    StationaryFunction,
    squared_distance,
    stationary_function,
)

M = TypeVar("M", bound=Module)


def shallow_copy(module: M, memo: dict[int, Module] | None = None) -> M:
    """Copies a tree of modules without its tensors.

    Moving the copy or loading into it leaves the original as it is.

    Args:
        module: The module.
        memo: The copies made so far by the ``id`` of their originals: a module that is registered
            twice is copied once.

    Returns:
        A module with the same tensors in registers of its own.
    """
    memo = {} if memo is None else memo
    if id(module) in memo:
        return cast(M, memo[id(module)])
    # Not copy(): two copies of a GPyTorch kernel would share the dictionary of their attributes.
    twin = type(module).__new__(type(module))
    twin.__dict__ = dict(module.__dict__)
    memo[id(module)] = twin
    twin._parameters = dict(module._parameters)
    twin._buffers = dict(module._buffers)
    twin._modules = {
        name: None if child is None else shallow_copy(child, memo)
        for name, child in module._modules.items()
    }
    return twin


def own_buffers(module: Module) -> None:
    """Replaces a module's buffers by copies of their own, before something is written into them.

    Args:
        module: A module that may share its buffers with a :func:`shallow_copy`.
    """
    for name, buffer in module._buffers.items():
        module._buffers[name] = None if buffer is None else buffer.clone()


class ConditionedBatch(Module, ABC):
    r"""A batch of ``G`` GPs made of ``Q`` stationary kernels, conditioned on ``N`` rows each.

    The conditioned GPs of independent source tasks have a kernel each; those of a hierarchy add up
    the kernels of its levels. Subclasses say how, by :meth:`aggregate` and its kin, and register
    the data and a factor as buffers: there is nothing to fit. Buffers are in double precision, and
    results in that of the inputs.

    Args:
        lengthscale: A ``Q x d`` tensor.
        outputscale: A ``Q`` tensor of signal variances.
        kernel: The stationary kernel's name, see :func:`~.stationary.stationary_function`.
    """

    kernel_index: Tensor
    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor
    mask: Tensor
    train_X: Tensor
    train_Y: Tensor
    prior_mean: Tensor
    inverse_root: Tensor
    alpha: Tensor

    def __init__(self, lengthscale: Tensor, outputscale: Tensor, kernel: str) -> None:
        super().__init__()
        stationary_function(kernel)  # an unknown name is refused here, not at the first query
        self.kernel = kernel
        # In the state_dict, so that it cannot be loaded into GPs with another kernel.
        self.register("kernel_index", torch.tensor(list(STATIONARY_FUNCTIONS).index(kernel)))
        self.register("lengthscale", lengthscale)
        self.register("outputscale", outputscale)

    def register(self, name: str, tensor: Tensor) -> None:
        """Registers a tensor as a buffer, in double precision if it is of floating point."""
        tensor = tensor.detach()
        self.register_buffer(name, tensor.double() if tensor.is_floating_point() else tensor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Moves to other devices, and stays in double precision wherever the model goes.

        Noise-free data make the factors so ill-conditioned that single precision loses the answer.
        """

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(fn(tensor).device) if tensor.is_floating_point() else fn(tensor)

        return super()._apply(move, recurse)

    def _flat(self, x: Tensor) -> Tensor:
        """Flattens ``batch_shape x n x d`` inputs to ``P x d``, in double precision."""
        if x.shape[-1] != self.dim:
            raise BotorchTensorDimensionError(
                f"The inputs have {x.shape[-1]} columns, but the source tasks have {self.dim}."
            )
        return x.reshape(-1, self.dim).double()

    @property
    @abstractmethod
    def num_tasks(self) -> int:
        """The number of source tasks."""

    @abstractmethod
    def essentials(self) -> dict[str, Tensor]:
        """The constructor's tensors, from which all others follow."""

    @abstractmethod
    def aggregate(self, values: Tensor, dim: int) -> Tensor:
        """Combines the dimension ``dim`` of ``Q`` kernels to one of ``G`` GPs, at new inputs."""

    @abstractmethod
    def aggregate_at_data(self, values: Tensor) -> Tensor:
        """Combines ``... x Q x N`` values of functions to ``... x G x N`` values at the data."""

    @abstractmethod
    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates ``k(x, X)`` for ``P x d`` inputs: ``G x P x N``, zero at the padding."""

    def solve(self, values: Tensor) -> Tensor:
        """Turns ``... x G x N`` values at the data into coefficients of ``k(x, X)``."""
        return (self.inverse_root.mT @ (self.inverse_root @ values.unsqueeze(-1))).squeeze(-1)

    @property
    def dim(self) -> int:
        """The dimension ``d`` of the inputs."""
        return self.lengthscale.shape[-1]

    @property
    def function(self) -> StationaryFunction:
        """The unit-variance kernel."""
        return stationary_function(self.kernel)

    def flat_kernels(self, x: Tensor, points: Tensor) -> Tensor:
        """Evaluates the kernels between ``P x d`` and ``[Q x] n x d`` inputs: ``Q x P x n``."""
        inverse_lengthscale = self.lengthscale.reciprocal().unsqueeze(-2)
        r2 = squared_distance(x * inverse_lengthscale, points * inverse_lengthscale)
        return self.function.value(r2, self.outputscale.log()[:, None, None])

    def cross(self, x: Tensor) -> Tensor:
        """Evaluates the kernels between inputs and each GP's data.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x G x n x N`` tensor, zero at the padding.
        """
        flat = self.flat_cross(self._flat(x))
        return flat.reshape(flat.shape[0], *x.shape[:-1], flat.shape[-1]).movedim(0, -3)

    def prior_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Evaluates the covariances before conditioning.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` or ``n2 x d`` tensor of inputs.

        Returns:
            A ``batch_shape x G x n1 x n2`` tensor.
        """
        if x2.dim() == 2 and x1 is not x2:
            flat = self.flat_kernels(self._flat(x1), x2.double())
            shape = (flat.shape[0], *x1.shape[:-1], x2.shape[-2])
            return self.aggregate(flat.reshape(shape).movedim(0, -3), dim=-3)
        inverse_lengthscale = self.lengthscale.reciprocal().unsqueeze(-2)
        scaled1 = x1.double().unsqueeze(-3) * inverse_lengthscale
        scaled2 = scaled1 if x1 is x2 else x2.double().unsqueeze(-3) * inverse_lengthscale
        r2 = squared_distance(scaled1, scaled2)
        values = self.function.value(r2, self.outputscale.log()[:, None, None])
        return self.aggregate(values, dim=-3)

    def mean(self, x: Tensor) -> Tensor:
        """Evaluates the posterior means.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x G x n`` tensor.
        """
        return self._mean(self.flat_cross(self._flat(x)), x)

    def _mean(self, cross: Tensor, x: Tensor) -> Tensor:
        flat = self.prior_mean.unsqueeze(-1) + (cross @ self.alpha.unsqueeze(-1)).squeeze(-1)
        return flat.reshape(flat.shape[0], *x.shape[:-1]).movedim(0, -2).to(x.dtype)

    def whiten(self, x: Tensor) -> Tensor:
        r"""Computes ``V(x) = L⁻¹ k(X, x)``, so that ``V(x)ᵀ V(x')`` is what the data explain.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``G x N x batch_shape x n`` tensor; the GPs come first, because one matrix product for
            each serves all batches.
        """
        whitened = self.flat_whiten(self._flat(x))
        return whitened.reshape(*whitened.shape[:2], *x.shape[:-1])

    def flat_whiten(self, x: Tensor) -> Tensor:
        """Whitens ``P x d`` inputs: ``G x N x P``."""
        return self.inverse_root @ self.flat_cross(x).mT

    def explained(self, whitened: Tensor) -> Tensor:
        """Signs the rows of whitened inputs as they enter what is explained."""
        return whitened

    def covariance(
        self, x1: Tensor, x2: Tensor | None = None, whitened2: Tensor | None = None
    ) -> Tensor:
        """Evaluates the posterior covariances.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` or ``n2 x d`` tensor of inputs; ``x1`` if omitted.
            whitened2: ``whiten(x2)``, if it is known already.

        Returns:
            A ``batch_shape x G x n1 x n2`` tensor.
        """
        if x2 is None and x1.shape[-2] == 1:
            return self.variance(x1).unsqueeze(-1)
        whitened1 = self.whiten(x1)
        if x2 is None:
            x2, whitened2 = x1, whitened1
        elif whitened2 is None:
            whitened2 = self.whiten(x2)
        explained = _inner_products(whitened1, self.explained(whitened2))
        return (self.prior_covariance(x1, x2) - explained).to(x1.dtype)

    def variance(self, x: Tensor) -> Tensor:
        """Evaluates the posterior variances.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x G x n`` tensor.
        """
        return self._variance(self.whiten(x), x)

    def _variance(self, whitened: Tensor, x: Tensor) -> Tensor:
        explained = (whitened * self.explained(whitened)).sum(dim=1)
        prior = self.aggregate(self.outputscale, dim=0).reshape(-1, *[1] * (x.dim() - 1))
        return (prior - explained).clamp_min(0.0).movedim(0, -2).to(x.dtype)

    def _load_from_state_dict(
        self, state_dict: Mapping[str, Tensor], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        names = list(STATIONARY_FUNCTIONS)
        loaded = names[int(state_dict.get(f"{prefix}kernel_index", self.kernel_index))]
        if loaded != self.kernel:
            raise ValueError(
                f"The state_dict is of GPs with kernel {loaded!r}, and these have {self.kernel!r}."
            )
        # Views of a prior share its tensors: new ones are loaded into, not those.
        own_buffers(self)
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Nothing writes into the tensors, so copies of a model, each fantasy is one, share them.
        twin = shallow_copy(self)
        memo[id(self)] = twin
        return twin


def inverse_cholesky(covariance: Tensor, name: Callable[[int, int], str]) -> Tensor:
    """Inverts the Cholesky factors of a batch of covariance matrices.

    Args:
        covariance: A ``G x N x N`` tensor.
        name: Names the source task of a matrix and a row of it, for messages.

    Returns:
        A ``G x N x N`` tensor of lower triangular matrices.

    Raises:
        InputDataError: If a matrix is not positive definite, even with some jitter.
    """
    try:
        root = psd_safe_cholesky(covariance)
    except (NotPSDError, NanError) as error:
        _, info = torch.linalg.cholesky_ex(covariance)
        matrix = int(info.nonzero()[0])
        # Without the rows before the one where it fails, the factorization would go on.
        failed = name(matrix, int(info[matrix]) - 1)
        raise InputDataError(
            f"The covariance matrix of source task {failed!r} is not positive definite: "
            "check its inputs for extreme scales, or give it more observation noise."
        ) from error
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    return torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False)


def _inner_products(left: Tensor, right: Tensor) -> Tensor:
    """Computes ``V1ᵀ V2`` of whitened inputs, with the GPs moved behind the batch.

    Args:
        left: A ``G x N x batch_shape x n1`` tensor.
        right: A ``G x N x batch_shape x n2`` tensor; the batch shapes may be broadcast.

    Returns:
        A ``batch_shape x G x n1 x n2`` tensor.
    """
    if right.dim() == 3:
        # One set of second inputs serves all batches: one matrix product for each GP.
        flat = left.flatten(start_dim=2).mT @ right
        return flat.reshape(flat.shape[0], *left.shape[2:], right.shape[-1]).movedim(0, -3)
    if left.shape == right.shape and left.shape[-1] == 1:
        # Many batches of single points would be as many tiny matrix products.
        return (left * right).sum(dim=1).movedim(0, -2).unsqueeze(-1)
    return left.movedim((0, 1), (-3, -2)).mT @ right.movedim((0, 1), (-3, -2))
