"""Reads data and hyperparameters of ``SingleTaskGP`` models that were fitted elsewhere.

Read this for what ``from_models`` accepts. The models' ``Standardize`` and ``Normalize`` transforms
are folded into data and lengthscales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.input import InputTransform, Normalize
from botorch.models.transforms.outcome import Standardize, StratifiedStandardize
from botorch.sampling.pathwise.utils import get_train_inputs, get_train_targets
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import ConstantMean, ZeroMean
from torch import Tensor
from torch.nn import Module
from torch.nn.utils.rnn import pad_sequence

from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.gp.tasks import PaddedTasks


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


_NUMBERS = ("lengthscale", "outputscale", "mean_constant", "outcome_mean", "outcome_std")


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
    _check_agreement(read)
    parts: dict[str, Any] = {
        part: pad_sequence([getattr(one.tasks, part)[0] for one in read], batch_first=True)
        for part in ("X", "Y", "Yvar", "mask")
    }
    tasks = PaddedTasks(**parts, fixed_noise=torch.cat([one.tasks.fixed_noise for one in read]))
    numbers: dict[str, Any] = {
        name: torch.cat([getattr(one, name) for one in read]) for name in _NUMBERS
    }
    return replace(read[0], names=names, tasks=tasks, **numbers)


def _check_agreement(read: Sequence[ReadModels]) -> None:
    first = read[0]
    for one in read:
        for what, mine, expected in (
            ("kernel", one.kernel, first.kernel),
            ("number of inputs", one.tasks.X.shape[-1], first.tasks.X.shape[-1]),
            ("dtype", one.tasks.X.dtype, first.tasks.X.dtype),
            ("device", one.tasks.X.device, first.tasks.X.device),
            ("use of Standardize", one.standardized, first.standardized),
        ):
            if mine != expected:
                raise ValueError(
                    f"The models must agree in their {what}: that of {one.names[0]!r} is {mine}, "
                    f"that of {first.names[0]!r} is {expected}."
                )


def _read_model(
    name: str, model: SingleTaskGP, input_transform: InputTransform | None
) -> ReadModels:
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
    return ReadModels(
        names=[name],
        kernel=found.name,
        tasks=PaddedTasks(
            X=(X if input_transform is None else input_transform(X)).unsqueeze(0),
            Y=Y.unsqueeze(0),
            Yvar=likelihood.noise.expand(Y.shape).unsqueeze(0),
            mask=torch.ones_like(Y, dtype=torch.bool).unsqueeze(0),
            fixed_noise=one.bool(),
        ),
        # A lengthscale is a difference of inputs: it scales as they do, and does not shift.
        lengthscale=found.lengthscale.reshape(1, -1) * coefficient / prior_coefficient,
        outputscale=found.scale.reshape(1),
        mean_constant=mean.constant.reshape(1) if isinstance(mean, ConstantMean) else zero,
        outcome_mean=zero if standardize is None else standardize.means.reshape(1),
        outcome_std=one if standardize is None else standardize.stdvs.reshape(1),
        standardized=standardize is not None,
    )


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
