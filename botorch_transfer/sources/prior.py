"""Independent GPs of the source tasks, fitted and evaluated as one batch.

Read this for the prior of :class:`~.models.ScaMLGP` and of the ensembles. Each source task has a GP
of its own, as in Section 4 of [Tighineanu2023scaml]_. The fits are in ``map_fit``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, cast

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_transfer.conditioned_prior import ConditionedPrior
from botorch_transfer.data import SourceData, as_datasets, task_names
from botorch_transfer.gp.agreement import source_differences
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.fit import MAPOptions, fit_map
from botorch_transfer.gp.from_models import read_models
from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS, GPHyperparameters
from botorch_transfer.gp.tasks import OutcomeScale, PaddedTasks, check_padded_size, outcome_scales
from botorch_transfer.input_transforms import frozen_input_transform, warn_outside_unit_cube

if TYPE_CHECKING:  # it stands on this room
    from botorch_transfer.hyperprior.prior import Hyperprior


class SourceGPs(ConditionedPrior):
    r"""One GP for each source task: the prior of ScaML-GP and of ensembles.

    The GPs are independent, have a scaled stationary kernel with a lengthscale for each input, and
    are kept, fitted and evaluated as one batch. Use it when every source task has enough
    evaluations for a surrogate of its own, a few dozen or more; its cost grows linearly with the
    number of tasks. A saved file contains the source observations.

    Build one by :meth:`fit` or :meth:`from_models`, not by the constructor.

    Args:
        gps: The conditioned GPs, in the prior's units.
        outcome_mean: An ``M`` tensor: what was subtracted from each task's outcomes.
        outcome_std: An ``M`` tensor: what each task's outcomes were then divided by.
        names: The tasks' names.
        outcome_scale: How the outcomes were scaled.
        input_transform: The frozen transform from the user's inputs to the prior's.
        log_posterior: An ``M`` tensor: each task's log marginal likelihood plus log hyperprior
            density at its fitted hyperparameters; NaN for GPs that were not fitted here.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> sources = SourceGPs.fit({"monday": (X, X.sum(-1, keepdim=True))})
        >>> sources.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([1, 5])
    """

    gps: ConditionedGPs

    @classmethod
    def fit(
        cls,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        kernel: str = "rbf",
        hyperpriors: GPHyperparameters | Hyperprior | None = SOURCE_HYPERPARAMETERS,
        outcome_scale: OutcomeScale = "per_task",
        input_transform: InputTransform | None = None,
        **options: Any,
    ) -> Self:
        """Fits the GPs by maximum a posteriori, all tasks and starts in one batched optimization.

        Args:
            source_data: The source tasks, a sequence or a mapping from names: each a
                ``SupervisedDataset`` or tensors ``X`` (``n_i x d``), ``Y`` (``n_i x 1``, to be
                maximized) and optionally ``Yvar`` (``n_i x 1``, known noise variances). Inputs lie
                in the unit cube, or are raw and ``input_transform`` maps them there.
            kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.
            hyperpriors: Hyperpriors, starts and bounds of the hyperparameters; the defaults are
                those of ScaML-GP. ``None`` gives maximum likelihood. A :class:`Hyperprior` that was
                learned from other search spaces, with its own ``kernel``, helps tasks of a few
                points each, see :meth:`Hyperprior.gp_hyperparameters`.
            outcome_scale: Whether to standardize each task's outcomes by itself (``"per_task"``),
                all tasks' together (``"pooled"``), or not at all (``"raw"``).
            input_transform: A frozen transform of the inputs, for instance
                ``Normalize(d, bounds=...)``.
            **options: See :class:`~.pretraining.MAPOptions`: ``num_restarts``, ``max_iter``,
                ``seed``, ``chunk_elements``, ``max_bytes``, ``n_jobs`` and ``progress``.

        Returns:
            The prior, in the dtype and on the device of the data.

        Raises:
            InputDataError: If the source data are invalid, or too large for the memory; the message
                names the task.
            ValueError: If the transform is not frozen, an argument is out of range, or a
                :class:`Hyperprior` is of another kernel or in other units.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit([(X, X.sum(-1, keepdim=True))], num_restarts=2)
        """
        names, datasets = task_names(source_data), as_datasets(source_data)
        map_options = MAPOptions(**options)
        check_padded_size(names, [len(data.X) for data in datasets], map_options.max_bytes)
        transform = frozen_input_transform(input_transform)
        tasks = PaddedTasks.from_datasets(datasets, transform)
        warn_outside_unit_cube(tasks.X, "the source tasks")
        mean, std = outcome_scales(tasks, outcome_scale)
        tasks = tasks.standardize(mean, std)
        if hyperpriors is None:
            hyperpriors = SOURCE_HYPERPARAMETERS.without_priors()
        elif not isinstance(hyperpriors, GPHyperparameters):
            hyperpriors = learned_elsewhere(hyperpriors, tasks.X.shape[-1], kernel, outcome_scale)
        result = fit_map(tasks, kernel, hyperpriors, map_options)
        gps = result.condition(tasks, kernel, names)
        log_posterior = result.log_posterior.to(tasks.X)
        return cls(gps, mean, std, names, outcome_scale, transform, log_posterior)

    @classmethod
    def from_models(
        cls,
        models: Sequence[SingleTaskGP] | Mapping[str, SingleTaskGP],
        input_transform: InputTransform | None = None,
    ) -> Self:
        """Takes over GPs that were fitted elsewhere, hyperparameters as they are.

        Args:
            models: The source tasks' models, a sequence or a mapping from names; all with the same
                kind of kernel (RBF or Matérn, scaled or not), a zero or constant mean, and known
                or inferred noise. Their ``Standardize`` and ``Normalize`` transforms are folded in.
            input_transform: A frozen ``Normalize`` to the prior's input space; by default the
                models' raw inputs.

        Returns:
            The prior, in standardized units if the models have a ``Standardize``, else in raw ones.

        Raises:
            ValueError: If a model is of a kind that cannot be taken over; the message names it.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> model = SingleTaskGP(X, X.sum(-1, keepdim=True))
            >>> sources = SourceGPs.from_models({"monday": model})
        """
        read = read_models(models, frozen_input_transform(input_transform))
        check_padded_size(read.names, read.tasks.num_points.tolist())
        gps = ConditionedGPs(
            train_X=read.tasks.X,
            train_Y=read.tasks.Y,
            mask=read.tasks.mask,
            lengthscale=read.lengthscale,
            outputscale=read.outputscale,
            noise=read.tasks.Yvar,
            prior_mean=read.mean_constant,
            kernel=read.kernel,
            task_names=read.names,
        )
        scale: OutcomeScale = "per_task" if read.standardized else "raw"
        return cls(gps, read.outcome_mean, read.outcome_std, read.names, scale, input_transform)

    def append(
        self,
        source_data: SourceData | Sequence[SourceData] | Mapping[str, SourceData],
        hyperpriors: GPHyperparameters | Hyperprior | None = SOURCE_HYPERPARAMETERS,
        *,
        replace: bool = False,
        **options: Any,
    ) -> Self:
        """Adds source tasks without fitting the others again.

        Args:
            source_data: The new task, or a sequence or mapping of new tasks, as in :meth:`fit`.
                Tasks without a name of their own get a number.
            hyperpriors: As in :meth:`fit`.
            replace: Whether a new task takes the place of an old one of its name, at the end.
            **options: As in :meth:`fit`.

        Returns:
            A new prior with the old tasks first; this one stays as it is.

        Raises:
            InputDataError: If the new data are invalid, have another number of inputs, or the name
                of an old task without ``replace``.
            ValueError: If ``outcome_scale="pooled"``, as new outcomes would change the scale.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit({"monday": (X, X.sum(-1, keepdim=True))})
            >>> sources.append({"tuesday": (X, X.prod(-1, keepdim=True))}).task_names
            ('monday', 'tuesday')
        """
        if self.outcome_scale == "pooled":
            raise ValueError(
                "The prior's outcomes were standardized all together, and a new task would change "
                "their units: fit all tasks again by SourceGPs.fit."
            )
        tasks = as_named(source_data, default=f"source task {self.num_tasks}")
        kept = untaken(self.task_names, tasks, replace)
        name, dim = task_names(tasks)[0], as_datasets(tasks)[0].X.shape[-1]
        if dim != self.dim:
            raise InputDataError(
                f"The new source task {name!r} has {dim} inputs, but the prior has {self.dim}."
            )
        new = (
            type(self)
            .fit(
                tasks,
                kernel=self.gps.kernel,
                hyperpriors=hyperpriors,
                outcome_scale=self.outcome_scale,
                input_transform=self.input_transform,
                **options,
            )
            .to(self.outcome_mean)
        )
        if not kept:
            return new
        if len(kept) < self.num_tasks:
            return self.select(kept)._join(new, options)
        return self._join(new, options)

    def _join(self, new: Self, options: Mapping[str, Any]) -> Self:
        names = distinct(self.task_names, new.task_names)
        sizes = torch.cat([self.num_points, new.num_points]).tolist()
        check_padded_size(names, sizes, MAPOptions(**options).max_bytes)
        return type(self)(
            self.gps.join(new.gps, names),
            torch.cat([self.outcome_mean, new.outcome_mean]),
            torch.cat([self.outcome_std, new.outcome_std]),
            names,
            self.outcome_scale,
            self.input_transform,
            torch.cat([self.log_posterior, new.log_posterior]),
        )

    def select(self, tasks: Sequence[int]) -> Self:
        """Takes some of the tasks; nothing is computed anew.

        Args:
            tasks: Their indices; at least one.

        Returns:
            A new prior.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
            >>> SourceGPs.fit(history).select([1]).task_names
            ('tuesday',)
        """
        gps = self.gps.select(list(tasks))
        kept = torch.as_tensor(list(tasks), device=self.outcome_mean.device)
        own = self.outcome_mean, self.outcome_std, self.log_posterior
        mean, std, log_posterior = (part[kept] for part in own)
        names = [self.task_names[index] for index in tasks]
        transform = self.input_transform
        return type(self)(gps, mean, std, names, self.outcome_scale, transform, log_posterior)

    def observations(self, task: int) -> tuple[Tensor, Tensor]:
        """The data of a source task.

        Args:
            task: Its index.

        Returns:
            An ``n x d`` tensor of transformed inputs, and an ``n x 1`` tensor of outcomes in the
            user's units.
        """
        rows, like = self.gps.mask[task], self.outcome_mean
        return self.gps.train_X[task, rows].to(like), self._padded_outcomes()[task, rows, None].to(
            like
        )

    @property
    def num_points(self) -> Tensor:
        """The number of evaluations of each source task, an ``M`` tensor."""
        return self.gps.mask.sum(dim=-1)

    def mean(self, X: Tensor) -> Tensor:
        """Evaluates the posterior means of all source tasks, in the prior's units.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x M x n`` tensor, differentiable in ``X``.
        """
        return self.gps.mean(self._transformed(X))

    def variance(self, X: Tensor) -> Tensor:
        """Evaluates the posterior variances of all source tasks, noise left out.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x M x n`` tensor, differentiable in ``X``.
        """
        return self.gps.variance(self._transformed(X))

    def moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the posterior means and variances together, faster than one by one.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            Two ``batch_shape x M x n`` tensors, differentiable in ``X``.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit([(X, X.sum(-1, keepdim=True))])
            >>> mean, variance = sources.moments(torch.rand(5, 2, dtype=torch.double))
        """
        return self.gps.moments(self._transformed(X))

    def covariance(self, X: Tensor) -> Tensor:
        """Evaluates the joint posterior covariance of each source task, noise left out.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x M x n x n`` tensor, differentiable in ``X``.
        """
        return self.gps.covariance(self._transformed(X))

    def outcomes(self) -> Tensor:
        """All source outcomes in the user's units, one after another."""
        return self._padded_outcomes()[self.gps.mask].to(self.outcome_mean)

    def _padded_outcomes(self) -> Tensor:
        """The tasks' outcomes in the user's units, an ``M x N`` tensor."""
        std, mean = self.outcome_std.unsqueeze(-1), self.outcome_mean.unsqueeze(-1)
        return self.gps.train_Y * std + mean

    def _differences(self) -> Tensor:
        return source_differences(self.gps, self._padded_outcomes(), self.outcome_scale)

    @classmethod
    def _gps_class(cls, config: Mapping[str, Any]) -> type[ConditionedGPs]:
        return ConditionedGPs


