"""Outcome transforms: standardization to a prior's units, and robust limits.

Read this to see how a target's few outcomes are standardized: together with the outcomes of the
source tasks, or alone. An outcome far below a task's median shows only that the run was bad. Such
an outcome is clipped at a robust limit (:func:`robust_limit`).

.. [Song2024vizier]
    X. Song, Q. Zhang, C. Lee, E. Fertig, T.-K. Huang, L. Belenki, G. Kochanski, S. Ariafar,
    S. Vasudevan, S. Perel and D. Golovin. The Vizier Gaussian process bandit algorithm. 2024.
    arXiv:2408.11527.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms import outcome
from botorch.models.transforms.outcome import ChainedOutcomeTransform, OutcomeTransform, Standardize
from torch import Tensor
from torch.special import ndtri

from botorch_transfer._botorch import DefaultType
from botorch_transfer.input_transforms import warn_of_data

# ---------------------------------------------------------------------------- standardization


def usable_std(std: Tensor, mean: Tensor, otherwise: Tensor | float = 1.0) -> Tensor:
    """Replaces standard deviations that are no larger than rounding errors.

    Args:
        std: A tensor of standard deviations.
        mean: A tensor of the means of the same outcomes. The dtype of ``mean`` determines the size
            of rounding errors.
        otherwise: The replacement.

    Returns:
        A tensor of positive standard deviations.

    Example:
        >>> usable_std(torch.tensor([2.0, 1e-6]), torch.tensor([5.0, 1000.0]))
        tensor([2., 1.])
    """
    # Rounding errors are relative to the mean, because outcomes may be tiny, such as capacitances
    # in farads. The lower bound keeps variances from underflowing.
    info = torch.finfo(mean.dtype)
    rounding = (4 * info.eps * mean.abs()).clamp_min(info.tiny**0.5)
    return torch.where(std > rounding, std, otherwise)


class OutcomeMoments(NamedTuple):
    """Pooled statistics of all source outcomes, in the user's units.

    Args:
        number: The number of outcomes.
        mean: The mean, a scalar tensor.
        spread: The biased standard deviation, a scalar tensor.
    """

    number: int
    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, outcomes: Tensor) -> OutcomeMoments:
        """Computes the statistics of a tensor of outcomes, in double precision."""
        exact = outcomes.detach().flatten().double()
        return cls(len(exact), exact.mean().to(outcomes), exact.std(correction=0).to(outcomes))


class PooledStandardize(Standardize):
    r"""Standardization by the outcomes of all source tasks and, optionally, of the target.

    Use it if source and target outcomes have the same units. Unlike BoTorch's ``Standardize``,
    ``PooledStandardize`` needs no target outcomes. The first target outcomes hardly change the
    standardization (Appendix C.1 of the ScaML-GP paper). Standard deviations are unbiased, as in
    ``Standardize``. If all outcomes are equal up to rounding errors, the standard deviation is one.

    If source and target outcomes may have different units, they cannot be pooled. In this case,
    give moments whose ``number`` is zero: a typical mean and a typical standard deviation of the
    source tasks. The transform then standardizes by the target's outcomes alone. The typical values
    replace a mean or standard deviation that the target lacks: without outcomes there is no mean,
    and a single outcome or constant outcomes have no standard deviation.

    Args:
        source_outcomes: All source outcomes in the user's units, a tensor of any shape; or their
            :class:`OutcomeMoments`.
        include_target: Whether to include the target's outcomes.
        batch_shape: The batch shape of the target's outcomes.

    Example:
        >>> transform = PooledStandardize(torch.tensor([1.0, 2.0, 3.0]))
        >>> transform(torch.tensor([[2.0]]))[0]
        tensor([[0.]])
        >>> own = PooledStandardize(OutcomeMoments(0, torch.tensor(5.0), torch.tensor(2.0)))
        >>> own(torch.tensor([[7.0]]))[0]
        tensor([[0.]])
        >>> own.stdvs
        tensor([[2.]])
    """

    stdvs: Tensor
    _source_mean: Tensor
    _source_std: Tensor

    def __init__(
        self,
        source_outcomes: Tensor | OutcomeMoments,
        include_target: bool = True,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
    ) -> None:
        super().__init__(m=1, batch_shape=batch_shape, min_stdv=0.0)
        if isinstance(source_outcomes, Tensor):
            source_outcomes = OutcomeMoments.of(source_outcomes)
        self.include_target, self._count = include_target, source_outcomes.number
        self.register_buffer("_source_mean", source_outcomes.mean.detach().clone())
        self.register_buffer("_source_std", source_outcomes.spread.detach().clone())

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Standardizes outcomes; in training mode, computes mean and standard deviation first.

        Args:
            Y: A ``batch_shape x n x 1`` tensor of outcomes; ``n`` may be zero.
            Yvar: A ``batch_shape x n x 1`` tensor of noise variances.
            X: Ignored.

        Returns:
            The standardized outcomes and noise variances.
        """
        if self.training:
            # Uses double precision, because squares of large outcomes overflow in single precision.
            y = Y.detach().double()
            mean, source_std = self._source_mean.to(y), self._source_std.to(y)
            count, n = self._count, y.shape[-2] if self.include_target else 0
            squares = count * source_std.square()
            if n > 0:
                own_mean = y.mean(dim=-2, keepdim=True)
                squares = squares + (y - own_mean).square().sum(dim=-2, keepdim=True)
                squares = squares + (own_mean - mean).square() * (count * n / (count + n))
                mean = mean.lerp(own_mean, n / (count + n))
            std = (squares / max(count + n - 1, 1)).sqrt()
            mean, std, source_std = (part.to(Y.dtype) for part in (mean, std, source_std))
            std, shape = usable_std(std, mean, usable_std(source_std, mean)), (*Y.shape[:-2], 1, 1)
            self.means, self.stdvs = mean.expand(shape).clone(), std.expand(shape).clone()
            self._stdvs_sq = self.stdvs.square()
            self._is_trained = torch.tensor(True)
        Yvar = None if Yvar is None else Yvar / self._stdvs_sq
        return (Y - self.means) / self.stdvs, Yvar


