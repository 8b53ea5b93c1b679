"""Source tasks as one padded batch, and the units of their outcomes.

Read this for how tasks of different sizes become tensors, from data or from ``SingleTaskGP`` models
that were fitted elsewhere; how much memory that may take; and what ``outcome_scale`` means. The
models' ``Standardize`` and ``Normalize`` transforms are folded into data and lengthscales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.input import InputTransform, Normalize
from botorch.models.transforms.outcome import Standardize, StratifiedStandardize
from botorch.sampling.pathwise.utils import get_train_inputs, get_train_targets
from botorch.utils.datasets import SupervisedDataset
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import pad_sequence

from botorch_transfer.data import MAX_JOINT_BYTES, SourceData, as_datasets, task_names
from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.conditioned import pad_inputs
from botorch_transfer.gp.state import savable
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.input_transforms import frozen_input_transform
from botorch_transfer.outcome_transforms import OutcomeMoments, PooledStandardize, Steps, usable_std

MAX_PADDED_BYTES = MAX_JOINT_BYTES
"""Memory that a padded batch may take by default."""

_BYTES_IN_FIT, _BYTES_WHEN_CONDITIONED = 90, 40
"""Peak memory for an element of a covariance matrix, in double precision (measured)."""

_BYTES_OF_ROW = 500
"""Memory for a row of a padded batch, with a dozen inputs."""


def lexical_order(*keys: Tensor) -> Tensor:
    """Sorts by the last key; where it agrees, by the one before.

    Args:
        keys: ``batch_shape x n`` tensors.

    Returns:
        A ``batch_shape x n`` tensor of indices.

    Example:
        >>> lexical_order(torch.tensor([2, 1, 3]), torch.tensor([5, 5, 4]))
        tensor([2, 1, 0])
    """
    order = torch.arange(keys[0].shape[-1], device=keys[0].device).expand(keys[0].shape)
    for key in keys:
        order = order.gather(-1, key.gather(-1, order).argsort(dim=-1, stable=True))
    return order


def typical_rows(X: Tensor, Y: Tensor, most: int) -> Tensor:
    """Chooses rows of a task that are evenly spaced from its worst outcome to its best.

    Args:
        X: An ``n x d`` tensor of inputs, which decide where outcomes agree.
        Y: An ``n`` tensor of outcomes.
        most: How many rows to choose at most.

    Returns:
        Their indices; which rows these are does not depend on their order.

    Example:
        >>> X, Y = torch.rand(4, 2), torch.tensor([3.0, 1.0, 2.0, 9.0])
        >>> typical_rows(X, Y, most=2)
        tensor([1, 3])
    """
    return lexical_order(*X.mT, Y)[evenly_spaced(len(Y), most)]


def check_padded_size(
    names: Sequence[str],
    sizes: Sequence[int],
    max_bytes: float = MAX_PADDED_BYTES,
    most: int | None = None,
) -> None:
    """Refuses source data whose padded batch would not fit into memory.

    Every task takes as much memory as the largest one, so that one large task among many small ones
    makes the batch large.

    Args:
        names: The tasks' names.
        sizes: The tasks' numbers of points.
        max_bytes: Memory that the batch may take.
        most: How many points of a task enter a covariance matrix at most.

    Raises:
        InputDataError: If it would take more.

    Example:
        >>> check_padded_size(["monday", "tuesday"], [100, 200])
    """
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    width = min(sizes[largest], most or sizes[largest])
    needed = max(_BYTES_IN_FIT, _BYTES_WHEN_CONDITIONED * len(sizes)) * width**2
    needed += _BYTES_OF_ROW * len(sizes) * sizes[largest]
    if needed > max_bytes:
        raise InputDataError(
            f"Source task {names[largest]!r} has {sizes[largest]:,} points, and a batch of "
            f"{len(sizes)} tasks of that size would take about {needed / 2**30:,.1f} GiB of memory "
            f"(the limit is {max_bytes / 2**30:,.1f} GiB): thin out the largest tasks, or raise "
            "max_bytes."
        )


@dataclass(frozen=True)
class PaddedTasks:
    """The data of ``M`` tasks, padded to the ``N`` points of the largest.

    Args:
        X: An ``M x N x d`` tensor of inputs, finite at the padding.
        Y: An ``M x N`` tensor of outcomes, zero at the padding.
        Yvar: An ``M x N`` tensor of known noise variances, zero at the padding and for tasks whose
            noise is inferred.
        mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.
        fixed_noise: An ``M`` boolean tensor, ``True`` for tasks whose noise is known.
        covariance: An ``M x N x N`` tensor of covariance in addition to kernel and noise, such as
            the posterior covariance of the level below.
    """

    X: Tensor
    Y: Tensor
    Yvar: Tensor
    mask: Tensor
    fixed_noise: Tensor
    covariance: Tensor | None = None

    @classmethod
    def from_datasets(
        cls, datasets: Sequence[SupervisedDataset], transform: InputTransform | None = None
    ) -> PaddedTasks:
        """Pads validated source data.

        Args:
            datasets: The source tasks, each with ``n_m x d`` inputs and ``n_m x 1`` outcomes.
            transform: A frozen transform of the inputs.

        Returns:
            The padded batch, in the data's dtype and on their device.
        """
        # One-to-many transforms are for predictions: of data only what transform_on_train says.
        apply = torch.nn.Identity() if transform is None else transform.preprocess_transform
        inputs = [apply(dataset.X) for dataset in datasets]
        outcomes = [dataset.Y.squeeze(-1) for dataset in datasets]
        noises = [
            torch.zeros_like(outcome) if dataset.Yvar is None else dataset.Yvar.squeeze(-1)
            for dataset, outcome in zip(datasets, outcomes, strict=True)
        ]
        return cls.padded(inputs, outcomes, noises, [data.Yvar is not None for data in datasets])

    @classmethod
    def padded(
        cls,
        inputs: Sequence[Tensor],
        outcomes: Sequence[Tensor],
        noises: Sequence[Tensor],
        fixed_noise: Sequence[bool],
    ) -> PaddedTasks:
        """Pads tensors of ``n_m x d`` inputs, ``n_m`` outcomes and ``n_m`` noise variances."""
        device = outcomes[0].device
        sizes = torch.tensor([len(outcome) for outcome in outcomes], device=device)
        mask = torch.arange(int(sizes.max()), device=device) < sizes.unsqueeze(-1)
        return cls(
            X=pad_inputs(pad_sequence(list(inputs), batch_first=True), mask),
            Y=pad_sequence(list(outcomes), batch_first=True),
            Yvar=pad_sequence(list(noises), batch_first=True),
            mask=mask,
            fixed_noise=torch.tensor(list(fixed_noise), device=device),
        )

    def __getitem__(self, index: Tensor) -> PaddedTasks:
        """Selects tasks; the padding that none of them needs is cut off."""
        mask = self.mask[index]
        size = int(mask.sum(dim=-1).max())
        return PaddedTasks(
            X=self.X[index, :size],
            Y=self.Y[index, :size],
            Yvar=self.Yvar[index, :size],
            mask=mask[:, :size],
            fixed_noise=self.fixed_noise[index],
            covariance=None if self.covariance is None else self.covariance[index, :size, :size],
        )

    def typical(self, most: int) -> PaddedTasks:
        """Keeps at most so many rows of each task, see :func:`typical_rows`."""
        if self.mask.shape[-1] <= most:
            return self
        rows = [
            own.nonzero().squeeze(-1)[typical_rows(X[own], Y[own], most)]
            for X, Y, own in zip(self.X, self.Y, self.mask, strict=True)
        ]
        X, Y, Yvar = (
            [part[task, own] for task, own in enumerate(rows)]
            for part in (self.X, self.Y, self.Yvar)
        )
        chosen = self.padded(X, Y, Yvar, self.fixed_noise.tolist())
        if self.covariance is None:
            return chosen
        index, task = pad_sequence(rows, batch_first=True), torch.arange(len(rows))[:, None, None]
        covariance = self.covariance[task, index.unsqueeze(-1), index.unsqueeze(-2)]
        return replace(chosen, covariance=covariance)

    def double(self) -> PaddedTasks:
        """Returns the same tasks in double precision."""
        covariance = None if self.covariance is None else self.covariance.double()
        X, Y, Yvar = self.X.double(), self.Y.double(), self.Yvar.double()
        return replace(self, X=X, Y=Y, Yvar=Yvar, covariance=covariance)

    @property
    def num_points(self) -> Tensor:
        """The number of points of each task, an ``M`` tensor."""
        return self.mask.sum(dim=-1)

    @property
    def is_ragged(self) -> bool:
        """Whether there is any padding."""
        return not bool(self.mask.all())

    def moments(self) -> tuple[Tensor, Tensor]:
        """Returns each task's outcome mean and standard deviation, two ``M`` tensors.

        The standard deviation is unbiased, as in BoTorch's ``Standardize``, and one for a task
        whose outcomes do not vary.
        """
        # Squares of large outcomes overflow in single precision.
        Y, count = self.Y.double(), self.num_points
        mean = Y.sum(dim=-1) / count
        squares = ((Y - mean.unsqueeze(-1)).square() * self.mask).sum(dim=-1)
        std = (squares / (count - 1).clamp_min(1)).sqrt()
        return mean.to(self.Y), usable_std(std, mean).to(self.Y)

    def standardize(self, mean: Tensor, std: Tensor) -> PaddedTasks:
        """Maps the outcomes to ``(Y - mean) / std``, for two ``M`` tensors."""
        Y = (self.Y - mean.unsqueeze(-1)) / std.unsqueeze(-1) * self.mask
        Yvar = self.Yvar / std.square().unsqueeze(-1)
        return replace(self, Y=Y, Yvar=Yvar)

    def known_or(self, inferred: Tensor) -> Tensor:
        """Returns each point's noise variance: the known one, or its task's in an ``M`` tensor."""
        inferred = inferred.to(self.Yvar).unsqueeze(-1)
        return torch.where(self.fixed_noise.unsqueeze(-1), self.Yvar, inferred)


OutcomeScale = Literal["per_task", "pooled", "raw"]
"""Scaling of source outcomes: each task by itself, all tasks together, or none."""


def check_choice(option: str, value: str, choices: Any) -> None:
    """Refuses an unknown value of an option.

    Args:
        option: The option's name.
        value: Its value.
        choices: The ``Literal`` of its values.

    Raises:
        ValueError: If the value is unknown.

    Example:
        >>> check_choice("outcome_scale", "pooled", OutcomeScale)
    """
    if value not in get_args(choices):
        names = ", ".join(repr(name) for name in get_args(choices))
        raise ValueError(f"Unknown {option} {value!r}: choose one of {names}.")


def outcome_scales(tasks: PaddedTasks, scale: OutcomeScale) -> tuple[Tensor, Tensor]:
    """Finds what to subtract from each task's outcomes, and what to divide them by.

    Args:
        tasks: The padded tasks, in the user's units.
        scale: How to scale them.

    Returns:
        Two ``M`` tensors: means and standard deviations.

    Raises:
        ValueError: If the scale is unknown.
    """
    check_choice("outcome_scale", scale, OutcomeScale)
    mean, std = tasks.moments()
    if scale == "raw":
        return mean.new_zeros(mean.shape), std.new_ones(std.shape)
    if scale == "pooled":
        outcomes = tasks.Y[tasks.mask].double()
        pooled_mean = outcomes.mean()
        std_of_all = outcomes.std(correction=min(1, len(outcomes) - 1))
        pooled_std = usable_std(std_of_all, pooled_mean)
        return pooled_mean.to(mean).repeat(len(mean)), pooled_std.to(std).repeat(len(std))
    return mean, std


def outcome_variance(scale: OutcomeScale, moments: OutcomeMoments) -> float:
    """Returns the variance that source outcomes have once they are scaled.

    Args:
        scale: How they are scaled.
        moments: The statistics of all source outcomes.

    Returns:
        One, unless they stay as they are; one, too, if they are constant.
    """
    if scale != "raw":
        return 1.0
    return float(usable_std(moments.spread.double(), moments.mean.double())) ** 2


def target_transform(
    scale: OutcomeScale, moments: OutcomeMoments, batch_shape: torch.Size
) -> PooledStandardize | None:
    """Builds the outcome transform that brings a target's outcomes to the scale of the sources.

    Args:
        scale: How the source outcomes were scaled.
        moments: The statistics of all source outcomes.
        batch_shape: The batch shape of the target model.

    Returns:
        ``None`` if they were not scaled. Otherwise a standardization by the outcomes of the source
        tasks, and of the target too if each source task was standardized by itself.
    """
    if scale == "raw":
        return None
    return PooledStandardize(moments, scale == "per_task", batch_shape)


@savable
@dataclass(frozen=True)
class TaskUnits:
    """Transforms from the data of ``M`` tasks to a prior's data.

    Args:
        names: The tasks' names.
        mean: An ``M`` tensor: what was subtracted from each task's outcomes.
        std: An ``M`` tensor: what each task's outcomes were then divided by.
        outcome_scale: How the outcomes were scaled.
        input_transform: The frozen transform from the user's inputs to the prior's.
        outcome_steps: The element-wise transforms of the outcomes before they are scaled.
    """

    names: Sequence[str]
    mean: Tensor
    std: Tensor
    outcome_scale: OutcomeScale = "per_task"
    input_transform: InputTransform | None = None
    outcome_steps: Steps | None = ()

    def select(self, tasks: Tensor) -> TaskUnits:
        """Selects tasks by a tensor of their indices."""
        names = [self.names[task] for task in tasks.tolist()]
        return replace(self, names=names, mean=self.mean[tasks], std=self.std[tasks])

    def join(self, other: TaskUnits) -> TaskUnits:
        """Adds tasks. A name that is taken, as "source task 0" of tensors may be, gets a number."""
        names = list(self.names)
        for name in other.names:
            candidate, number = name, len(names)
            while candidate in names:
                candidate, number = f"{name} ({number})", number + 1
            names.append(candidate)
        mean, std = other.mean.to(self.mean), other.std.to(self.std)
        return replace(
            self, names=names, mean=torch.cat([self.mean, mean]), std=torch.cat([self.std, std])
        )


def scaled_tasks(
    source_data: Sequence[SourceData] | Mapping[str, SourceData],
    outcome_scale: OutcomeScale,
    input_transform: InputTransform | None,
    check_size: Callable[[Sequence[str], Sequence[int]], None] | None = None,
) -> tuple[PaddedTasks, TaskUnits]:
    """Validates source data, pads them and brings them into a prior's units.

    Args:
        source_data: The source tasks, a sequence or a mapping from names.
        outcome_scale: How to scale the outcomes.
        input_transform: A frozen transform of the inputs.
        check_size: Refuses too many points, given the tasks' names and numbers of points.

    Returns:
        The tasks in these units, and the units.

    Raises:
        InputDataError: If the source data are invalid; the message names the task.
        ValueError: If the transform is not frozen, or the scale is unknown.
    """
    names, datasets = task_names(source_data), as_datasets(source_data)
    if check_size is not None:
        check_size(names, [len(data.X) for data in datasets])
    transform = frozen_input_transform(input_transform, datasets)
    tasks = PaddedTasks.from_datasets(datasets, transform)
    mean, std = outcome_scales(tasks, outcome_scale)
    return tasks.standardize(mean, std), TaskUnits(names, mean, std, outcome_scale, transform)


# ------------------------------------------------------------------------- models fitted elsewhere


class ReadModels(NamedTuple):
    """The data and hyperparameters of ``M`` fitted GPs.

    Args:
        tasks: The padded data, outcomes in the models' units; all noise is known.
        units: The tasks' names, the transforms of the models' outcomes, and of the prior's inputs.
        mean_constant: An ``M`` tensor.
        hyperparameters: Those arguments of conditioned GPs that are the same in all classes.
    """

    tasks: PaddedTasks
    units: TaskUnits
    mean_constant: Tensor
    hyperparameters: dict[str, Any]


def read_models(
    models: Sequence[SingleTaskGP] | Mapping[str, SingleTaskGP],
    input_transform: InputTransform | None,
) -> ReadModels:
    """Reads fitted GPs.

    Args:
        models: The source tasks' models, a sequence or a mapping from names.
        input_transform: The frozen ``Normalize`` to the prior's space, if inputs are not raw.

    Returns:
        What was read; the models stay as they are.

    Raises:
        ValueError: If a model has a kind that cannot be taken over; the message names it.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> read = read_models([SingleTaskGP(X, X.sum(-1, keepdim=True))], None)
        >>> read.hyperparameters["kernel"]
        'rbf'
    """
    if isinstance(models, Model):
        raise ValueError("There is one model, but a sequence was expected: put it into a list.")
    if len(models) == 0:
        raise ValueError("There are no models: give at least one.")
    given = (
        models if isinstance(models, Mapping) else {f"model {n}": m for n, m in enumerate(models)}
    )
    names, transform = [str(name) for name in given], frozen_input_transform(input_transform)
    with torch.no_grad():
        read = [_read_model(*pair, transform) for pair in zip(names, given.values(), strict=True)]
        columns = {part: [one[part] for one in read] for part in read[0]}
        for what in ("kernel", "number of inputs", "dtype", "device", "use of Standardize"):
            for name, mine in zip(names, columns[what], strict=True):
                if mine != columns[what][0]:
                    raise ValueError(
                        f"The models must agree in their {what}: that of {name!r} is {mine}, "
                        f"that of {names[0]!r} is {columns[what][0]}."
                    )
        parts = ("mean", "std", "mean_constant", "lengthscale", "outputscale")
        mean, std, constant, lengthscale, outputscale = (torch.cat(columns[p]) for p in parts)
        data = columns["X"], columns["Y"], columns["noise"]
        own = {"lengthscale": lengthscale, "outputscale": outputscale}
        return ReadModels(
            PaddedTasks.padded(*data, fixed_noise=[True] * len(read)),
            TaskUnits(names, mean, std, columns["units"][0], transform),
            constant,
            {**own, "kernel": columns["kernel"][0], "task_names": names},
        )


def _read_model(
    name: str, model: SingleTaskGP, input_transform: InputTransform | None
) -> dict[str, Any]:
    """Reads one model: data, hyperparameters, and what all models must agree in."""
    if not isinstance(model, SingleTaskGP) or model.num_outputs != 1 or len(model.batch_shape):
        raise ValueError(
            f"{name!r} is no SingleTaskGP with one outcome and no batch: only such GPs can be "
            "taken over."
        )
    kernel, mean, likelihood = model.covar_module, model.mean_module, model.likelihood
    found = Stationary.of(kernel)
    if found is None:
        raise _unfit(name, kernel, "RBF and Matérn kernels on all inputs, scaled or not,")
    if not isinstance(mean, ConstantMean | ZeroMean):
        raise _unfit(name, mean, "zero and constant means")
    if not isinstance(likelihood, FixedNoiseGaussianLikelihood | GaussianLikelihood):
        raise _unfit(name, likelihood, "Gaussian noise, known or inferred,")
    standardize = getattr(model, "outcome_transform", None)
    if isinstance(standardize, StratifiedStandardize) or not isinstance(
        standardize, Standardize | None
    ):
        raise ValueError(
            f"{name!r} has the outcome transform {type(standardize).__name__}: only Standardize "
            "can be folded in."
        )
    (X,) = get_train_inputs(model, transformed=False)
    Y = get_train_targets(model, transformed=True)
    coefficient = _normalize_coefficient(repr(name), getattr(model, "input_transform", None), X)
    prior_coefficient = _normalize_coefficient("The prior", input_transform, X)
    zero, one = Y.new_zeros(1), Y.new_ones(1)
    return {
        "X": X if input_transform is None else input_transform(X),
        "Y": Y,
        "noise": likelihood.noise.expand(Y.shape),
        "mean": zero if standardize is None else standardize.means.reshape(1),
        "std": one if standardize is None else standardize.stdvs.reshape(1),
        # A lengthscale is a difference of inputs: it scales as they do, and does not shift.
        "lengthscale": found.lengthscale.reshape(1, -1) * coefficient / prior_coefficient,
        "outputscale": found.scale.reshape(1),
        "mean_constant": mean.constant.reshape(1) if isinstance(mean, ConstantMean) else zero,
        "kernel": found.name,
        "number of inputs": X.shape[-1],
        "dtype": X.dtype,
        "device": X.device,
        "use of Standardize": standardize is not None,
        "units": "raw" if standardize is None else "per_task",
    }


def _unfit(name: str, part: Module, allowed: str) -> ValueError:
    kind = type(part).__name__
    return ValueError(f"{name!r} has a {kind}: only {allowed} can be taken over.")


def _normalize_coefficient(owner: str, transform: InputTransform | None, X: Tensor) -> Tensor:
    """The factors by which a ``Normalize`` shrinks differences of inputs, a ``d`` tensor."""
    if transform is None:
        return X.new_ones(X.shape[-1])
    if not isinstance(transform, Normalize):
        raise ValueError(
            f"{owner} has the input transform {type(transform).__name__}: only Normalize can be "
            "folded in."
        )
    ends = X.new_tensor([[0.0], [1.0]]).expand(2, X.shape[-1])
    low, high = deepcopy(transform).eval()(ends)
    return (high - low).reciprocal()
