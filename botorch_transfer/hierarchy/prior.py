"""A sequence of source tasks, each a GP on top of the one before.

Read this for the prior of the hierarchical models of [Tighineanu2022hierarchical]_. The prior of
level ``n`` is the posterior of level ``n - 1`` plus a kernel of its own for the difference. Levels
are fitted one after another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from torch import Tensor
from tqdm.auto import tqdm

from botorch_transfer.conditioned_prior import ConditionedPrior
from botorch_transfer.data import SourceData, as_datasets, check_joint_size, task_names
from botorch_transfer.gp.agreement import order_by_relatedness
from botorch_transfer.gp.fit import MAPOptions, MAPResult, fit_map
from botorch_transfer.gp.from_models import read_models
from botorch_transfer.gp.hyperpriors import (
    RESIDUAL_HYPERPARAMETERS,
    SOURCE_HYPERPARAMETERS,
    GPHyperparameters,
)
from botorch_transfer.gp.tasks import OutcomeScale, PaddedTasks, check_padded_size, outcome_scales
from botorch_transfer.hierarchy.kernel import BoostedHierarchy, ConditionedHierarchy, stack_levels
from botorch_transfer.input_transforms import frozen_input_transform, warn_outside_unit_cube

Propagate = Literal["covariance", "mean"]
"""What a level passes on to the next: its mean and covariance (SHGP), or its mean (MHGP, BHGP)."""


class SourceHierarchy(ConditionedPrior):
    r"""Source tasks in order, each modelled as the one before plus a difference.

    It is the prior of the hierarchical models of [Tighineanu2022hierarchical]_. Use it if the tasks
    have an order, such as model generations or growing data sets, or are few and similar. The last
    tasks count most. A saved file contains the source observations.

    With ``propagate="covariance"``, all levels are one GP on the points of all tasks: time grows
    with the cube of their number and memory with its square, and more than ``max_bytes`` of it are
    refused. With ``"mean"`` both grow with the number of tasks; only BHGP's covariances need that
    one GP, too. For thousands of tasks use :class:`SourceGPs`.

    Build one by :meth:`fit` or :meth:`from_models`, not by the constructor.

    Args:
        gps: The conditioned hierarchy, in the prior's units.
        outcome_mean: An ``M`` tensor: what was subtracted from each task's outcomes.
        outcome_std: An ``M`` tensor: what each task's outcomes were then divided by.
        names: The tasks' names, in the order of the levels.
        outcome_scale: How the outcomes were scaled.
        input_transform: The frozen transform from the user's inputs to the prior's.
        log_posterior: An ``M`` tensor: each level's log marginal likelihood plus log hyperprior
            density; NaN for levels that were not fitted here.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"v1": (X, X.sum(-1, keepdim=True)), "v2": (X, X.prod(-1, keepdim=True))}
        >>> stack = SourceHierarchy.fit(history, propagate="covariance")
        >>> stack.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([5])
    """

    gps: ConditionedHierarchy

    @property
    def propagate(self) -> Propagate:
        """What a level passes on to the next."""
        return "mean" if isinstance(self.gps, BoostedHierarchy) else "covariance"

    @classmethod
    def fit(
        cls,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        propagate: Propagate = "covariance",
        order: Literal["given", "relatedness"] = "given",
        kernel: str = "rbf",
        hyperpriors: GPHyperparameters | Sequence[GPHyperparameters] | None = (
            SOURCE_HYPERPARAMETERS,
            RESIDUAL_HYPERPARAMETERS,
        ),
        outcome_scale: OutcomeScale = "per_task",
        input_transform: InputTransform | None = None,
        **options: Any,
    ) -> Self:
        """Fits the levels in order; earlier levels stay fixed.

        Args:
            source_data: The source tasks, a sequence or a mapping from names, as in
                :meth:`SourceGPs.fit`; the first is the lowest level.
            propagate: ``"covariance"`` for SHGP, ``"mean"`` for MHGP and BHGP.
            order: ``"given"``, or ``"relatedness"``, which puts the task that agrees most with the
                others last, next to the target: see :func:`~.agreement.order_by_relatedness`.
            kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.
            hyperpriors: Hyperpriors, starts and bounds of the lowest level and of the others, whose
                kernels describe differences; by default those of ScaML-GP's source tasks and of its
                residual. ``None`` gives maximum likelihood, as in the paper; one object serves all
                levels.
            outcome_scale: Whether to standardize each task's outcomes by itself (``"per_task"``),
                all tasks' together (``"pooled"``), or not at all (``"raw"``).
            input_transform: A frozen transform of the inputs.
            **options: See :class:`~.pretraining.MAPOptions`.

        Returns:
            The prior, in the dtype and on the device of the data.

        Raises:
            InputDataError: If the source data are invalid; the message names the task.
            ValueError: If an argument is out of range.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> stack = SourceHierarchy.fit([(X, X.sum(-1, keepdim=True))], propagate="mean")
        """
        hierarchy = _hierarchy_class(propagate)
        if order not in ("given", "relatedness"):
            raise ValueError(f"order must be 'given' or 'relatedness', not {order!r}.")
        names, datasets = task_names(source_data), as_datasets(source_data)
        map_options = MAPOptions(**options)
        sizes = [len(dataset.X) for dataset in datasets]
        if propagate == "covariance":
            check_joint_size(sum(sizes), torch.double, map_options.max_bytes)
        else:
            # BHGP's covariance needs the joint factors, too, and checks their size itself.
            check_padded_size(names, sizes, map_options.max_bytes)
        transform = frozen_input_transform(input_transform)
        tasks = PaddedTasks.from_datasets(datasets, transform)
        warn_outside_unit_cube(tasks.X, "the source tasks")
        mean, std = outcome_scales(tasks, outcome_scale)
        tasks = tasks.standardize(mean, std)
        if order == "relatedness":
            ranks = order_by_relatedness(tasks, kernel, map_options)
            tasks, mean, std = tasks[ranks], mean[ranks], std[ranks]
            names = [names[rank] for rank in ranks.tolist()]
        if hyperpriors is None:
            hyperpriors = SOURCE_HYPERPARAMETERS.without_priors()
        both = 2 * (hyperpriors,) if isinstance(hyperpriors, GPHyperparameters) else hyperpriors
        first, others = both
        gps, log_posterior = _fit_levels(
            tasks, names, hierarchy, kernel, first, others, map_options
        )
        return cls(gps, mean, std, names, outcome_scale, transform, log_posterior)

    @classmethod
    def from_models(
        cls,
        models: Sequence[SingleTaskGP] | Mapping[str, SingleTaskGP],
        propagate: Propagate = "covariance",
        input_transform: InputTransform | None = None,
    ) -> Self:
        """Builds a hierarchy of GPs that were made elsewhere, hyperparameters as they are.

        Args:
            models: One model a level, the lowest first: level ``n`` takes model ``n``'s kernel,
                mean and noise for its difference from the level below, and its data. The kinds are
                those of :meth:`SourceGPs.from_models`.
            propagate: ``"covariance"`` for SHGP, ``"mean"`` for MHGP and BHGP.
            input_transform: A frozen ``Normalize`` to the space that the prior shall live in.

        Returns:
            The prior.

        Raises:
            ValueError: If a model is of a kind that cannot be taken over; the message names it.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> models = [SingleTaskGP(X, X[:, i : i + 1]) for i in range(2)]
            >>> stack = SourceHierarchy.from_models(models, propagate="mean")
        """
        hierarchy = _hierarchy_class(propagate)
        read = read_models(models, frozen_input_transform(input_transform))
        if propagate == "covariance":
            instead = "use SourceGPs and ScaMLGP, or thin out the source data"
            check_joint_size(int(read.tasks.mask.sum()), torch.double, instead=instead)
        gps = hierarchy(
            **_stacked(read.tasks, read.tasks.Yvar, len(read.names)),
            lengthscale=read.lengthscale,
            outputscale=read.outputscale,
            level_means=read.mean_constant,
            kernel=read.kernel,
            task_names=read.names,
        )
        scale: OutcomeScale = "per_task" if read.standardized else "raw"
        return cls(gps, read.outcome_mean, read.outcome_std, read.names, scale, input_transform)

    @property
    def num_points(self) -> Tensor:
        """The number of evaluations of each source task, an ``M`` tensor."""
        return torch.bincount(self.gps.level, minlength=self.num_tasks)

    def mean(self, X: Tensor) -> Tensor:
        """Evaluates the mean that the target inherits, in the prior's units.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n`` tensor, differentiable in ``X``.
        """
        return self.gps.mean(self._transformed(X)).squeeze(-2)

    def variance(self, X: Tensor) -> Tensor:
        """Evaluates the last task's variance: SHGP's, or BHGP's for ``propagate="mean"``.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n`` tensor, differentiable in ``X``.
        """
        return self.gps.variance(self._transformed(X)).squeeze(-2)

    def outcomes(self) -> Tensor:
        """All source outcomes in the user's units, one after another."""
        gps = self.gps
        raw = gps.train_Y * self.outcome_std[gps.level] + self.outcome_mean[gps.level]
        return raw.to(self.outcome_mean)

    def _differences(self) -> Tensor:
        # Each level's kernel describes its difference from the level below.
        return self.gps.outputscale[1:]

    def _config(self) -> dict[str, Any]:
        return {**super()._config(), "propagate": self.propagate}

    @classmethod
    def _gps_class(cls, config: Mapping[str, Any]) -> type[ConditionedHierarchy]:
        return _HIERARCHIES[config["propagate"]]


