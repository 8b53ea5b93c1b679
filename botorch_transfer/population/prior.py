"""The hierarchical GP over the source tasks, as a prior.

Read it for what :class:`~.models.PopulationGP` is built on: one GP for all source tasks, given the
data of all of them, and how the scales and levels of the tasks differ. The fit is in ``fit``, the
posterior in ``population.kernel``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from botorch.models.transforms.input import InputTransform
from torch import Tensor

from botorch_transfer.data import SourceData
from botorch_transfer.gp.tasks import scaled_tasks
from botorch_transfer.outcome_transforms import PooledStandardize
from botorch_transfer.population.fit import PopulationOptions, fit_population
from botorch_transfer.population.kernel import ConditionedPopulation, PopulationHyperparameters
from botorch_transfer.prior import ConditionedPrior, Observations

_PSEUDO_TASKS = 2.0
"""How many tasks the hyperprior of scales and levels counts as."""

_SCALE_STD, _LEVEL_STD = 1.0, 1.0
"""Standard deviation of the logarithm of a task's scale, and of its level in units of the typical
scale, where nothing else is known."""


class SourcePopulation(ConditionedPrior):
    r"""One hierarchical GP over all source tasks: what they share, and what is a task's own.

    Outcomes of task ``m``, standardized, are ``a_m + c(x) + h_m(x)`` plus noise, with a level
    ``a_m``, a function ``c`` that all tasks share, and one of the task's own, whose mean over the
    inputs of all tasks is zero. All tasks share the hyperparameters, so few points a task suffice.
    Use it from a single task on. All points count, however many: hyperparameters are fitted to
    some of them, and more points than ``max_inducing`` are kept on inducing points.

    Build one by :meth:`fit`, not by the constructor.

    Args:
        gps: The GP conditioned on the data of all tasks.
        units: How the data of the tasks became those of the prior.
        data: The source data; ``None`` if the prior was saved without them.
        log_posterior: An ``M`` tensor of NaN, as no task is fitted by itself.
        statistics: What the prior knows of its data, tensors by name; computed if omitted.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> sources = SourcePopulation.fit({"monday": (X, X.sum(-1, keepdim=True))})
        >>> sources.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([5])
    """

    gps: ConditionedPopulation
    varies: Tensor
    """Which tasks' outcomes vary, an ``M`` boolean tensor."""

    @classmethod
    def fit(
        cls,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        kernel: str = "matern52",
        input_transform: InputTransform | None = None,
        **options: Any,
    ) -> Self:
        """Fits the hyperparameters by maximum a posteriori, then conditions on the data.

        Args:
            source_data: The source tasks, a sequence or a mapping from names: each a
                ``SupervisedDataset`` or tensors ``X`` (``n_i x d``), ``Y`` (``n_i x 1``, to be
                maximized) and optionally ``Yvar`` (``n_i x 1``, known noise variances). Inputs lie
                in the unit cube, or are raw and ``input_transform`` maps them there.
            kernel: ``"matern52"``, ``"matern32"``, ``"matern12"`` or ``"rbf"``.
            input_transform: A frozen transform of the inputs, for instance
                ``Normalize(d, bounds=...)``.
            **options: See :class:`PopulationOptions`: ``max_iter``, ``fit_points`` and
                ``max_inducing``.

        Returns:
            The prior, in the dtype and on the device of the data.

        Raises:
            InputDataError: If the source data are invalid; the message names the task.
            ValueError: If the transform is not frozen, or an argument is out of range.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourcePopulation.fit([(X, X.sum(-1, keepdim=True))], max_inducing=256)
        """
        chosen = PopulationOptions(**options)
        padded, units = scaled_tasks(source_data, "per_task", input_transform)
        padded = padded.double()
        unknown = torch.full_like(padded.Y[:, 0], torch.nan)
        tasks = Observations.of(padded, padded.known_or(unknown))
        found, _ = fit_population(tasks, kernel, chosen)
        data = Observations.of(padded, padded.known_or(found.task_noise))
        gps = ConditionedPopulation.from_data(data, found, kernel, units.names, chosen.max_inducing)
        return cls(gps, units, data)

    def append(
        self,
        source_data: SourceData | Sequence[SourceData] | Mapping[str, SourceData],
        *,
        max_inducing: int = PopulationOptions.max_inducing,
    ) -> Self:
        """Adds source tasks; the hyperparameters stay as they are.

        Args:
            source_data: The new task, or a sequence or mapping of new tasks, as in :meth:`fit`.
                Tasks without a name of their own get a number.
            max_inducing: As in :meth:`fit`.

        Returns:
            A new prior with the old tasks first; this one stays as it is.

        Raises:
            InputDataError: If the new data are invalid, have another number of inputs, or the name
                of an old task.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourcePopulation.fit({"monday": (X, X.sum(-1, keepdim=True))})
            >>> sources.append({"tuesday": (X, X.prod(-1, keepdim=True))}).task_names
            ('monday', 'tuesday')
        """
        new = self._new_tasks(source_data)
        padded, units = scaled_tasks(new, "per_task", self.input_transform)
        found = self.hyperparameters
        added = Observations.of(padded, padded.known_or(found.noise.expand(len(padded.X))))
        data, units = self.observed.join(added, self.num_tasks), self.units.join(units)
        gps = ConditionedPopulation.from_data(
            data, found, self.gps.kernel, units.names, max_inducing
        )
        return type(self)(gps, units, data)

    def select(self, tasks: Sequence[int]) -> Self:
        """Conditions on some of the tasks only; the hyperparameters stay as they are.

        Args:
            tasks: Their indices; at least one.

        Returns:
            A new prior.

        Raises:
            ValueError: If no task is selected.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
            >>> SourcePopulation.fit(history).select([1]).task_names
            ('tuesday',)
        """
        if len(tasks) == 0:
            raise ValueError("There is no prior of no source tasks: select at least one.")
        kept = torch.as_tensor(list(tasks), device=self.outcome_mean.device)
        data, units = self.observed.select(kept), self.units.select(kept)
        most, kernel = max(PopulationOptions.max_inducing, len(self.gps.points)), self.gps.kernel
        gps = ConditionedPopulation.from_data(data, self.hyperparameters, kernel, units.names, most)
        return type(self)(gps, units, data)

    @property
    def hyperparameters(self) -> PopulationHyperparameters:
        """The hyperparameters of a further task."""
        gps = self.gps
        return PopulationHyperparameters(
            gps.lengthscale[0],
            gps.own_lengthscale,
            gps.outputscale[0],
            gps.own_outputscale,
            gps.own_noise,
            gps.own_noise,
        )

    def _statistics(self) -> dict[str, Tensor]:
        data = self.observed
        squares = torch.zeros_like(self.outcome_std, dtype=torch.double)
        squares.index_add_(0, data.task, data.Y.square())
        return super()._statistics() | {"varies": squares > 0.5}

    def _differences(self) -> Tensor:
        return self.gps.own_outputscale.reshape(1)

    # ------------------------------------------------------------------------- scales and levels

    def _scales(self) -> Tensor:
        """The standard deviations of the tasks whose outcomes vary."""
        return self.outcome_std.double()[self.varies]

    @property
    def typical_scale(self) -> float:
        """The geometric mean of the tasks' standard deviations, in the user's units."""
        scales = self._scales()
        return float(scales.log().mean().exp()) if len(scales) else 1.0

    @property
    def typical_level(self) -> float:
        """The mean of the tasks' means, in the user's units."""
        return float(self.outcome_mean.double().mean())

    @property
    def scale_log_std(self) -> float:
        """The standard deviation of the logarithm of a further task's scale."""
        deviations = self._scales().log()
        deviations = deviations - deviations.mean() if len(deviations) else deviations
        squares = _PSEUDO_TASKS * _SCALE_STD**2 + float(deviations.square().sum())
        return float((squares / (_PSEUDO_TASKS + len(deviations))) ** 0.5)

    @property
    def level_variance(self) -> float:
        """The variance of a further task's level, in units of the typical scale."""
        relative = (self.outcome_mean.double() - self.typical_level) / self.typical_scale
        squares = _PSEUDO_TASKS * _LEVEL_STD**2 + float(relative.square().sum())
        return squares / (_PSEUDO_TASKS + self.num_tasks)

    def default_outcome_transform(self, batch_shape: torch.Size) -> PooledStandardize:
        """The outcome transform of a target: its level and scale are the typical ones.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            The transform, which does not depend on the target's outcomes.
        """
        like, count = self.outcome_mean, int(self.num_points.sum())
        biased = self.typical_scale * ((count - 1) / count) ** 0.5 if count > 1 else 1.0
        mean, spread = like.new_tensor(self.typical_level), like.new_tensor(biased)
        return PooledStandardize.from_moments(count, mean, spread, False, batch_shape)
