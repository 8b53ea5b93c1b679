"""Plots of transfer models, with one style per method.

Read this to draw weights, slices or calibration with matplotlib (extra ``plot``), or to give a
method of your own a style. For a paper, draw inside ``matplotlib.pyplot.rc_context(PAPER)``.

Colours are those of Okabe and Ito (and a grey), which most colour-blind readers can tell apart. As
there are more methods than colours, no two methods differ in colour alone: in black and white, line
and marker tell them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from botorch.cross_validation import loo_cv
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_transfer.models.report import member_on_sources
from botorch_transfer.models.target import TargetGP
from botorch_transfer.pretraining.source_gps.source_gps import SourceGPs

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#7F7F7F"


class Style(NamedTuple):
    """A line's look.

    Args:
        color: One of the palette's colours, or any other of matplotlib's.
        line: A matplotlib line style.
        marker: A matplotlib marker.

    Example:
        >>> Style(BLUE, "-", "o").color
        '#0072B2'
    """

    color: str
    line: str
    marker: str


_METHODS: tuple[tuple[str, str | None, Style], ...] = (
    ("ScaML-GP", "ScaMLGP", Style(BLUE, "-", "o")),
    ("ScaML-GP, joint", "JointScaMLGP", Style(BLUE, "--", "8")),
    ("TransferGP", "TransferGP", Style(VERMILLION, "-", "^")),
    ("population", "PopulationGP", Style(ORANGE, ":", "o")),
    ("guarded", "GuardedTransferGP", Style(ORANGE, "--", "d")),
    ("RGPE", "RankWeightedGP", Style(PURPLE, "-", "v")),
    ("SGPT", "TwoStageTransferGP", Style(SKY, "-", "P")),
    ("SHGP", "SequentialHierarchicalGP", Style(GREEN, "-", "d")),
    ("BHGP", "BoostedHierarchicalGP", Style(ORANGE, "-", "<")),
    ("MHGP", "MeanHierarchicalGP", Style(SKY, "--", ">")),
    ("HGP", "JointHierarchicalGP", Style(PURPLE, "--", "h")),
    ("WSGP", "WeightedSourceGP", Style(BLACK, ":", "p")),
    ("MTGP", "LinearCoregionalizationGP", Style(VERMILLION, ":", "*")),
    ("MTKGP", "IntrinsicCoregionalizationGP", Style(GREY, "--", "H")),
    ("H-NLL", "PretrainedGP", Style(BLACK, "-", "X")),
    ("H-EKL", None, Style(SKY, ":", "s")),
    ("FSBO", None, Style(GREEN, ":", "v")),
    ("ABLR", None, Style(ORANGE, "-.", "s")),
    ("MPHD", "HyperpriorGP", Style(BLUE, "-.", "D")),
    ("HyperBO+", "FullyBayesianHyperpriorGP", Style(PURPLE, "-.", ">")),
    ("plain GP", "SingleTaskGP", Style(VERMILLION, "--", "s")),
    ("random search", None, Style(GREY, ":", "x")),
)
"""Each method's name in the papers, its model class if it has one to itself, and its look."""

STYLES: dict[str, Style] = {name: look for name, _, look in _METHODS}
"""The look of every method, by its name in the papers. A new method joins by one more entry."""

NAMES: dict[str, str] = {model: name for name, model, _ in _METHODS if model}
"""The methods' names in pictures, by model class."""


def style_of(method: str | type) -> Style:
    """Finds a method's style.

    Args:
        method: The method's name in the papers, a model class of this package, or its name.

    Returns:
        Its style; of a class without a style of its own, that of its nearest base class.

    Raises:
        ValueError: If there is no style for it.

    Example:
        >>> style_of("SHGP") == style_of(SequentialHierarchicalGP)
        True
        >>> STYLES["my method"] = Style("#332288", "-.", "o")
        >>> style_of("my method").marker
        'o'
    """
    classes = [method] if isinstance(method, str) else [base.__name__ for base in method.__mro__]
    for name in classes:
        if (known := NAMES.get(name, name)) in STYLES:
            return STYLES[known]
    raise ValueError(
        f"Method {classes[0]!r} has no colour yet: give it a line in "
        "botorch_transfer.plotting.STYLES."
    )


if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCE_LINES = (
    (GREEN, "--"),
    (PURPLE, "-."),
    (VERMILLION, ":"),
    (SKY, (0, (5, 1))),
    (ORANGE, (0, (3, 1, 1, 1))),
)
"""Colour and line style of source tasks, one after another."""