_HIERARCHIES: dict[str, type[ConditionedHierarchy]] = {
    "covariance": ConditionedHierarchy,
    "mean": BoostedHierarchy,
}


def _hierarchy_class(propagate: str) -> type[ConditionedHierarchy]:
    if propagate not in _HIERARCHIES:
        raise ValueError(f"propagate must be 'covariance' or 'mean', not {propagate!r}.")
    return _HIERARCHIES[propagate]


def _fit_levels(
    tasks: PaddedTasks,
    names: Sequence[str],
    hierarchy: type[ConditionedHierarchy],
    kernel: str,
    first: GPHyperparameters,
    others: GPHyperparameters,
    options: MAPOptions,
) -> tuple[ConditionedHierarchy, Tensor]:
    """Fits each level's kernel to the residuals of the levels below."""
    results: list[MAPResult] = []
    noise = torch.zeros_like(tasks.Yvar)

    def condition() -> ConditionedHierarchy:
        """Conditions the levels fitted so far on their data."""
        return hierarchy(
            **_stacked(tasks, noise, len(results)),
            lengthscale=torch.cat([result.lengthscale for result in results]).to(tasks.X),
            outputscale=torch.cat([result.outputscale for result in results]).to(tasks.X),
            kernel=kernel,
            task_names=names[: len(results)],
        )

    # One bar over the levels, not one for each.
    quiet = replace(options, progress=False)
    for level in tqdm(range(len(tasks.X)), desc="levels", disable=not options.progress):
        own = tasks[torch.tensor([level], device=tasks.X.device)]
        if level > 0:
            # The level below has a mean, which the data are reduced by, and maybe a covariance.
            below, X = condition(), own.X[0]
            covariance = below.covariance(X) if hierarchy is ConditionedHierarchy else None
            own = replace(own, Y=(own.Y - below.mean(X)) * own.mask, covariance=covariance)
        results.append(fit_map(own, kernel, others if level else first, quiet))
        noise[level, : own.Yvar.shape[-1]] = own.known_or(results[-1].noise)
    log_posterior = torch.cat([result.log_posterior for result in results])
    return condition(), log_posterior.to(tasks.X)


def _stacked(tasks: PaddedTasks, noise: Tensor, num_levels: int) -> dict[str, Tensor]:
    """The data of the first levels, one after another, without the padding."""
    masks, parts = tasks.mask[:num_levels], (tasks.X, tasks.Y, noise)
    return stack_levels(
        *([own[mask] for own, mask in zip(part, masks, strict=False)] for part in parts)
    )