# -------------------------------------------------------------------- element-wise transforms

#: Element-wise transforms, each as a name and its arguments: ``[["Log"], ["Power", 0.5]]``.
Steps = Sequence[Sequence[Any]]

_ELEMENTWISE: dict[str, Any] = {"Log": outcome.Log, "Bilog": outcome.Bilog, "Power": outcome.Power}


def split_transform(transform: Any) -> tuple[Steps, OutcomeTransform | None]:
    """Splits an outcome transform into element-wise transforms and the remaining transform.

    Element-wise transforms (``Log``, ``Bilog``, ``Power``) also apply to source outcomes. The
    remaining transform applies only to target outcomes.

    Args:
        transform: The transform. For ``None`` and ``DEFAULT``, there are no element-wise
            transforms, and the remaining transform is ``None``.

    Returns:
        The names and arguments of the element-wise transforms; and the remaining transform,
        ``None`` if no transform remains.

    Raises:
        ValueError: If an element-wise transform follows a transform that is not element-wise, such
            as ``Standardize``.

    Example:
        >>> split_transform(ChainedOutcomeTransform(log=outcome.Log(), scale=Standardize(1)))
        ([['Log']], Standardize())
    """
    every = transform.modules() if isinstance(transform, OutcomeTransform) else ()
    parts: list[Any] = [part for part in every if not isinstance(part, ChainedOutcomeTransform)]
    shared = [type(part) in _ELEMENTWISE.values() for part in parts]
    if shared != sorted(shared, reverse=True):
        text = "The chain has a wrong order"
        raise ValueError(f"{text}: Log, Bilog and Power must precede all other transforms.")
    first, rest = parts[: sum(shared)], parts[sum(shared) :]
    arguments = ([part.power] if isinstance(part, outcome.Power) else [] for part in first)
    steps = [[type(part).__name__, *own] for part, own in zip(first, arguments, strict=True)]
    return steps, transform if len(rest) > 1 else next(iter(rest), None)


def chained(steps: Steps, scale: OutcomeTransform | None = None) -> OutcomeTransform:
    """Builds one outcome transform from element-wise transforms and a scaling transform.

    Without any transforms, the result returns outcomes unchanged.
    """
    parts = {f"step_{i}": _ELEMENTWISE[name](*own) for i, (name, *own) in enumerate(steps)}
    parts |= {} if scale is None else {"scale": scale}
    return ChainedOutcomeTransform(**parts) if len(parts) != 1 else next(iter(parts.values()))


