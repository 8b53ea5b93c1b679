r"""The objective of a joint model's hyperparameters: the likelihood of all tasks.

Read it for how joint models are fitted. The likelihood is evaluated from the hyperparameters, for
all starts at once, and differentiated automatically. Stationary kernels and the last factorization
have closed-form gradients (:meth:`.Stationary.covariance`, :func:`~.gp.likelihood.gaussian_loss`).

Independent source tasks have a block each, ``D_m``, and the whole matrix is never formed. With the
covariances ``C_m`` of source and target points and those ``T`` of target points,

.. code-block:: text

    NLL = Σ_m NLL(y_m; 0, D_m) + NLL(y_t; Σ_m C_mᵀ D_m⁻¹ y_m, T - Σ_m C_mᵀ D_m⁻¹ C_m)
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from time import perf_counter
from typing import Any, Self, cast

import torch
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.nn.functional import pad

from botorch_transfer.gp.likelihood import gaussian_loss
from botorch_transfer.gp.objective import (
    ClosedFormObjective,
    Part,
    is_gaussian_or_known,
    kernel_parts,
)
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.joint.kernels import TaskPoints

logger = logging.getLogger(__name__)

LONG = 10.0
"""The seconds from which a fit logs beforehand how long it will take."""

TYPICAL_EVALUATIONS = 100
"""The number of evaluations of a start that a fit typically takes."""


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
        # Which inferred noise variance each point has: one for each task whose noise is unknown.
        inferred = [
            *(not each for each in model.conditional.noise.known),
            isinstance(model.likelihood, GaussianLikelihood),
        ]
        self._noise_of = self._one_hot[:, torch.tensor(inferred)].mT
        arrow = [[task in (index, tasks[-1]) for task in tasks] for index in tasks]
        self._is_arrow = self.kernel.support == arrow
        if sizes[-1] == 0:
            self._set_count(sum(sizes))

    @classmethod
    def of(cls, mll: ExactMarginalLogLikelihood) -> Self | None:
        """Reads a model.

        Args:
            mll: The marginal log likelihood of a joint model, in training mode.

        Returns:
            The objective. ``None`` if it cannot be evaluated by rows: it can if all data kernels
            are RBF or Matérn, and the target's noise is Gaussian or known.
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

    def minimize(
        self, starts: Tensor, max_iter: int, callback: Callable[[Any], None] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Minimizes the objective from all starts, and logs beforehand if it takes long."""
        start = perf_counter()
        self(starts, torch.arange(len(starts), device=starts.device))
        seconds = TYPICAL_EVALUATIONS * (perf_counter() - start)
        if seconds > LONG:
            logger.info(
                "The fit of %s to %d points will take about %.2g seconds: max_points= uses fewer "
                "points of the source tasks, num_restarts=0 one start only.",
                type(self.mll.model).__name__,
                len(self._one_hot),
                seconds,
            )
        return super().minimize(starts, max_iter, callback)

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
        """Evaluates the likelihood up to a constant, source by source."""
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
