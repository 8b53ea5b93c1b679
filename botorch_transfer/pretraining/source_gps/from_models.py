"""Reads data and hyperparameters of ``SingleTaskGP`` models that were fitted elsewhere.

Read this for what ``from_models`` accepts. The models' ``Standardize`` and ``Normalize`` transforms
are folded into data and lengthscales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.input import InputTransform, Normalize
from botorch.models.transforms.outcome import Standardize, StratifiedStandardize
from botorch.sampling.pathwise.utils import get_train_inputs, get_train_targets
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from botorch_transfer.kernels.stationary import Stationary
from botorch_transfer.pretraining.tasks import PaddedTasks


@dataclass(frozen=True)
class ReadModels:
    """The data and hyperparameters of ``M`` fitted GPs, as :class:`ConditionedGPs` takes them.

    Args:
        names: The tasks' names.
        kernel: The kernels' common name.
        tasks: The padded data, outcomes in the models' units; all noise is known.
        lengthscale: An ``M x d`` tensor.
        outputscale: An ``M`` tensor.
        mean_constant: An ``M`` tensor.
        outcome_mean: An ``M`` tensor: the models' ``Standardize`` means, zero without.
        outcome_std: An ``M`` tensor: the models' ``Standardize`` standard deviations, one without.
        standardized: Whether the models have a ``Standardize``.
    """

    names: list[str]
    kernel: str
    tasks: PaddedTasks
    lengthscale: Tensor
    outputscale: Tensor
    mean_constant: Tensor
    outcome_mean: Tensor
    outcome_std: Tensor
    standardized: bool


@dataclass(frozen=True)
class _ReadModel:
    kernel: str
    X: Tensor
    Y: Tensor
    noise: Tensor
    lengthscale: Tensor
    outputscale: Tensor
    mean_constant: Tensor
    outcome_mean: Tensor
    outcome_std: Tensor
    standardized: bool


def read_models(
    models: Sequence[SingleTaskGP] | Mapping[str, SingleTaskGP],
    input_transform: InputTransform | None,
) -> ReadModels:
    """Reads fitted GPs.

    Args:
        models: The source tasks' models, a sequence or a mapping from names.
        input_transform: The frozen ``Normalize`` to the prior's space, if it is not that of the
            raw inputs.

    Returns:
        What was read; the models stay as they are.

    Raises:
        ValueError: If a model is of a kind that cannot be taken over; the message names it.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> read_models([SingleTaskGP(X, X.sum(-1, keepdim=True))], None).kernel
        'rbf'
    """
    if isinstance(models, Model):
        raise ValueError("There is one model, but a sequence was expected: put it into a list.")
    if len(models) == 0:
        raise ValueError("There are no models: give at least one.")
    named = dict(models) if isinstance(models, Mapping) else dict(enumerate(models))
    names = [str(name) if isinstance(models, Mapping) else f"model {name}" for name in named]
    with torch.no_grad():
        read = [
            _read_model(name, model, input_transform)
            for name, model in zip(names, named.values(), strict=True)
        ]
    _check_agreement(names, read)
    return ReadModels(
        names=names,
        kernel=read[0].kernel,
        tasks=PaddedTasks(
            X=pad_sequence([task.X for task in read], batch_first=True),
            Y=pad_sequence([task.Y for task in read], batch_first=True),
            Yvar=pad_sequence([task.noise for task in read], batch_first=True),
            mask=pad_sequence([torch.ones_like(task.Y).bool() for task in read], batch_first=True),
            fixed_noise=torch.ones(len(read), dtype=torch.bool, device=read[0].X.device),
        ),
        lengthscale=torch.stack([task.lengthscale for task in read]),
        outputscale=torch.stack([task.outputscale for task in read]),
        mean_constant=torch.stack([task.mean_constant for task in read]),
        outcome_mean=torch.stack([task.outcome_mean for task in read]),
        outcome_std=torch.stack([task.outcome_std for task in read]),
        standardized=read[0].standardized,
    )


def _check_agreement(names: Sequence[str], read: Sequence[_ReadModel]) -> None:
    for name, task in zip(names, read, strict=True):
        for what, mine, first in (
            ("kernel", task.kernel, read[0].kernel),
            ("number of inputs", task.X.shape[-1], read[0].X.shape[-1]),
            ("dtype", task.X.dtype, read[0].X.dtype),
            ("device", task.X.device, read[0].X.device),
            ("use of Standardize", task.standardized, read[0].standardized),
        ):
            if mine != first:
                raise ValueError(
                    f"The models must agree in their {what}: that of {name!r} is {mine}, that of "
                    f"{names[0]!r} is {first}."
                )


def _read_model(
    name: str, model: SingleTaskGP, input_transform: InputTransform | None
) -> _ReadModel:
    if not isinstance(model, SingleTaskGP) or model.num_outputs != 1 or len(model.batch_shape):
        raise ValueError(
            f"{name!r} is no SingleTaskGP with one outcome and no batch: only such GPs can be "
            "taken over."
        )
    (X,) = get_train_inputs(model, transformed=False)
    Y = get_train_targets(model, transformed=True)
    kernel, lengthscale, outputscale = _read_kernel(name, model.covar_module, X)
    coefficient = _normalize_coefficient(repr(name), getattr(model, "input_transform", None), X)
    prior_coefficient = _normalize_coefficient("The prior", input_transform, X)
    outcome_mean, outcome_std = _read_standardize(name, model, Y)
    return _ReadModel(
        kernel=kernel,
        X=X if input_transform is None else input_transform(X),
        Y=Y,
        noise=_read_noise(name, model, Y),
        # A lengthscale is a difference of inputs: it scales as they do, and does not shift.
        lengthscale=lengthscale * coefficient / prior_coefficient,
        outputscale=outputscale,
        mean_constant=_read_mean(name, model, Y),
        outcome_mean=outcome_mean,
        outcome_std=outcome_std,
        standardized=hasattr(model, "outcome_transform"),
    )


def _read_kernel(name: str, kernel: Kernel, X: Tensor) -> tuple[str, Tensor, Tensor]:
    found = Stationary.of(kernel)
    if found is None:
        raise ValueError(
            f"{name!r} has a {type(kernel).__name__}: only RBF and Matérn kernels on all inputs, "
            "scaled or not, can be taken over."
        )
    lengthscale = found.lengthscale.reshape(-1).expand(X.shape[-1])
    return found.name, lengthscale, found.scale.reshape(())


def _read_mean(name: str, model: SingleTaskGP, Y: Tensor) -> Tensor:
    if isinstance(model.mean_module, ConstantMean):
        return model.mean_module.constant.reshape(())
    if isinstance(model.mean_module, ZeroMean):
        return Y.new_zeros(())
    raise ValueError(
        f"{name!r} has a {type(model.mean_module).__name__}: only zero and constant means can be "
        "taken over."
    )


def _read_noise(name: str, model: SingleTaskGP, Y: Tensor) -> Tensor:
    if isinstance(model.likelihood, FixedNoiseGaussianLikelihood | GaussianLikelihood):
        return model.likelihood.noise.expand(Y.shape)
    raise ValueError(
        f"{name!r} has a {type(model.likelihood).__name__}: only Gaussian noise, known or "
        "inferred, can be taken over."
    )


def _read_standardize(name: str, model: SingleTaskGP, Y: Tensor) -> tuple[Tensor, Tensor]:
    transform = getattr(model, "outcome_transform", None)
    if transform is None:
        return Y.new_zeros(()), Y.new_ones(())
    if not isinstance(transform, Standardize) or isinstance(transform, StratifiedStandardize):
        raise ValueError(
            f"{name!r} has the outcome transform {type(transform).__name__}: only Standardize can "
            "be folded in."
        )
    return transform.means.reshape(()), transform.stdvs.reshape(())


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
