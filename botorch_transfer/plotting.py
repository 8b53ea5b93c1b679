"""Pictures of transfer models, with matplotlib (extra ``plot``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botorch_transfer.models.scaml import ScaMLGP

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_weights(model: ScaMLGP, ax: Axes | None = None, max_tasks: int = 30) -> Axes:
    """Draws how much each source task counts in a model's prior.

    Args:
        model: A fitted model with source weights, without a batch.
        ax: Where to draw; new axes if omitted.
        max_tasks: The most tasks to show: those with the largest weights.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If the model is a batch of models.

    Example:
        >>> ax = plot_weights(model)
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib: pip install 'botorch_transfer[plot]'."
        ) from error
    if len(model.batch_shape):
        raise ValueError("The model is a batch of models: plot the weights of one at a time.")
    pairs = sorted(zip(model.weights.tolist(), model.prior.task_names, strict=True), reverse=True)
    weights, names = zip(*reversed(pairs[:max_tasks]), strict=True)
    if ax is None:
        _, ax = plt.subplots(figsize=(5, 1 + 0.25 * len(names)), layout="constrained")
    ax.barh(range(len(names)), weights, color="#0072B2")
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("weight of the source task")
    ax.spines[["top", "right"]].set_visible(False)
    return ax
