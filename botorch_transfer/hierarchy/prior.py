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

from botorch_transfer.data import SourceData, check_joint_size
from botorch_transfer.gp.fit import MAPOptions, MAPResult, fit_map
from botorch_transfer.gp.hyperpriors import (
    RESIDUAL_HYPERPARAMETERS,
    SOURCE_HYPERPARAMETERS,
    GPHyperparameters,
)
from botorch_transfer.gp.tasks import (
    OutcomeScale,
    PaddedTasks,
    check_choice,
    check_padded_size,
    read_models,
    scaled_tasks,
)
from botorch_transfer.hierarchy.kernel import BoostedHierarchy, ConditionedHierarchy
from botorch_transfer.prior import ConditionedPrior, Observations
from botorch_transfer.progress import track

Propagate = Literal["covariance", "mean"]
"""The part of a level that the next level gets: mean and covariance (SHGP), or the mean (MHGP,
BHGP)."""

_LOWEST = SOURCE_HYPERPARAMETERS
_LEVELS = _LOWEST, replace(RESIDUAL_HYPERPARAMETERS, noise=_LOWEST.noise)


class SourceHierarchy(ConditionedPrior):
    r"""Source tasks in order, each modelled as the one before plus a difference.

    It is the prior of the hierarchical models of [Tighineanu2022hierarchical]_. Use it if the tasks
    have an order, such as model generations or growing data sets, or are few and similar. The last
    tasks count most. A saved file always contains the source observations.

    With ``propagate="covariance"``, all levels are one GP on the points of all tasks: time grows
    with the cube of their number and memory with its square, and more than ``max_bytes`` of it are
    refused. With ``"mean"`` both grow with the number of tasks; only BHGP's covariances need that
    one GP, too. For thousands of tasks use :class:`SourceGPs`.

    Build one by :meth:`fit` or :meth:`from_models`, not by the constructor.

    Args:
        gps: The conditioned hierarchy, in the prior's units.
        units: Transforms from the data of the tasks, in the order of the levels, to the prior's
            data.
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
        """The part of a level that the next level gets."""
        return "mean" if isinstance(self.gps, BoostedHierarchy) else "covariance"

    @classmethod
    def fit(
        cls,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        propagate: Propagate = "covariance",
        kernel: str = "rbf",
        hyperparameters: GPHyperparameters | Sequence[GPHyperparameters] | None = _LEVELS,
        outcome_scale: OutcomeScale = "per_task",
        input_transform: InputTransform | None = None,
        **options: Any,
    ) -> Self:
        """Fits the levels in order; earlier levels stay fixed.

        Args:
            source_data: The source tasks, a sequence or a mapping from names, as in
                :meth:`SourceGPs.fit`; the first is the lowest level.
            propagate: ``"covariance"`` for SHGP, ``"mean"`` for MHGP and BHGP.
            kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``.
            hyperparameters: Hyperpriors, starts and bounds of the lowest level and of the others,
                whose kernels describe differences; by default ScaML-GP's for source tasks and for
                the residual, with a higher bound of the noise. ``None`` gives maximum likelihood,
                as in the paper; one object serves all levels.
            outcome_scale: Whether to standardize each task's outcomes by itself (``"per_task"``),
                all tasks' together (``"pooled"``), or not at all (``"raw"``).
            input_transform: A frozen transform of the inputs.
            **options: See :class:`~.pretraining.MAPOptions`. All points are kept.

        Returns:
            The prior, in the dtype and on the device of the data.

        Raises:
            InputDataError: If the source data are invalid; the message names the task.
            ValueError: If an argument is out of range.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> stack = SourceHierarchy.fit([(X, X.sum(-1, keepdim=True))], propagate="mean")
        """
        check_choice("propagate", propagate, Propagate)
        map_options = MAPOptions(**options)

        def check_size(names: Sequence[str], sizes: Sequence[int]) -> None:
            if propagate == "covariance":
                check_joint_size(sum(sizes), torch.double, map_options.max_bytes)
            else:
                # BHGP's covariance needs the joint factors, too, and checks their size itself.
                check_padded_size(names, sizes, map_options.max_bytes)

        tasks, units = scaled_tasks(source_data, outcome_scale, input_transform, check_size)
        if hyperparameters is None:
            hyperparameters = SOURCE_HYPERPARAMETERS.without_priors()
        both = (
            2 * (hyperparameters,)
            if isinstance(hyperparameters, GPHyperparameters)
            else hyperparameters
        )
        first, others = both
        gps, noise, log_posterior = _fit_levels(
            tasks, units.names, _HIERARCHIES[propagate], kernel, first, others, map_options
        )
        return cls(gps, units, Observations.of(tasks, noise), log_posterior)

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
                the same as in :meth:`SourceGPs.from_models`.
            propagate: ``"covariance"`` for SHGP, ``"mean"`` for MHGP and BHGP.
            input_transform: A frozen ``Normalize`` to the space that the prior shall live in.

        Returns:
            The prior.

        Raises:
            ValueError: If a model has a kind that cannot be taken over; the message names it.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> models = [SingleTaskGP(X, X[:, i : i + 1]) for i in range(2)]
            >>> stack = SourceHierarchy.from_models(models, propagate="mean")
        """
        check_choice("propagate", propagate, Propagate)
        read = read_models(models, input_transform)
        if propagate == "covariance":
            instead = "use SourceGPs and ScaMLGP, or thin out the source data"
            check_joint_size(int(read.tasks.mask.sum()), torch.double, instead=instead)
        data = Observations.of(read.tasks, read.tasks.Yvar)
        gps = _HIERARCHIES[propagate].from_data(
            data, level_means=read.mean_constant, **read.hyperparameters
        )
        return cls(gps, read.units, data)

    def _statistics(self) -> dict[str, Tensor]:
        # Each level's kernel describes its difference from the level below.
        return super()._statistics() | {"differences": self.gps.outputscale[1:]}


