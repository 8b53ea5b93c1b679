"""Base class of priors: the immutable objects that pre-training makes and models are built on.

Read this to write a prior of your own, or to see what all priors share: units, input transforms,
saving and loading, views, and pre-training that is done once for the same content. A prior is one
file: a subclass of :class:`TransferPrior`, or of :class:`ConditionedPrior` if it holds the source
data as conditioned GPs.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, Self, cast, get_args

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_transfer.data import SourceData, as_datasets, task_names
from botorch_transfer.data.domains import transform_outcomes
from botorch_transfer.gp.conditioned import ConditionedBatch, ConditionedGPs
from botorch_transfer.gp.hyperpriors import TYPICAL_NOISE, TYPICAL_RESIDUAL
from botorch_transfer.gp.state import DoubleState, savable, shallow_copy
from botorch_transfer.gp.tasks import (
    OutcomeScale,
    PaddedTasks,
    TaskUnits,
    check_choice,
    outcome_variance,
    target_transform,
)
from botorch_transfer.input_transforms import frozen_input_transform, resolve_input_transform
from botorch_transfer.memo import UNKNOWN, Memo, content_key
from botorch_transfer.outcome_transforms import OutcomeMoments, Steps, chained, split_transform
from botorch_transfer.saving import Saved, stored

_WITHOUT_EFFECT = {
    "progress",
    "n_jobs",
    "max_bytes",
    "chunk_elements",
}
"""Options that say how to compute a prior. The result does not depend on them."""

_PACKAGE = f"{__package__}."

_pretrained = Memo(size=16)


class TransferPrior(Saved, ABC):
    """Base class of priors: everything learned from the source data.

    A prior is a module without parameters to fit. It moves with ``.to()``, has a ``state_dict``,
    can be copied and pickled, and saves to one file, as the arguments of its constructor. Models
    hold a view of it: nothing that happens to a model changes the prior or other models.

    Args:
        outcome_scale: The prior's units: source outcomes standardized task by task
            (``"per_task"``), all together (``"pooled"``), or not at all (``"raw"``).
        input_transform: The frozen transform from the user's inputs to the prior's. Models inherit
            it.

    Raises:
        ValueError: If the input transform is not frozen, or the units are unknown.
    """

    input_transform: InputTransform | None
    outcome_scale: OutcomeScale
    outcome_scale_index: Tensor
    outcome_steps: Steps | None = ()
    """Element-wise transforms of the outcomes before they are scaled; models inherit them."""
    _facts = (("outcome_scale_index", get_args(OutcomeScale)),)

    def __init__(
        self, outcome_scale: OutcomeScale, input_transform: InputTransform | None = None
    ) -> None:
        super().__init__()
        check_choice("outcome_scale", outcome_scale, OutcomeScale)
        self.register_buffer("outcome_scale_index", torch.tensor(0))
        self._set_units(outcome_scale, frozen_input_transform(input_transform))

    def _set_units(self, outcome_scale: OutcomeScale, transform: InputTransform | None) -> None:
        self.outcome_scale, self.input_transform = outcome_scale, transform
        index = get_args(OutcomeScale).index(outcome_scale)
        self.outcome_scale_index = torch.full_like(self.outcome_scale_index, index)

    @property
    def dim(self) -> int | None:
        """The number of input dimensions ``d``; ``None`` if the prior serves any number."""
        return None

    def input_transform_for(self, dim: int, given: InputTransform | None) -> InputTransform | None:
        """Returns the input transform of a model.

        Args:
            dim: The number of the model's inputs.
            given: The model's own argument.

        Returns:
            A copy of the prior's transform in evaluation mode, or the argument if the prior has
            none.

        Raises:
            ValueError: If the argument is not frozen, or differs from the prior's transform.
        """
        return resolve_input_transform(self.input_transform, given)

    def _transformed(self, X: Tensor) -> Tensor:
        # On a copy: BoTorch's transforms take on, and keep, the precision of their inputs.
        return X if self.input_transform is None else deepcopy(self.input_transform)(X)

    @classmethod
    def fit_once(cls, source_data: Any, outcome_transform: Any = None, **options: Any) -> Self:
        """Pre-trains a prior, or returns a cached one for equal data and options.

        Models call this with raw source data. Ax often rebuilds models from equal data, so recent
        priors are cached, in this process and in files, see "Time and memory" in the guide.

        Args:
            source_data: The source tasks, as for ``fit``. A ``Hyperprior`` takes domains, or the
                source tasks of a single domain.
            outcome_transform: ``Log``, ``Bilog``, ``Power`` or a chain of them, which is applied to
                the source tasks' outcomes; what follows in a chain is the target's own.
            **options: The options of ``fit``. A ``PretrainedPrior`` is HyperBO's preset; of eight
                source tasks or more it holds out a quarter to find the number of steps, unless
                ``hold_out`` is given.

        Returns:
            The prior. Don't change it: other models may use it.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit_once([(X, X.sum(-1, keepdim=True))])
            >>> sources is SourceGPs.fit_once([(X.clone(), X.sum(-1, keepdim=True))])
            True
        """
        content, options = cls._content_and_options(source_data, options)
        what = {name: options[name] for name in sorted(options) if name not in _WITHOUT_EFFECT}
        steps, _ = split_transform(outcome_transform)
        key = content_key(cls.__qualname__, content, what, steps)

        def pretrain() -> Any:
            data = transform_outcomes(content, steps) if steps else content
            prior = cls._pretrain(data, **options)
            prior.outcome_steps = steps
            return prior

        # The code of other packages' classes may change while their files stay.
        if cls.__module__.startswith(_PACKAGE) and not key.startswith(UNKNOWN):
            # A hyperprior, which is fitted to domains, stays on the CPU.
            first = next(iter(content.values())).X if isinstance(content, Mapping) else None
            device = None if first is None else first.device
            read = partial(cls._read, device=device, input_transform=options.get("input_transform"))
            pretrain = partial(stored, key, pretrain, cls._arguments, read)
        return _pretrained.recall(key, pretrain)

    @classmethod
    def _content_and_options(
        cls, source_data: Any, options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Validates source data, and fills in the options of :meth:`fit_once`."""
        datasets = as_datasets(source_data)
        return dict(zip(task_names(source_data), datasets, strict=True)), options

    @classmethod
    def _pretrain(cls, source_data: Any, **options: Any) -> Self:
        """Pre-trains a prior, for :meth:`fit_once`; by default by the class method ``fit``."""
        return cast(Any, cls).fit(source_data, **options)

    def view(self) -> Self:
        """Returns a prior on the same tensors. Moving or loading one leaves the other as it is."""
        return shallow_copy(self)

    def typical_outcomes(self) -> tuple[Tensor, Tensor] | None:
        """Returns the sources' outcomes, or typical ones, and their tasks; ``None`` if unknown."""
        return None

    @abstractmethod
    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """Builds the outcome transform that brings a target's outcomes into the prior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            The transform, which follows ``outcome_steps``; ``None`` if the prior's units are raw.
        """


