"""A GP whose mean, kernel and noise were pre-trained on many source tasks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.transforms.input import InputTransform

from botorch_transfer.data import SourceData, as_datasets, task_names
from botorch_transfer.pretraining.input_transforms import (
    frozen_input_transform,
    warn_outside_unit_cube,
)
from botorch_transfer.pretraining.memo import Memo, content_key
from botorch_transfer.pretraining.pretrained.fit import GradientFit, Groups, fit_as_long_as_it_helps
from botorch_transfer.pretraining.pretrained.objectives import (
    Objective,
    PretrainingOptions,
    SourceLoss,
    TrainingTasks,
    default_tolerance,
)
from botorch_transfer.pretraining.pretrained.parts import StoredGP, freeze, structure
from botorch_transfer.pretraining.tasks import OutcomeScale

_ENOUGH_TO_HOLD_OUT = 8
# What says how to compute a result, not what it is.
_HOW = {"progress", "checkpoint", "checkpoint_every"}
_FAR = 30.0
"""How far raw outcomes may be from order one."""


class PretrainedPrior(StoredGP):
    r"""One GP for all tasks, pre-trained on the source tasks: the prior of [Wang2024hyperbo]_.

    Source and target tasks are taken for draws of one GP; its mean, kernel and noise are learned
    from the source tasks, a network and all, and a target is then predicted without any further
    training. Use it with many source tasks that have the outcome's scale in common, say ten or
    more; its cost at the target does not depend on their number. A saved file holds what was
    learned, and no source observation.

    Build one by a preset, :meth:`hyperbo`, :meth:`fsbo`, :meth:`ablr` or :meth:`stationary`, or of
    a mean and a kernel of your own by the constructor; then call :meth:`fit`. Without, it is the
    GP as built, in raw units.

    Args:
        mean_module: The mean; may share modules with the kernel.
        covar_module: The kernel.
        dim: The number of inputs ``d``.
        noise: The noise variance to start from, in the prior's units.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
        >>> prior = PretrainedPrior.hyperbo(d=2, hidden=(8,)).fit(history, steps=20)
        >>> prior.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([5])
    """

    _pretrained: ClassVar[Memo] = Memo(size=8)

    def fit(
        self,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        objective: Objective = "nll",
        nll_weight: float = 0.1,
        outcome_scale: OutcomeScale = "pooled",
        input_transform: InputTransform | None = None,
        validation_data: Sequence[SourceData] | Mapping[str, SourceData] | None = None,
        groups: Sequence[Sequence[int]] | None = None,
        tolerance: float | None = None,
        max_points: int = 1000,
        hold_out: float | None = None,
        **options: Any,
    ) -> Self:
        """Pre-trains mean, kernel and noise, from their present values.

        Args:
            source_data: The source tasks, a sequence or a mapping from names: each a
                ``SupervisedDataset`` or tensors ``X`` (``n_i x d``), ``Y`` (``n_i x 1``, to be
                maximized) and maybe ``Yvar`` (``n_i x 1``, known noise variances). Inputs lie in
                the unit cube, or are raw and ``input_transform`` maps them there.
            objective: ``"nll"``, for any data; ``"ekl"``, for tasks that were evaluated at the same
                inputs; or ``"nll+ekl"``. The EKL of ``N`` tasks compares no more than ``N - 1``
                directions, so with fewer tasks than inputs most of the GP is left to chance: take
                one of the others then.
            nll_weight: The weight of the NLL in ``"nll+ekl"``.
            outcome_scale: Whether to standardize the outcomes of all tasks together
                (``"pooled"``), so that a task's level counts, each task's by itself
                (``"per_task"``), where levels and scales mean nothing, or not at all (``"raw"``),
                where they are of order one already.
            input_transform: A frozen transform of the inputs, for instance
                ``Normalize(d, bounds=...)``.
            validation_data: Further tasks; pre-training keeps the parameters under which their NLL
                was least, and stops early once it no longer falls.
            groups: For the EKL, sets of tasks by number whose common inputs make a group each; by
                default all matching inputs are found.
            tolerance: How far two values of one input may lie apart and still count as the same;
                1e-8 by default, 1e-6 in single precision.
            max_points: The most inputs of a group; of more, a random sample.
            hold_out: A share of the source tasks, for instance 0.25, to be held out at first: the
                number of steps is that after which their NLL was least, and then all tasks are
                trained on for as many. Networks overfit a dozen tasks after some hundred steps.
            **options: See :class:`~.pretraining_options.PretrainingOptions`: ``optimizer``,
                ``steps``, ``learning_rate``, ``decay``, ``batch_size``, ``task_batch_size``,
                ``validation_every``, ``patience``, ``seed``, ``progress``, ``checkpoint`` and
                ``checkpoint_every``.

        Returns:
            This prior, trained, on the device of the data. Should the run fail or be interrupted,
            it stays as it was.

        Raises:
            InputDataError: If the source data are unfit, have no matching inputs for the EKL, or
                are too few tasks to hold any out.
            ModelFittingError: If the loss cannot be evaluated, step after step.
            ValueError: If an option is out of range, or the checkpoint is of another run.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> history = [(X, X.sum(-1, keepdim=True)), (X, X[:, :1])]
            >>> prior = PretrainedPrior.stationary(2).fit(history, objective="ekl", steps=5)
            >>> prior.num_tasks
            2
        """
        chosen = PretrainingOptions(**options)
        if max_points < 1:
            raise ValueError(f"max_points={max_points} must be positive.")
        transform = frozen_input_transform(input_transform)
        datasets = self._checked(source_data)
        if tolerance is None:  # in the data's precision, as they are converted
            tolerance = default_tolerance(datasets[0].X.dtype)
        tasks = TrainingTasks.of(datasets, outcome_scale, transform, objective, nll_weight)
        if self._preset is not None:  # the user's own modules may be for any inputs
            warn_outside_unit_cube(tasks.tasks.X, "the source tasks")
        _warn_of_raw_outcomes(tasks)
        validation = None
        if validation_data is not None:
            if hold_out is not None:
                raise ValueError("Give validation_data, or a share of source tasks to hold_out.")
            validation = tasks.validation(self._checked(validation_data), transform)
        parts = self._thawed().double().to(tasks.device)
        key = content_key(
            tasks.content(),
            parts.state_dict(),
            structure(parts),
            self.trainable,
            groups,
            tolerance,
            max_points,
            None if validation is None else validation.tasks,
            hold_out,
            chosen,
        )

        def loss(tasks: TrainingTasks, groups: Groups) -> SourceLoss:
            return tasks.loss(chosen, groups, tolerance, max_points)

        if hold_out is None:
            curve = GradientFit(parts, loss(tasks, groups), validation, chosen, key).run()
        else:
            curve = fit_as_long_as_it_helps(parts, tasks, hold_out, groups, loss, chosen, key)
        freeze(parts.eval())
        self.parts = parts
        self.to(tasks.device)
        self._set_units(outcome_scale, transform)
        self.learning_curve = curve
        self._set_counts(tasks.num_tasks, tasks.num_points)
        self.outcome_mean, self.outcome_spread = tasks.outcome_mean, tasks.outcome_spread
        return self

    def _checked(self, data: Sequence[SourceData] | Mapping[str, SourceData]) -> list[Any]:
        datasets = as_datasets(data)
        if datasets[0].X.shape[-1] != self.dim:
            raise InputDataError(
                f"The source tasks have {datasets[0].X.shape[-1]} inputs, but the prior was built "
                f"for {self.dim}."
            )
        return datasets

    @classmethod
    def fit_once(
        cls, source_data: Sequence[SourceData] | Mapping[str, SourceData], **kwargs: Any
    ) -> Self:
        """Pre-trains HyperBO's preset, or recalls the prior that the same content gave before.

        Args:
            source_data: The source tasks.
            **kwargs: The arguments of :meth:`fit`. Of eight source tasks or more, a quarter is held
                out to find the number of steps, unless ``hold_out`` or ``validation_data`` say
                otherwise.

        Returns:
            The prior; treat it as immutable, others may hold it.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> history = [(X, X.sum(-1, keepdim=True))]
            >>> prior = PretrainedPrior.fit_once(history, steps=5)
            >>> prior is PretrainedPrior.fit_once(history, steps=5)
            True
        """
        datasets, names = as_datasets(source_data), task_names(source_data)
        if len(datasets) >= _ENOUGH_TO_HOLD_OUT and kwargs.get("validation_data") is None:
            kwargs = {"hold_out": 0.25, **kwargs}
        what = {name: kwargs[name] for name in sorted(kwargs) if name not in _HOW}
        key = content_key(cls.__qualname__, datasets, names, what)

        return cls._pretrained.recall(
            key, lambda: cls.hyperbo(datasets[0].X.shape[-1]).fit(datasets, **kwargs)
        )


def _warn_of_raw_outcomes(tasks: TrainingTasks) -> None:
    """Warns of outcomes that starts and step sizes are not made for."""
    mean, spread = float(tasks.outcome_mean), float(tasks.outcome_spread)
    if tasks.outcome_scale == "raw" and (abs(mean) > _FAR or not 1 / _FAR < spread < _FAR):
        warnings.warn(
            f"The outcomes are raw, of mean {mean:.3g} and deviation {spread:.3g}, but steps and "
            "noise are made for values of order one: standardize them, or leave out "
            "outcome_scale='raw'.",
            InputDataWarning,
            stacklevel=3,
        )
