"""Independent GPs of the source tasks, fitted and evaluated as one batch.

The GPs are the prior of :class:`~.models.ScaMLGP` and of the ensembles. Each source task has a GP
of its own, as in Section 4 of [Tighineanu2023scaml]_. The fits are in ``gp.fit``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from torch import Tensor

from botorch_transfer.data import SourceData
from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.fit import MAPOptions, fit_map
from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS, GPHyperparameters
from botorch_transfer.gp.tasks import OutcomeScale, check_padded_size, read_models, scaled_tasks
from botorch_transfer.outcome_transforms import ranks, usable_std
from botorch_transfer.prior import ConditionedPrior, Observations

_MAX_INDUCING = 256


class SourceGPs(ConditionedPrior):
    r"""One GP for each source task: the prior of ScaML-GP and of ensembles.

    The GPs are independent, and have a scaled stationary kernel with a lengthscale for each input.
    They are fitted and evaluated as one batch. Use the prior if every source task has enough
    evaluations (a few dozen or more) for a surrogate of its own. The cost grows linearly with the
    number of tasks. The hyperparameters of a task are fitted to at most ``fit_points`` points. The
    posterior of a task is computed from all its points, and approximated with inducing points if
    the task has more than ``max_inducing`` points.

    Build a prior by :meth:`fit` or :meth:`from_models`, not by the constructor.

    Args:
        gps: The conditioned GPs, in the prior's units.
        units: The transforms from the tasks' data to the prior's inputs and outcomes.
        data: The source data; ``None`` if the prior was saved without them.
        log_posterior: An ``M`` tensor: each task's log marginal likelihood plus log hyperprior
            density at its fitted hyperparameters; NaN for GPs from :meth:`from_models`.
        statistics: Statistics of the source data, tensors by name; computed if omitted.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> sources = SourceGPs.fit({"monday": (X, X.sum(-1, keepdim=True))})
        >>> sources.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([1, 5])
    """

    gps: ConditionedGPs
    #: Spearman's rank correlation of each task's outcomes with the mean prediction of all other
    #: tasks, for at most ``MAX_COMPARED`` tasks. Zero if the outcomes or the predictions are
    #: constant. Empty if there is only one task. If sources do not predict each other, they are
    #: unlikely to predict a target.
    agreement: Tensor

    @classmethod
    def fit(
        cls,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        kernel: str = "rbf",
        hyperparameters: GPHyperparameters | None = SOURCE_HYPERPARAMETERS,
        outcome_scale: OutcomeScale = "per_task",
        input_transform: InputTransform | None = None,
        max_inducing: int = _MAX_INDUCING,
        **options: Any,
    ) -> Self:
        """Fits one GP for each source task by maximum a posteriori, in one batched optimization.

        Args:
            source_data: The source tasks, a sequence or a mapping from names: each a
                ``SupervisedDataset`` or tensors ``X`` (``n_i x d``), ``Y`` (``n_i x 1``, to be
                maximized) and optionally ``Yvar`` (``n_i x 1``, known noise variances). Inputs must
                lie in the unit cube, or ``input_transform`` must map the inputs to the unit cube.
            kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.
            hyperparameters: Hyperpriors, starts and bounds of the hyperparameters. The defaults are
                the values of the ScaML-GP paper, but with a higher upper bound of the noise
                variance. ``None`` gives maximum likelihood.
            outcome_scale: How to standardize the outcomes: each task separately (``"per_task"``),
                all tasks together (``"pooled"``), or not at all (``"raw"``).
            input_transform: A frozen transform of the inputs, for instance
                ``Normalize(d, bounds=...)``.
            max_inducing: The maximum number of inducing points of a task. If a task has more
                points, the points are condensed to this number of inducing points.
            **options: The fields of :class:`~.pretraining.MAPOptions`: ``num_restarts``,
                ``max_iter``, ``seed``, ``fit_points``, ``chunk_elements``, ``max_bytes``,
                ``n_jobs`` and ``progress``.

        Returns:
            The prior, in the dtype and on the device of the data.

        Raises:
            InputDataError: If the source data are invalid, or need more memory than ``max_bytes``;
                the message names the task.
            TypeError: If ``hyperparameters`` is not a :class:`GPHyperparameters`.
            ValueError: If the transform is not frozen, or an argument is out of range.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit([(X, X.sum(-1, keepdim=True))], num_restarts=2)
        """
        chosen = MAPOptions(**options)
        if max_inducing < 1:
            raise ValueError(f"max_inducing={max_inducing} must be positive.")
        most = max(chosen.fit_points, max_inducing)
        check_size = partial(check_padded_size, max_bytes=chosen.max_bytes, most=most)
        tasks, units = scaled_tasks(source_data, outcome_scale, input_transform, check_size)
        if hyperparameters is None:
            hyperparameters = SOURCE_HYPERPARAMETERS.without_priors()
        elif not isinstance(hyperparameters, GPHyperparameters):
            raise TypeError(
                f"hyperparameters={hyperparameters!r} must be a GPHyperparameters or None."
            )
        result = fit_map(tasks, kernel, hyperparameters, chosen)
        noise = tasks.known_or(result.noise)
        data = tasks.X, tasks.Y, tasks.mask
        found = result.lengthscale.to(tasks.X), result.outputscale.to(tasks.X), noise
        gps = ConditionedGPs.from_data(
            *data, *found, kernel=kernel, task_names=units.names, max_inducing=max_inducing
        )
        return cls(gps, units, Observations.of(tasks, noise), result.log_posterior.to(tasks.X))

    @classmethod
    def from_models(
        cls,
        models: Sequence[SingleTaskGP] | Mapping[str, SingleTaskGP],
        input_transform: InputTransform | None = None,
    ) -> Self:
        """Builds a prior from fitted BoTorch models, without changing the hyperparameters.

        Args:
            models: The source tasks' models, a sequence or a mapping from names. All models must
                have the same kind of kernel (RBF or Matérn, scaled or not), a zero or constant
                mean, and known or inferred noise. The prior includes the models' ``Standardize``
                and ``Normalize`` transforms.
            input_transform: A frozen ``Normalize`` from the models' raw inputs to the prior's
                inputs; by default, the prior's inputs are the raw inputs.

        Returns:
            The prior, in standardized units if the models have a ``Standardize``, else in raw
            units.

        Raises:
            ValueError: If a model is not supported; the message names the model.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> model = SingleTaskGP(X, X.sum(-1, keepdim=True))
            >>> sources = SourceGPs.from_models({"monday": model})
        """
        read = read_models(models, input_transform)
        tasks, found = read.tasks, {"prior_mean": read.mean_constant, **read.hyperparameters}
        check_padded_size(read.units.names, tasks.num_points.tolist())
        gps = ConditionedGPs.from_data(tasks.X, tasks.Y, tasks.mask, noise=tasks.Yvar, **found)
        return cls(gps, read.units, Observations.of(tasks, tasks.Yvar))

    def append(
        self,
        source_data: SourceData | Sequence[SourceData] | Mapping[str, SourceData],
        hyperparameters: GPHyperparameters | None = SOURCE_HYPERPARAMETERS,
        max_inducing: int = _MAX_INDUCING,
        **options: Any,
    ) -> Self:
        """Adds source tasks without fitting the old tasks again.

        Args:
            source_data: The new task, or a sequence or mapping of new tasks, as in :meth:`fit`.
                A task without a name gets a number as its name.
            hyperparameters: As in :meth:`fit`.
            max_inducing: As in :meth:`fit`.
            **options: As in :meth:`fit`.

        Returns:
            A new prior: the old tasks, then the new tasks. The original prior does not change.

        Raises:
            InputDataError: If the new data are invalid, have a different number of inputs, or use
                the name of an old task.
            ValueError: If ``outcome_scale="pooled"``, because new outcomes would change the scale.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit({"monday": (X, X.sum(-1, keepdim=True))})
            >>> sources.append({"tuesday": (X, X.prod(-1, keepdim=True))}).task_names
            ('monday', 'tuesday')
        """
        if self.outcome_scale == "pooled":
            raise ValueError(
                "A new task would change the units of the old tasks, because the outcomes of all "
                "tasks were standardized together: fit all tasks again by SourceGPs.fit."
            )
        tasks = self._new_tasks(source_data)
        kernel, scale, transform = self.gps.kernel, self.outcome_scale, self.input_transform
        new = self.fit(tasks, kernel, hyperparameters, scale, transform, max_inducing, **options)
        new = new.to(self.outcome_mean)
        units, chosen = self.units.join(new.units), MAPOptions(**options)
        sizes = torch.cat([self.num_points, new.num_points]).tolist()
        most = max(chosen.fit_points, max_inducing)
        check_padded_size(units.names, sizes, chosen.max_bytes, most)
        log_posterior = torch.cat([self.log_posterior, new.log_posterior])
        gps = ConditionedGPs.joined([self.gps, new.gps], units.names)
        data = self.observed.join(new.observed, self.num_tasks)
        return type(self)(gps, units, data, log_posterior)

    def select(self, tasks: Sequence[int]) -> Self:
        """Selects some of the tasks, without a new fit.

        Args:
            tasks: The indices of the tasks, at least one.

        Returns:
            A new prior.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
            >>> SourceGPs.fit(history).select([1]).task_names
            ('tuesday',)
        """
        index = torch.as_tensor(list(tasks), device=self.outcome_mean.device)
        gps, units = self.gps.select(index), self.units.select(index)
        log_posterior = self.log_posterior[index]
        if self.data is not None:
            return type(self)(gps, units, self.data.select(index), log_posterior)
        chosen = self.statistics
        for name in ("num_points", "task_noise", "agreement", "differences"):
            if len(chosen[name]) == self.num_tasks:  # of many tasks, only some have this statistic
                chosen[name] = chosen[name][index]
        return type(self)(gps, units, None, log_posterior, chosen)

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates posterior means and variances together, which is faster than in two calls.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            The means and the variances for ``M`` source tasks: two ``batch_shape x M x n`` tensors,
            differentiable in ``X``.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit([(X, X.sum(-1, keepdim=True))])
            >>> mean, variance = sources.moments(torch.rand(5, 2, dtype=torch.double))
        """
        return self.gps.moments(self._transformed(X))

    def covariance(self, X: Tensor) -> Tensor:
        """Evaluates the joint posterior covariance of each source task, without noise.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x M x n x n`` tensor for ``M`` source tasks, differentiable in ``X``.
        """
        return self.gps.covariance(self._transformed(X))

    @torch.no_grad()
    def _statistics(self) -> dict[str, Tensor]:
        """Computes statistics of the source data, including how well tasks predict each other.

        At most ``MAX_COMPARED`` tasks are used. The outcomes of each used task are compared with
        the mean prediction of the other used tasks. Unless ``outcome_scale`` is ``"raw"``, the
        outcomes of each used task are first standardized by the mean and the standard deviation of
        the other used tasks' outcomes. In the result, ``differences`` holds the mean squared
        differences, and ``agreement`` the rank correlations. Both are empty for a single task.
        """
        data, tasks, differences, agreement = self.observed, _compared(self.gps), [], []
        # Computes on the CPU: the following tensors are small, and a GPU would wait at each task.
        mean, std = self.outcome_mean[data.task], self.outcome_std[data.task]
        outcomes, scaled, task = (data.Y * std + mean).cpu(), data.Y.cpu(), data.task.cpu()
        known = [(task == each).nonzero().squeeze(-1) for each in tasks]
        rows = [own[evenly_spaced(len(own), MAX_POINTS)] for own in known]
        means = self.gps.select(tasks).mean(data.X[torch.cat(rows).to(data.X.device)]).cpu()
        predictions = means.split([len(own) for own in rows], dim=-1)
        for left_out in range(len(tasks)) if len(tasks) > 1 else ():
            others, Y = predictions[left_out], outcomes[rows[left_out]]
            predicted = (others.sum(dim=0) - others[left_out]) / (len(tasks) - 1)
            if self.outcome_scale != "raw":
                rest = outcomes[torch.cat(known[:left_out] + known[left_out + 1 :])]
                center, spread = rest.mean(), rest.std(correction=min(1, len(rest) - 1))
                Y = (Y - center) / usable_std(spread, center)
            differences.append(float((Y - predicted).square().mean()))
            agreement.append(_rank_correlation(scaled[rows[left_out]], predicted))
        return super()._statistics() | {
            "differences": outcomes.new_tensor(differences),
            "agreement": torch.tensor(agreement, dtype=torch.float),
        }


