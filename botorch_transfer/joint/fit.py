r"""The log posterior of a joint model's hyperparameters in closed form, and its maximum.

Read it for how joint models are fitted. With the covariance ``K`` of all points, noise included,
``α = K⁻¹ y`` and ``G = ∂NLL/∂K = ½ (K⁻¹ - ααᵀ)`` as in :mod:`~.gp.likelihood`, the derivatives in
the coregionalization matrices and in the lengthscales of a data kernel ``k_ν`` are

.. code-block:: text

    ∂NLL/∂[W_ν]_ab = Σ G_ij k_ν(x_i, x_j)       i of task a, j of task b
    ∂NLL/∂x_i      = 4 Σ_j H_ij (x_i - x_j)     H = G ∘ W_ν ∘ k_ν'(r²), x in units of lengthscales

Independent source tasks have a block each, ``D_m``, and the whole matrix is never formed. With the
covariances ``C_m`` of source and target points, those ``T`` of target points and ``E_m = D_m⁻¹
C_m``,

.. code-block:: text

    S = T - Σ_m C_mᵀ E_m        [K⁻¹]_mt = -E_m S⁻¹        [K⁻¹]_mm = D_m⁻¹ + E_m S⁻¹ E_mᵀ
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from time import perf_counter
from typing import Any, NamedTuple, Self, cast

import torch
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.nn.functional import pad

from botorch_transfer.gp.objective import (
    Hyperparameters,
    ModelObjective,
    in_rows,
    is_gaussian_or_known,
)
from botorch_transfer.gp.stationary import Stationary, gradient_in_inputs
from botorch_transfer.joint.kernels import TaskPoints, rows_from_first_to_last, rows_of_tasks

logger = logging.getLogger(__name__)

LONG = 10.0
"""The seconds from which a fit says beforehand how long it will take."""

TYPICAL_EVALUATIONS = 100
"""The number of evaluations of a start that a fit typically takes."""


class JointObjective(ModelObjective):
    """The objective of a joint model: the likelihood of all tasks.

    Args:
        mll: The marginal log likelihood of a joint model, in training mode.
    """

    def __init__(self, mll: ExactMarginalLogLikelihood) -> None:
        super().__init__(mll)
        model: Any = mll.model
        points, kernel, n = model.conditional.points, model.conditional.kernel, self._Y.shape[-1]
        # Each member's own data behind those of the sources.
        self._all_X = [torch.cat([points.X.double(), own]) for own in self._X]
        self._all_Y = [torch.cat([points.Y.double(), own]) for own in self._Y]
        self._names = [cast(Stationary, Stationary.of(each)).name for each in kernel.data_kernels]
        sizes = (*points.sizes, n)
        self._layout = TaskLayout(sizes, kernel.support, kernel.sources_are_independent)
        if n == 0:
            self._count.fill_(sum(points.sizes))

    @classmethod
    def of(cls, mll: ExactMarginalLogLikelihood) -> Self | None:
        """Reads a model.

        Args:
            mll: The marginal log likelihood of a joint model, in training mode.

        Returns:
            The objective. ``None`` if it has no closed form: it has one if all data kernels are RBF
            or Matérn, and the target's noise is Gaussian or known.
        """
        model: Any = mll.model
        kernels = model.conditional.kernel.data_kernels
        if any(Stationary.of(kernel) is None for kernel in kernels):
            return None
        return cls(mll) if is_gaussian_or_known(model.likelihood) and cls.is_served(mll) else None

    def maximize(
        self,
        starts: Mapping[str, Tensor],
        max_iter: int,
        callback: Callable[[Any], None] | None = None,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Maximizes the log posterior from all starts, and says beforehand if it takes long."""
        theta = self.rows(starts)
        start = perf_counter()
        self(theta[:1], torch.zeros(1, dtype=torch.long, device=theta.device))
        seconds = TYPICAL_EVALUATIONS * len(theta) * (perf_counter() - start)
        if seconds > LONG:
            logger.info(
                "The fit of %s to %d points will take about %.2g seconds: max_points= uses fewer "
                "points of the source tasks, num_restarts=0 one start only.",
                type(self._model.mll.model).__name__,
                len(self._all_Y[0]),
                seconds,
            )
        return super().maximize(starts, max_iter, callback)

    def _read(self, model: Any, num_rows: int) -> Hyperparameters:
        kernel, points = model.conditional.kernel, model.conditional.points
        stationary = [cast(Stationary, Stationary.of(each)) for each in kernel.data_kernels]
        dim = self._X.shape[-1]
        lengthscales = [each.lengthscale.squeeze(-2).expand(num_rows, dim) for each in stationary]
        noise = in_rows(model.conditional.noise.variances(points), num_rows, 1)
        inferred = model.likelihood.noise if self._infers_noise else noise.new_zeros(1)
        of_target = in_rows(inferred, num_rows, 1).expand(-1, self._layout.sizes[-1])
        return {
            "covariances": in_rows(kernel.task_covariances(), num_rows, 3),
            "lengthscale": torch.stack(lengthscales, dim=-2).double(),
            "scale": torch.stack([in_rows(each.scale, num_rows, 0) for each in stationary], -1),
            "noise": torch.cat([noise, of_target], dim=-1),
        }

    def likelihood(self, values: Hyperparameters, rows: Tensor) -> tuple[Tensor, Hyperparameters]:
        """Evaluates the negative log likelihood of all tasks' points, one row after the other."""
        found: list[Tensor] = []
        slopes: list[JointGradient] = []
        for place, row in enumerate(rows.tolist()):
            own = {name: value[place] for name, value in values.items()}
            member, noise = row % self._num_members, own["noise"]
            if self._known_noise is not None:
                known = self._known_noise[member]
                noise = noise + pad(known, (len(noise) - len(known), 0))
            kernels = [
                Stationary(name, lengthscale.unsqueeze(0), scale)
                for name, lengthscale, scale in zip(
                    self._names, own["lengthscale"], own["scale"], strict=True
                )
            ]
            value, slope = joint_nll_and_gradient(
                self._layout,
                self._all_X[member],
                self._all_Y[member],
                noise,
                own["covariances"],
                kernels,
            )
            found.append(value)
            slopes.append(slope)
        stacked = map(torch.stack, zip(*slopes, strict=True))
        return torch.stack(found), dict(zip(JointGradient._fields, stacked, strict=True))


