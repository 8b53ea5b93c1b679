r"""Gaussian processes (GPs) conditioned on source data, and their posteriors at new inputs.

:class:`Conditioned` computes posterior means, variances and covariances for any kernel.
:class:`ConditionedBatch` is its subclass for stationary kernels. :class:`ConditionedGPs` models
independent source tasks. Further subclasses model hierarchies of tasks (``hierarchy.prior``), a
function that all tasks share (``population.prior``), and tasks with a joint multi-task kernel
(``joint.conditional``). With a prior mean ``m``, a kernel ``k`` and data ``(X, y)`` observed with
noise variance ``σ²``, the posterior is

.. code-block:: text

    m'(x)     = m + k(x, X) [k(X, X) + σ²I]⁻¹ (y - m)
    k'(x, x') = k(x, x') - k(x, X) [k(X, X) + σ²I]⁻¹ k(X, x')

All GPs of a batch are evaluated at once. The terms that depend only on the data are computed when
the GPs are conditioned. A prediction then takes one kernel evaluation and one matrix product, for
any number of GPs. Tensor shapes use these letters:

.. code-block:: text

    G    number of GPs           N    number of data points, or of inducing points
    Q    number of kernels       P    number of new inputs, summed over batch dimensions

The GPs of a batch may have different numbers of data points. The data of each GP are padded to
``N`` points. The padding does not change predictions, because the coefficients ``α`` and the
columns of ``L⁻¹`` (see :class:`Conditioned`) are zero at the padding.

A prediction of an exact GP given ``N`` data points takes ``N²`` operations. For many data points,
the sparse posterior of [Titsias2009variational]_ is a faster approximation. The sparse posterior
replaces the data by ``r`` inducing inputs ``Z`` with the prior covariance ``k(Z, Z) = P Pᵀ``.
``R`` is the covariance of the outcomes ``y`` given the function values: the noise and, in a joint
model, the covariance of functions that belong to one task only. With ``V(x) = P⁻¹ k(Z, x)``, the
sparse posterior is

.. code-block:: text

    B = V(X) R⁻¹ V(X)ᵀ = U diag(b) Uᵀ         a = V(X) R⁻¹ (y - m)
    α = P⁻ᵀ (I + B)⁻¹ a                       F = diag(√(b / (1 + b))) Uᵀ P⁻¹
    m'(x)     = m + k(x, Z) α
    k'(x, x') = k(x, x') - k(x, Z) Fᵀ F k(Z, x')

The exact posterior has the same form, with its coefficients in place of ``α``, and with the inverse
Cholesky factor ``L⁻¹`` of the data's covariance in place of ``F``. If ``R`` is block diagonal,
``B`` and ``a`` are sums over the blocks. The total cost is then ``N r²`` operations, and the
inversion of each block.

.. [Titsias2009variational]
    M. K. Titsias. Variational Learning of Inducing Variables in Sparse Gaussian Processes.
    AISTATS 2009.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self, cast

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models.utils.inducing_point_allocators import GreedyVarianceReduction
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.errors import NanError, NotPSDError
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.state import DoubleState, savable, shallow_copy
from botorch_transfer.gp.stationary import STATIONARY_FUNCTIONS, Stationary, stationary_function


class Shared(NamedTuple):
    """Cached kernel evaluations at the inputs of one prediction, see :meth:`Conditioned.sharing`.

    Args:
        inputs: The inputs of the prediction.
        flat: The inputs of the prediction, reshaped to ``batch_shape x P x d``. ``batch_shape`` is
            the batch shape of the hyperparameters. All other batch dimensions are part of ``P``.
        results: The cached results, by the name of the method that computed them.
    """

    inputs: Tensor
    flat: Tensor
    results: dict[str, Any]


class Conditioned(ABC):
    r"""Base class for a batch of GPs, each conditioned on ``N`` data points.

    ``K = k(X, X) + σ²I = L Lᵀ`` is the covariance matrix of the data, with Cholesky factor ``L``.
    The posterior is computed from the coefficients ``α = K⁻¹ (y - m)`` and the whitened
    cross-covariances ``V(x) = L⁻¹ k(X, x)``:

    .. code-block:: text

        m'(x)     = m + k(x, X) α
        k'(x, x') = k(x, x') - V(x)ᵀ V(x')

    Subclasses compute ``k(x, X)`` and ``V(x)`` for *flat* inputs: one ``P x d`` matrix with the
    inputs of all batches. Each GP then needs only one matrix product. This class flattens the
    inputs, and restores the batch dimensions in the results.

    In tensor shapes, ``gps`` stands for the batch dimensions of the GPs. Without batched
    hyperparameters, ``gps`` is one dimension, and all GPs are evaluated at the same inputs. With
    batched hyperparameters, ``gps`` is the batch shape of the hyperparameters, and the batch shape
    of the inputs ends with ``gps``. In the shape of a result, ``gps`` follows all other batch
    dimensions.
    """

    prior_mean: Tensor
    alpha: Tensor

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the hyperparameters.

        The batch shape of inputs must end with the batch shape of the hyperparameters.
        """
        return torch.Size()

    @abstractmethod
    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates the prior covariances ``k(x, X)`` between ``P x d`` inputs and the data.

        Args:
            x: A ``P x d`` tensor of inputs; ``batch_shape x P x d`` for batched hyperparameters.

        Returns:
            A ``gps x P x N`` tensor.
        """

    @abstractmethod
    def flat_whiten(self, x: Tensor) -> Tensor:
        """Computes the whitened cross-covariances ``V(x) = L⁻¹ k(X, x)`` for ``P x d`` inputs.

        Args:
            x: A ``P x d`` tensor of inputs; ``batch_shape x P x d`` for batched hyperparameters.

        Returns:
            A ``gps x N x P`` tensor.
        """

    @abstractmethod
    def prior_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Evaluates the prior covariance ``k(x1, x2)`` of each GP.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` or ``n2 x d`` tensor of inputs.

        Returns:
            A ``batch_shape x gps x n1 x n2`` tensor.
        """

    @abstractmethod
    def prior_variance(self, x: Tensor) -> Tensor:
        """Evaluates the prior variance ``k(x, x)`` of each GP.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A tensor that broadcasts to ``batch_shape x gps x n``.
        """

    @property
    def _width(self) -> int:
        """Number of kernel values for one input: one for each data point of each GP."""
        return self.alpha.numel()

    def signed(self, whitened: Tensor) -> Tensor:
        """Returns ``whitened`` unchanged. Subclasses may flip the signs of some of its rows.

        The posterior covariance is ``k(x, x') - V(x)ᵀ signed(V(x'))``. A row with a flipped sign
        increases the posterior variance; any other row reduces the posterior variance.

        Args:
            whitened: The whitened cross-covariances ``V(x) = L⁻¹ k(X, x)``.

        Returns:
            A tensor of the same shape.
        """
        return whitened

    def _extra(self, x: Tensor) -> torch.Size:
        """Returns the batch dimensions of ``x`` that precede the hyperparameters' batch shape."""
        shape = torch.broadcast_shapes(x.shape[:-2], self.batch_shape)
        return shape[: len(shape) - len(self.batch_shape)]

    def _flat(self, x: Tensor) -> Tensor:
        """Reshapes ``extra x batch_shape x n x d`` inputs to ``batch_shape x P x d``.

        ``batch_shape`` belongs to the hyperparameters. ``P`` is ``extra.numel() * n``.
        """
        own, extra = self.batch_shape, self._extra(x)
        x = x.expand(*extra, *own, *x.shape[-2:])
        places = range(len(extra)), range(-2 - len(extra), -2)
        return x.movedim(*map(tuple, places)).reshape(*own, -1, x.shape[-1])

    def _unflat(self, values: Tensor, x: Tensor) -> Tensor:
        """Restores the batch dimensions of ``x`` in values that were computed at the flat inputs.

        Reshapes ``gps x ... x P`` values to ``extra x gps x ... x n``, see :meth:`_flat`.
        """
        extra = self._extra(x)
        values = values.unflatten(-1, (*extra, x.shape[-2]))
        places = range(-1 - len(extra), -1), range(len(extra))
        return values.movedim(*map(tuple, places))

    _shared: Shared | None = None

    @contextmanager
    def sharing(self, x: Tensor) -> Iterator[None]:
        """Within a ``with`` block, caches the kernel values between ``x`` and the data.

        The mean, the variance and the covariances at ``x`` depend on the same kernel values. Within
        the block, these kernel values are computed only once. The cached tensors keep their
        autograd graph, and are deleted at the end of the block.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs. Pass the same tensor object to methods in
                the block, because the methods do not use the cache for a copy of ``x``.

        Example:
            >>> X, ones = torch.rand(3, 10, 2), torch.ones(3, 10)
            >>> data = X, X.sum(-1), ones.bool()
            >>> gps = ConditionedGPs.from_data(*data, ones[:, :2], ones[:, 0], ones)
            >>> x = torch.rand(5, 2)
            >>> with gps.sharing(x):
            ...     mean, variance = gps.mean(x), gps.variance(x)
        """
        self._shared = Shared(x, self._flat(x), {})
        try:
            yield
        finally:
            self._shared = None

    def _once(self, function: Callable[[Tensor], Tensor], flat: Tensor) -> Tensor:
        """Returns a method's result for flat inputs. Within :meth:`sharing`, results are cached."""
        if self._shared is None or flat is not self._shared.flat:
            return function(flat)
        results, name = self._shared.results, function.__name__
        if name not in results:
            results[name] = function(flat)
        return cast(Tensor, results[name])

    def cross(self, x: Tensor) -> Tensor:
        """Evaluates the prior covariances ``k(x, X)`` between inputs and the data.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x gps x n x N`` tensor.
        """
        return self._unflat(self.flat_cross(self._flat(x)).mT, x).mT

    def mean(self, x: Tensor) -> Tensor:
        """Evaluates the posterior mean of each GP.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x gps x n`` tensor.
        """

        def flat_mean(part: Tensor) -> Tensor:
            cross = self._once(self.flat_cross, part)
            return self.prior_mean.unsqueeze(-1) + (cross @ self.alpha.unsqueeze(-1)).squeeze(-1)

        return self._in_blocks(flat_mean, x).to(x.dtype)

    def whiten(self, x: Tensor) -> Tensor:
        r"""Computes the whitened cross-covariances ``V(x) = L⁻¹ k(X, x)``.

        The product ``V(x)ᵀ V(x')`` is the prior covariance minus the posterior covariance.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x gps x N x n`` tensor in double precision.
        """
        return self._in_blocks(lambda part: self._once(self.flat_whiten, part), x)

    def _in_blocks(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Evaluates a function of flat inputs in blocks, to limit the memory use.

        Args:
            function: Function of ``batch_shape x P x d`` inputs.
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            The values of ``function``, with the batch dimensions of ``x``.
        """
        shared = self._shared
        flat = shared.flat if shared is not None and x is shared.inputs else self._flat(x)
        return self._unflat(in_parts(function, flat, self._width), x)

    def covariance(
        self, x1: Tensor, x2: Tensor | None = None, whitened2: Tensor | None = None
    ) -> Tensor:
        """Evaluates the posterior covariance of each GP.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` or ``n2 x d`` tensor of inputs; ``x1`` if omitted.
            whitened2: The result of ``whiten(x2)``; computed if omitted.

        Returns:
            A ``batch_shape x gps x n1 x n2`` tensor.
        """
        if x2 is None and x1.shape[-2] == 1:
            return self.variance(x1).unsqueeze(-1)
        whitened1 = self.whiten(x1)
        if x2 is None:
            x2, whitened2 = x1, whitened1
        elif whitened2 is None:
            whitened2 = self.whiten(x2)
        # Unlike matmul, einsum does not copy a tensor that all batches share.
        explained = torch.einsum("...np,...nq->...pq", whitened1, self.signed(whitened2))
        return (self.prior_covariance(x1, x2) - explained).to(x1.dtype)

    def variance(self, x: Tensor) -> Tensor:
        """Evaluates the posterior variance of each GP.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x gps x n`` tensor.
        """

        def explained(part: Tensor) -> Tensor:
            whitened = self._once(self.flat_whiten, part)
            # The sum precedes `_unflat`, because sums over permuted tensors take ten times longer.
            return (whitened * self.signed(whitened)).sum(dim=-2)

        known = self._in_blocks(explained, x)
        return (self.prior_variance(x) - known).clamp_min(0.0).to(x.dtype)


#: Maximum number of covariances, or of sample values, that are evaluated at once: the first number
#: for a CPU, the second number for any other device, where each block has more overhead.
MAX_ELEMENTS, MAX_ELEMENTS_ON_DEVICE = 2**22, 2**27


def max_elements(x: Tensor) -> int:
    """Returns the maximum number of values to evaluate at once on the device of ``x``."""
    return MAX_ELEMENTS if x.device.type == "cpu" else MAX_ELEMENTS_ON_DEVICE


def in_parts(function: Callable[[Tensor], Tensor], x: Tensor, width: int, dim: int = -1) -> Tensor:
    """Evaluates a function in blocks of inputs, to limit the memory use.

    Each block computes at most about :func:`max_elements` values. The backward pass evaluates each
    block again instead of storing intermediate results.

    Args:
        function: The function to evaluate.
        x: A ``batch_shape x n x d`` tensor of inputs.
        width: Number of values that ``function`` computes for one index of the dimension ``n``,
            summed over all elements of ``batch_shape``.
        dim: The dimension of the results along which blocks are concatenated.

    Returns:
        The results for all inputs, concatenated along ``dim``.

    Example:
        >>> in_parts(lambda x: x.sum(-1), torch.ones(5, 2), width=2**21)
        tensor([2., 2., 2., 2., 2.])
    """
    parts = x.split(max(1, max_elements(x) // max(1, width)), dim=-2)
    if len(parts) == 1:
        return function(x)
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(function, part, use_reentrant=False) for part in parts], dim)
    return torch.cat([function(part) for part in parts], dim)


def times(matrices: Tensor, vectors: Tensor) -> Tensor:
    """Multiplies each of ``G`` matrices by a batch of vectors, without copying the matrices.

    Args:
        matrices: A ``G x n x N`` tensor that is used for all samples, or a ``... x G x n x N``
            tensor, whose leading dimensions ``...`` broadcast with ``sample_shape``.
        vectors: A ``sample_shape x G x N`` tensor of samples.

    Returns:
        The products, a ``b x G x n`` tensor, where ``b`` is the broadcast of ``...`` and
        ``sample_shape``.

    Example:
        >>> times(torch.eye(2).unsqueeze(0), torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]])).shape
        torch.Size([2, 1, 2])
    """
    return torch.einsum("...ij,...j->...i", matrices, vectors)


class ConditionedBatch(Conditioned, DoubleState):
    r"""Base class for ``G`` conditioned GPs with ``Q`` stationary kernels.

    Each independent source task has its own stationary kernel. In a hierarchy of tasks, the kernel
    of the last source task is the sum of all ``Q`` kernels. :meth:`aggregate` computes the values
    of the ``G`` GPs from the values of the ``Q`` kernels. A prediction evaluates the kernels
    between the new inputs and ``points``. The tensor ``points`` contains either inducing points or
    the inputs of the data. No tensor is fitted, so all tensors are buffers. The buffers are in
    double precision. Predictions have the dtype of the inputs.

    Args:
        lengthscale: A ``Q x d`` tensor.
        outputscale: A ``Q`` tensor of signal variances.
        kernel: The stationary kernel's name, see :func:`~.stationary.stationary_function`.
        task_names: Names of the ``Q`` tasks, for error messages and the ``state_dict``.
    """

    kernel_index: Tensor
    _facts = (("kernel_index", tuple(STATIONARY_FUNCTIONS)),)
    lengthscale: Tensor
    outputscale: Tensor
    points: Tensor
    inverse_root: Tensor

    def __init__(
        self,
        lengthscale: Tensor,
        outputscale: Tensor,
        kernel: str,
        task_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        stationary_function(kernel)  # raises an error now if the name is unknown
        self.kernel = kernel
        self.task_names = list(task_names or map(str, range(len(outputscale))))
        # The buffer `kernel_index` makes loading a state_dict with another kernel raise an error.
        index = list(STATIONARY_FUNCTIONS).index(kernel)
        kernel_index = torch.tensor(index, device=lengthscale.device)
        self.register(kernel_index=kernel_index, lengthscale=lengthscale, outputscale=outputscale)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors among the constructor's arguments, by the arguments' names."""
        names = inspect.getfullargspec(type(self)).args[1:-2]  # without kernel and task_names
        return {name: getattr(self, name) for name in names}

    def _flat(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.dim:
            raise BotorchTensorDimensionError(
                f"The inputs have {x.shape[-1]} columns, but the source tasks have {self.dim} "
                "columns. Give inputs with the same columns as the source data."
            )
        return super()._flat(x).double()

    @property
    def num_tasks(self) -> int:
        """The number of source tasks."""
        return len(self.task_names)

    @property
    def dim(self) -> int:
        """The dimension ``d`` of the inputs."""
        return self.lengthscale.shape[-1]

    @property
    def stationary(self) -> Stationary:
        """The ``Q`` kernels as one batched kernel of ``... x Q x n x d`` inputs."""
        return Stationary(self.kernel, self.lengthscale.unsqueeze(-2), self.outputscale)

    def aggregate(self, values: Tensor, dim: int) -> Tensor:
        """Computes values of the ``G`` GPs from values of their ``Q`` kernels.

        In this base class, each GP has one kernel, and the values are returned unchanged.

        Args:
            values: A tensor of kernel values.
            dim: The dimension of size ``Q``.

        Returns:
            A tensor with ``G`` instead of ``Q`` elements along ``dim``.
        """
        return values

    def draw_coefficients(self, values: Tensor) -> Tensor:
        """Draws the coefficients that turn prior samples into posterior samples (Matheron's rule).

        If ``f`` is a sample from the prior and ``v`` are its coefficients, then
        ``f(x) - k(x, points) v`` is the deviation of a posterior sample from the posterior mean.
        The coefficients are ``K⁻¹ f(points)`` plus a random term for the noise of the data. The
        covariance of the random term is ``Fᵀ (I - F k(points, points) Fᵀ) F``, where ``F`` is
        ``inverse_root``. For an exact posterior, this covariance is ``K⁻¹ (σ² I) K⁻¹``.

        Args:
            values: A ``... x Q x N`` tensor: samples from the prior of each kernel, at ``points``.

        Returns:
            A ``... x G x N`` tensor of the coefficients.
        """
        F = self.inverse_root
        kernels = self.stationary.between(self.points, self.points)
        rest = torch.eye(F.shape[-1]).to(F) - F @ kernels @ F.mT
        root, info = torch.linalg.cholesky_ex(rest)
        if bool(info.any()):  # with little noise, rounding can make the matrix indefinite
            squares, vectors = torch.linalg.eigh(rest)
            root = vectors * squares.clamp_min(0.0).sqrt().unsqueeze(-2)
        normal = self.alpha.new_empty(*values.shape[:-2], *self.alpha.shape).normal_()
        return self.solve(values) + times(F.mT, times(root, normal))

    def solve(self, values: Tensor) -> Tensor:
        """Multiplies ``... x G x N`` values by ``K⁻¹``, the inverse covariance of the data."""
        return times(self.inverse_root.mT, times(self.inverse_root, values))

    def flat_cross(self, x: Tensor) -> Tensor:
        """Computes ``k(x, X)`` for ``P x d`` inputs and the GPs' points, a ``G x P x N`` tensor."""
        return self.stationary.between(x, self.points)

    def flat_whiten(self, x: Tensor) -> Tensor:
        """Computes ``V(x) = L⁻¹ k(X, x)`` for ``P x d`` inputs, a ``G x N x P`` tensor."""
        return (self._once(self.flat_cross, x) @ self.inverse_root.mT).mT

    def prior_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Evaluates the prior covariance of each GP between the inputs ``x1`` and ``x2``."""
        if x2.dim() == 2 and x1 is not x2:
            flat = self.stationary.between(self._flat(x1), x2.double())
            return self.aggregate(self._unflat(flat.mT, x1).mT, dim=-3)
        first = x1.double().unsqueeze(-3)
        second = first if x1 is x2 else x2.double().unsqueeze(-3)
        return self.aggregate(self.stationary.between(first, second), dim=-3)

    @abstractmethod
    def distilled(self) -> Self:
        """Approximates the posteriors with inducing points, to hide the outcomes of the data."""

    def prior_variance(self, x: Tensor) -> Tensor:
        """Evaluates the prior variance of each GP, a ``G x 1`` tensor.

        The prior variance of a stationary kernel is the same at all inputs.
        """
        return self.aggregate(self.outputscale, dim=0).unsqueeze(-1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Copies of a model, such as fantasy models, can share the tensors, which never change.
        return shallow_copy(self)


@contextmanager
def name_task_in_errors(*tasks: str) -> Iterator[None]:
    """Replaces the error of a failed Cholesky factorization by an error that names source tasks.

    Use this context manager in a ``with`` statement around the factorization.

    Args:
        tasks: The names of the source tasks.

    Raises:
        InputDataError: If a factorization within the ``with`` block fails.
    """
    try:
        yield
    except (NotPSDError, NanError) as error:
        plural, names = "s" * (len(tasks) > 1), ", ".join(map(repr, tasks))
        raise InputDataError(
            f"The covariance matrix of source task{plural} {names} is not positive definite: check "
            "the inputs for extreme scales, or give larger noise variances."
        ) from error


def inverse_cholesky(covariance: Tensor, name: Callable[[int, int], str]) -> Tensor:
    """Computes the inverse Cholesky factors ``L⁻¹`` of a batch of covariance matrices.

    Args:
        covariance: A ``G x N x N`` tensor of covariance matrices.
        name: Function that takes the index of a matrix and the index of a row, and returns the name
            of the source task for the error message.

    Returns:
        A ``G x N x N`` tensor of lower triangular matrices.

    Raises:
        InputDataError: If a matrix is not positive definite, even with some jitter.
    """
    try:
        root = psd_safe_cholesky(covariance)
    except (NotPSDError, NanError):
        _, info = torch.linalg.cholesky_ex(covariance)
        matrix = int(info.nonzero()[0])
        # ``info`` is the number of the row at which the factorization fails, counted from one.
        with name_task_in_errors(name(matrix, int(info[matrix]) - 1)):
            raise
    eye = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    return torch.linalg.solve_triangular(root, eye.expand_as(root), upper=False)


# ---------------------------------------------------------------------------------- inducing points

#: Maximum number of inputs of the data from which the inducing points are chosen.
MAX_CANDIDATES = 4096

#: Inducing points are added until the average remaining variance of the inputs is below ``ENOUGH``
#: times the signal variance, and below ``SHARE_OF_NOISE`` times the smallest noise variance. The
#: remaining variance is the variance of the function, given its values at the inducing points.
ENOUGH, SHARE_OF_NOISE = 1e-5, 1e-3

#: An input is not chosen if its remaining variance, divided by the signal variance, is below this
#: value, because the input is almost equal to an inducing point.
_SMALLEST_PIVOT = 1e-10


class Coefficients(NamedTuple):
    """Inducing points and coefficients of a sparse posterior.

    Args:
        points: The ``r x d`` tensor ``Z`` of inducing inputs.
        alpha: The ``r x k`` tensor ``α``: coefficients of the posterior mean for each of ``k``
            vectors of outcomes.
        inverse_root: The ``r x r`` tensor ``F``: coefficients of the posterior covariance.
    """

    points: Tensor
    alpha: Tensor
    inverse_root: Tensor


def different_rows(X: Tensor, most: int) -> Tensor:
    """Sorts inputs, leaves out repeats, and chooses inputs at evenly spaced positions.

    Args:
        X: An ``N x d`` tensor of inputs.
        most: The maximum number of inputs to choose.

    Returns:
        The row indices of the chosen inputs. If the rows of ``X`` are permuted, the same inputs are
        chosen.

    Example:
        >>> different_rows(torch.tensor([[0.5], [0.1], [0.5]]), most=5)
        tensor([1, 2])
    """
    different, place = X.unique(dim=0, return_inverse=True)
    rows = place.new_empty(len(different))
    rows.scatter_(0, place, torch.arange(len(X), device=X.device))
    return rows[evenly_spaced(len(different), most)]


class InducingPoints:
    """Inducing points of one GP, and the Cholesky factor ``P`` of their prior covariance.

    Args:
        kernel: The GP's kernel.
        points: The ``r x d`` inducing inputs ``Z``.

    Example:
        >>> kernel = Stationary("rbf", torch.ones(1, 2).double(), torch.tensor(1.0).double())
        >>> X = torch.rand(50, 2).double()
        >>> inducing = InducingPoints.chosen(kernel, X, most=20, noise=torch.ones(50))
        >>> V = inducing.whiten(X)  # the noise variance is one
        >>> inducing.condense(V @ V.mT, V @ X.sum(-1, keepdim=True)).alpha.shape[-1]
        1
    """

    def __init__(self, kernel: Stationary, points: Tensor) -> None:
        self.kernel, self.points = kernel, points
        self.root = psd_safe_cholesky(kernel.between(points, points))

    @classmethod
    def chosen(cls, kernel: Stationary, X: Tensor, most: int, noise: Tensor) -> InducingPoints:
        """Chooses inducing points from the inputs of the data by greedy variance reduction.

        Each step adds the input with the largest remaining variance. The remaining variance is the
        variance of the function given its values at the points chosen before. The selection stops
        when the average remaining variance is small compared with both the prior variance and the
        smallest noise variance.

        Args:
            kernel: The GP's kernel.
            X: An ``N x d`` tensor of inputs.
            most: The maximum number of inducing points.
            noise: Noise variances of the data.

        Returns:
            The inducing points, a subset of the inputs.
        """
        candidates = X[different_rows(X, MAX_CANDIDATES)]
        # The allocator stops at the variance 1e-6, which is `_SMALLEST_PIVOT` times this scale.
        scale = torch.full_like(kernel.scale, 1e-6 / _SMALLEST_PIVOT)
        unit = Stationary(kernel.name, kernel.lengthscale, scale).make_kernel()
        points = GreedyVarianceReduction().allocate_inducing_points(
            candidates, unit, min(most, len(candidates)), torch.Size()
        )
        inducing = cls(kernel, points)
        enough = min(ENOUGH, SHARE_OF_NOISE * float(noise.min() / kernel.scale))
        left = 1 - inducing.whiten(candidates).square().mean(-1).cumsum(0) / kernel.scale
        needed = int((left > enough).sum()) + 1
        return inducing if needed >= len(points) else cls(kernel, points[:needed])

    @classmethod
    def between(cls, kernel: Stationary, X: Tensor) -> InducingPoints:
        """Builds inducing points at the midpoints between pairs of inputs.

        Each step pairs the two nearest inputs that are not in a pair yet.

        Args:
            kernel: The GP's kernel.
            X: An ``N x d`` tensor of inputs.

        Returns:
            If all inputs are equal, one inducing point, equal to the inputs. Otherwise, at most
            ``N / 2`` inducing points, none of them equal to an input.

        Example:
            >>> kernel = Stationary("rbf", torch.ones(1, 1).double(), torch.tensor(1.0).double())
            >>> InducingPoints.between(kernel, torch.tensor([[0.0], [0.5], [0.9]]).double()).points
            tensor([[0.7000]], dtype=torch.float64)
        """
        X = X.unique(dim=0)
        if len(X) == 1:
            return cls(kernel, X)
        left, pairs = torch.cdist(X, X).fill_diagonal_(torch.inf), list[list[int]]()
        for _ in range(len(X) // 2):
            pairs.append(list(divmod(int(left.argmin()), len(X))))
            left[pairs[-1]] = left[:, pairs[-1]] = torch.inf
        points = X[torch.tensor(pairs)].mean(dim=1)
        return cls(kernel, points[(points.unsqueeze(1) != X).any(dim=-1).all(dim=-1)])

    def whiten(self, x: Tensor) -> Tensor:
        """Computes ``V(x) = P⁻¹ k(Z, x)`` for ``n x d`` inputs, an ``r x n`` tensor."""
        cross = self.kernel.between(self.points, x)
        return torch.linalg.solve_triangular(self.root, cross, upper=False)

    def condense(self, precision: Tensor, weighted: Tensor) -> Coefficients:
        """Computes the coefficients ``α`` and ``F`` of the sparse posterior given data.

        Args:
            precision: The ``r x r`` tensor ``B = V(X) R⁻¹ V(X)ᵀ``. ``V`` is :meth:`whiten`, and
                ``R`` is the covariance of the outcomes given the function values.
            weighted: An ``r x k`` tensor: ``a = V(X) R⁻¹ (y - m)`` for each of ``k`` vectors of
                outcomes.

        Returns:
            The inducing points and the coefficients.
        """
        values, vectors, rotated = self._eigen(precision)
        values = values.clamp_min(0.0)  # rounding can make them slightly negative
        alpha = rotated @ ((vectors.mT @ weighted) / (1 + values))
        return Coefficients(self.points, alpha, (values / (1 + values)).sqrt() * rotated.mT)

    def project(self, mean: Tensor, covariance: Tensor) -> Coefficients:
        """Computes the coefficients of a sparse posterior from its moments at the inducing points.

        Args:
            mean: An ``r x k`` tensor. The sum of its ``k`` columns is the posterior mean minus the
                prior mean, at the inducing points.
            covariance: The ``r x r`` posterior covariance.

        Returns:
            The inducing points and the coefficients.
        """
        half = torch.linalg.solve_triangular(self.root, covariance, upper=False)
        left = torch.linalg.solve_triangular(self.root, half.mT, upper=False)
        values, _, rotated = self._eigen(left)
        known = (1 - values).clamp_min(0.0).sqrt()
        return Coefficients(self.points, torch.cholesky_solve(mean, self.root), known * rotated.mT)

    def _eigen(self, matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        rotated = torch.linalg.solve_triangular(self.root.mT, vectors, upper=True)
        return values.unsqueeze(-1), vectors, rotated


# ---------------------------------------------------------------------------------- independent GPs

#: Maximum number of elements of the covariance matrices that are factorized at once.
FACTOR_ELEMENTS = 2**18


def pad_inputs(X: Tensor, mask: Tensor) -> Tensor:
    """Replaces the padding of each task by the task's first input.

    Predictions do not depend on the values of the padding. However, the values must be finite and
    near the data, because distant inputs would increase the rounding errors of all distances.

    Args:
        X: An ``M x N x d`` tensor of inputs.
        mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.

    Returns:
        An ``M x N x d`` tensor.
    """
    first = mask.int().argmax(dim=-1)
    tasks = torch.arange(len(X), device=X.device)
    return torch.where(mask.unsqueeze(-1), X, X[tasks, first].unsqueeze(-2))


@savable
class ConditionedGPs(ConditionedBatch):
    r"""``M`` independent GPs with stationary kernels, each conditioned on its own data.

    Use :meth:`from_data` to build the GPs from data. Each task is padded to the number of points of
    the largest task. A task with many points can use inducing points instead of all its data.

    Args:
        points: An ``M x N x d`` tensor: the inputs of the data, or inducing inputs.
        mask: An ``M x N`` boolean tensor, ``True`` for points and ``False`` for padding.
        alpha: An ``M x N`` tensor: the coefficients ``α`` of the posterior mean, see
            :class:`.Conditioned`.
        inverse_root: An ``M x N x N`` tensor: the inverse of the Cholesky factor of the data's
            covariance; for inducing points, the factor ``F`` of :class:`Coefficients`.
        lengthscale: An ``M x d`` tensor.
        outputscale: An ``M`` tensor of signal variances.
        prior_mean: An ``M`` tensor of constant prior means; zero if omitted.
        kernel: The stationary kernel's name, see :func:`~.stationary.stationary_function`.
        task_names: Names of the tasks for error messages.

    Example:
        >>> X = torch.rand(3, 10, 2, dtype=torch.double)
        >>> ones = torch.ones(3, 10, dtype=torch.double)
        >>> gps = ConditionedGPs.from_data(
        ...     X, X.sum(-1), ones.bool(), ones[:, :2], ones[:, 0], 1e-4 * ones
        ... )
        >>> gps.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([3, 5])
    """

    mask: Tensor

    def __init__(
        self,
        points: Tensor,
        mask: Tensor,
        alpha: Tensor,
        inverse_root: Tensor,
        lengthscale: Tensor,
        outputscale: Tensor,
        prior_mean: Tensor | None = None,
        kernel: str = "rbf",
        task_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(lengthscale, outputscale, kernel, task_names)
        prior_mean = torch.zeros_like(outputscale) if prior_mean is None else prior_mean
        if not bool(mask.all()):  # the padding must not change predictions
            inverse_root = inverse_root.masked_fill(~mask.unsqueeze(-2), 0.0)
        self.register(points=points, mask=mask, prior_mean=prior_mean)
        self.register(alpha=alpha, inverse_root=inverse_root)

    @classmethod
    @torch.no_grad()
    def from_data(
        cls,
        train_X: Tensor,
        train_Y: Tensor,
        mask: Tensor,
        lengthscale: Tensor,
        outputscale: Tensor,
        noise: Tensor,
        prior_mean: Tensor | None = None,
        kernel: str = "rbf",
        task_names: Sequence[str] | None = None,
        max_inducing: int | None = None,
    ) -> Self:
        """Builds GPs with given hyperparameters, and conditions each GP on its task's data.

        Args:
            train_X: An ``M x N x d`` tensor of inputs.
            train_Y: An ``M x N`` tensor of outcomes.
            mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.
            lengthscale: An ``M x d`` tensor.
            outputscale: An ``M`` tensor of signal variances.
            noise: An ``M x N`` tensor of observation noise variances.
            prior_mean: An ``M`` tensor of constant prior means; zero if omitted.
            kernel: The stationary kernel's name.
            task_names: Names of the tasks for error messages.
            max_inducing: The maximum number of inducing points of a task. If a task has more data
                points than this number, the task's posterior is approximated with inducing points.
                If ``None``, all posteriors are exact.

        Returns:
            The conditioned GPs.

        Raises:
            InputDataError: If the covariance matrix of a task's data is not positive definite.
        """
        names = list(task_names or map(str, range(len(outputscale))))
        means = torch.zeros_like(outputscale) if prior_mean is None else prior_mean
        floats = train_X, train_Y - means.unsqueeze(-1), noise, lengthscale, outputscale
        X, residual, noise, lengths, scales = (part.detach().double() for part in floats)
        sizes = mask.sum(dim=-1)
        large = sizes > (max_inducing or train_X.shape[-2])
        small = (~large).nonzero().squeeze(-1)
        # Chunks limit the temporary memory: it is several times the memory of a chunk's result.
        chunks = [*groups_of_like_size(sizes, small, FACTOR_ELEMENTS), *large.nonzero()]
        parts = []
        for chunk in chunks:
            size = int(mask[chunk].any(dim=0).nonzero().max()) + 1
            data = X[chunk, :size], residual[chunk, :size], mask[chunk, :size], noise[chunk, :size]
            own = Stationary(kernel, lengths[chunk].unsqueeze(-2), scales[chunk])
            chunk_names = [names[i] for i in chunk.tolist()]
            if bool(large[chunk[0]]):
                with name_task_in_errors(*chunk_names):
                    sparse = _sparse(*data, own, cast(int, max_inducing))
                parts.append(cls._on_inducing_points(sparse, own, means[chunk]))
            else:
                exact = _exact(*data, own, chunk_names)
                parts.append(cls(*exact, lengths[chunk], scales[chunk], means[chunk], kernel))
        found_in = torch.cat(chunks)
        gps = cls.joined(parts, [names[i] for i in found_in.tolist()])
        in_order = bool((found_in.diff() == 1).all())
        return gps if in_order else gps.select(found_in.argsort())

    @classmethod
    def _on_inducing_points(cls, found: Coefficients, kernel: Stationary, mean: Tensor) -> Self:
        """Builds the GP of one task from its approximate posterior with inducing points."""
        points, alpha, inverse_root = (part.unsqueeze(0) for part in found)
        mask = torch.ones_like(alpha[..., 0], dtype=torch.bool)
        hyperparameters = kernel.lengthscale.reshape(1, -1), kernel.scale.reshape(1), mean
        return cls(points, mask, alpha[..., 0], inverse_root, *hyperparameters, kernel.name)

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the posterior mean and variance of each task. Evaluates the kernel only once.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            Two ``batch_shape x M x n`` tensors.
        """
        with self.sharing(x):
            return self.mean(x), self.variance(x)

    def select(self, tasks: Sequence[int] | Tensor | slice) -> Self:
        """Returns the GPs of selected tasks, without a new Cholesky factorization.

        Args:
            tasks: The indices of the tasks. If ``tasks`` is a slice, the result shares memory with
                this object.

        Returns:
            The GPs of these tasks, in the order of ``tasks``.
        """
        every = torch.arange(self.num_tasks, device=self.mask.device)
        index = tasks if isinstance(tasks, slice) else torch.as_tensor(tasks, device=every.device)
        names = [self.task_names[task] for task in every[index].tolist()]
        chosen = {name: tensor[index] for name, tensor in self.tensors().items()}
        return type(self)(**chosen, kernel=self.kernel, task_names=names)

    @torch.no_grad()
    def distilled(self) -> Self:
        """Approximates each task's posterior with inducing points, to hide the task's outcomes.

        Returns:
            The approximate GPs. A task with one data point has one inducing point. For other tasks,
            the number of inducing points is at most half the number of data points.
        """
        parts = []
        for task in range(self.num_tasks):
            own = self.select([task])
            kernel = Stationary(self.kernel, own.lengthscale, own.outputscale[0])
            inducing = InducingPoints.between(kernel, own.points[0, own.mask[0]])
            mean = (own.mean(inducing.points) - own.prior_mean.unsqueeze(-1)).mT
            found = inducing.project(mean, own.covariance(inducing.points)[0])
            parts.append(self._on_inducing_points(found, kernel, own.prior_mean))
        return self.joined(parts, self.task_names)

    @classmethod
    def joined(cls, parts: Sequence[ConditionedGPs], names: Sequence[str]) -> Self:
        """Concatenates batches of GPs, and pads all tasks to the size of the largest task.

        Args:
            parts: The batches of GPs, with the same kernel name and the same input dimension.
            names: The names of the tasks of all batches, in order.

        Returns:
            One batch of GPs.
        """
        size, pieces = max(part.mask.shape[-1] for part in parts), defaultdict(list)
        for part in parts:
            rows = 0, size - part.mask.shape[-1]
            margins: dict[str, tuple[int, ...]] = {"mask": rows, "alpha": rows}
            margins |= {"points": (0, 0, *rows), "inverse_root": (*rows, *rows)}
            for name, tensor in part.tensors().items():
                pieces[name].append(pad(tensor, margins.get(name, ())))
        tensors = {name: torch.cat(of_parts) for name, of_parts in pieces.items()}
        tensors["points"] = pad_inputs(tensors["points"], tensors["mask"])
        return cls(**tensors, kernel=parts[0].kernel, task_names=names)


def groups_of_like_size(sizes: Tensor, tasks: Tensor, elements: int) -> Iterator[Tensor]:
    """Splits tasks into groups, so that the tasks of a group have similar numbers of points.

    Args:
        sizes: An ``M`` tensor: the number of points of each task.
        tasks: The indices of the tasks to split.
        elements: The maximum total number of elements of a group's covariance matrices. All
            matrices of a group are padded to the size of the largest matrix. A group has at least
            one task, even if this task's matrix alone has more than ``elements`` elements.

    Yields:
        The indices of the tasks of one group, ascending. The groups with the largest tasks come
        first.
    """
    tasks = tasks[sizes[tasks].argsort(stable=True, descending=True)]
    while len(tasks):
        number = max(1, elements // int(sizes[tasks[0]]) ** 2)
        yield tasks[:number].sort().values
        tasks = tasks[number:]


def _exact(
    X: Tensor,
    residual: Tensor,
    mask: Tensor,
    noise: Tensor,
    kernel: Stationary,
    names: Sequence[str],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Computes ``points``, ``mask``, ``alpha`` and ``inverse_root`` of the exact posteriors."""
    X = pad_inputs(X, mask)
    covariance = kernel.between(X, X) * (mask.unsqueeze(-1) & mask.unsqueeze(-2))
    # The covariance of the padding is the identity matrix: solutions for the data do not change.
    covariance.diagonal(dim1=-2, dim2=-1).add_(torch.where(mask, noise, 1.0))
    inverse_root = inverse_cholesky(covariance, lambda task, _: names[task])
    residual = torch.where(mask, residual, 0.0).unsqueeze(-1)
    alpha = inverse_root.mT @ (inverse_root @ residual)
    return X, mask, alpha.squeeze(-1), inverse_root


def _sparse(
    X: Tensor, residual: Tensor, mask: Tensor, noise: Tensor, kernel: Stationary, most: int
) -> Coefficients:
    """Approximates one task's posterior with inducing points; ``most`` is their maximum number."""
    X, residual, noise = X[mask], residual[mask].unsqueeze(-1), noise[mask]
    own = Stationary(kernel.name, kernel.lengthscale[0], kernel.scale[0])
    inducing = InducingPoints.chosen(own, X, most, noise)
    whitened = inducing.whiten(X)
    weighted = whitened / noise
    return inducing.condense(weighted @ whitened.mT, weighted @ residual)