@savable
class Observations(DoubleState):
    """The source data of a prior, in its units.

    Args:
        X: An ``N x d`` tensor of transformed inputs, one task after another.
        Y: An ``N`` tensor of scaled outcomes.
        noise: An ``N`` tensor: their noise variances, known or inferred.
        task: An ``N`` tensor: the task of each row, from 0.
    """

    X: Tensor
    Y: Tensor
    noise: Tensor
    task: Tensor

    def __init__(self, X: Tensor, Y: Tensor, noise: Tensor, task: Tensor) -> None:
        super().__init__()
        self.register(X=X, Y=Y, noise=noise, task=task)

    @classmethod
    def of(cls, tasks: PaddedTasks, noise: Tensor) -> Self:
        """Stacks padded tasks; ``noise`` is an ``M x N`` tensor."""
        mask = tasks.mask
        return cls(tasks.X[mask], tasks.Y[mask], noise[mask], mask.nonzero()[:, 0])

    def select(self, tasks: Tensor) -> Self:
        """Takes the rows of some tasks, in the order of these."""
        sizes = torch.bincount(self.task)
        own = self.task.argsort(stable=True).split(sizes.tolist())
        rows = torch.cat([own[task] for task in tasks.tolist()])
        task = torch.arange(len(tasks), device=rows.device).repeat_interleave(sizes[tasks])
        return type(self)(self.X[rows], self.Y[rows], self.noise[rows], task)

    def join(self, other: Self, num_tasks: int) -> Self:
        """Adds the rows of further tasks to the rows of the first ``num_tasks``."""
        mine = self.X, self.Y, self.noise, self.task
        theirs = other.X, other.Y, other.noise, other.task + num_tasks
        return type(self)(
            *(torch.cat([a, b.to(a.device)]) for a, b in zip(mine, theirs, strict=True))
        )