def apply_steps(whose: str, steps: Steps, Y: Tensor, Yvar: Any = None) -> tuple[Tensor, Any]:
    """Applies element-wise transforms to outcomes.

    Args:
        whose: The name of the outcomes in the error message, such as ``"train_Y"``.
        steps: The transforms, each as a name and its arguments.
        Y: A ``batch_shape x n x 1`` tensor of outcomes.
        Yvar: A ``batch_shape x n x 1`` tensor of noise variances.

    Returns:
        The transformed outcomes and noise variances.

    Raises:
        InputDataError: If a transformed outcome is not finite, such as the logarithm of a negative
            outcome.

    Example:
        >>> apply_steps("train_Y", [["Power", 2.0]], torch.tensor([[3.0]]))[0]
        tensor([[9.]])
    """
    transformed, Yvar = chained(steps)(Y, Yvar)
    if bool((bad := ~transformed.isfinite()).any()):
        raise InputDataError(
            f"{whose} has the outcome {float(Y[bad][0]):g}, for which {steps[0][0]} is not finite: "
            "shift or negate the outcomes of all tasks, or use Bilog."
        )
    return transformed, Yvar


def resolve_transform(
    given: Any, steps: Steps | None, default: Callable[[], Any], Y: Tensor, old: Any
) -> OutcomeTransform | None:
    """Chooses a model's outcome transform from the model's argument and the model's prior.

    By default, target outcomes are transformed like source outcomes. The function warns if the
    target outcomes seem to have a different unit than the source outcomes.

    Args:
        given: The model's argument ``outcome_transform``.
        steps: The element-wise transforms of the source outcomes. ``None`` if the transforms are
            unknown, because the prior was built without outcomes.
        default: A function that builds the scaling transform. It is called if ``given`` has no
            scaling transform.
        Y: A ``batch_shape x n x 1`` tensor of the target's outcomes.
        old: Two tensors: source outcomes after the element-wise transforms, and the task index of
            each outcome. ``None`` if the prior has no outcomes.

    Returns:
        The transform; ``None`` if the outcomes are not transformed.

    Raises:
        InputDataError: If a transformed outcome of the target is not finite.
        ValueError: If the element-wise transforms of ``given`` differ from ``steps``.
    """
    own, scale = split_transform(given)
    if isinstance(given, DefaultType):
        own = steps or ()
    elif given is not None and steps is not None and own != list(steps):
        ours, theirs = (", ".join(step[0] for step in each) or "none" for each in (own, steps))
        raise ValueError(
            f"outcome_transform= has the element-wise steps {ours}, but the prior has the steps "
            f"{theirs}: give the old runs instead of the prior, or a prior from "
            "fit_once(outcome_transform=...)."
        )
    apply_steps("train_Y", own, Y)
    if given is None or scale is not None:
        return given
    if old is not None:
        values = chained(own).untransform(old[0].unsqueeze(-1))[0]
        if problem := another_unit("train_Y", Y, values, old[1]):
            warn_of_data(f"{problem}, or give outcome_transform=Standardize(1).")
    return chained(own, default()) if own else default()


#: Factors by which two units of the same outcome often differ.
FACTORS = (0.001, 0.01, 100.0, 1000.0)

#: Thresholds for a warning about the unit of the target outcomes. ``FAR`` and ``NEAR`` are
#: distances of the target outcomes from the range of the source outcomes, in widths of the range.
#: ``NEAR`` applies if one of ``FACTORS`` explains the distance. ``CHANCE`` is the maximum
#: probability that outcomes as small as the target outcomes occur by chance. ``SIGN_CHANCE`` is the
#: maximum probability that all target outcomes have the opposite sign by chance.
FAR, NEAR, CHANCE, SIGN_CHANCE = 20.0, 1.0, 5e-4, 0.05

#: If the mean absolute outcomes of two old tasks differ by more than this factor, the scale of the
#: target outcomes does not indicate another unit.
MANY_SCALES = 30.0


