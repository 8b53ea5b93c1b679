"""Target task of a joint GP, conditioned on the source data: mean, kernel and source likelihood.

A joint GP describes source tasks and target by one kernel ``k``. With the source data
``(X_s, y_s)`` and ``K = k(X_s, X_s) + noise``,

.. code-block:: text

    m_t(x)     = k(x, X_s) K⁻¹ y_s
    k_t(x, x') = k(x, x') - k(x, X_s) K⁻¹ k(X_s, x')

are the mean and the kernel of the target. With the target's outcomes ``y_t``, the joint log
likelihood is the sum ``log p(y_t, y_s) = log p(y_t | y_s) + log p(y_s)``. If target points are
added, the Cholesky factor of the joint covariance gets more rows, and the rows of the source points
do not change. If the source tasks are independent of each other (WSGP, ScaML-GP), ``K`` and its
Cholesky factor are block diagonal.

A fit evaluates the likelihood of all tasks for all starts at once, with automatic differentiation.
Stationary kernels (:meth:`.Stationary.covariance`) and the function :func:`~.gp.likelihood.nll`
have closed-form gradients. Each independent source task ``m`` has its own covariance matrix
``D_m``, including noise, and the joint matrix is never formed. With the covariances ``C_m`` between
the points of source task ``m`` and the target points, and the covariances ``T`` of the target
points,

.. code-block:: text

    NLL = Σ_m NLL(y_m; 0, D_m) + NLL(y_t; Σ_m C_mᵀ D_m⁻¹ y_m, T - Σ_m C_mᵀ D_m⁻¹ C_m)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, cast

import torch
from botorch.sampling.pathwise.features import gen_kernel_features
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.likelihoods.noise_models import MultitaskHomoskedasticNoise
from gpytorch.means import Mean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.module import Module as GPyTorchModule
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn import ModuleList
from torch.nn.functional import pad

from botorch_transfer.gp.conditioned import Conditioned, name_task_in_errors
from botorch_transfer.gp.expansion import PriorKernel
from botorch_transfer.gp.hyperpriors import Hyperparameter
from botorch_transfer.gp.likelihood import log_density, nll
from botorch_transfer.gp.objective import ClosedFormObjective, Param, kernel_params
from botorch_transfer.gp.paths import MIN_FEATURES, ModelPath
from botorch_transfer.gp.state import (
    Cache,
    NamedState,
    collapse_batch,
    same_inputs,
    select_batch,
    shallow_copy,
)
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.gp.strategy import joined
from botorch_transfer.joint.kernels import (
    CoregionalizationKernel,
    IndependentSourcesKernel,
    TaskPoints,
    rows_of_tasks,
)
from botorch_transfer.progress import announce


class SourcePoints(NamedState):
    """Data of all source tasks, stored as buffers that copies of a model share.

    Args:
        X: An ``N_s x d`` tensor: the inputs of all source tasks, one task after another.
        Y: An ``N_s`` tensor of outcomes.
        Yvar: An ``N_s`` tensor of known noise variances, zero for tasks whose noise is inferred.
        sizes: The number of points of each source task.
        names: The source tasks' names, for messages and the ``state_dict``.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor
    task_sizes: Tensor
    _facts = (("task_sizes", ()),)  # a state_dict with other sizes does not load

    def __init__(
        self, X: Tensor, Y: Tensor, Yvar: Tensor, sizes: Sequence[int], names: Sequence[str]
    ) -> None:
        super().__init__()
        task_sizes = torch.tensor(list(sizes), device=X.device)
        for name, buffer in {"X": X, "Y": Y, "Yvar": Yvar, "task_sizes": task_sizes}.items():
            self.register_buffer(name, buffer)
        self.sizes = tuple(sizes)
        self.task_names = tuple(names)

    def __deepcopy__(self, memo: dict[int, Any]) -> SourcePoints:
        # Copies of a model, such as fantasy models, can share the tensors, which never change.
        return shallow_copy(self)

    @property
    def every(self) -> TaskPoints:
        """The points of all source tasks, sorted by task."""
        return TaskPoints(self.X, tuple(range(len(self.sizes))), self.sizes)

    def groups(self, one_a_task: bool) -> list[tuple[TaskPoints, slice]]:
        """Splits the source points into groups, each with its own Cholesky factor.

        Args:
            one_a_task: Whether each task is a group of its own; if false, all tasks form one group.

        Returns:
            For each group, a pair: the group's points, and the slice of their rows in ``X``.
        """
        if not one_a_task:
            return [(self.every, slice(0, len(self.X)))]
        tasks = enumerate(zip(self.sizes, rows_of_tasks(self.sizes), strict=True))
        return [(TaskPoints(self.X[own], (task,), (size,)), own) for task, (size, own) in tasks]