def learned_elsewhere(
    hyperprior: Hyperprior, dim: int, kernel: str, outcome_scale: OutcomeScale = "per_task"
) -> GPHyperparameters:
    """Asks a hyperprior what it means for GPs of ``dim`` inputs; refuses what is none."""
    if not hasattr(hyperprior, "gp_hyperparameters"):
        raise TypeError(
            "hyperpriors must be a Hyperprior, or None; SourceGPs take GPHyperparameters, too. It "
            f"is {hyperprior!r}."
        )
    return hyperprior.gp_hyperparameters(dim, kernel, outcome_scale)


def as_named(
    source_data: SourceData | Sequence[SourceData] | Mapping[str, SourceData], default: str
) -> Sequence[SourceData] | Mapping[str, SourceData]:
    """Makes one single task a collection of tasks."""
    if isinstance(source_data, SupervisedDataset):
        return [source_data]
    if isinstance(source_data, tuple) and all(isinstance(part, Tensor) for part in source_data):
        return {default: cast(SourceData, source_data)}
    return cast("Sequence[SourceData] | Mapping[str, SourceData]", source_data)


def untaken(old: Sequence[str], new: Any, replace: bool) -> list[int]:
    """The old tasks whose names the user has not given to new ones, which might be the same runs.

    Args:
        old: Names of the old tasks.
        new: The new tasks; only those of a mapping have names by the user.
        replace: Whether new tasks may take the place of old ones.

    Returns:
        Indices of the old tasks to keep.

    Raises:
        InputDataError: If a name is taken, and ``replace`` is not set.
    """
    names = [str(name) for name in new] if isinstance(new, Mapping) else []
    taken = [name for name in names if name in old]
    if taken and not replace:
        raise InputDataError(
            f"The prior has a source task {taken[0]!r} already: give the new one another name, or "
            "say replace=True if it takes the place of the old one."
        )
    return [index for index, name in enumerate(old) if name not in taken]


def distinct(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Joins names; one that is taken, as "source task 0" of tensors may be, gets a number."""
    names = list(old)
    for name in new:
        candidate, number = name, len(names)
        while candidate in names:
            candidate, number = f"{name} ({number})", number + 1
        names.append(candidate)
    return names