def another_unit(
    whose: str, Y: Tensor, outcomes: Tensor, task: Tensor, sign: float = 1.0
) -> str | None:
    """Checks whether target outcomes seem to have a different unit or sign than source outcomes.

    There are four kinds of problems:

    - Target and source outcomes have similar absolute values, but opposite signs.
    - Target outcomes lie far outside of the range of source outcomes.
    - Target outcomes are far closer to zero than all source outcomes.
    - Target outcomes are closer to zero than most source outcomes, and outcomes drawn at random
      from any source task would rarely all be so close to zero. This check is skipped if the median
      target outcome is better than three quarters of the source outcomes, because good outcomes,
      such as small losses, may be near zero.

    The last two kinds count only if one of ``FACTORS`` explains the small outcomes: multiplied by
    this factor, most target outcomes have absolute values like the source outcomes.

    Args:
        whose: The name of the target outcomes in the returned sentence.
        Y: A ``batch_shape x n x 1`` tensor of target outcomes, which are maximized.
        outcomes: A tensor of ``N`` source outcomes, of any shape.
        task: The ``N`` task indices of the source outcomes.
        sign: -1 if the user minimizes; the returned sentence then shows outcomes with the opposite
            sign.

    Returns:
        A sentence that describes the problem; ``None`` if there is no problem.

    Example:
        >>> Y, task = torch.linspace(1.0, 2.0, 9).unsqueeze(-1), torch.zeros(9).long()
        >>> another_unit("train_Y", 1000 * Y, Y, task)
        'train_Y is far from the outcomes of all old tasks, 1 to 2: use the unit of the old tasks
        (divided by 1000 it fits)'
    """
    y, values = (part.detach().cpu().double().flatten() for part in (Y, outcomes))
    n, task = Y.shape[-2], task.cpu()
    (low, high), (least, most) = values.aminmax(), values.abs().aminmax()
    is_alike = bool(((least / 2 <= y.abs()) & (y.abs() <= 2 * most)).all())
    signs = [part[part != 0].sign().mean() for part in (values, y)]
    if is_alike and signs[0] * signs[1] == -1 and (len(values) + 2.0) ** -n < SIGN_CHANCE:
        return f"{whose} has the opposite sign of the old outcomes: check both signs"
    scales = torch.bincount(task, weights=values.abs()) / torch.bincount(task)
    differ = scales.max() > MANY_SCALES * scales.min()
    if n < 3 or bool(y.min() == y.max()) or bool(low == high) or bool(differ):
        return None
    beyond, largest = torch.maximum(low - y, y - high).median() / (high - low), y.abs().max()
    factor = min(FACTORS, key=lambda factor: abs(math.log(factor * largest / most)))
    scaled = factor * y.abs() * (signs[0] * signs[1] != -1)
    fits = ((least / 1.5 < scaled) & (scaled < 1.5 * most)).double().mean() > 0.6
    smaller = torch.bincount(task, weights=(values.abs() <= largest).double())
    chance = ((smaller + 1) / (torch.bincount(task) + 1)).max() ** n
    is_small = largest * (most / least).clamp_min(10.0) < least or (
        chance < CHANCE and y.median() <= values.quantile(0.75)
    )
    if not (beyond > FAR or (fits and (beyond > NEAR or is_small))):
        return None
    times = f"times {factor:g}" if factor > 1 else f"divided by {1 / factor:g}"
    low, high = (sign * (low, high)[end] for end in (sign < 0, sign > 0))
    text = f"{whose} is far from the outcomes of all old tasks, {low:.3g} to {high:.3g}: use the "
    return f"{text}unit of the old tasks{f' ({times} it fits)' if fits else ''}"


# ------------------------------------------------------------------------------- robust limits

#: Distances below the median, in multiples of the gap between the best outcome and the median.
#: Outcomes within ``MILD`` are never clipped. Outcomes beyond ``EXTREME`` are always clipped.
MILD, EXTREME = 3.0, 20.0


#: Largest ratio of the gaps of two tasks that a different unit, such as per cent, may explain. A
#: task's gap is the distance from its best outcome to its median.
ANOTHER_UNIT = 200.0


#: If a target has fewer outcomes than this, ``raise_worse_half`` is applied to each old task.
FEW_OUTCOMES = 4


def best_gap(Y: Tensor) -> float:
    """Computes the distance from the best outcome of a task to the task's median outcome.

    Args:
        Y: A tensor of the task's outcomes, of any shape, which are maximized.

    Returns:
        The distance. If most outcomes equal the best outcome, the median of the other outcomes
        replaces the task's median. The distance is zero for constant outcomes, and for fewer than
        three outcomes. For an even number of outcomes, the better one of the two middle outcomes
        counts as the median.

    Example:
        >>> best_gap(torch.tensor([1.0, 3.0, 4.0])), best_gap(torch.tensor([4.0, 4.0, 1.0]))
        (1.0, 3.0)
    """
    if Y.numel() < 3:
        return 0.0
    below = (Y.max() - Y).detach().flatten()
    worse, gap = below[below > 0], below.median()
    return float(worse.median() if gap == 0 and len(worse) else gap)