class SourceNoise(MultitaskHomoskedasticNoise):
    """Noise variances of source data: known for some tasks, and inferred for the other tasks.

    ``noise`` contains the inferred noise variances, one for each task without known noise.

    Args:
        known: One boolean for each task: whether the task's noise variances are known.
        own: Hyperprior, starting value and bounds of an inferred noise variance.
        batch_shape: The batch shape of the model.
    """

    def __init__(
        self,
        known: Sequence[bool],
        own: Hyperparameter,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
    ) -> None:
        count = list(known).count(False)
        super().__init__(count, own.prior() if count > 0 else None, own.constraint(), batch_shape)
        self.known = tuple(known)
        self.raw_noise.requires_grad_(count > 0)

    def variances(self, points: SourcePoints) -> Tensor:
        """Returns the noise variance of each source point, known or inferred.

        Args:
            points: The source data.

        Returns:
            A ``batch_shape x N_s`` tensor.
        """
        inferred = [task for task, is_known in enumerate(self.known) if not is_known]
        return points.Yvar + self.noise @ points.every.one_hot(len(self.known))[:, inferred].mT

    __getitem__ = select_batch


@dataclass(frozen=True)
class SourceFactor:
    """Cholesky factors of the covariance ``K`` of the source data, and results computed from them.

    Args:
        roots: The Cholesky factor of each independent group of source points. The factor of group
            ``g`` is a ``batch_shape x N_g x N_g`` tensor in double precision.
        alpha: The product ``K⁻¹ y_s``, a ``batch_shape x N_s`` tensor. ``y_s`` are the outcomes.
        log_likelihood: The log likelihood ``log p(y_s)`` of the outcomes, a ``batch_shape`` tensor.
    """

    roots: tuple[Tensor, ...]
    alpha: Tensor
    log_likelihood: Tensor