WIDTH_95 = 1.96

PAPER: dict[str, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "figure.figsize": (3.25, 2.2),
    "savefig.dpi": 300,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
}
"""Settings of matplotlib for one column of a paper: small text, embedded as TrueType fonts."""


def plot_weights(model: TargetGP, ax: Axes | None = None, max_tasks: int = 30) -> Axes:
    """Draws the weight of each source task in a model.

    Args:
        model: A fitted model with source weights, or an average that has such a member, without a
            batch.
        ax: Where to draw; new axes if omitted.
        max_tasks: The most tasks to show: those with the largest weights.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If the model is a batch of models, or has no weights of source tasks.

    Example:
        >>> ax = plot_weights(model)
    """
    _check_single(model)
    weighted: Any = member_on_sources(model)
    if not hasattr(weighted, "weights"):
        raise ValueError(
            f"{type(model).__name__} has no weights of source tasks: draw what it makes of them by "
            "plot_slice."
        )
    named = zip(weighted.weights.tolist(), weighted.prior.task_names, strict=True)
    pairs = sorted(named, reverse=True)
    weights, names = zip(*reversed(pairs[:max_tasks]), strict=True)
    ax = _axes(ax, figsize=(5, 1 + 0.25 * len(names)))
    ax.barh(range(len(names)), weights, color=_look(model).color)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("weight of the source task")
    return ax


@torch.no_grad()
def plot_slice(
    model: TargetGP,
    bounds: Tensor,
    dimension: int = 0,
    anchor: Tensor | None = None,
    ax: Axes | None = None,
    max_tasks: int = 3,
    num_points: int = 200,
    input_name: str | None = None,
    outcome_name: str = "outcome",
) -> Axes:
    """Draws posteriors along one input: the target's, and its source tasks' where there are any.

    Bands are central 95 % intervals of the latent function. Target points are shown only where
    there is a single input: of several inputs, the points do not lie on the slice.

    Args:
        model: A model without a batch.
        bounds: A ``2 x d`` tensor of lower and upper bounds of the inputs.
        dimension: The index of the input that varies.
        anchor: A ``d`` tensor: the other inputs; by default the best target point, or the middle of
            the bounds if there is none.
        ax: Where to draw; new axes if omitted.
        max_tasks: The most source tasks to show: those with the largest weights, or the first ones.
        num_points: The number of points along the slice.
        input_name: What to call the input; by default its number.
        outcome_name: What to call the outcome.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is missing.
        TypeError: If ``dimension`` is no index.
        ValueError: If the model is a batch of models or has no such input, or bounds or anchor have
            another shape.

    Example:
        >>> ax = plot_slice(model, torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double(), dimension=1)
    """
    _check_single(model)
    if not isinstance(bounds, Tensor) or bounds.dim() != 2 or len(bounds) != 2:
        found = tuple(bounds.shape) if isinstance(bounds, Tensor) else type(bounds).__name__
        raise ValueError(
            f"bounds are {found}: give a 2 x d tensor of lower and upper bounds, as space.bounds."
        )
    dim = bounds.shape[-1]
    if not isinstance(dimension, int):
        raise TypeError(
            f"dimension is {dimension!r}: give the index of an input, which for a parameter is "
            "space.feature_names.index(name), and its name by input_name=."
        )
    if anchor is not None and anchor.shape != (dim,):
        raise ValueError(
            f"anchor has the shape {tuple(anchor.shape)}: give one value an input, {dim} in all."
        )
    if not -dim <= dimension < dim:
        raise ValueError(f"There is no input {dimension}: bounds are of {dim}.")
    ax = _axes(ax, figsize=(5.5, 3.6))
    X, Y = _target_points(model)
    if anchor is None:
        anchor = X[Y.argmax()] if len(Y) else bounds.mean(dim=0)
    x = torch.linspace(float(bounds[0, dimension]), float(bounds[1, dimension]), num_points)
    points = anchor.repeat(num_points, 1)
    points[:, dimension] = x.to(points)
    look = _look(model)
    lines = [style for style in SOURCE_LINES if style[0] != look.color]
    slices = _source_slices(model, points, min(max_tasks, len(lines)))
    for (name, posterior), (color, line) in zip(slices, lines, strict=False):
        _band(ax, x, posterior, name, color, line)
    _band(ax, x, model.posterior(points), "target", look.color, "-")
    if dim == 1 and len(Y):
        ax.plot(X[:, 0].cpu(), Y.cpu(), "o", color=BLACK, markersize=4, label="target data")
    ax.set_xlabel(input_name or f"input {dimension % dim}")
    ax.set_ylabel(outcome_name)
    ax.legend(frameon=False)
    return ax