def robust_limit(Y: Tensor, depth: float = 0.0, limit: float | None = None) -> float:
    """Computes a robust lower limit. Very bad outcomes of a task are clipped at this limit.

    The gap is the distance from the best outcome to the median. The robust limit is the tenth
    percentile of the outcomes, clamped to the interval from twenty gaps to three gaps below the
    median. In a task without a heavy tail, few outcomes are clipped. If a run diverges, its outcome
    is raised to the robust limit, which is close to the outcomes of other bad runs.

    Args:
        Y: A tensor of the task's outcomes, of any shape, which are maximized. With fewer than ten
            outcomes, the robust limit is three gaps below the median.
        depth: The minimum distance from the best outcome to the robust limit. For a target with few
            outcomes, or with good outcomes only, pass the distance from the best to the worst
            outcome of a typical source task. If the gap is more than 200 times ``depth``, most runs
            have diverged, and ``depth`` replaces the gap.
        limit: The constraint's bound, if the outcome is constrained: the smallest feasible value.
            The robust limit is not above this bound, so feasible outcomes are not clipped.

    Returns:
        The robust limit; minus infinity if there are no outcomes, or if the gap and ``depth`` are
        both zero.

    Example:
        >>> robust_limit(torch.tensor([4.0, 3.0, 2.0, -1e6]))
        0.0
    """
    gap = best_gap(Y)
    if gap > ANOTHER_UNIT * depth > 0:
        gap = depth
    if Y.numel() == 0 or gap == depth == 0:
        return -math.inf
    below = (Y.max() - Y).detach().flatten().sort().values
    tenth = float(below[-1 - len(below) // 10]) if len(below) >= 10 else 0.0
    distance = min(max(tenth, (1 + MILD) * gap), (1 + EXTREME) * gap)
    lowest = float(Y.max()) - max(distance, depth)
    return lowest if limit is None else min(lowest, limit - gap)


def ranks(values: Tensor) -> Tensor:
    """Ranks values from one; equal values get the mean of their ranks.

    Use this function instead of SciPy's ``rankdata``, whose import takes half a second.

    Args:
        values: An ``n`` tensor.

    Returns:
        An ``n`` tensor in double precision.

    Example:
        >>> ranks(torch.tensor([0.3, 0.1, 0.3]))
        tensor([2.5000, 1.0000, 2.5000], dtype=torch.float64)
    """
    _, place, count = values.unique(return_inverse=True, return_counts=True)
    return (count.cumsum(dim=0) - (count.double() - 1) / 2)[place]


def raise_worse_half(Y: Tensor) -> Tensor:
    """Increases the worse half of a task's outcomes to quantiles of a normal distribution.

    The mean of the normal distribution is the median of the outcomes. If most outcomes equal the
    best outcome, the mean is the median of the other outcomes. The standard deviation of the normal
    distribution is the root mean square distance of the better half from the mean. An outcome below
    the mean is increased to the quantile that corresponds to its rank, if this quantile is larger.
    The better half does not change. This is a one-sided form of half-rank warping
    [Song2024vizier]_. Use it while a target has too few outcomes to correct a model's predictions.

    Args:
        Y: An ``n x 1`` tensor of the task's outcomes, which are maximized.

    Returns:
        An ``n x 1`` tensor whose elements are no smaller than in ``Y``. Constant outcomes, and
        fewer than three outcomes, do not change.

    Example:
        >>> raise_worse_half(torch.tensor([[4.0], [3.0], [2.0], [-1e6]])).T.round(decimals=1)
        tensor([[4.0000, 3.0000, 2.8000, 2.2000]])
    """
    median = Y.max() - best_gap(Y)
    better = Y[median <= Y]
    spread = (better - median).square().mean().sqrt()
    shares = (ranks(Y[:, 0]).unsqueeze(-1) - 0.5) / len(Y)
    # Quantiles are clipped to the median, so that its rounding errors do not change the order.
    normal = median + spread * ndtri(shares.clamp_max(0.5)).to(Y)
    return torch.where((median > Y) & (spread > 0), Y.maximum(normal), Y)


def limit_outcomes(
    Y: Tensor, lowest: float, Yvar: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Clips the outcomes of a task at a lower limit, see :func:`robust_limit`.

    Args:
        Y: An ``n x 1`` tensor of outcomes; NaN where an outcome is missing.
        lowest: The limit.
        Yvar: An ``n x 1`` tensor of noise variances.

    Returns:
        The outcomes, and the noise variances. The noise variance of a clipped outcome is at most
        the largest noise variance of the other outcomes.

    Example:
        >>> limit_outcomes(torch.tensor([[1.0], [-1e6]]), 0.5)[0].flatten().tolist()
        [1.0, 0.5]
    """
    bad = lowest > Y
    if Yvar is not None and bool(bad.any()):
        Yvar = torch.where(bad, Yvar.clamp_max(Yvar[lowest <= Y].max()), Yvar)
    return torch.where(bad, lowest, Y), Yvar
