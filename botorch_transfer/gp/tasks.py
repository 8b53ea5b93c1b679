"""Source tasks as one padded batch, and the scaling of their outcomes.

This module builds padded tensors from tasks with different numbers of points. A task is given as
data, or as a fitted ``SingleTaskGP`` with optional ``Standardize`` and ``Normalize`` transforms.
The module also checks the memory of a padded batch, and scales the outcomes according to the option
``outcome_scale=``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
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
from torch.nn.utils.rnn import pad_sequence

from botorch_transfer.data import MAX_JOINT_BYTES, SourceData, as_datasets, task_names
from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.gp.conditioned import pad_inputs
from botorch_transfer.gp.state import savable
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.input_transforms import frozen_input_transform
from botorch_transfer.outcome_transforms import OutcomeMoments, PooledStandardize, Steps, usable_std

#: Default maximum memory of a padded batch, in bytes.
MAX_PADDED_BYTES = MAX_JOINT_BYTES

#: Measured peak memory in bytes per element of a covariance matrix. A fit stores one matrix at a
#: time. When the GPs are conditioned on data, the matrices of all tasks are stored.
_BYTES_IN_FIT, _BYTES_WHEN_CONDITIONED = 90, 40

#: Memory in bytes per row of a padded batch with about twelve input columns.
_BYTES_OF_ROW = 500


def lexical_order(*keys: Tensor) -> Tensor:
    """Returns the indices that sort elements by several keys, like ``numpy.lexsort``.

    Args:
        keys: ``batch_shape x n`` tensors. The last key is the primary key.

    Returns:
        A ``batch_shape x n`` tensor of indices.

    Example:
        >>> lexical_order(torch.tensor([2, 1, 3]), torch.tensor([5, 5, 4]))
        tensor([2, 1, 0])
    """
    order = np.lexsort([key.detach().cpu().numpy() for key in keys])
    return torch.from_numpy(order).to(keys[0].device)


def typical_rows(X: Tensor, Y: Tensor, most: int) -> Tensor:
    """Sorts a task's rows by outcome, and chooses rows at evenly spaced positions.

    Args:
        X: An ``n x d`` tensor of inputs. Rows with equal outcomes are sorted by their inputs.
        Y: An ``n`` tensor of outcomes.
        most: The maximum number of rows to choose.

    Returns:
        The indices of the chosen rows. The choice does not depend on the original order of rows.

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
    """Checks that a padded batch of source tasks does not take too much memory.

    Every task is padded to the size of the largest task, so each task takes as much memory as the
    largest task. One large task among many small tasks therefore makes the batch large.

    Args:
        names: The tasks' names.
        sizes: The number of points of each task.
        max_bytes: The maximum memory of the batch, in bytes.
        most: The maximum number of rows of a task's covariance matrix. By default, the matrix has a
            row for each point of the task.

    Raises:
        InputDataError: If the batch would take more than ``max_bytes``.

    Example:
        >>> check_padded_size(["monday", "tuesday"], [100, 200])
    """
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    width = min(sizes[largest], most or sizes[largest])
    needed = max(_BYTES_IN_FIT, _BYTES_WHEN_CONDITIONED * len(sizes)) * width**2
    needed += _BYTES_OF_ROW * len(sizes) * sizes[largest]
    if needed > max_bytes:
        raise InputDataError(
            f"Source task {names[largest]!r} has {sizes[largest]:,} points. A padded batch of "
            f"{len(sizes)} tasks of this size would take about {needed / 2**30:,.1f} GiB of memory "
            f"(the limit is {max_bytes / 2**30:,.1f} GiB): remove points from the largest tasks, "
            "or raise max_bytes=."
        )