@dataclass(frozen=True)
class TaskLayout:
    """Which points are of which task, and which tasks share a data kernel.

    Args:
        sizes: The number of points of each of the ``T`` tasks, target last.
        support: ``Q x T`` flags: whether a task has a part with data kernel ``k_ν``.
        independent: Whether no two source tasks share a kernel.
    """

    sizes: tuple[int, ...]
    support: list[list[bool]]
    independent: bool

    @property
    def groups(self) -> list[slice]:
        """The rows of each independent source task; none if they are dependent."""
        return rows_of_tasks(self.sizes[:-1]) if self.independent else []

    @property
    def rest(self) -> slice:
        """The rows of all other points: of the target, or of all tasks."""
        total = sum(self.sizes)
        return slice(total - self.sizes[-1] if self.independent else 0, total)

    def parts(self, support: Sequence[bool]) -> tuple[int | None, slice]:
        """Finds the points that a data kernel is of.

        Args:
            support: The tasks.

        Returns:
            The independent source task among them, if there is one, and the rows of ``rest``, from
            the first to the last.
        """
        if self.independent:
            group = next((task for task, flag in enumerate(support[:-1]) if flag), None)
            return group, slice(0, self.sizes[-1] if support[-1] else 0)
        rows = compress(rows_of_tasks(self.sizes), support)
        return None, rows_from_first_to_last(list(rows))


class JointGradient(NamedTuple):
    """The derivatives of the negative log likelihood of all tasks.

    Args:
        covariances: A ``Q x T x T`` tensor: in the coregionalization matrices.
        lengthscale: A ``Q x d`` tensor: in the lengthscales.
        scale: A ``Q`` tensor: in the signal variances.
        noise: An ``N`` tensor: in each point's noise variance.
    """

    covariances: Tensor
    lengthscale: Tensor
    scale: Tensor
    noise: Tensor