@torch.no_grad()
def plot_calibration(model: TargetGP, ax: Axes | None = None) -> Axes:
    """Draws leave-one-out predictions of the target points against their outcomes.

    Bars are central 95 % intervals, observation noise included. Of a calibrated model, 19 out of 20
    meet the diagonal. Those that miss it are drawn as crosses.

    Args:
        model: A fitted model with two or more target points, without a batch.
        ax: Where to draw; new axes if omitted.

    Returns:
        The axes; their title says how many intervals hold their outcome.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If the model is a batch of models, or has fewer than two points.

    Example:
        >>> ax = plot_calibration(model)
    """
    _check_single(model)
    if model.num_target_points < 2:
        raise ValueError("Leave-one-out predictions need two target points or more.")
    ax = _axes(ax, figsize=(4, 4))
    _, Y = _target_points(model)
    own: Any = getattr(model, "loo_posterior", None)
    posterior: Any = loo_cv(model).posterior if own is None else own()
    mean, half = posterior.mean.flatten(), WIDTH_95 * posterior.variance.flatten().sqrt()
    hit = (Y - mean).abs() <= half
    points = torch.stack([Y, mean, half]).cpu()
    for chosen, marker, color in ((hit, "o", _look(model).color), (~hit, "x", VERMILLION)):
        outcomes, predictions, bars = points[:, chosen.cpu()]
        ax.errorbar(outcomes, predictions, bars, fmt=marker, color=color)
    ends = [float(Y.min()), float(Y.max())]
    ax.plot(ends, ends, color=BLACK, linestyle=":", linewidth=1)
    ax.set_xlabel("outcome")
    ax.set_ylabel("prediction without it")
    ax.set_title(f"{int(hit.sum())} of {len(Y)} within 95 %")
    return ax


def _axes(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    """The given axes, or new ones."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib: pip install 'botorch_transfer[plot]'."
        ) from error
    if ax is None:
        _, ax = plt.subplots(figsize=figsize, layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _look(model: TargetGP) -> Style:
    """The look of the model's method, or that of ScaML-GP if it has none."""
    try:
        return style_of(type(model))
    except ValueError:
        return style_of("ScaML-GP")


def _check_single(model: TargetGP) -> None:
    if not hasattr(model, "batch_shape"):
        raise TypeError(f"This is a {type(model).__name__}: plot a model, as ScaMLGP.")
    if model.batch_shape:
        raise ValueError("The model is a batch of models: plot one at a time.")


def _target_points(model: TargetGP) -> tuple[Tensor, Tensor]:
    """The target's inputs and outcomes in the user's units."""
    training = model.training
    (X,) = model.train().train_inputs
    model.train(training)
    Y = model.train_targets.unsqueeze(-1)
    transform: Any = getattr(model, "outcome_transform", None)
    return X, (Y if transform is None else transform.eval().untransform(Y)[0]).squeeze(-1)


def _source_slices(model: TargetGP, points: Tensor, max_tasks: int) -> Any:
    """Names of the source tasks to show, and their posteriors in the target's units."""
    informed: Any = member_on_sources(model)
    if informed is None:
        return
    sources: SourceGPs = informed.prior
    weights = getattr(informed, "weights", torch.zeros(sources.num_tasks))
    order = weights.argsort(descending=True, stable=True).tolist()
    inputs = model.transform_inputs(points)
    means, variances = sources.gps.mean(inputs), sources.gps.variance(inputs)
    transform: Any = getattr(informed, "outcome_transform", None)
    for task in order[:max_tasks]:
        covariance = DiagLinearOperator(variances[task])
        posterior: Any = GPyTorchPosterior(MultivariateNormal(means[task], covariance))
        if transform is not None:
            posterior = transform.untransform_posterior(posterior, X=points)
        yield sources.task_names[task], posterior


def _band(ax: Axes, x: Tensor, posterior: Any, label: str, color: str, line: Any) -> None:
    mean, variance = posterior.mean.squeeze(-1).cpu(), posterior.variance.squeeze(-1).cpu()
    x, half = x.cpu(), WIDTH_95 * variance.sqrt()
    ax.plot(x, mean, color=color, linestyle=line, label=label)
    ax.fill_between(x, mean - half, mean + half, color=color, alpha=0.2, linewidth=0)
