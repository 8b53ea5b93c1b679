"""Frozen input transforms: the same for the source data, the prior and the target."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from botorch.models.transforms.input import InputTransform, Normalize
from torch import Tensor


def frozen_input_transform(transform: InputTransform | None) -> InputTransform | None:
    """Checks that a transform does not depend on the data that it meets.

    Args:
        transform: The transform, or ``None``.

    Returns:
        A copy in evaluation mode.

    Raises:
        ValueError: If the transform would learn its coefficients from data, or has parameters to
            fit.
    """
    if transform is None:
        return None
    parts = list(transform.modules())
    if any(getattr(part, "learn_coefficients", False) for part in parts):
        raise ValueError(
            f"{type(transform).__name__} would learn its coefficients from the data of one task, but "
            "all tasks need the same transform: give it bounds, for example "
            "Normalize(d, bounds=torch.tensor([lower, upper]))."
        )
    if any(parameter.requires_grad for parameter in transform.parameters()):
        raise ValueError(
            f"{type(transform).__name__} has parameters to fit, but source and target need the same, "
            "frozen transform: call requires_grad_(False) on it once its parameters are set."
        )
    return deepcopy(transform).eval()


def resolve_input_transform(
    inherited: InputTransform | None, given: InputTransform | None
) -> InputTransform | None:
    """Finds the transform of a model from that of its prior and its own argument.

    Args:
        inherited: The prior's transform.
        given: The model's argument.

    Returns:
        The transform to use.

    Raises:
        ValueError: If the argument is not frozen, or is another transform than the prior's.
    """
    if given is None:
        return deepcopy(inherited)
    given = frozen_input_transform(given)
    if inherited is not None and given is not None and not given.equals(inherited):
        raise ValueError(
            "The input_transform is not the one that the prior was pre-trained with: leave it out, and "
            "the model inherits the prior's."
        )
    return given


def describe_transform(transform: InputTransform) -> tuple[str, dict[str, Tensor]]:
    """Says what a prior's file holds of its transform.

    Args:
        transform: The transform.

    Returns:
        Its kind, ``"normalize"`` or ``"custom"``, and its tensors; of a custom one the file only
        says that there is one.
    """
    if isinstance(transform, Normalize):
        bounds = transform.bounds
        if transform.equals(_normalize(bounds)):
            return "normalize", {"bounds": bounds}
    return "custom", {}


def restore_transform(
    kind: str | None, tensors: Mapping[str, Tensor], given: InputTransform | None
) -> InputTransform | None:
    """Rebuilds a transform that :func:`describe_transform` described.

    Args:
        kind: What was saved, ``None`` for no transform.
        tensors: Its tensors.
        given: A transform that the user hands over.

    Returns:
        The transform.

    Raises:
        ValueError: If a transform is needed and not given, or given and not needed.
    """
    if kind == "custom":
        if given is None:
            raise ValueError(
                "The prior has an input transform of its own kind, which its file does not hold: hand "
                "it over by load(path, input_transform=...)."
            )
        return frozen_input_transform(given)
    saved = _normalize(tensors["bounds"]) if kind == "normalize" else None
    if saved is None and given is not None:
        raise ValueError("The saved prior has no input transform: leave out input_transform.")
    return resolve_input_transform(saved, given)


def _normalize(bounds: Tensor) -> Normalize:
    return Normalize(bounds.shape[-1], bounds=bounds).to(bounds).eval()