class SourceConditional(Conditioned, GPyTorchModule):
    """The target task of a joint GP, conditioned on the data of the source tasks.

    In evaluation mode, the Cholesky factor of the source covariance is cached without its autograd
    graph. Copies of this object share the cache. The factor is computed again if a hyperparameter
    or the data change. In training mode, the factor has its autograd graph. It is then computed
    once for each :meth:`sharing` block and, outside such blocks, once for each use.

    Args:
        kernel: The kernel over inputs and tasks.
        points: The source data.
        noise: The noise variances of the source data.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS
        >>> from botorch_transfer.kernels import HierarchicalKernel
        >>> X = torch.rand(5, 2)
        >>> points = SourcePoints(X, X.sum(-1), 0.1 * torch.ones(5), [5], ["monday"])
        >>> kernel = HierarchicalKernel([RBFKernel(), RBFKernel()])
        >>> noise = SourceNoise([True], SOURCE_HYPERPARAMETERS.noise)
        >>> conditional = SourceConditional(kernel, points, noise).eval()
        >>> conditional.mean(torch.rand(3, 2)).shape
        torch.Size([3])
    """

    def __init__(
        self, kernel: CoregionalizationKernel, points: SourcePoints, noise: SourceNoise
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.points = points
        self.noise = noise
        self.register_buffer("prior_mean", points.Y.new_zeros(()), persistent=False)
        self._memory = Cache(size=1)
        self._whitened = Cache()

    def __getitem__(self, index: Any) -> SourceConditional:
        """Returns the target tasks of the joint GPs that ``index`` selects from a batch."""
        return SourceConditional(self.kernel[index], self.points, self.noise[index])

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the hyperparameters."""
        return self.kernel.batch_shape

    @property
    def groups(self) -> list[tuple[TaskPoints, slice]]:
        """Independent groups of source points, and the slice of each group's rows in ``X``."""
        return self.points.groups(self.kernel.sources_are_independent)

    @property
    def _has_graph(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def factor(self) -> SourceFactor:
        """Factorizes the covariance of the source data, or returns the cached factor.

        Inside :meth:`sharing`, the covariance is factorized at most once.

        Returns:
            The Cholesky factor and the results computed from it.

        Raises:
            InputDataError: If the covariance is not positive definite; the message names the tasks.
                In training mode, the error of ``psd_safe_cholesky`` is raised instead, because a
                fit handles this error.
        """
        shared = {} if self._shared is None else self._shared.results
        if "factor" not in shared:
            shared["factor"] = self._factorize() if self._has_graph else self._cached_factor()
        return cast(SourceFactor, shared["factor"])

    def _cached_factor(self) -> SourceFactor:
        # The cache compares the hyperparameters' values, because GPyTorch does not change their
        # version counters.
        modules = self.kernel, self.noise
        tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        hyperparameters = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return self._memory(lambda _: self._factorize(), hyperparameters, *self.points.buffers())

    def _factorize(self) -> SourceFactor:
        variances = self.noise.variances(self.points)
        roots, alphas, log_likelihood = [], [], []
        for points, rows in self.groups:
            # The noise may be tiny, so double precision is necessary for data of any dtype.
            covariance = self.kernel.covariance(points, points).double()
            covariance = covariance + variances[..., rows].double().diag_embed()
            names = [self.points.task_names[task] for task in points.tasks]
            with nullcontext() if self._has_graph else name_task_in_errors(*names):
                root = psd_safe_cholesky(covariance)
            Y = self.points.Y[rows].double().unsqueeze(-1).expand(*root.shape[:-1], 1)
            whitened = torch.linalg.solve_triangular(root, Y, upper=False)
            alpha = torch.linalg.solve_triangular(root.mT, whitened, upper=True)
            roots.append(root)
            alphas.append(alpha.squeeze(-1).to(variances))
            log_likelihood.append(log_density(root, whitened))
        total = torch.stack(log_likelihood).sum(dim=0).to(variances)
        return SourceFactor(tuple(roots), torch.cat(alphas, dim=-1), total)

    @property
    def alpha(self) -> Tensor:  # type: ignore[override]
        """The coefficients ``K⁻¹ y_s`` of the target's mean, a ``batch_shape x N_s`` tensor.

        ``K`` is the covariance of the source data, and ``y_s`` are the source outcomes.
        """
        return self.factor().alpha

    def _target(self, x: Tensor) -> TaskPoints:
        return TaskPoints(x, (self.kernel.num_tasks - 1,), (x.shape[-2],))

    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates the covariances between the target's function at ``x`` and the source points.

        Args:
            x: A ``P x d`` tensor of inputs.

        Returns:
            The covariances ``k(x, X_s)``, a ``batch_shape x P x N_s`` tensor.
        """
        target = self._target(x)
        blocks = [self.kernel.covariance(points, target) for points, _ in self.groups]
        return torch.cat(blocks, dim=-2).mT

    def flat_whiten(self, x: Tensor) -> Tensor:
        """Computes ``L⁻¹ k(X_s, x)`` with the Cholesky factor ``L`` of the source covariance.

        Args:
            x: A ``P x d`` tensor of the target's inputs.

        Returns:
            A ``batch_shape x N_s x P`` tensor.
        """
        cross = self._once(self.flat_cross, x).mT.double()
        whitened = [
            torch.linalg.solve_triangular(root, cross[..., rows, :], upper=False)
            for (_, rows), root in zip(self.groups, self.factor().roots, strict=True)
        ]
        return torch.cat(whitened, dim=-2)

    def prior_covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """Evaluates the target's prior covariances, before conditioning on source data."""
        target = self._target(x1)
        return self.kernel.covariance(target, target if x2 is x1 else self._target(x2))

    def prior_variance(self, x: Tensor) -> Tensor:
        """Evaluates the target's prior variances, before conditioning on source data."""
        x = pad(x, (0, 1), value=self.kernel.num_tasks - 1)
        return self.kernel.forward(x, x, diag=True)

    def covariance(
        self, x1: Tensor, x2: Tensor | None = None, whitened2: Tensor | None = None
    ) -> Tensor:
        """Evaluates the target's covariances, given the source data.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` tensor of inputs; ``x1`` if omitted. In evaluation mode,
                ``whiten(x2)`` is cached, because ``x2`` is often the target's training inputs.
            whitened2: The result of ``whiten(x2)``; computed if omitted.

        Returns:
            A ``batch_shape x n1 x n2`` tensor.
        """
        if not (x2 is None or x2.requires_grad or self._has_graph):
            state = self.factor().log_likelihood
            whitened2 = self._whitened(self.whiten, collapse_batch(x2), state)
        return super().covariance(x1, x2, whitened2)


class SourceConditionalKernel(PriorKernel):
    """Kernel of the target task of a joint GP, given the source data.

    Args:
        conditional: The target task of the joint GP, conditioned on the source data.

    Example:
        >>> model.covar_module(torch.rand(4, 2, dtype=torch.double)).shape
        torch.Size([4, 4])
    """

    def __init__(self, conditional: SourceConditional) -> None:
        super().__init__(batch_shape=conditional.batch_shape)
        self.conditional = conditional

    def __getitem__(self, index: Any) -> SourceConditionalKernel:
        """Returns the kernel for the target models that ``index`` selects from a batch."""
        if len(self.batch_shape) == 0:
            return self
        return SourceConditionalKernel(self.conditional[index])

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Evaluates the kernel.

        Args:
            x1: A ``batch_shape x n1 x d`` tensor of inputs.
            x2: A ``batch_shape x n2 x d`` tensor of inputs.
            diag: Whether to return ``k(x1_i, x2_i)`` only.
            **params: Ignored.

        Returns:
            A ``batch_shape x n1 x n2`` tensor, or ``batch_shape x n`` if ``diag``.
        """
        same = same_inputs(x1, x2)
        if not diag:
            return self.conditional.covariance(x1, None if same else x2)
        if same:
            return self.conditional.variance(x1)
        return self.conditional.covariance(x1, x2).diagonal(dim1=-2, dim2=-1)

    def draw(
        self, sample_shape: torch.Size, batch_shape: torch.Size, num_features: int, **kwargs: Any
    ) -> JointPath:
        """Draws functions with mean zero and this kernel, see :meth:`.PriorKernel.draw`.

        Keyword arguments such as ``map_generator=`` are passed to :class:`JointPath`.
        """
        number = len(self.conditional.kernel.data_kernels)
        share = max(num_features // number // 2 * 2, MIN_FEATURES)
        return JointPath(self.conditional, sample_shape, share, **kwargs)


class SourceConditionalMean(Mean):
    """Mean of the target task of a joint GP, given the source data.

    Args:
        conditional: The target task of the joint GP, conditioned on the source data.

    Example:
        >>> model.mean_module(torch.rand(4, 2, dtype=torch.double)).shape
        torch.Size([4])
    """

    def __init__(self, conditional: SourceConditional) -> None:
        super().__init__()
        self.conditional = conditional

    def forward(self, x: Tensor) -> Tensor:
        """Evaluates the mean.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            A ``batch_shape x n`` tensor.
        """
        return self.conditional.mean(x)


class JointPath(ModelPath):
    r"""Functions with mean zero, drawn for the target task of a joint GP given the source data.

    A function of all tasks is drawn by random features ``φ_ν`` of each kernel over inputs:
    ``f(x, i) = Σ_ν φ_ν(x)ᵀ θ_ν [F_ν]_i`` for task ``i``, where ``F_ν`` are the task factors of
    ``joint.kernels``. Matheron's rule then conditions the function on source outcomes of zero, so
    the drawn functions have mean zero and the target's covariance given the source data. Add the
    target's mean given the source data to get samples of the target.

    Args:
        conditional: The target task of the joint GP, conditioned on the source data.
        sample_shape: The sample shape.
        num_features: The number of random features of each kernel over inputs.
        map_generator: Function that builds a kernel's feature map, with the arguments of BoTorch's
            ``gen_kernel_features``.
    """

    loadings: Tensor
    correction: Tensor

    def __init__(
        self,
        conditional: SourceConditional,
        sample_shape: torch.Size,
        num_features: int,
        map_generator: Callable[..., Any] = gen_kernel_features,
    ) -> None:
        super().__init__()
        self.conditional = conditional.eval().requires_grad_(False)
        kernel, points = self.conditional.kernel, self.conditional.points
        self.feature_maps = ModuleList(
            map_generator(data_kernel, num_inputs=points.X.shape[-1], num_outputs=num_features)
            for data_kernel in kernel.data_kernels
        )
        factors = kernel.task_factors()
        shape = (*sample_shape, *self.conditional.batch_shape, factors.shape[-3])
        theta = points.X.new_empty(*shape, num_features, factors.shape[-1]).normal_()
        loadings = theta @ factors.mT  # ... x Q x num_features x T
        self.register_buffer("loadings", loadings[..., -1])
        self.register_buffer("correction", self._correct(loadings))

    def _correct(self, loadings: Tensor) -> Tensor:
        """Computes the coefficients ``-K⁻¹ (f(X_s) + ε)`` of Matheron's rule.

        ``f(X_s)`` are drawn function values at the source points, and ``ε`` is sampled noise. The
        result is a ``sample_shape x batch_shape x N_s`` tensor.
        """
        points, factor = self.conditional.points, self.conditional.factor()
        of_all_tasks = self._combine(points.X, loadings)
        values = (of_all_tasks * points.every.one_hot(of_all_tasks.shape[-1])).sum(dim=-1)
        noise = self.conditional.noise.variances(points).sqrt() * torch.randn_like(values)
        residual = -(values + noise).unsqueeze(-1).double()
        solved = [
            torch.cholesky_solve(residual[..., rows, :], root)
            for (_, rows), root in zip(self.conditional.groups, factor.roots, strict=True)
        ]
        return torch.cat(solved, dim=-2).squeeze(-1).to(values)

    def _combine(self, x: Tensor, loadings: Tensor) -> Tensor:
        """Evaluates drawn functions as sums of random features: ``Σ_ν φ_ν(x) loadings_ν``.

        The loadings are a ``... x Q x num_features x T`` tensor.
        """
        maps = zip(self.feature_maps, loadings.unbind(dim=-3), strict=True)
        return torch.stack([feature_map(x) @ loading for feature_map, loading in maps]).sum(dim=0)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the drawn functions.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        values = self._combine(x, self.loadings.unsqueeze(-1))
        update = self.conditional.cross(x) @ self.correction.unsqueeze(-1)
        return (values + update).squeeze(-1)


#: Typical number of evaluations of the objective for each start of a fit.
TYPICAL_EVALUATIONS = 100


class JointObjective(ClosedFormObjective):
    """Fit objective of a joint model: the negative log posterior given the data of all tasks.

    Args:
        mll: The marginal log likelihood of a joint model, in training mode. All kernels over inputs
            must be RBF or Matérn. The target's noise variances must be known, learned (one variance
            for all points), or the sum of a known and a learned variance.
    """

    def __init__(self, mll: ExactMarginalLogLikelihood) -> None:
        super().__init__(mll)
        model: Any = mll.model
        points, kernel = model.conditional.points, model.conditional.kernel
        sizes = *points.sizes, self._Y.shape[-1]
        if sizes[-1] == 0:
            self._num_points = sum(sizes)
        # Each member of the batch has the source data first, then the member's target data.
        self._X = joined(points.X.double(), self._X, event_dims=2)
        self._Y = joined(points.Y.double(), self._Y, event_dims=1)
        self._known_noise = joined(points.Yvar.double(), self._known_noise, event_dims=1)
        self._points = TaskPoints(self._X[0], tuple(range(kernel.num_tasks)), sizes)
        self._one_hot = self._points.one_hot(kernel.num_tasks)
        # Row i of `_noise_of` is one at the points with inferred noise variance i, else zero.
        is_known = *model.conditional.noise.known, "noise" not in self._sizes
        inferred = [task for task, known in enumerate(is_known) if not known]
        self._noise_of = self._one_hot[:, inferred].mT
        self.kernel = kernel
        self._names = [cast(Stationary, Stationary.of(each)).name for each in kernel.data_kernels]
        if kernel.fitted_param is not None:
            self._shape = Param(*kernel.fitted_param).value.shape[len(self.batch_shape) :]

    @classmethod
    def params(cls, model: Any) -> dict[str, Param]:
        """Returns all hyperparameters of the joint model, by name."""
        kernel = model.conditional.kernel
        params: dict[str, Param] = {}
        for index, each in enumerate(kernel.data_kernels):
            params |= kernel_params(each, f" {index}")
        params["source noise"] = Param(model.conditional.noise, "noise")
        if isinstance(model.likelihood, GaussianLikelihood):
            params["noise"] = Param(model.likelihood.noise_covar, "noise")
        if kernel.fitted_param is not None:
            params["matrices"] = Param(*kernel.fitted_param)
        return params

    def minimize(self, starts: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Minimizes the objective from all starts, and logs the expected time of a long fit."""
        start = perf_counter()
        self(starts, torch.arange(len(starts), device=starts.device))
        seconds = TYPICAL_EVALUATIONS * (perf_counter() - start)
        announce(f"one GP of {len(self._one_hot)} points; lower max_points= to save time", seconds)
        return super().minimize(starts, *args, **kwargs)

    @torch.enable_grad()
    def likelihood(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the negative log likelihood of the data of all tasks, and its derivatives."""
        values, member = values.detach().requires_grad_(), rows % self.num_members
        given = self._split(values)
        inferred = [given[name] for name in ("source noise", "noise") if name in given]
        noise = self._known_noise[member] + torch.cat(inferred, dim=-1) @ self._noise_of
        fitted = [given["matrices"].unflatten(-1, self._shape)] if "matrices" in given else []
        matrices = self.kernel.task_covariances(*fitted).double()
        X, Y, one = self._X[member], self._Y[member], torch.ones_like(values[:, 0])

        def part(index: int, rows: Tensor | slice) -> Tensor:
            tasks, lengthscale = self._one_hot[rows], given[f"lengthscale {index}"].unsqueeze(-2)
            scale = given.get(f"outputscale {index}", one).reshape(one.shape)
            kernel = Stationary(self._names[index], lengthscale, scale)
            weights = tasks @ matrices[..., index, :, :] @ tasks.mT
            points = X[:, rows]
            return weights * kernel.between(points, points)

        if isinstance(self.kernel, IndependentSourcesKernel):
            value = self._of_blocks(part, Y, noise)
        else:
            total: Any = sum(part(index, slice(None)) for index in range(len(self._names)))
            value = nll(torch.zeros_like(Y), total, Y, noise=noise)
        (slope,) = torch.autograd.grad(value.sum(), values)
        return value.detach(), slope

    def _of_blocks(self, part: Callable[[int, Tensor], Tensor], Y: Tensor, noise: Tensor) -> Tensor:
        """Evaluates the negative log likelihood of all tasks, if source tasks are independent.

        Args:
            part: Function of a task's index and a tensor of row indices. The function returns the
                contribution of the task's kernel to the covariance matrix of these rows.
            Y: A ``P x N`` tensor of outcomes.
            noise: A ``P x N`` tensor of noise variances.

        Returns:
            A ``P`` tensor. A value is NaN if a covariance matrix is not positive definite.
        """
        every = torch.arange(Y.shape[-1], device=Y.device)
        *groups, target = every.split(self._points.sizes)
        mean, schur = torch.zeros_like(Y[:, target]), part(len(groups), target)
        value = Y.new_zeros(len(Y))
        for index, own in enumerate(groups):
            n = len(own)
            covariance = part(index, torch.cat([own, target]))
            block = covariance[:, :n, :n] + noise[:, own].diag_embed()
            root, info = torch.linalg.cholesky_ex(block)
            root = root.masked_fill(info[:, None, None] > 0, torch.nan)
            beside = torch.cat([covariance[:, :n, n:], Y[:, own].unsqueeze(-1)], dim=-1)
            whitened = torch.linalg.solve_triangular(root, beside, upper=False)
            explained = whitened.mT @ whitened
            mean = mean + explained[:, :-1, -1]
            schur = schur + covariance[:, n:, n:] - explained[:, :-1, :-1]
            value = value - log_density(root, whitened[..., -1:])
        return value + nll(mean, schur, Y[:, target], noise=noise[:, target])
