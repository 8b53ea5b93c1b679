"""Frozen input transforms that source data, prior and target have in common.

Read this to see which transforms are accepted, which transform a model uses, and how a transform is
saved with a prior.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.transforms.input import InputTransform, Normalize
from botorch.models.utils.assorted import check_min_max_scaling
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor
from torch.nn import Module

logger = logging.getLogger(__name__)


def frozen_input_transform(
    transform: InputTransform | None, sources: Sequence[SupervisedDataset] = ()
) -> InputTransform | None:
    """Freezes a transform, so that new data do not change its coefficients.

    Args:
        transform: The transform, or ``None``.
        sources: The source tasks. If the transform learns coefficients, such as ``Normalize(d)``
            without bounds, it learns them from the inputs of all source tasks together.

    Returns:
        A copy in evaluation mode; ``None`` if ``transform`` is ``None``.

    Raises:
        ValueError: If the transform has parameters to fit, or if the transform learns coefficients
            and there are no source tasks. Also if a lower bound is not below its upper bound.

    Example:
        >>> bounds = torch.tensor([[0.0, 10.0], [1.0, 20.0]])
        >>> frozen_input_transform(Normalize(2, bounds=bounds)).training
        False
    """
    if transform is None:
        return None
    name, transform = type(transform).__name__, deepcopy(transform)
    if any(parameter.requires_grad for parameter in transform.parameters()):
        raise ValueError(
            f"{name} has parameters to fit, but the inputs of the source tasks must not change: "
            "leave the transform out, or set its parameters and call requires_grad_(False)."
        )
    scales = [part for part in transform.modules() if isinstance(part, Normalize)]
    if not all(_learns(scale) or bool((scale.ranges > 0).all()) for scale in scales):
        text = f"{name} has a lower bound that is not below its upper bound: give bounds= as a"
        raise ValueError(f"{text} 2 x d tensor, with the lower bounds first.")
    learning: list[Any] = [part for part in transform.modules() if _learns(part)]
    if learning:
        if not sources:
            raise ValueError(
                f"{name} would learn its coefficients from one task, but all tasks need the same "
                f"transform: pre-train the prior with {name}, or set bounds= of the transform."
            )
        X = torch.cat([dataset.X for dataset in sources])
        transform.to(X).train()(X)
        for part in learning:
            part.learn_coefficients = False
        logger.info(f"{name} is fitted to the {len(X):,} points of the source tasks.")
    return transform.eval()


def _learns(part: Module) -> bool:
    return bool(getattr(part, "learn_coefficients", False))


def as_learned(given: InputTransform, inherited: InputTransform | None) -> InputTransform:
    """Freezes a model's input transform, after copying coefficients from the prior's transform.

    Args:
        given: The model's argument ``input_transform``, such as ``Normalize(d)`` without bounds.
        inherited: The prior's transform. If a part of ``given`` has coefficients to learn, the
            coefficients are copied from the part of ``inherited`` with the same name and class.

    Returns:
        A copy of ``given`` in evaluation mode.

    Raises:
        ValueError: If ``given`` has parameters to fit, or coefficients to learn that ``inherited``
            lacks.
    """
    given = deepcopy(given)
    theirs: dict[str, Any] = {} if inherited is None else dict(inherited.named_modules())
    for name, part in given.named_modules():
        learned: Any = theirs.get(name)
        if _learns(part) and type(learned) is type(part):
            part.load_state_dict(learned.state_dict())
            cast(Any, part).learn_coefficients = False
    return cast(InputTransform, frozen_input_transform(given))


def warn_of_data(message: str) -> None:
    """Warns of a problem in the data; the warning points to the user's line of code."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals["__name__"].startswith(__package__):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, InputDataWarning, stacklevel=level)


#: Inputs that span ``WIDE`` of each side of the unit cube before an input transform, and less than
#: ``NARROW`` afterwards, seem to be transformed twice.
WIDE, NARROW = 0.25, 0.1


