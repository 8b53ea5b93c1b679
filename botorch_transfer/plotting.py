"""Plots of transfer models: weights, slices, calibration and curves (extra ``plot``).

The colours are a grey and the palette of Okabe and Ito, which most colour-blind readers can
distinguish. The target is blue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from botorch.cross_validation import loo_cv
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.sampling.pathwise.utils import get_train_inputs, get_train_targets
from botorch.utils.transforms import is_ensemble
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator
from pandas import DataFrame, Series
from torch import Tensor

from botorch_transfer.curves import WIDTH_90, CurvePrior, full_length
from botorch_transfer.model import TransferModel, predicted_moments
from botorch_transfer.search_space import FloatParameter, Parameter, SearchSpace

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#7F7F7F"


if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES = "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1))
#: Colours and line styles of source tasks, in drawing order.
SOURCE_LINES = tuple(zip((GREEN, PURPLE, VERMILLION, SKY, ORANGE), DASHES, strict=True))

WIDTH_95 = 1.96


def plot_weights(model: TransferModel, ax: Axes | None = None, max_tasks: int = 30) -> Axes:
    """Draws the weight of each source task in a model.

    Args:
        model: A fitted, non-batched model with a weight for each source task, or an average of
            models that contains such a model.
        ax: The axes to draw on; new axes if omitted.
        max_tasks: Maximum number of tasks to show. The tasks with the largest weights are shown.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If the model is a batch of models, or has no weights of source tasks.

    Example:
        >>> ax = plot_weights(model)
    """
    _check_single(model)
    weighted = model.member_on_sources
    if weighted is None or bool(weighted.weights.isnan().any()):
        raise ValueError(
            f"{type(model).__name__} has no weights of source tasks: use plot_slice instead."
        )
    weights = Series(weighted.weights.tolist(), weighted.prior.task_names)
    shown = weights.sort_values().tail(max_tasks)
    ax = _axes(ax, figsize=(5, 1 + 0.25 * len(shown)))
    ax.barh(shown.index, shown, color=BLUE)
    ax.set_xlabel("weight of the source task")
    return ax


@torch.no_grad()
def plot_slice(
    model: TransferModel,
    bounds: Tensor | SearchSpace,
    dimension: int | str = 0,
    anchor: Tensor | DataFrame | None = None,
    ax: Axes | None = None,
    max_tasks: int = 3,
    num_points: int = 200,
    outcome_name: str = "outcome",
    goal: Literal["max", "min"] = "max",
) -> Axes:
    """Draws the posteriors of the target and of source tasks along one input.

    If ``bounds`` is a search space, the horizontal axis has the parameter's name, values and scale.
    Bands are central 95 % intervals of the latent function. The outcome axis is scaled such that
    the target's band fills two thirds of the axis. The band of a source task may therefore be cut
    off. Target points are shown only if the model has a single input: with several inputs, the
    points do not lie on the slice.

    Args:
        model: Any non-batched BoTorch model of one outcome.
        bounds: The search space whose encoded rows are the model's inputs; or a ``2 x d`` tensor of
            lower and upper bounds of the inputs.
        dimension: The name of the parameter that varies, or the index of the input that varies.
        anchor: The point that fixes all other inputs: a table with one row of the search space, or
            a ``d`` tensor. The default is the target point with the largest outcome, or the middle
            of the bounds if there are no target points.
        ax: The axes to draw on; new axes if omitted.
        max_tasks: Maximum number of source tasks to show, at most 5. The tasks with the largest
            weights are shown.
        num_points: Number of points along the slice.
        outcome_name: The label of the outcome axis.
        goal: ``"max"`` draws the model's outcomes, and ``"min"`` draws their negatives. Use
            ``"min"`` if the data were read with ``goal="min"``: the plot then has the outcomes of
            the table.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If the model is a batch of models, if ``dimension`` is unknown, or if
            ``bounds`` or ``anchor`` have the wrong shape.

    Example:
        >>> lr = FloatParameter("lr", 1e-4, 1.0, log=True)
        >>> space = SearchSpace([lr, FloatParameter("decay", 0.0, 0.1)])
        >>> ax = plot_slice(model, space, "lr")
        >>> ax.get_xlabel(), ax.get_xscale()
        ('lr', 'log')
    """
    if not is_ensemble(model):
        _check_single(model)
    if goal not in ("max", "min"):
        raise ValueError(f"goal is {goal!r}: use 'max' or 'min'.")
    if isinstance(bounds, SearchSpace):
        space, (lower, upper) = bounds, bounds.bounds
    elif isinstance(bounds, Tensor) and bounds.dim() == len(bounds) == 2:
        ends, (lower, upper) = bounds.T.tolist(), bounds
        space = SearchSpace([FloatParameter(f"input {i}", *pair) for i, pair in enumerate(ends)])
    else:
        raise ValueError("bounds= must be a SearchSpace or a 2 x d tensor: lower and upper bounds.")
    parameter = _parameter(space, dimension)
    if isinstance(anchor, DataFrame) and space is bounds:
        anchor = space.encode(anchor).squeeze(0)
    if anchor is not None and (not isinstance(anchor, Tensor) or anchor.shape != lower.shape):
        raise ValueError(
            f"anchor= must be a tensor with one value for each of {space.dim} inputs. If bounds= "
            "is a search space, anchor= may also be a table with one row."
        )
    ax = _axes(ax, figsize=(5.5, 3.6))
    X, Y = _target_points(model)
    if anchor is None:
        anchor = X[Y.argmax()] if len(Y) else (lower + upper) / 2
    line = parameter_line(space, parameter, num_points)
    points = anchor.repeat(len(line.values), 1)
    start, width = lower[line.columns], (upper - lower)[line.columns]
    points[:, line.columns] = (start + width * line.values.to(start)).to(points)
    if space is bounds:
        points = space.round(points)  # a value may activate or deactivate other parameters
    sign = 1.0 if goal == "max" else -1.0
    slices = _source_slices(model, points, min(max_tasks, len(SOURCE_LINES)))
    for (name, posterior), (color, style) in zip(slices, SOURCE_LINES, strict=False):
        _band(ax, line, posterior, name, color, style, sign)
    shown = _band(ax, line, model.posterior(points), "target", BLUE, "-", sign)
    if space.dim == 1 and len(Y):
        shown = torch.cat([shown, (sign * Y).cpu()])
        at = np.interp(((X - lower) / (upper - lower))[:, 0].cpu(), line.values[:, 0], line.x)
        ax.plot(at, (sign * Y).cpu(), "o", color=BLACK, markersize=4, label="target data")
    least, most = float(shown.min()), float(shown.max())
    room = 0.25 * (most - least) or 1.0
    if line.ticks is not None:
        ax.set_xticks(line.x, line.ticks)
    elif line.log:
        ax.set_xscale("log")
    ax.set(xlabel=line.name, ylabel=outcome_name, ylim=(least - room, most + room))
    ax.legend(framealpha=0.7, edgecolor="none")
    return ax


class Line(NamedTuple):
    """Points of a plot along one parameter, in the unit cube and on the plot's axis.

    Args:
        name: The name of the parameter.
        columns: The indices of the parameter's encoded columns.
        values: A ``k x c`` tensor: the encodings of ``k`` points in these ``c`` columns.
        x: The positions of the ``k`` points on the axis of the plot.
        ticks: The values of a categorical parameter, as labels of the axis; ``None`` for a numeric
            parameter.
        log: Whether the axis is logarithmic.
    """

    name: str
    columns: list[int]
    values: Tensor
    x: Any
    ticks: list[str] | None = None
    log: bool = False


def parameter_line(space: SearchSpace, parameter: Parameter, num_points: int) -> Line:
    """Chooses points along one parameter of a search space, for a plot.

    Args:
        space: The search space.
        parameter: A parameter of the space.
        num_points: Number of points along a numeric parameter. A numeric parameter with at most
            ``num_points`` values, or a categorical parameter, has one point for each value.

    Returns:
        The points.
    """
    columns = space.feature_indices[parameter.name]
    if parameter.is_numeric and (parameter.size is None or parameter.size > num_points):
        # Decoding rounds integers, so that positions on the axis match encoded values.
        unit = parameter.encode(parameter.decode(np.linspace(0.0, 1.0, num_points)[:, None]))
    else:
        unit = parameter.unit_grid()
    parameter_values = parameter.decode(unit)[parameter.name]
    values = torch.from_numpy(np.asarray(unit))
    if not parameter.is_numeric:
        x, ticks = np.arange(len(unit)), [str(value) for value in parameter_values]
        return Line(parameter.name, columns, values, x, ticks)
    numbers = parameter_values.to_numpy(dtype=np.float64)
    return Line(parameter.name, columns, values, numbers, log=parameter.log is True)


def _parameter(space: SearchSpace, dimension: int | str) -> Parameter:
    """Finds a parameter by its name, or by the index of one of its encoded columns."""
    key, places = dimension, space.feature_indices
    if isinstance(key, int) and -space.dim <= key < 0:
        key += space.dim
    named = [p for p in space.parameters if key in (p.name, *places[p.name])]
    if not named:
        names = ", ".join(p.name for p in space.parameters)
        raise ValueError(f"There is no parameter {dimension!r}: use one of {names}.")
    return named[0]


def leave_one_out(model: Any) -> tuple[Tensor, Tensor]:
    """Computes leave-one-out predictions of a model's ``n`` target points: means and variances.

    The variances include observation noise.
    """
    own: Any = getattr(model, "loo_posterior", None)
    posterior: Any = loo_cv(model).posterior if own is None else own()
    mean, variance = predicted_moments(posterior)
    return mean.detach().flatten(), variance.detach().flatten()


@torch.no_grad()
def plot_calibration(model: TransferModel, ax: Axes | None = None) -> Axes:
    """Draws leave-one-out predictions of the target points against their outcomes.

    Bars are central 95 % intervals that include observation noise. If the model is calibrated, 19
    out of 20 bars meet the diagonal. Points whose bar misses the diagonal are crosses.

    Args:
        model: A fitted, non-batched model with two or more target points.
        ax: The axes to draw on; new axes if omitted.

    Returns:
        The axes. The title states how many intervals contain their outcome.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If the model is a batch of models, or has fewer than two points.

    Example:
        >>> ax = plot_calibration(model)
    """
    _check_single(model)
    if model.num_target_points < 2:
        raise ValueError("Leave-one-out predictions need at least two target points: add points.")
    ax = _axes(ax, figsize=(4, 4))
    _, Y = _target_points(model)
    mean, variance = leave_one_out(model)
    half = WIDTH_95 * variance.sqrt()
    hit = (Y - mean).abs() <= half
    points = torch.stack([Y, mean, half]).cpu()
    for chosen, marker, color in ((hit, "o", BLUE), (~hit, "x", VERMILLION)):
        outcomes, predictions, bars = points[:, chosen.cpu()]
        ax.errorbar(outcomes, predictions, bars, fmt=marker, color=color)
    ends = [float(Y.min()), float(Y.max())]
    ax.plot(ends, ends, color=BLACK, linestyle=":", linewidth=1)
    title = f"{int(hit.sum())} of {len(Y)} within 95 %"
    ax.set(xlabel="outcome", ylabel="prediction without it", title=title)
    return ax


def plot_curves(
    prior: CurvePrior,
    runs: DataFrame,
    history: DataFrame | None = None,
    ax: Axes | None = None,
    task: str = "task",
    max_curves: int = 60,
) -> Axes:
    """Draws learning curves with their predicted final outcomes, and old curves behind them.

    Args:
        prior: The prior of final outcomes, fitted to old curves.
        runs: The runs of one task, one row per step. The table needs the columns to which the prior
            was fitted.
        history: A table of old runs with the same columns; without it, no old curves are drawn.
        ax: The axes to draw on; new axes if omitted.
        task: The column of ``history`` that names the task.
        max_curves: Maximum number of old curves to draw.

    Returns:
        The axes. For each partial run, a bar at the last step of a full run is the 90 % interval of
        the final outcome.

    Raises:
        ImportError: If matplotlib is missing.
        InputDataError: If a column is missing.

    Example:
        >>> rows = [("monday", end + 1 / k, k) for end in (0.1, 0.5, 0.9) for k in range(1, 11)]
        >>> old = DataFrame(rows, columns=["task", "loss", "epoch"])
        >>> prior = CurvePrior.fit(old, outcome="loss", step="epoch", goal="min")
        >>> ax = plot_curves(prior, DataFrame({"loss": [1.2, 0.7], "epoch": [1, 2]}), old)
        >>> ax.get_xlabel()
        'epoch'
    """
    ax = _axes(ax, figsize=(5.5, 3.6))
    sign = 1.0 if prior.config["goal"] == "max" else -1.0
    if history is not None:
        for curve in prior.read(history, task)[:max_curves]:
            ax.plot(curve.steps, sign * curve.values, color=GREY, alpha=0.3, linewidth=0.8)
    curves, found = prior.read(runs), prior.predict(runs)
    full = full_length(curves, float(prior.length))
    places = np.linspace(full, 1.04 * full, len(curves))
    for x, curve, (_, row) in zip(places, curves, found.iterrows(), strict=True):
        ax.plot(curve.steps, sign * curve.values, color=BLUE)
        half = WIDTH_90 * row["predicted_std"]
        if half > 0:
            ax.errorbar(x, row["predicted_mean"], half, fmt="o", color=VERMILLION, capsize=3)
    ax.set(xlabel=prior.config["step"], ylabel=prior.config["outcome"])
    return ax


def _axes(ax: Axes | None, figsize: tuple[float, float]) -> Axes:
    """Returns the given axes; without given axes, creates new axes."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Plots need matplotlib: pip install 'botorch_transfer[plot]'.") from error
    if ax is None:
        _, ax = plt.subplots(figsize=figsize, layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    return ax


def _check_single(model: TransferModel) -> None:
    if not hasattr(model, "batch_shape"):
        raise TypeError(f"model is a {type(model).__name__}: give a model such as ScaMLGP.")
    if model.batch_shape:
        raise ValueError("The model is a batch of models: plot one model at a time.")


def _target_points(model: TransferModel) -> tuple[Tensor, Tensor]:
    """Returns a model's target inputs and outcomes, in the user's units."""
    (X,), Y = get_train_inputs(model), get_train_targets(model)
    return (X[0], Y[0]) if is_ensemble(model) else (X, Y)  # members of an ensemble share the points


def _source_slices(model: TransferModel, points: Tensor, max_tasks: int) -> Any:
    """Evaluates posteriors at ``points``, for the source tasks with the largest weights.

    Yields:
        For each task, its name, and its posterior in the units of the target's outcomes.
    """
    if (informed := model.member_on_sources) is None:
        return
    sources = informed.prior
    order = informed.weights.argsort(descending=True, stable=True).tolist()
    inputs = model.transform_inputs(points)
    means, variances = sources.gps.mean(inputs), sources.gps.variance(inputs)
    transform: Any = getattr(informed, "outcome_transform", None)
    for task in order[:max_tasks]:
        covariance = DiagLinearOperator(variances[task])
        posterior: Any = GPyTorchPosterior(MultivariateNormal(means[task], covariance))
        if transform is not None:
            posterior = transform.untransform_posterior(posterior, X=points)
        yield sources.task_names[task], posterior


def _band(
    ax: Axes, line: Line, posterior: Any, label: str, color: str, style: Any, sign: float
) -> Tensor:
    """Draws the mean and the 95 % interval of a posterior along a slice.

    Returns:
        The lower limits of the interval, followed by the upper limits.
    """
    mean, variance = (part.cpu() for part in predicted_moments(posterior))
    mean, half = sign * mean, WIDTH_95 * variance.sqrt()
    if line.ticks is None:
        ax.plot(line.x, mean, color=color, linestyle=style, label=label)
        # The bands of sources are light, because several bands overlap.
        alpha = 0.25 if label == "target" else 0.08
        ax.fill_between(line.x, mean - half, mean + half, color=color, alpha=alpha, linewidth=0)
    else:  # a categorical parameter: the bars of tasks are drawn side by side
        x = line.x + 0.08 * (len(ax.containers) - 1)
        bars = ax.errorbar(x, mean, half, fmt="o", color=color, capsize=3, label=label)
        for bar in bars[2]:
            bar.set_linestyle(style)
    return torch.cat([mean - half, mean + half])
