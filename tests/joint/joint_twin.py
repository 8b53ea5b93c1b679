"""Joint models written down from their formulas: one dense GP over all tasks, nothing exploited."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_transfer import (
    IntrinsicCoregionalizationGP,
    JointHierarchicalGP,
    JointScaMLGP,
    LinearCoregionalizationGP,
    WeightedSourceGP,
)
from tests.gp.padded import plain_kernel


def coregionalization(model: Any) -> list[Tensor]:
    """The matrices ``W_ν`` of the methods' definitions, element by element."""
    T = len(model.conditional.points.sizes) + 1
    t = T - 1
    matrices = []
    if isinstance(model, IntrinsicCoregionalizationGP):
        return [model.task_covariances]
    if isinstance(model, LinearCoregionalizationGP):
        return list(model.task_covariances)
    for nu in range(T):
        W = torch.zeros(T, T, dtype=torch.double)
        for i in range(T):
            for j in range(T):
                W[i, j] = _element(model, nu, i, j, t)
        matrices.append(W)
    return matrices


def _element(model: Any, nu: int, i: int, j: int, t: int) -> Tensor | float:
    if isinstance(model, JointHierarchicalGP):
        return 1.0 if i >= nu and j >= nu else 0.0
    if nu == t:
        return 1.0 if i == j == t else 0.0
    w = model.weights[nu]
    if isinstance(model, JointScaMLGP):
        return {(nu, nu): 1.0, (nu, t): w, (t, nu): w, (t, t): w**2}.get((i, j), 0.0)
    assert isinstance(model, WeightedSourceGP)
    own = float(i == nu and j == nu)
    value = own + w * (float(i == nu) + float(i == t)) * (float(j == nu) + float(j == t))
    return value / (1 + w) if model.conditional.kernel.normalize else value


@dataclass
class JointTwin:
    """The joint GP of a model, in the model's own units.

    Args:
        model: The model, whose hyperparameters and standardized data are taken.
    """

    model: Any

    def covariance(self, A: Tensor, i: Tensor, B: Tensor, j: Tensor) -> Tensor:
        """The joint kernel between points ``A`` of tasks ``i`` and points ``B`` of tasks ``j``."""
        total = torch.zeros(len(A), len(B), dtype=torch.double)
        for W, kernel in zip(coregionalization(self.model), self.model.covar_modules, strict=True):
            base = getattr(kernel, "base_kernel", kernel)
            scale = getattr(kernel, "outputscale", 1.0)
            values = plain_kernel("rbf", A / base.lengthscale, B / base.lengthscale)
            total = total + W[i][:, j] * scale * values
        return total

    def data(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All tasks' inputs, tasks, outcomes and noise variances, target last."""
        model, points = self.model, self.model.conditional.points
        X, tasks, noise = [], [], []
        inferred = iter(model.source_noise)
        parts = zip(points.X.split(points.sizes), points.Yvar.split(points.sizes), strict=True)
        for task, (inputs, variances) in enumerate(parts):
            X.append(inputs)
            tasks += [task] * len(inputs)
            known = bool((variances > 0).all())
            noise.append(variances if known else next(inferred).expand(len(inputs)))
        train_X = model.train_inputs[0]
        tasks += [len(points.sizes)] * len(train_X)
        X.append(train_X)
        noise.append(model.likelihood.noise.expand(len(train_X)))
        Y = torch.cat([points.Y, model.train_targets])
        return torch.cat(X), torch.tensor(tasks), Y, torch.cat(noise)

    def posterior(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The target's mean and covariance, given all data, in the user's units."""
        X, tasks, Y, noise = self.data()
        target = torch.full((len(x),), len(self.model.conditional.points.sizes))
        K = self.covariance(X, tasks, X, tasks) + noise.diag()
        cross = self.covariance(x, target, X, tasks)
        solved = torch.linalg.solve(K, torch.cat([Y.unsqueeze(-1), cross.mT], dim=-1))
        mean = cross @ solved[:, 0]
        covariance = self.covariance(x, target, x, target) - cross @ solved[:, 1:]
        transform = self.model.outcome_transform
        scale, shift = transform.stdvs.squeeze(), transform.means.squeeze()
        return mean * scale + shift, covariance * scale**2

    def log_likelihood(self) -> Tensor:
        """``log p(y_t, y_s)`` of all standardized data."""
        X, tasks, Y, noise = self.data()
        K = self.covariance(X, tasks, X, tasks) + noise.diag()
        quadratic = Y @ torch.linalg.solve(K, Y)
        return -0.5 * (quadratic + torch.logdet(K) + len(Y) * math.log(2 * math.pi))


def standardized(values: Sequence[Tensor]) -> list[Tensor]:
    """Each task's outcomes, by their own mean and unbiased deviation."""
    return [(Y - Y.mean()) / (Y.std() if len(Y) > 1 else 1.0) for Y in values]
