"""The target of a joint GP, given the source data: mean, kernel, and the source likelihood.

With the joint kernel ``k``, source data ``(X_s, y_s)`` and ``K = k(X_s, X_s) + noise``,

.. code-block:: text

    m_t(x)     = k(x, X_s) K⁻¹ y_s
    k_t(x, x') = k(x, x') - k(x, X_s) K⁻¹ k(X_s, x')

and ``log p(y_t, y_s) = log p(y_t | y_s) + log p(y_s)``. These are the mean and the kernel of the
joint models. Target points only add rows to the Cholesky factor of ``K``; its source part does not
change. If the sources are independent of each other (weighted sources, ScaML's kernel), ``K`` and
its factor are block diagonal, and the factor of all data has the shape of an arrow.

A fit evaluates the likelihood of all tasks from the hyperparameters, for all starts at once, and
differentiates it automatically. Stationary kernels and the last factorization have closed-form
gradients (:meth:`.Stationary.covariance`, :func:`~.gp.likelihood.gaussian_loss`). Each independent
source task ``m`` has a block ``D_m``, and the whole matrix is never formed. With the covariances
``C_m`` of source and target points and the covariances ``T`` of target points,

.. code-block:: text

    NLL = Σ_m NLL(y_m; 0, D_m) + NLL(y_t; Σ_m C_mᵀ D_m⁻¹ y_m, T - Σ_m C_mᵀ D_m⁻¹ C_m)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Self, cast

import torch
from botorch.sampling.pathwise.features import gen_kernel_features
from gpytorch.constraints import Interval
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.likelihoods.noise_models import MultitaskHomoskedasticNoise
from gpytorch.means import Mean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.module import Module as GPyTorchModule
from gpytorch.priors import Prior
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor
from torch.nn import ModuleList
from torch.nn.functional import pad

from botorch_transfer.gp.conditioned import Conditioned, name_task_in_errors
from botorch_transfer.gp.likelihood import gaussian_loss, log_density
from botorch_transfer.gp.objective import (
    ClosedFormObjective,
    Part,
    is_gaussian_or_known,
    kernel_parts,
)
from botorch_transfer.gp.paths import MIN_FEATURES, ModelPath
from botorch_transfer.gp.state import (
    Cache,
    NamedState,
    collapse_batch,
    same_inputs,
    select_batch,
    shallow_copy,
)
from botorch_transfer.gp.stationary import PriorKernel, Stationary
from botorch_transfer.joint.kernels import CoregionalizationKernel, TaskPoints, rows_of_tasks


class SourcePoints(NamedState):
    """Source data as buffers, shared by copies of a model.

    Args:
        X: An ``N_s x d`` tensor: the tasks' inputs, one task after another.
        Y: An ``N_s`` tensor of outcomes.
        Yvar: An ``N_s`` tensor of known noise variances, zero for tasks whose noise is inferred.
        sizes: The number of points of each task.
        names: The tasks' names, for messages and the ``state_dict``.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor
    task_sizes: Tensor
    _facts = (("task_sizes", ()),)  # a state with other sizes does not load

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
        # The tensors never change, so copies of a model, such as fantasy models, share them.
        return shallow_copy(self)

    def groups(self, one_a_task: bool) -> list[tuple[TaskPoints, slice]]:
        """Splits the points into groups, each with its own Cholesky factor.

        Args:
            one_a_task: Whether each task is a group of its own; otherwise there is one group.

        Returns:
            Each group's points, and the rows of these points among all points.
        """
        tasks = range(len(self.sizes))
        if not one_a_task:
            return [(TaskPoints(self.X, tuple(tasks), self.sizes), slice(0, len(self.X)))]
        rows = rows_of_tasks(self.sizes)
        points = [TaskPoints(self.X[rows[task]], (task,), (self.sizes[task],)) for task in tasks]
        return list(zip(points, rows, strict=True))