def warn_outside_unit_cube(X: Tensor, whose: str, atol: float = 0.01, raw: Any = None) -> None:
    """Warns of inputs outside of the unit cube; the default hyperpriors assume the unit cube.

    Also warns if the inputs seem to be normalized twice: by the user and by the input transform.

    Args:
        X: A ``batch_shape x n x d`` tensor of transformed inputs.
        whose: The name of the data in the warning, such as ``"the source tasks"``.
        atol: The tolerance. There is no warning if all elements of ``X`` are between ``-atol`` and
            ``1 + atol``.
        raw: The inputs before the input transform.
    """
    if raw is not None and raw.numel() and bool((abs(raw - 0.5) < 0.51).all()):
        before, after = (p.flatten(0, -2).amax(0) - p.flatten(0, -2).amin(0) for p in (raw, X))
        if bool((before >= WIDE).all() and (after < NARROW).all()):
            warn_of_data(f"The inputs of {whose} seem to be normalized twice: give raw inputs")
    try:
        check_min_max_scaling(X, atol=atol, raise_on_fail=True)
    except InputDataError:
        warn_of_data(
            f"The inputs of {whose} are not contained in the unit cube: encode the inputs by "
            "SearchSpace.encode, or give suitable bounds, input_transform=Normalize(d, bounds=...)."
        )


def resolve_input_transform(
    inherited: InputTransform | None, given: InputTransform | None
) -> InputTransform | None:
    """Chooses a model's input transform from the model's argument and the prior's transform.

    Args:
        inherited: The prior's transform.
        given: The model's argument ``input_transform``. Coefficients that this transform would
            learn are copied from the prior's transform.

    Returns:
        A copy of the transform to use, in evaluation mode; ``None`` if both arguments are ``None``.

    Raises:
        ValueError: If ``given`` has parameters to fit, or learns coefficients that the prior's
            transform lacks. Also if ``given``, after its coefficients are copied, differs from the
            prior's transform.
    """
    if given is None:
        return deepcopy(inherited)
    given = as_learned(given, inherited)
    if inherited is not None and not _equal(inherited, given):
        raise ValueError(
            "input_transform= differs from the prior's input transform: leave out input_transform=."
        )
    return given


def fits_dim(transform: InputTransform, dim: int) -> bool:
    """Returns whether a transform accepts inputs with ``dim`` columns."""
    try:
        transform(torch.zeros(1, dim, dtype=torch.double, device=_device(transform)))
    except (BotorchTensorDimensionError, IndexError, RuntimeError):
        return False
    return True


def shared_transform(transforms: Sequence[InputTransform | None]) -> InputTransform | None:
    """Returns the input transform that several search spaces (domains) share.

    Args:
        transforms: The domains' transforms.

    Returns:
        The common transform, in evaluation mode; ``None`` if the transforms differ, or if a domain
        has no transform.

    Raises:
        ValueError: If a transform is not frozen.
    """
    frozen = [frozen_input_transform(transform) for transform in transforms]
    first = frozen[0]
    if first is None or any(part is None or not _equal(first, part) for part in frozen[1:]):
        return None
    return first


def describe_transform(transform: InputTransform) -> dict[str, Tensor]:
    """Converts an input transform to tensors for the file of a prior.

    Args:
        transform: The transform.

    Returns:
        The buffers of a ``Normalize`` by name. An empty dictionary for any other transform: the
        file does not contain the transform, and users pass it to ``load``.
    """
    if isinstance(transform, Normalize) and _equal(transform, _normalize(transform.bounds)):
        return dict(transform.named_buffers())
    return {}


def restore_transform(
    tensors: Mapping[str, Tensor], given: InputTransform | None
) -> InputTransform:
    """Rebuilds the input transform of a saved prior.

    Args:
        tensors: The result of :func:`describe_transform`.
        given: The transform that the user passes to ``load``. It is used if the file has no
            transform.

    Returns:
        The transform.

    Raises:
        ValueError: If the transform is neither in the file nor given, or if the given transform
            differs from the transform in the file.
    """
    if tensors:
        widths = tensors["_coefficient"]
        saved = _normalize(torch.cat([torch.zeros_like(widths), widths], dim=-2))
        saved.load_state_dict(dict(tensors))
        return cast(InputTransform, resolve_input_transform(saved, given))
    if given is None:
        text = "The prior's file does not contain the prior's input transform"
        raise ValueError(f"{text}: pass the transform to load(path, input_transform=...).")
    return given


def _normalize(bounds: Tensor) -> Normalize:
    return Normalize(bounds.shape[-1], bounds=bounds).to(bounds).eval()


def _equal(first: InputTransform, second: InputTransform) -> bool:
    """Returns whether two transforms are equal. Their dtypes and devices may differ."""
    states = first.state_dict(), second.state_dict()
    shapes = [{name: tensor.shape for name, tensor in state.items()} for state in states]
    other = deepcopy(second).to(_device(first)).double()
    return shapes[0] == shapes[1] and deepcopy(first).double().equals(other)


def _device(transform: InputTransform) -> torch.device | None:
    return next((tensor.device for tensor in transform.buffers()), None)