@torch.no_grad()
def joint_nll_and_gradient(
    layout: TaskLayout,
    X: Tensor,
    Y: Tensor,
    noise: Tensor,
    covariances: Tensor,
    kernels: Sequence[Stationary],
) -> tuple[Tensor, JointGradient]:
    """Evaluates the negative log likelihood of all tasks together, and its gradient.

    Args:
        layout: The tasks of the points.
        X: An ``N x d`` tensor of inputs in double precision, sorted by task, target last.
        Y: An ``N`` tensor of outcomes.
        noise: An ``N`` tensor of noise variances.
        covariances: A ``Q x T x T`` tensor of coregionalization matrices.
        kernels: The ``Q`` data kernels, with ``1 x d`` lengthscales.

    Returns:
        The value, a scalar, and the gradient. NaN where the covariance is not positive definite.

    Example:
        >>> layout = TaskLayout((2, 1), [[True, True]], False)
        >>> kernel = Stationary("rbf", torch.ones(1, 2).double(), torch.ones(()).double())
        >>> X, ones = torch.rand(3, 2).double(), torch.ones(3).double()
        >>> matrix = torch.eye(2).double().unsqueeze(0)
        >>> value, gradient = joint_nll_and_gradient(layout, X, ones, ones, matrix, [kernel])
        >>> gradient.covariances.shape
        torch.Size([1, 2, 2])
    """
    rest, groups, num_tasks = layout.rest, layout.groups, len(layout.sizes)
    one_hot = TaskPoints(X, tuple(range(num_tasks)), layout.sizes).one_hot(num_tasks)
    size = rest.stop - rest.start
    D = [noise[rows].diag() for rows in groups]
    C = [noise.new_zeros(len(block), size) for block in D]
    T = noise[rest].diag()
    evaluated = []
    for W, kernel, support in zip(covariances, kernels, layout.support, strict=True):
        group, shared = layout.parts(support)
        own = slice(0, 0) if group is None else groups[group]
        inside = slice(rest.start + shared.start, rest.start + shared.stop)
        scaled = torch.cat([X[own], X[inside]]) / kernel.lengthscale
        tasks = torch.cat([one_hot[own], one_hot[inside]])
        values, derivative = kernel.value_and_derivative(scaled)
        weights = tasks @ W @ tasks.mT
        weighted, count = weights * values, own.stop - own.start
        if group is not None:
            D[group] += weighted[:count, :count]
            C[group][:, shared] += weighted[:count, count:]
        T[shared, shared] += weighted[count:, count:]
        evaluated.append((group, shared, scaled, tasks, values, weights * derivative))
    value, in_D, in_C, in_T = _arrowhead(D, C, T, Y, groups, rest)
    in_W, in_lengthscale = [], []
    for kernel, (group, shared, scaled, tasks, values, derivative) in zip(
        kernels, evaluated, strict=True
    ):
        G = in_T[shared, shared]
        if group is not None:
            beside = in_C[group][:, shared]
            G = torch.cat([torch.cat([in_D[group], beside], -1), torch.cat([beside.mT, G], -1)])
        in_W.append(tasks.mT @ (G * values) @ tasks)
        in_inputs = gradient_in_inputs(4.0 * G * derivative, scaled)
        in_lengthscale.append(-(in_inputs * scaled).sum(dim=0) / kernel.lengthscale.squeeze(0))
    in_covariances = torch.stack(in_W)
    scale = torch.stack([kernel.scale for kernel in kernels])
    diagonals = [G.diagonal() for G in (*in_D, in_T)]
    return value, JointGradient(
        in_covariances,
        torch.stack(in_lengthscale),
        (covariances * in_covariances).sum(dim=(-2, -1)) / scale,
        torch.cat(diagonals),
    )


def _arrowhead(
    D: list[Tensor], C: list[Tensor], T: Tensor, Y: Tensor, groups: list[slice], rest: slice
) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
    """The value, and the derivatives in ``D_m``, in ``C_m`` and in ``T``.

    Elements of ``C_m`` and their mirror images count as different ones.
    """
    failed, log_det = T.new_zeros((), dtype=torch.bool), T.new_zeros(())

    def inverse(matrix: Tensor) -> Tensor:
        nonlocal failed, log_det
        root, info = torch.linalg.cholesky_ex(matrix)
        failed, log_det = failed | (info > 0), log_det + root.diagonal().log().sum()
        # Transposed, as PyTorch returns it column by column.
        return torch.cholesky_inverse(root).mT

    inverses = [inverse(block) for block in D]
    E = [block @ beside for block, beside in zip(inverses, C, strict=True)]
    schur, residual = T, Y[rest]
    for beside, explained, rows in zip(C, E, groups, strict=True):
        schur = schur - beside.mT @ explained
        residual = residual - explained.mT @ Y[rows]
    of_rest = inverse(schur)
    alpha = of_rest @ residual
    value = 0.5 * residual @ alpha + log_det + 0.5 * math.log(2 * math.pi) * len(Y)
    in_D, in_C = [], []
    for block, explained, rows in zip(inverses, E, groups, strict=True):
        solved = block @ Y[rows]
        value = value + 0.5 * Y[rows] @ solved
        own, across = solved - explained @ alpha, explained @ of_rest
        in_D.append(0.5 * torch.addmm(block, across, explained.mT).addr_(own, own, alpha=-1))
        in_C.append(-0.5 * across.addr(own, alpha))
    in_T = 0.5 * torch.addr(of_rest, alpha, alpha, alpha=-1)
    return torch.where(failed, torch.nan, value), in_D, in_C, in_T