class SourceNoise(MultitaskHomoskedasticNoise):
    """The noise variances of source data: known for some tasks, and inferred for the other tasks.

    ``noise`` contains the inferred noise variances, one for each task without known noise.

    Args:
        known: A flag for each task: whether its noise is known.
        constraint: The start and the bounds of an inferred noise variance.
        prior: The hyperprior of an inferred noise variance; none if omitted.
        batch_shape: The batch shape of the model.
    """

    def __init__(
        self,
        known: Sequence[bool],
        constraint: Interval,
        prior: Prior | None = None,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
    ) -> None:
        count = list(known).count(False)
        super().__init__(count, prior if count > 0 else None, constraint, batch_shape)
        self.known = tuple(known)
        self.raw_noise.requires_grad_(count > 0)

    def variances(self, points: SourcePoints) -> Tensor:
        """Returns each point's noise variance.

        Args:
            points: The source data.

        Returns:
            A ``batch_shape x N_s`` tensor.
        """
        noise, batch_shape = self.noise, self.raw_noise.shape[:-1]
        pieces, inferred = [], 0
        for known, Yvar in zip(self.known, points.Yvar.split(points.sizes), strict=True):
            value = Yvar if known else noise[..., inferred, None]
            pieces.append(value.expand(*batch_shape, len(Yvar)))
            inferred += not known
        return torch.cat(pieces, dim=-1)

    def __getitem__(self, index: Any) -> Self:
        """Selects from the batch."""
        return select_batch(self, index)


@dataclass(frozen=True)
class SourceFactor:
    """The factorized covariance of the source data.

    Args:
        roots: The Cholesky factors of the independent groups of source points, ``batch_shape x N_g
            x N_g`` in double precision.
        alpha: ``K⁻¹ y_s``, a ``batch_shape x N_s`` tensor.
        log_likelihood: ``log p(y_s)``, a ``batch_shape`` tensor.
    """

    roots: tuple[Tensor, ...]
    alpha: Tensor
    log_likelihood: Tensor