#: Minimum number of source tasks for which :func:`tasks_agree` tests whether tasks predict one
#: another. With fewer tasks, one outlier dominates the mean correlation.
MIN_TASKS = 5

#: Maximum number of source tasks that are compared with one another, and maximum number of points
#: of each of these tasks.
MAX_COMPARED, MAX_POINTS = 32, 32


def _compared(gps: ConditionedGPs) -> list[int]:
    """Returns the indices of the source tasks that are compared with one another.

    If there are more than ``MAX_COMPARED`` tasks, the function selects ``MAX_COMPARED`` of them.
    The selection depends on the tasks' data, not on the order of the tasks.
    """
    if gps.num_tasks <= MAX_COMPARED:
        return list(range(gps.num_tasks))
    by_content = (gps.points.sum(dim=-1) * gps.mask).sum(dim=-1).argsort()
    return by_content[evenly_spaced(gps.num_tasks, MAX_COMPARED)].tolist()


def tasks_agree(correlations: Tensor, significance: float = 2.5) -> bool:
    """Returns whether source tasks predict one another's outcomes.

    Args:
        correlations: Each task's rank correlation with the mean prediction of the other tasks, see
            :attr:`SourceGPs.agreement`.
        significance: The tasks agree if the z-score of the mean correlation exceeds this value.

    Returns:
        Whether the tasks agree; ``True`` for fewer than ``MIN_TASKS`` tasks.

    Example:
        >>> tasks_agree(torch.tensor([0.5, 0.7, 0.6, 0.9, 0.6]))
        True
        >>> tasks_agree(torch.tensor([0.5, -0.7, 0.3, 0.1, -0.2]))
        False
    """
    if len(correlations) < MIN_TASKS or significance == -math.inf:
        return True
    error = float(correlations.std()) / math.sqrt(len(correlations))
    return float(correlations.mean()) > significance * error


def _rank_correlation(left: Tensor, right: Tensor) -> float:
    if min(float(left.std(correction=0)), float(right.std(correction=0))) < 1e-12:
        return 0.0
    return float(torch.corrcoef(torch.stack([ranks(left), ranks(right)]))[0, 1])
