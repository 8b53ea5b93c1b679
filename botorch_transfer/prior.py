"""Base classes of priors. A prior is an immutable result of pre-training; models are built on it.

Read this to write your own prior, or to see what all priors share: units, input transforms, saving
and loading, views, and cached pre-training. The *units* of a prior are the scale of its outcomes. A
prior subclasses :class:`TransferPrior`, or :class:`ConditionedPrior` if it consists of GPs that are
conditioned on the source data.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
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
from botorch_transfer.outcome_transforms import OutcomeMoments, Steps, split_transform
from botorch_transfer.saving import Saved, read_prior, stored

#: Options of pre-training that do not change the result.
_WITHOUT_EFFECT = {"progress", "n_jobs", "max_bytes", "chunk_elements"}

_PACKAGE = f"{__package__}."

_pretrained = Memo(size=16)


class TransferPrior(Saved, ABC):
    """Base class of priors, which hold everything that is learned from the source data.

    Use a prior to pre-train once and build several models on it. A prior is a module without
    parameters to fit. It can be moved by ``.to()``, copied and pickled, and it has a
    ``state_dict``. The file of a saved prior contains the constructor arguments. A model holds a
    view of the prior, so changes to the model affect neither the prior nor other models.

    Args:
        outcome_scale: The prior's units. Source outcomes are standardized task by task
            (``"per_task"``), all together (``"pooled"``), or not at all (``"raw"``).
        input_transform: The frozen transform from the user's inputs to the prior's inputs. Models
            inherit this transform.

    Raises:
        ValueError: If the input transform is not frozen, or ``outcome_scale`` is unknown.
    """

    input_transform: InputTransform | None
    outcome_scale: OutcomeScale
    outcome_scale_index: Tensor
    #: Element-wise transforms of the outcomes, applied before scaling; models inherit them.
    outcome_steps: Steps | None = ()
    #: Names of the inputs; empty if the names are unknown.
    feature_names: Sequence[str] = ()
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
        """Number of input dimensions ``d``; ``None`` if any number is allowed."""
        return None

    def check_inputs(self, names: Sequence[str], whose: str) -> None:
        """Checks that inputs are the prior's inputs, in the prior's order.

        Args:
            names: The names of the inputs. The default names x0, x1, ... are not compared.
            whose: The owner of the inputs, for the error message.

        Raises:
            InputDataError: If the number of inputs or a name differs.
        """
        text, pairs = "", list(zip(names, self.feature_names, strict=False))
        if self.dim not in (None, len(names)):
            text = f"{len(names)} inputs, but the prior has {self.dim} inputs"
        elif (wrong := [pair for pair in pairs if len({*pair}) > 1]) and "x0" not in pairs[0]:
            text = "the input {!r}, but the prior has {!r} in this place".format(*wrong[0])
        if text:
            raise InputDataError(f"{whose} has {text}: give the prior's inputs, in its order.")

    def input_transform_for(self, dim: int, given: InputTransform | None) -> InputTransform | None:
        """Returns the input transform of a model.

        Args:
            dim: The number of the model's inputs.
            given: The ``input_transform=`` argument of the model.

        Returns:
            A copy of the prior's transform in evaluation mode; if the prior has no transform, a
            copy of ``given``.

        Raises:
            ValueError: If ``given`` is not frozen, or differs from the prior's transform.
        """
        return resolve_input_transform(self.input_transform, given)

    def _transformed(self, X: Tensor) -> Tensor:
        # Uses a copy, because BoTorch's transforms change their precision to the inputs' precision.
        return X if self.input_transform is None else deepcopy(self.input_transform)(X)

    @classmethod
    def fit_once(cls, source_data: Any, outcome_transform: Any = None, **options: Any) -> Self:
        """Pre-trains a prior, or returns the cached prior for equal data and options.

        Models call this method with raw source data. Ax often rebuilds models from equal data.
        Recent priors are therefore cached in this process and in files, see "Time and memory" in
        the guide.

        Args:
            source_data: The source tasks, as for ``fit``. A ``Hyperprior`` takes domains, or the
                source tasks of a single domain.
            outcome_transform: The model's outcome transform. ``Log``, ``Bilog`` and ``Power``,
                alone or at the start of a chain, are applied to the outcomes of the source
                tasks. Later transforms in a chain apply only to the target.
            **options: The options of ``fit``. The defaults for a ``PretrainedPrior`` are HyperBO's
                preset. If there are at least eight source tasks, the preset holds out a quarter of
                the tasks to choose the number of training steps, unless ``hold_out`` is given.

        Returns:
            The prior. Don't change the prior, because other models may use it.

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

        # Only priors of this package are cached in files: a key ignores the code of other packages.
        if cls.__module__.startswith(_PACKAGE) and not key.startswith(UNKNOWN):
            # A hyperprior is fitted to domains, and stays on the CPU.
            device = next(iter(content.values())).X.device if isinstance(content, Mapping) else None

            def read(path: Path, name: str) -> Any:
                arguments = read_prior(path, name, device, options.get("input_transform"))
                return cls._from_arguments(arguments).to(device)

            pretrain = partial(stored, key, pretrain, cls._arguments, read)
        return _pretrained.recall(key, pretrain)

    @classmethod
    def _content_and_options(
        cls, source_data: Any, options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Returns validated source data by task name, and the options with which to pre-train."""
        datasets = as_datasets(source_data)
        return dict(zip(task_names(source_data), datasets, strict=True)), options

    @classmethod
    def _pretrain(cls, source_data: Any, **options: Any) -> Self:
        """Pre-trains a prior for :meth:`fit_once`; by default calls the class method ``fit``."""
        return cast(Any, cls).fit(source_data, **options)

    def view(self) -> Self:
        """Returns a copy of the prior that shares the prior's tensors.

        The prior does not change if the copy is moved to another device, or if a ``state_dict`` is
        loaded into the copy.
        """
        return shallow_copy(self)

    def typical_outcomes(self) -> tuple[Tensor, Tensor] | None:
        """Returns source outcomes (or typical outcomes) and the task index of each outcome.

        Returns ``None`` if the prior has no outcomes. A model compares the target's outcomes with
        the result, and warns if the units seem to differ.
        """
        return None

    @abstractmethod
    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """Builds the outcome transform that converts a target's outcomes to the prior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            The transform, which is applied after ``outcome_steps``; ``None`` if the prior's units
            are raw.
        """


@savable
class Observations(DoubleState):
    """The source data of a prior, in the prior's units.

    Args:
        X: An ``N x d`` tensor of transformed inputs, one task after another.
        Y: An ``N`` tensor of scaled outcomes.
        noise: An ``N`` tensor of known or inferred noise variances.
        task: An ``N`` tensor of task indices, from 0.
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
        """Stacks the data of all tasks, and drops the rows of padding.

        Args:
            tasks: The padded tasks.
            noise: An ``M x N`` tensor of noise variances, padded like the tasks.
        """
        mask = tasks.mask
        return cls(tasks.X[mask], tasks.Y[mask], noise[mask], mask.nonzero()[:, 0])

    def select(self, tasks: Tensor) -> Self:
        """Selects the data of ``tasks``, and numbers these tasks from 0 in the given order."""
        sizes = torch.bincount(self.task)
        own = self.task.argsort(stable=True).split(sizes.tolist())
        rows = torch.cat([own[task] for task in tasks.tolist()])
        task = torch.arange(len(tasks), device=rows.device).repeat_interleave(sizes[tasks])
        return type(self)(self.X[rows], self.Y[rows], self.noise[rows], task)

    def join(self, other: Self, num_tasks: int) -> Self:
        """Appends the data of further tasks, and adds ``num_tasks`` to their task indices."""
        mine = self.X, self.Y, self.noise, self.task
        theirs = other.X, other.Y, other.noise, other.task + num_tasks
        parts = (torch.cat([a, b.to(a.device)]) for a, b in zip(mine, theirs, strict=True))
        return type(self)(*parts)


#: Bounds on a task's variance in a geometric mean over tasks, so that no extreme task dominates the
#: mean. The unit is the variance of all outcomes.
_LEAST_DIFFERENCE, _LARGEST_DIFFERENCE = 1e-2, 10.0


class ConditionedPrior(TransferPrior):
    """Base class of :class:`SourceGPs`, :class:`SourceHierarchy` and :class:`SourcePopulation`.

    Derive your own prior from this class if the prior conditions GPs on the source data.

    Args:
        gps: The conditioned GPs, in the prior's units.
        units: The transforms that map the source tasks' data to the prior's inputs and outcomes.
        data: The source data; ``None`` if the prior was saved without the source data.
        log_posterior: An ``M`` tensor: each task's log marginal likelihood plus log hyperprior
            density at its fitted hyperparameters; NaN if this package did not fit the GPs.
        statistics: Statistics of the source data, tensors by name; computed if omitted.
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
        self.task_names, self.feature_names = tuple(units.names), tuple(units.feature_names)
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
        """Computes statistics, which stay in the prior if the source data are removed.

        A subclass adds ``differences``: estimates of a target's mean squared distance from its
        sources, a vector that may be empty.
        """
        data, moments = self.observed, OutcomeMoments.of(self.outcomes())
        num_points = torch.bincount(data.task, minlength=len(self.task_names))
        return {
            "num_points": num_points,
            "task_noise": torch.bincount(data.task, data.noise, len(num_points)) / num_points,
            "pooled_moments": torch.stack([moments.mean, moments.spread]),
            "input_range": torch.stack([data.X.amin(dim=0), data.X.amax(dim=0)]),
        }

    @property
    def statistics(self) -> dict[str, Tensor]:
        """Statistics of the source data, tensors by name."""
        return {name: getattr(self, name) for name in self._names_of_statistics}

    @property
    def observed(self) -> Observations:
        """The source data.

        Raises:
            InputDataError: If the prior was saved without observations.
        """
        if self.data is None:
            raise InputDataError(
                "The prior was saved without observations, but this operation needs the old "
                "outcomes: fit the prior to the data again, or load a prior that was saved with "
                "observations=True."
            )
        return self.data

    @property
    def num_tasks(self) -> int:
        """Number of source tasks ``M``."""
        return self.gps.num_tasks

    @property
    def dim(self) -> int:
        """Number of input dimensions ``d``."""
        return self.gps.dim

    @property
    def units(self) -> TaskUnits:
        """Transforms from the source tasks' data to the prior's inputs and outcomes."""
        how = self.outcome_scale, self.input_transform, self.outcome_steps, self.feature_names
        return TaskUnits(self.task_names, self.outcome_mean, self.outcome_std, *how)

    def outcomes(self) -> Tensor:
        """Returns all source outcomes, after the element-wise transforms but not standardized."""
        Y, task = self.observed.Y, self.observed.task
        return (Y * self.outcome_std[task] + self.outcome_mean[task]).to(self.outcome_mean)

    @property
    def outcome_moments(self) -> OutcomeMoments:
        """Number, mean and standard deviation of all source outcomes together.

        The outcomes are transformed by the element-wise ``outcome_steps``, but not standardized.
        """
        return OutcomeMoments(int(self.num_points.sum()), *self.pooled_moments)

    def typical_outcomes(self) -> tuple[Tensor, Tensor] | None:
        """Returns all source outcomes and their task indices; ``None`` if the prior has no data."""
        return None if self.data is None else (self.outcomes(), self.data.task)

    def mean(self, X: Tensor) -> Tensor:
        """Evaluates the posterior mean given the source data, in the prior's units.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n`` tensor, differentiable in ``X``; for a :class:`SourceGPs`,
            ``batch_shape x M x n``.
        """
        return self._inherited(self.gps.mean(self._transformed(X)))

    def variance(self, X: Tensor) -> Tensor:
        """Evaluates the posterior variance given the source data, without noise.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n`` tensor, differentiable in ``X``; for a :class:`SourceGPs`,
            ``batch_shape x M x n``.
        """
        return self._inherited(self.gps.variance(self._transformed(X)))

    def _inherited(self, values: Tensor) -> Tensor:
        """Removes the source task dimension from ``values``, unless each task has its own GP."""
        return values if isinstance(self.gps, ConditionedGPs) else values.squeeze(-2)

    @property
    def residual_variance(self) -> float:
        """Expected squared distance of a target from its sources, in the prior's units.

        This is the geometric mean of a typical value and of estimates from the source data. A
        :class:`SourceGPs` compares up to 32 source tasks with each other. Each compared task yields
        one estimate: the task's mean squared distance from the mean prediction of the other
        compared tasks. With one source task, there is no estimate, and the result is the typical
        value. With many source tasks, the estimates dominate. In a target model, the result is the
        median of the residual variance's hyperprior.
        """
        return self._expected(TYPICAL_RESIDUAL, self.differences, _LEAST_DIFFERENCE)

    @property
    def noise_variance(self) -> float:
        """Expected noise variance of a target, in the prior's units.

        This is the geometric mean of ``M + 1`` values: a typical value, and the noise variance of
        each source task. A noise variance below the typical value counts as the typical value. In a
        target model, the result is the median of the noise variance's hyperprior.
        """
        return self._expected(TYPICAL_NOISE, self.task_noise, TYPICAL_NOISE)

    def _expected(self, typical: float, found: Tensor, least: float) -> float:
        """Returns the geometric mean of a typical variance and of variances from the source data.

        Args:
            typical: The typical variance, relative to the variance of all outcomes.
            found: The variances from the source data, a vector in the prior's units.
            least: The lower bound of ``found``, relative to the variance of all outcomes. The bound
                replaces smaller variances.
        """
        unit = outcome_variance(self.outcome_scale, self.outcome_moments)
        relative = (found.double() / unit).clamp(least, _LARGEST_DIFFERENCE)
        total = math.log(typical) + float(relative.log().sum())
        return unit * math.exp(total / (1 + len(relative)))

    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """Returns the outcome transform that converts a target's outcomes to the prior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            A standardization by all source outcomes; or, if each source task was standardized by
            itself, by all source and target outcomes together. ``None`` if the prior's outcomes are
            in raw units.
        """
        return target_transform(self.outcome_scale, self.outcome_moments, batch_shape)

    def extra_repr(self) -> str:
        """Returns a summary of the prior, for ``print``."""
        return (
            f"tasks={self.num_tasks}, points={int(self.num_points.sum())}, inputs={self.dim}, "
            f"kernel={self.gps.kernel!r}, outcome_scale={self.outcome_scale!r}"
        )

    def _new_tasks(
        self, source_data: SourceData | Sequence[SourceData] | Mapping[str, SourceData]
    ) -> Sequence[SourceData] | Mapping[str, SourceData]:
        """Checks source tasks that are to be added to the prior.

        Args:
            source_data: One task or several tasks. Only the tasks of a mapping have names.

        Returns:
            The new tasks, after the prior's element-wise transforms of outcomes.

        Raises:
            InputDataError: If the new data are invalid, or do not have the prior's inputs. Also if
                a new task has the name of a source task of the prior.
        """
        tasks: Any = source_data
        if isinstance(tasks, SupervisedDataset):
            tasks = [tasks]
        elif isinstance(tasks, tuple) and all(isinstance(part, Tensor) for part in tasks):
            tasks = {f"source task {self.num_tasks}": tasks}
        given = [str(name) for name in tasks] if isinstance(tasks, Mapping) else []
        if taken := [name for name in given if name in self.task_names]:
            raise InputDataError(
                f"The prior has a source task {taken[0]!r} already: give the new task another name."
            )
        for name, data in zip(task_names(tasks), as_datasets(tasks), strict=True):
            self.check_inputs(data.feature_names, f"The new source task {name!r}")
        return transform_outcomes(tasks, self.outcome_steps) if self.outcome_steps else tasks

    def without_observations(self) -> Self:
        """Returns the prior without the source data.

        The posteriors are approximated with inducing points. Each inducing point is the midpoint
        between two old inputs. A task's inducing points differ from all inputs of the task, unless
        these inputs are all equal. A :class:`SourcePopulation` also keeps up to 64 old inputs as
        reference points. The result contains each task's mean and standard deviation, which reveal
        the outcomes of a task with two points. At the old inputs, the posteriors are still close to
        the outcomes. Anyone who has or guesses an old input can thus predict its outcome.

        Models use the result like any other prior. Methods that need the outcomes again, such as
        ``append``, raise an error.

        Returns:
            A new prior with statistics instead of source data. If the prior already has no source
            data, the prior itself.

        Raises:
            NotImplementedError: If the prior is a :class:`SourceHierarchy`.
        """
        if self.data is None:
            return self
        return type(self)(
            self.gps.distilled(), self.units, None, self.log_posterior, self.statistics
        )

    def save(self, path: str | os.PathLike[str], observations: bool = True) -> None:
        """Saves the prior to one safetensors file.

        Args:
            path: The file. An existing file is replaced once the new file is complete.
            observations: Whether the file contains the source data. Without source data, no tasks
                can be added to the loaded prior; see :meth:`without_observations`.

        Raises:
            FileNotFoundError: If the folder does not exist.
            NotImplementedError: If a :class:`SourceHierarchy` is saved without observations.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> sources = SourceGPs.fit({"monday": (X, X.sum(-1, keepdim=True))})
            >>> sources.save("sources.safetensors", observations=False)
            >>> SourceGPs.load("sources.safetensors").task_names
            ('monday',)
        """
        prior = self if observations else self.without_observations()
        super(ConditionedPrior, prior).save(path)