_LEAST_DIFFERENCE, _LARGEST_DIFFERENCE = 1e-2, 10.0
"""Bounds on a source's relative difference, so that one extreme source does not decide."""


class ConditionedPrior(TransferPrior):
    """Base class of :class:`SourceGPs`, :class:`SourceHierarchy` and :class:`SourcePopulation`.

    Args:
        gps: The conditioned GPs, in the prior's units.
        units: Transforms from the data of the tasks to the prior's data.
        data: The source data; ``None`` if the prior was saved without them.
        log_posterior: An ``M`` tensor: each task's log marginal likelihood plus log hyperprior
            density at its fitted hyperparameters; NaN for GPs that were not fitted here.
        statistics: What the prior knows of its data, tensors by name; computed if omitted.
    """

    gps: ConditionedBatch
    outcome_mean: Tensor
    outcome_std: Tensor
    log_posterior: Tensor
    num_points: Tensor
    input_range: Tensor
    pooled_moments: Tensor
    differences: Tensor
    task_noise: Tensor

    def __init__(
        self,
        gps: ConditionedBatch,
        units: TaskUnits,
        data: Observations | None,
        log_posterior: Tensor | None = None,
        statistics: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__(units.outcome_scale, units.input_transform)
        self.outcome_steps = units.outcome_steps
        self.gps = gps
        self.task_names = tuple(units.names)
        if log_posterior is None:
            log_posterior = torch.full_like(units.mean, torch.nan)
        self.register_buffer("outcome_mean", units.mean.detach())
        self.register_buffer("outcome_std", units.std.detach())
        self.register_buffer("log_posterior", log_posterior.detach())
        self.outcome_scale_index = self.outcome_scale_index.to(units.mean.device)
        self.data = data
        if data is not None:
            data.task_names = self.task_names
        if statistics is None:
            statistics = self._statistics()
        for name, tensor in sorted(statistics.items()):
            self.register_buffer(name, tensor.to(self.outcome_mean.device))
        self._names_of_statistics = tuple(statistics)

    @abstractmethod
    @torch.no_grad()
    def _statistics(self) -> dict[str, Tensor]:
        """Returns the statistics of the data that the prior needs: tensors by name.

        A subclass adds ``differences``: mean squared distances of source tasks from the others,
        where these can be compared.
        """
        data, moments = self.observed, OutcomeMoments.of(self.outcomes())
        num_points = torch.bincount(data.task, minlength=len(self.task_names))
        pooled = torch.stack([moments.mean, moments.spread])
        return {
            "num_points": num_points,
            "task_noise": torch.bincount(data.task, data.noise, len(num_points)) / num_points,
            "pooled_moments": pooled,
            "input_range": torch.stack([data.X.amin(dim=0), data.X.amax(dim=0)]),
        }

    @property
    def statistics(self) -> dict[str, Tensor]:
        """Statistics of the prior's data, tensors by name."""
        return {name: getattr(self, name) for name in self._names_of_statistics}

    @property
    def observed(self) -> Observations:
        """The source data.

        Raises:
            InputDataError: If the prior was saved without them.
        """
        if self.data is None:
            raise InputDataError(
                "The prior was saved without observations: it can be used, but whatever needs the "
                "old outcomes again cannot. Fit it to the data, or save it with observations=True."
            )
        return self.data

    @property
    def num_tasks(self) -> int:
        """The number of source tasks ``M``."""
        return self.gps.num_tasks

    @property
    def dim(self) -> int:
        """The number of input dimensions ``d``."""
        return self.gps.dim

    @property
    def units(self) -> TaskUnits:
        """Transforms from the data of the tasks to the prior's data."""
        moments = self.outcome_mean, self.outcome_std
        scale, steps = self.outcome_scale, self.outcome_steps
        return TaskUnits(self.task_names, *moments, scale, self.input_transform, steps)

    def outcomes(self) -> Tensor:
        """Returns all source outcomes one after another, after ``outcome_steps`` and not scaled."""
        Y, task = self.observed.Y, self.observed.task
        return (Y * self.outcome_std[task] + self.outcome_mean[task]).to(self.outcome_mean)

    def observations(self, task: int) -> tuple[Tensor, Tensor]:
        """Returns the data of a source task.

        Args:
            task: Its index.

        Returns:
            An ``n x d`` tensor of transformed inputs, and an ``n x 1`` tensor of outcomes in the
            user's units.

        Raises:
            InputDataError: If the prior was saved without observations.
        """
        rows = self.observed.task == task
        Y, _ = chained(self.outcome_steps or ()).untransform(self.outcomes()[rows, None])
        return self.observed.X[rows].to(self.outcome_mean), Y

    @property
    def outcome_moments(self) -> OutcomeMoments:
        """Statistics of all source outcomes together, in the user's units."""
        return OutcomeMoments(int(self.num_points.sum()), *self.pooled_moments)

    def typical_outcomes(self) -> tuple[Tensor, Tensor] | None:
        """Returns the sources' outcomes and their tasks; ``None`` without observations."""
        return None if self.data is None else (self.outcomes(), self.data.task)

    def mean(self, X: Tensor) -> Tensor:
        """Evaluates the mean that the target inherits, in the prior's units.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n`` tensor, differentiable in ``X``; for independent GPs,
            ``batch_shape x M x n``.
        """
        return self._inherited(self.gps.mean(self._transformed(X)))

    def variance(self, X: Tensor) -> Tensor:
        """Evaluates the variance that the target inherits, noise left out.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n`` tensor, differentiable in ``X``; for independent GPs,
            ``batch_shape x M x n``.
        """
        return self._inherited(self.gps.variance(self._transformed(X)))

    def _inherited(self, values: Tensor) -> Tensor:
        """Drops the dimension of GPs where there is only one by construction."""
        return values if isinstance(self.gps, ConditionedGPs) else values.squeeze(-2)

    @property
    def residual_variance(self) -> float:
        """Expected squared distance of a target from its sources, in the prior's units.

        The geometric mean of a typical value and of how far each source task is from the others:
        with one source it is the typical value, with many the data dominate. The hyperprior of a
        target model's residual has its median there.
        """
        return self._expected(TYPICAL_RESIDUAL, self.differences, _LEAST_DIFFERENCE)

    @property
    def noise_variance(self) -> float:
        """Expected noise variance of a target, in the prior's units.

        The geometric mean of a typical value and of each source task's noise variance, where that
        is larger. The hyperprior of a target model's noise has its median there.
        """
        return self._expected(TYPICAL_NOISE, self.task_noise, TYPICAL_NOISE)

    def _expected(self, typical: float, found: Tensor, least: float) -> float:
        """The geometric mean of a typical variance and of the tasks' variances, within bounds."""
        unit = outcome_variance(self.outcome_scale, self.outcome_moments)
        relative = (found.double() / unit).clamp(least, _LARGEST_DIFFERENCE)
        total = math.log(typical) + float(relative.log().sum())
        return unit * math.exp(total / (1 + len(relative)))

    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """Returns the outcome transform that brings a target's outcomes into the prior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            ``None`` if the prior's outcomes are in raw units. Otherwise a standardization by the
            outcomes of the source tasks, and of the target too if each source task was standardized
            by itself.
        """
        return target_transform(self.outcome_scale, self.outcome_moments, batch_shape)

    def extra_repr(self) -> str:
        """Returns the text that ``print`` shows."""
        return (
            f"tasks={self.num_tasks}, points={int(self.num_points.sum())}, inputs={self.dim}, "
            f"kernel={self.gps.kernel!r}, outcome_scale={self.outcome_scale!r}"
        )

    def _new_tasks(
        self,
        source_data: SourceData | Sequence[SourceData] | Mapping[str, SourceData],
    ) -> Sequence[SourceData] | Mapping[str, SourceData]:
        """Checks tasks that are to be added.

        Args:
            source_data: One task or several; only tasks of a mapping have names from the user.

        Returns:
            The new tasks.

        Raises:
            InputDataError: If the new data are invalid, have another number of inputs, or a name
                that is taken, which might be the same runs.
        """
        tasks: Any = source_data
        if isinstance(tasks, SupervisedDataset):
            tasks = [tasks]
        elif isinstance(tasks, tuple) and all(isinstance(part, Tensor) for part in tasks):
            tasks = {f"source task {self.num_tasks}": tasks}
        given = [str(name) for name in tasks] if isinstance(tasks, Mapping) else []
        taken = [name for name in given if name in self.task_names]
        if taken:
            raise InputDataError(
                f"The prior has a source task {taken[0]!r} already: give the new one another name, "
                "or leave the old one out by select first."
            )
        name, dim = task_names(tasks)[0], as_datasets(tasks)[0].X.shape[-1]
        if dim != self.dim:
            raise InputDataError(
                f"The new source task {name!r} has {dim} inputs, but the prior has {self.dim}."
            )
        return transform_outcomes(tasks, self.outcome_steps) if self.outcome_steps else tasks

    def without_observations(self) -> Self:
        """Returns the prior without the source data.

        Its posteriors are kept on inducing points between old inputs: means of pairs of them. It
        contains no old row of a task that has more than one, only each task's mean and standard
        deviation, which tell the outcomes of two rows. But the posteriors are still close to the
        outcomes: whoever knows an old input, or guesses it, can predict what came out.
        It can be used like any other; what needs the outcomes again, such as ``append``, raises an
        error.

        Returns:
            A prior with statistics of its data only; itself if it has no more.

        Raises:
            NotImplementedError: If it is a :class:`SourceHierarchy`.
        """
        if self.data is None:
            return self
        return type(self)(
            self.gps.distilled(), self.units, None, self.log_posterior, self.statistics
        )

    def save(self, path: str | os.PathLike[str], observations: bool = True) -> None:
        """Saves the prior to one safetensors file.

        Args:
            path: Where to write; an existing file is replaced once the new one is complete.
            observations: Whether the file contains the source data, so that tasks can be added to
                the loaded prior; see :meth:`without_observations`.

        Raises:
            FileNotFoundError: If there is no such folder.
            NotImplementedError: If a :class:`SourceHierarchy` is to be saved without observations.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit({"monday": (X, X.sum(-1, keepdim=True))})
            >>> sources.save("sources.safetensors", observations=False)
            >>> SourceGPs.load("sources.safetensors").task_names
            ('monday',)
        """
        prior = self if observations else self.without_observations()
        super(ConditionedPrior, prior).save(path)