@dataclass(frozen=True)
class PaddedTasks:
    """Data of ``M`` tasks, padded to the ``N`` points of the largest task.

    Args:
        X: An ``M x N x d`` tensor of inputs, finite at the padding.
        Y: An ``M x N`` tensor of outcomes, zero at the padding.
        Yvar: An ``M x N`` tensor of known noise variances; zero at the padding, and for tasks with
            inferred noise.
        mask: An ``M x N`` boolean tensor, ``True`` for data and ``False`` for padding.
        fixed_noise: An ``M`` boolean tensor, ``True`` for tasks whose noise is known.
        covariance: An ``M x N x N`` tensor: a matrix to add to each task's covariance matrix.
            An example is the posterior covariance of the previous task in a hierarchy.
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
        """Builds a padded batch from validated datasets.

        Args:
            datasets: The source tasks, each with ``n_m x d`` inputs and ``n_m x 1`` outcomes.
            transform: An input transform with fixed parameters.

        Returns:
            The padded batch, with the dtype and the device of the datasets.
        """
        # Data are transformed as in training mode: one-to-many transforms affect predictions only.
        apply = torch.nn.Identity() if transform is None else transform.preprocess_transform
        tasks = []
        for data in datasets:
            noise = torch.zeros_like(data.Y) if data.Yvar is None else data.Yvar
            tasks.append((apply(data.X), data.Y.squeeze(-1), noise.squeeze(-1)))
        return cls.padded(tasks, [data.Yvar is not None for data in datasets])

    @classmethod
    def padded(
        cls, tasks: Sequence[tuple[Tensor, Tensor, Tensor]], fixed_noise: Sequence[bool]
    ) -> PaddedTasks:
        """Builds a padded batch from tensors.

        Args:
            tasks: For each task, ``n_m x d`` inputs, ``n_m`` outcomes and ``n_m`` noise variances.
            fixed_noise: For each task, whether the noise variances are known.

        Returns:
            The padded batch.
        """
        columns = zip(*tasks, strict=True)
        X, Y, Yvar = (pad_sequence(list(column), batch_first=True) for column in columns)
        sizes = torch.tensor([len(outcomes) for _, outcomes, _ in tasks], device=Y.device)
        mask = torch.arange(Y.shape[-1], device=Y.device) < sizes.unsqueeze(-1)
        known = torch.tensor(list(fixed_noise), device=Y.device)
        return cls(pad_inputs(X, mask), Y, Yvar, mask, known)

    def __getitem__(self, index: Tensor) -> PaddedTasks:
        """Selects tasks by their indices, and removes padding that no selected task needs."""
        mask = self.mask[index]
        size = int(mask.sum(dim=-1).max())
        X, Y, Yvar = (part[index, :size] for part in (self.X, self.Y, self.Yvar))
        covariance = None if self.covariance is None else self.covariance[index, :size, :size]
        return PaddedTasks(X, Y, Yvar, mask[:, :size], self.fixed_noise[index], covariance)

    def typical(self, most: int) -> PaddedTasks:
        """Returns all tasks, each reduced to at most ``most`` points by :func:`typical_rows`."""
        if self.mask.shape[-1] <= most:
            return self
        rows = [
            own.nonzero().squeeze(-1)[typical_rows(X[own], Y[own], most)]
            for X, Y, own in zip(self.X, self.Y, self.mask, strict=True)
        ]
        index = pad_sequence(rows, batch_first=True)
        mask = pad_sequence([own >= 0 for own in rows], batch_first=True)
        task, covariance = torch.arange(len(rows)).unsqueeze(-1), self.covariance
        if covariance is not None:
            covariance = covariance[task.unsqueeze(-1), index.unsqueeze(-1), index.unsqueeze(-2)]
        X, Y, Yvar = (part[task, index] for part in (self.X, self.Y, self.Yvar))
        return PaddedTasks(X, Y * mask, Yvar * mask, mask, self.fixed_noise, covariance)

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
        """Whether the tasks have different numbers of points."""
        return not bool(self.mask.all())

    def moments(self) -> tuple[Tensor, Tensor]:
        """Returns the mean and standard deviation of each task's outcomes, two ``M`` tensors.

        The standard deviation is unbiased, as in BoTorch's ``Standardize``. It is one for a task
        with constant outcomes.
        """
        # In single precision, squares of large outcomes would overflow.
        Y, count = self.Y.double(), self.num_points
        mean = Y.sum(dim=-1) / count
        squares = ((Y - mean.unsqueeze(-1)).square() * self.mask).sum(dim=-1)
        std = (squares / (count - 1).clamp_min(1)).sqrt()
        return mean.to(self.Y), usable_std(std, mean).to(self.Y)

    def standardize(self, mean: Tensor, std: Tensor) -> PaddedTasks:
        """Returns tasks with the outcomes ``(Y - mean) / std`` and the scaled noise variances.

        Args:
            mean: An ``M`` tensor: the number to subtract from each task's outcomes.
            std: An ``M`` tensor: the number to divide each task's outcomes by.
        """
        Y = (self.Y - mean.unsqueeze(-1)) / std.unsqueeze(-1) * self.mask
        Yvar = self.Yvar / std.square().unsqueeze(-1)
        return replace(self, Y=Y, Yvar=Yvar)

    def known_or(self, inferred: Tensor) -> Tensor:
        """Returns the noise variances of all points, an ``M x N`` tensor.

        Args:
            inferred: An ``M`` tensor: a noise variance for each task, which is ignored for tasks
                with known noise.
        """
        inferred = inferred.to(self.Yvar).unsqueeze(-1)
        return torch.where(self.fixed_noise.unsqueeze(-1), self.Yvar, inferred)


#: Scaling of source outcomes: standardize each task, standardize all tasks together, or no scaling.
OutcomeScale = Literal["per_task", "pooled", "raw"]


def check_choice(option: str, value: str, choices: Any) -> None:
    """Raises an error if an option has an unknown value.

    Args:
        option: The option's name.
        value: The option's value.
        choices: The ``Literal`` type of the allowed values.

    Raises:
        ValueError: If the value is not allowed.

    Example:
        >>> check_choice("outcome_scale", "pooled", OutcomeScale)
    """
    if value not in get_args(choices):
        names = ", ".join(repr(name) for name in get_args(choices))
        raise ValueError(f"Unknown {option} {value!r}: choose one of {names}.")


def outcome_scales(tasks: PaddedTasks, scale: OutcomeScale) -> tuple[Tensor, Tensor]:
    """Computes the mean and the standard deviation that scale each task's outcomes.

    Args:
        tasks: The padded tasks, in the user's units.
        scale: The scaling of the outcomes.

    Returns:
        Two ``M`` tensors: the mean to subtract from each task's outcomes, and the standard
        deviation to divide by.

    Raises:
        ValueError: If the scaling is unknown.
    """
    check_choice("outcome_scale", scale, OutcomeScale)
    mean, std = tasks.moments()
    if scale == "raw":
        return torch.zeros_like(mean), torch.ones_like(std)
    if scale == "pooled":
        outcomes = tasks.Y[tasks.mask].double()
        pooled = outcomes.mean()
        spread = usable_std(outcomes.std(correction=min(1, len(outcomes) - 1)), pooled)
        return torch.full_like(mean, float(pooled)), torch.full_like(std, float(spread))
    return mean, std


def outcome_variance(scale: OutcomeScale, moments: OutcomeMoments) -> float:
    """Returns the variance of all source outcomes after scaling.

    Args:
        scale: The scaling of the outcomes.
        moments: The mean and the standard deviation of all source outcomes before scaling.

    Returns:
        For ``"raw"``, the variance of the source outcomes, or one if all outcomes are equal. For
        other scalings, one.
    """
    if scale != "raw":
        return 1.0
    return float(usable_std(moments.spread.double(), moments.mean.double())) ** 2


def target_transform(
    scale: OutcomeScale, moments: OutcomeMoments, batch_shape: torch.Size
) -> PooledStandardize | None:
    """Builds the outcome transform of a target, which depends on the scaling of the sources.

    Args:
        scale: The scaling of the source outcomes.
        moments: The mean and the standard deviation of all source outcomes before scaling.
        batch_shape: The batch shape of the target model.

    Returns:
        ``None`` for ``"raw"``. For ``"pooled"``, a transform that standardizes by the mean and the
        standard deviation of the unscaled source outcomes. For ``"per_task"``, a transform that
        standardizes by the mean and the standard deviation of the union of the unscaled source
        outcomes and the target's outcomes.
    """
    if scale == "raw":
        return None
    return PooledStandardize(moments, scale == "per_task", batch_shape)


@savable
@dataclass(frozen=True)
class TaskUnits:
    """Input and outcome transforms of ``M`` source tasks, from the user's units to a prior's units.

    Args:
        names: The tasks' names.
        mean: An ``M`` tensor: the mean that was subtracted from each task's outcomes.
        std: An ``M`` tensor: the standard deviation that each task's outcomes were divided by.
        outcome_scale: The scaling of the outcomes, which defines ``mean`` and ``std``.
        input_transform: The transform from the user's inputs to the prior's inputs, with fixed
            parameters.
        outcome_steps: Element-wise transforms, applied to the outcomes before the scaling. ``None``
            if the transforms are unknown.
        feature_names: The names of the user's inputs; empty if the names are unknown.
    """

    names: Sequence[str]
    mean: Tensor
    std: Tensor
    outcome_scale: OutcomeScale = "per_task"
    input_transform: InputTransform | None = None
    outcome_steps: Steps | None = ()
    feature_names: Sequence[str] = ()

    def select(self, tasks: Tensor) -> TaskUnits:
        """Returns the transforms of the tasks with the given indices."""
        names = [self.names[task] for task in tasks.tolist()]
        return replace(self, names=names, mean=self.mean[tasks], std=self.std[tasks])

    def join(self, other: TaskUnits) -> TaskUnits:
        """Returns the transforms of these tasks, followed by the transforms of other tasks.

        If a name occurs twice, such as the default name "source task 0", a number is appended to
        the name of the second task.
        """
        names = list(self.names)
        for name in other.names:
            names.append(f"{name} ({len(names)})" if name in names else name)
        mean = torch.cat([self.mean, other.mean.to(self.mean)])
        std = torch.cat([self.std, other.std.to(self.std)])
        return replace(self, names=names, mean=mean, std=std)


def scaled_tasks(
    source_data: Sequence[SourceData] | Mapping[str, SourceData],
    outcome_scale: OutcomeScale,
    input_transform: InputTransform | None,
    check_size: Callable[[Sequence[str], Sequence[int]], None] | None = None,
) -> tuple[PaddedTasks, TaskUnits]:
    """Validates and pads source data, and transforms the data to a prior's units.

    Args:
        source_data: The source tasks, a sequence or a mapping from names to tasks.
        outcome_scale: The scaling of the outcomes.
        input_transform: An input transform with fixed parameters.
        check_size: Function that takes the tasks' names and numbers of points, and raises an error
            if there are too many points.

    Returns:
        The tasks in the prior's units, and the transforms to these units.

    Raises:
        InputDataError: If the source data are invalid; the message names the task.
        ValueError: If the parameters of the transform are not fixed, or if the scaling is unknown.
    """
    names, datasets = task_names(source_data), as_datasets(source_data)
    if check_size is not None:
        check_size(names, [len(data.X) for data in datasets])
    transform = frozen_input_transform(input_transform, datasets)
    tasks = PaddedTasks.from_datasets(datasets, transform)
    mean, std = outcome_scales(tasks, outcome_scale)
    inputs = datasets[0].feature_names
    units = TaskUnits(names, mean, std, outcome_scale, transform, feature_names=inputs)
    return tasks.standardize(mean, std), units


# ------------------------------------------------------------------------- models fitted elsewhere


class ReadModels(NamedTuple):
    """Data and hyperparameters of ``M`` fitted GPs, the result of :func:`read_models`.

    Args:
        tasks: The padded data. The outcomes are transformed by the models' outcome transforms. All
            noise variances are known.
        units: The tasks' names and their input and outcome transforms.
        mean_constant: An ``M`` tensor: the constant prior mean of each GP.
        hyperparameters: The arguments ``lengthscale=``, ``outputscale=``, ``kernel=`` and
            ``task_names=`` of :class:`.ConditionedBatch`.
    """

    tasks: PaddedTasks
    units: TaskUnits
    mean_constant: Tensor
    hyperparameters: dict[str, Any]


def read_models(
    models: Sequence[SingleTaskGP] | Mapping[str, SingleTaskGP],
    input_transform: InputTransform | None,
) -> ReadModels:
    """Reads the data and hyperparameters of fitted GPs without changing the GPs.

    Args:
        models: The source tasks' models, a sequence or a mapping from names to models.
        input_transform: The prior's ``Normalize`` with fixed parameters; ``None`` if the prior has
            no input transform.

    Returns:
        The data and hyperparameters of all models.

    Raises:
        ValueError: If a model has an unsupported class, kernel, mean, likelihood or transform. The
            message names the model.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> read = read_models([SingleTaskGP(X, X.sum(-1, keepdim=True))], None)
        >>> read.hyperparameters["kernel"]
        'rbf'
    """
    if isinstance(models, Model) or len(models) == 0:
        raise ValueError("models= must be a list or a mapping of at least one model.")
    if not isinstance(models, Mapping):
        models = {f"model {number}": model for number, model in enumerate(models)}
    names, transform = [str(name) for name in models], frozen_input_transform(input_transform)
    if not isinstance(transform, Normalize | None):
        kind = type(transform).__name__
        raise ValueError(f"The prior's input transform is a {kind}: only Normalize is supported.")
    with torch.no_grad():
        read = [_read_model(*pair, transform) for pair in zip(names, models.values(), strict=True)]
        columns = {part: [one[part] for one in read] for part in read[0]}
        for what in ("kernel", "number of inputs", "dtype", "device", "use of Standardize"):
            for name, mine in zip(names, columns[what], strict=True):
                if mine != columns[what][0]:
                    raise ValueError(
                        f"The models must have the same {what}: it is {mine} for {name!r}, but "
                        f"{columns[what][0]} for {names[0]!r}."
                    )
        parts = ("mean", "std", "mean_constant", "lengthscale", "outputscale")
        mean, std, constant, lengthscale, outputscale = (torch.cat(columns[p]) for p in parts)
        data = list(zip(columns["X"], columns["Y"], columns["noise"], strict=True))
        own: dict[str, Any] = {"lengthscale": lengthscale, "outputscale": outputscale}
        own |= {"kernel": columns["kernel"][0], "task_names": names}
        tasks = PaddedTasks.padded(data, [True] * len(read))
        units = TaskUnits(names, mean, std, columns["units"][0], transform)
        return ReadModels(tasks, units, constant, own)


def _read_model(
    name: str, model: SingleTaskGP, input_transform: Normalize | None
) -> dict[str, Any]:
    """Reads the data and the hyperparameters of one model into a dictionary.

    Raises an error if the model is not supported.
    """
    if not isinstance(model, SingleTaskGP) or model.num_outputs != 1 or len(model.batch_shape):
        text = f"{name!r} is not a SingleTaskGP with one outcome and no batch dimensions"
        raise ValueError(f"{text}: only such GPs are supported.")
    kernel, mean, likelihood = model.covar_module, model.mean_module, model.likelihood
    standardize = getattr(model, "outcome_transform", None)
    normalize = getattr(model, "input_transform", None)
    found = Stationary.of(kernel)
    is_standardize = isinstance(standardize, Standardize | None)
    is_standardize = is_standardize and not isinstance(standardize, StratifiedStandardize)
    for part, is_supported, supported in (
        (kernel, found, "RBF and Matérn kernels on all inputs, with or without ScaleKernel, are"),
        (mean, isinstance(mean, ConstantMean | ZeroMean), "zero and constant means are"),
        (likelihood, isinstance(likelihood, _LIKELIHOODS), "Gaussian noise, known or inferred, is"),
        (standardize, is_standardize, "the outcome transform Standardize is"),
        (normalize, isinstance(normalize, Normalize | None), "the input transform Normalize is"),
    ):
        if not is_supported:
            kind = type(part).__name__
            raise ValueError(f"{name!r} has a {kind}: only {supported} supported.")
    assert found is not None
    (X,) = get_train_inputs(model, transformed=False)
    Y = get_train_targets(model, transformed=True)
    divisor, prior_divisor = _divisor(normalize, X), _divisor(input_transform, X)
    zero, one = Y.new_zeros(1), Y.new_ones(1)
    return {
        "X": X if input_transform is None else input_transform(X),
        "Y": Y,
        "noise": likelihood.noise.expand(Y.shape),
        "mean": zero if standardize is None else standardize.means.reshape(1),
        "std": one if standardize is None else standardize.stdvs.reshape(1),
        # A transform scales a lengthscale like a difference of inputs: the shift has no effect.
        "lengthscale": found.lengthscale.reshape(1, -1) * divisor / prior_divisor,
        "outputscale": found.scale.reshape(1),
        "mean_constant": mean.constant.reshape(1) if isinstance(mean, ConstantMean) else zero,
        "kernel": found.name,
        "number of inputs": X.shape[-1],
        "dtype": X.dtype,
        "device": X.device,
        "use of Standardize": standardize is not None,
        "units": "raw" if standardize is None else "per_task",
    }


_LIKELIHOODS = FixedNoiseGaussianLikelihood, GaussianLikelihood


def _divisor(transform: Normalize | None, X: Tensor) -> Tensor:
    """Returns the ``d`` divisors of ``Normalize``; ones if there is no transform."""
    ends = X.new_tensor([[0.0], [1.0]]).expand(2, X.shape[-1])
    low, high = ends if transform is None else deepcopy(transform).eval()(ends)
    return (high - low).reciprocal()