_HIERARCHIES: dict[str, type[ConditionedHierarchy]] = {
    "covariance": ConditionedHierarchy,
    "mean": BoostedHierarchy,
}


def _fit_levels(
    tasks: PaddedTasks,
    names: Sequence[str],
    hierarchy: type[ConditionedHierarchy],
    kernel: str,
    first: GPHyperparameters,
    others: GPHyperparameters,
    options: MAPOptions,
) -> tuple[ConditionedHierarchy, Tensor, Tensor]:
    """Fits each level's kernel to the residuals of the levels below; returns the noise, too."""
    results: list[MAPResult] = []
    noise = torch.zeros_like(tasks.Yvar)

    def condition() -> ConditionedHierarchy:
        """Conditions the levels fitted so far on their data."""
        return hierarchy.from_data(
            Observations.of(tasks, noise).select(torch.arange(len(results))),
            lengthscale=torch.cat([result.lengthscale for result in results]).to(tasks.X),
            outputscale=torch.cat([result.outputscale for result in results]).to(tasks.X),
            kernel=kernel,
            task_names=names[: len(results)],
        )

    # One bar over the levels, not one for each.
    quiet = replace(options, progress=False)
    for level in track(range(len(tasks.X)), "levels", len(tasks.X), options.progress):
        own = tasks[torch.tensor([level], device=tasks.X.device)]
        if level > 0:
            # The level below has a mean, which the data are reduced by, and maybe a covariance.
            below, X = condition(), own.X[0]
            covariance = below.covariance(X) if hierarchy is ConditionedHierarchy else None
            own = replace(own, Y=(own.Y - below.mean(X)) * own.mask, covariance=covariance)
        results.append(fit_map(own, kernel, others if level else first, quiet))
        noise[level, : own.Yvar.shape[-1]] = own.known_or(results[-1].noise)
    log_posterior = torch.cat([result.log_posterior for result in results])
    return condition(), noise, log_posterior.to(tasks.X)