class SourceConditional(Conditioned, GPyTorchModule):
    """The target task of a joint GP, conditioned on the data of the source tasks.

    In evaluation mode, the factorized covariance of the source data is cached, without graph, until
    a hyperparameter or the data change; copies share the cache. In training mode, the covariance is
    factorized at each use, with its graph, except inside :meth:`factorized`.

    Args:
        kernel: The kernel over inputs and tasks.
        points: The source data.
        noise: The noise variances of the source data.

    Example:
        >>> from gpytorch.constraints import Positive
        >>> from gpytorch.kernels import RBFKernel
        >>> from botorch_transfer.kernels import HierarchicalKernel
        >>> X = torch.rand(5, 2)
        >>> points = SourcePoints(X, X.sum(-1), 0.1 * torch.ones(5), [5], ["monday"])
        >>> kernel = HierarchicalKernel([RBFKernel(), RBFKernel()])
        >>> conditional = SourceConditional(kernel, points, SourceNoise([True], Positive())).eval()
        >>> conditional.mean(torch.rand(3, 2)).shape
        torch.Size([3])
    """

    _factor: SourceFactor | None = None

    def __init__(
        self, kernel: CoregionalizationKernel, points: SourcePoints, noise: SourceNoise
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.points = points
        self.noise = noise
        self._memory = Cache(size=1)
        self._whitened = Cache()

    def __getitem__(self, index: Any) -> SourceConditional:
        """Selects from the batch."""
        return SourceConditional(self.kernel[index], self.points, self.noise[index])

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the hyperparameters."""
        return self.kernel.batch_shape

    @property
    def groups(self) -> list[tuple[TaskPoints, slice]]:
        """The independent groups of source points."""
        return self.points.groups(self.kernel.sources_are_independent)

    @property
    def _has_graph(self) -> bool:
        return self.training and torch.is_grad_enabled()

    def factor(self) -> SourceFactor:
        """Factorizes the covariance of the source data, or returns the cached factor.

        Raises:
            InputDataError: If the covariance is not positive definite; the message names the
                tasks. In training mode it raises the original error, from which a fit recovers.
        """
        if self._factor is not None:
            return self._factor
        if self._has_graph:
            return self._factorize()
        # Cached by value, because GPyTorch sets hyperparameters without changing version counters.
        modules = self.kernel, self.noise
        tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
        hyperparameters = torch.cat([tensor.detach().flatten() for tensor in tensors])
        return self._memory(lambda _: self._factorize(), hyperparameters, *self.points.buffers())

    @contextmanager
    def factorized(self) -> Iterator[SourceFactor]:
        """Factorizes only once for all evaluations inside a ``with`` block.

        Yields:
            The factor.
        """
        before = self._factor
        self._factor = self.factor()
        try:
            yield self._factor
        finally:
            self._factor = before

    @contextmanager
    def sharing(self, x: Tensor) -> Iterator[None]:
        """Factorizes only once, and evaluates the covariances of inputs and data only once.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs, see :meth:`.Conditioned.sharing`.
        """
        with self.factorized(), super().sharing(x):
            yield

    def _factorize(self) -> SourceFactor:
        variances = self.noise.variances(self.points)
        covariances = []
        for points, rows in self.groups:
            # In double precision for any data, because the noise may be tiny.
            covariance = self.kernel.covariance(points, points).double()
            covariances.append(covariance + torch.diag_embed(variances[..., rows].double()))
        roots = self._cholesky(covariances)
        alphas, log_likelihood = [], []
        for (_, rows), root in zip(self.groups, roots, strict=True):
            Y = self.points.Y[rows].double().unsqueeze(-1).expand(*root.shape[:-1], 1)
            whitened = torch.linalg.solve_triangular(root, Y, upper=False)
            alpha = torch.linalg.solve_triangular(root.mT, whitened, upper=True)
            alphas.append(alpha.squeeze(-1).to(variances))
            log_likelihood.append(log_density(root, whitened))
        total = torch.stack(log_likelihood).sum(dim=0).to(variances)
        return SourceFactor(tuple(roots), torch.cat(alphas, dim=-1), total)

    def _cholesky(self, covariances: Sequence[Tensor]) -> list[Tensor]:
        """Factorizes the groups' matrices; if a matrix fails, factorizes each with jitter."""
        factors = [torch.linalg.cholesky_ex(covariance) for covariance in covariances]
        if not bool(torch.stack([info.any() for _, info in factors]).any()):  # one GPU sync
            return [root for root, _ in factors]
        roots = []
        for (points, _), covariance in zip(self.groups, covariances, strict=True):
            names = [self.points.task_names[task] for task in points.tasks]
            with nullcontext() if self._has_graph else name_task_in_errors(*names):
                roots.append(psd_safe_cholesky(covariance))
        return roots

    @property
    def alpha(self) -> Tensor:  # type: ignore[override]
        """``K⁻¹ y_s``, a ``batch_shape x N_s`` tensor."""
        return self.factor().alpha

    @property
    def prior_mean(self) -> Tensor:  # type: ignore[override]
        """The mean of a joint GP: zero."""
        return self.points.Y.new_zeros(())

    def _target(self, x: Tensor) -> TaskPoints:
        return TaskPoints(x, (self.kernel.num_tasks - 1,), (x.shape[-2],))

    def flat_cross(self, x: Tensor) -> Tensor:
        """Evaluates ``k(x, X_s)`` for flat inputs: ``batch_shape x P x N_s``."""
        target = self._target(x)
        blocks = [self.kernel.covariance(points, target) for points, _ in self.groups]
        return torch.cat(blocks, dim=-2).mT

    def flat_whiten(self, x: Tensor) -> Tensor:
        """Whitens flat inputs: ``batch_shape x N_s x P``."""
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
            x2: A ``batch_shape x n2 x d`` tensor of inputs, often the target's training inputs;
                ``x1`` if omitted. Its whitened values are cached.
            whitened2: ``whiten(x2)``, if it is computed already.

        Returns:
            A ``batch_shape x n1 x n2`` tensor.
        """
        if not (x2 is None or x2.requires_grad or self._has_graph):
            state = self.factor().log_likelihood
            whitened2 = self._whitened(self.whiten, collapse_batch(x2), state)
        return super().covariance(x1, x2, whitened2)


class SourceConditionalKernel(PriorKernel):
    """The target's covariance, given the source data of a joint GP.

    Args:
        conditional: The joint GP's target task.

    Example:
        >>> model.covar_module(torch.rand(4, 2, dtype=torch.double)).shape
        torch.Size([4, 4])
    """

    def __init__(self, conditional: SourceConditional) -> None:
        super().__init__(batch_shape=conditional.batch_shape)
        self.conditional = conditional

    def __getitem__(self, index: Any) -> SourceConditionalKernel:
        """Selects from the batch."""
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
        """Draws paths, see :class:`.PriorKernel`; ``map_generator`` is as for JointPath."""
        number = len(self.conditional.kernel.data_kernels)
        share = max(num_features // number // 2 * 2, MIN_FEATURES)
        return JointPath(self.conditional, sample_shape, share, **kwargs)


class SourceConditionalMean(Mean):
    """The target's mean, given the source data of a joint GP.

    Args:
        conditional: The joint GP's target task.

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
    r"""Draws of the target's function in a joint GP, given the source data, minus the mean.

    A function of all tasks is drawn with random features of each data kernel,
    ``f(x, i) = Σ_ν φ_ν(x)ᵀ θ_ν [F_ν]_i``, and corrected for the source data by Matheron's rule.

    Args:
        conditional: The joint GP's target task, given the source data.
        sample_shape: The sample shape.
        num_features: The number of random features of each data kernel.
        map_generator: Builds a kernel's feature map, like BoTorch's ``gen_kernel_features``.
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
        """Computes ``-K⁻¹ (f(X_s) + ε)``, a ``sample_shape x batch_shape x N_s`` tensor."""
        points, factor = self.conditional.points, self.conditional.factor()
        ((everything, _),) = points.groups(one_a_task=False)
        of_all_tasks = self._combine(points.X, loadings)
        values = (of_all_tasks * everything.one_hot(of_all_tasks.shape[-1])).sum(dim=-1)
        noise = self.conditional.noise.variances(points).sqrt() * torch.randn_like(values)
        residual = -(values + noise).unsqueeze(-1).double()
        solved = [
            torch.cholesky_solve(residual[..., rows, :], root)
            for (_, rows), root in zip(self.conditional.groups, factor.roots, strict=True)
        ]
        return torch.cat(solved, dim=-2).squeeze(-1).to(values)

    def _combine(self, x: Tensor, loadings: Tensor) -> Tensor:
        """Computes ``Σ_ν φ_ν(x) loadings_ν`` for ``... x Q x num_features x T`` loadings."""
        maps = zip(self.feature_maps, loadings.unbind(dim=-3), strict=True)
        return torch.stack([feature_map(x) @ loading for feature_map, loading in maps]).sum(dim=0)

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Evaluates the draws.

        Args:
            x: A ``[sample_shape x] batch_shape x n x d`` tensor of inputs.
            **kwargs: Ignored.

        Returns:
            A ``sample_shape x batch_shape x n`` tensor.
        """
        values = self._combine(x, self.loadings.unsqueeze(-1))
        update = self.conditional.cross(x) @ self.correction.unsqueeze(-1)
        return (values + update).squeeze(-1)


logger = logging.getLogger(__name__)

#: Minimum expected duration, in seconds, at which a fit logs the duration in advance.
LONG = 10.0

#: Typical number of evaluations of each start in a fit.
TYPICAL_EVALUATIONS = 100


class JointObjective(ClosedFormObjective):
    """The objective of a joint model: the likelihood of all tasks.

    Args:
        mll: The marginal log likelihood of a joint model, in training mode.
    """

    def __init__(self, mll: ExactMarginalLogLikelihood) -> None:
        super().__init__(mll)
        model: Any = mll.model
        points, B = model.conditional.points, self.num_members
        self.kernel = model.conditional.kernel
        self._names = [
            cast(Stationary, Stationary.of(each)).name for each in self.kernel.data_kernels
        ]
        tasks, sizes = range(self.kernel.num_tasks), (*points.sizes, self._Y.shape[-1])
        if self.kernel.fitted_part is not None:
            value = Part(*self.kernel.fitted_part).value
            self._shape = value.shape[len(self.batch_shape) :]
        # Each member's own data follow the data of the sources.
        self._all_X = torch.cat([points.X.double().expand(B, -1, -1), self._X], dim=-2)
        self._all_Y = torch.cat([points.Y.double().expand(B, -1), self._Y], dim=-1)
        known = points.Yvar.double().expand(B, -1)
        self._known_noise = torch.cat([known, self._known_noise], dim=-1)
        self._points = TaskPoints(self._all_X[0], tuple(tasks), sizes)
        self._one_hot = self._points.one_hot(len(tasks))
        # Indicators of each point's inferred noise variance, one for each task without known noise.
        inferred = [
            *(not each for each in model.conditional.noise.known),
            isinstance(model.likelihood, GaussianLikelihood),
        ]
        self._noise_of = self._one_hot[:, torch.tensor(inferred)].mT
        arrow = [[task in (index, tasks[-1]) for task in tasks] for index in tasks]
        self._is_arrow = self.kernel.support == arrow
        if sizes[-1] == 0:
            self._num_points = sum(sizes)

    @classmethod
    def of(cls, mll: ExactMarginalLogLikelihood) -> Self | None:
        """Reads a model.

        Args:
            mll: The marginal log likelihood of a joint model, in training mode.

        Returns:
            The objective. ``None`` unless all data kernels are RBF or Matérn, and the target's
            noise is Gaussian or known.
        """
        model: Any = mll.model
        kernels = model.conditional.kernel.data_kernels
        if any(Stationary.of(kernel) is None for kernel in kernels):
            return None
        return cls(mll) if is_gaussian_or_known(model.likelihood) and cls.is_served(mll) else None

    @classmethod
    def parts(cls, model: Any) -> dict[str, Part]:
        """Lists the hyperparameters of data kernels, noise and coregionalization matrices."""
        kernel = model.conditional.kernel
        parts: dict[str, Part] = {}
        for index, each in enumerate(kernel.data_kernels):
            parts |= kernel_parts(each, f" {index}")
        parts["source noise"] = Part(model.conditional.noise, "noise")
        if isinstance(model.likelihood, GaussianLikelihood):
            parts["noise"] = Part(model.likelihood.noise_covar, "noise")
        if kernel.fitted_part is not None:
            parts["matrices"] = Part(*kernel.fitted_part)
        return parts

    def minimize(self, starts: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Minimizes the objective from all starts; logs the expected duration if it is long."""
        start = perf_counter()
        self(starts, torch.arange(len(starts), device=starts.device))
        seconds = TYPICAL_EVALUATIONS * (perf_counter() - start)
        if seconds > LONG:
            logger.info(
                "The fit of %s to %d points will take about %.2g seconds: to save time, use fewer "
                "source points by max_points=, or one start by num_restarts=0.",
                type(self.mll.model).__name__,
                len(self._one_hot),
                seconds,
            )
        return super().minimize(starts, *args, **kwargs)

    def likelihood(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the negative log likelihood of all tasks' points."""
        with torch.enable_grad():
            values = values.detach().requires_grad_()
            value = self._negative_log_likelihood(values, rows % self.num_members)
            (slope,) = torch.autograd.grad(value.sum(), values)
        return value.detach(), slope

    def _negative_log_likelihood(self, values: Tensor, member: Tensor) -> Tensor:
        given = self._split(values)
        inferred = [given[name] for name in ("source noise", "noise") if name in given]
        noise = self._known_noise[member] + torch.cat(inferred, dim=-1) @ self._noise_of
        fitted = [given["matrices"].unflatten(-1, self._shape)] if "matrices" in given else []
        matrices = self.kernel.task_covariances(*fitted).double()
        one = torch.ones_like(values[:, :1])
        kernels = [
            Stationary(
                name,
                given[f"lengthscale {index}"].unsqueeze(-2),
                given.get(f"outputscale {index}", one).squeeze(-1),
            )
            for index, name in enumerate(self._names)
        ]
        X, Y, N = self._all_X[member], self._all_Y[member].unsqueeze(-1), len(self._one_hot)

        def part(index: int, rows: Tensor | slice) -> Tensor:
            tasks = self._one_hot[rows]
            weights = tasks @ matrices[..., index, :, :] @ tasks.mT
            return weights * kernels[index].covariance(X[:, rows])

        constant = 0.5 * math.log(2 * math.pi) * N
        if self._is_arrow:
            return constant + self._of_blocks(part, Y, noise)
        total = values.new_zeros(())
        for index, support in enumerate(self.kernel.support):
            rows = self._points.rows(support)
            margins = rows.start, N - rows.stop
            total = total + pad(part(index, rows), (*margins, *margins))
        return constant + gaussian_loss(Y, total, noise)

    def _of_blocks(self, part: Callable[[int, Tensor], Tensor], Y: Tensor, noise: Tensor) -> Tensor:
        """Evaluates the negative log likelihood up to a constant, source by source."""
        every = torch.arange(Y.shape[-2], device=Y.device)
        *groups, target = every.split(self._points.sizes)
        schur, residual = part(len(groups), target), Y[:, target]
        value, failed = Y.new_zeros(len(Y)), Y.new_zeros(len(Y), dtype=torch.bool)
        for index, own in enumerate(groups):
            n = len(own)
            covariance = part(index, torch.cat([own, target]))
            root, info = torch.linalg.cholesky_ex(
                covariance[:, :n, :n] + noise[:, own].diag_embed()
            )
            beside = torch.cat([covariance[:, :n, n:], Y[:, own]], dim=-1)
            whitened = torch.linalg.solve_triangular(root, beside, upper=False)
            explained = whitened.mT @ whitened
            schur = schur + covariance[:, n:, n:] - explained[:, :-1, :-1]
            residual = residual - explained[:, :-1, -1:]
            log_det = root.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
            value = value + 0.5 * explained[:, -1, -1] + log_det
            failed = failed | (info > 0)
        value = value + gaussian_loss(residual, schur, noise[:, target])
        return value.masked_fill(failed, torch.nan)
