"""Outcome transforms: standardization into a prior's units, robust limits and warping.

Read this for how a target's few outcomes get a scale: pooled with the source tasks' outcomes, or by
themselves. Outcomes far below a task's median carry one bit, that a run was bad: they are raised to
a robust limit (:func:`robust_limit`). The warping functions of [Wang2024hyperbo]_ are applied to
source and target data before modelling. They are no outcome transforms of a model: its posterior,
and the best value that an acquisition function gets, refer to the warped outcome.

.. [Song2024vizier]
    X. Song, Q. Zhang, C. Lee, E. Fertig, T.-K. Huang, L. Belenki, G. Kochanski, S. Ariafar,
    S. Vasudevan, S. Perel and D. Golovin. The Vizier Gaussian process bandit algorithm. 2024.
    arXiv:2408.11527.
.. [Wang2024hyperbo]
    Z. Wang, G. E. Dahl, K. Swersky, C. Lee, Z. Nado, J. Gilmer, J. Snoek and Z. Ghahramani.
    Pre-trained Gaussian Processes for Bayesian Optimization. JMLR 25, 2024. arXiv:2109.08215.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, Self

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms import outcome
from botorch.models.transforms.outcome import ChainedOutcomeTransform, OutcomeTransform, Standardize
from torch import Tensor
from torch.nn.functional import softplus
from torch.special import ndtri

from botorch_transfer._botorch import DefaultType
from botorch_transfer.input_transforms import warn_of_data

# ---------------------------------------------------------------------------- standardization


def usable_std(std: Tensor, mean: Tensor, otherwise: Tensor | float = 1.0) -> Tensor:
    """Replaces standard deviations that are no larger than rounding errors.

    Args:
        std: A tensor of standard deviations.
        mean: A tensor of the means of the same outcomes.
        otherwise: What replaces those.

    Returns:
        A tensor of positive standard deviations. Rounding errors depend on the dtype of ``mean``.

    Example:
        >>> usable_std(torch.tensor([2.0, 1e-6]), torch.tensor([5.0, 1000.0]))
        tensor([2., 1.])
    """
    # Rounding errors are relative to the mean: outcomes may be in farads, or in molars. But
    # variances must not underflow.
    info = torch.finfo(mean.dtype)
    rounding = (4 * info.eps * mean.abs()).clamp_min(info.tiny**0.5)
    return torch.where(std > rounding, std, otherwise)


class TargetStandardize(Standardize):
    """Base class of standardizations that are defined with any number of target outcomes."""

    stdvs: Tensor

    @abstractmethod
    def _moments(self, Y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Finds the scale of outcomes.

        Args:
            Y: A ``batch_shape x n x 1`` tensor of outcomes in double precision; ``n`` may be zero.
            dtype: The dtype that the outcomes came in.

        Returns:
            Mean and standard deviation, two tensors that expand to ``batch_shape x 1 x 1``.
        """

    def forward(
        self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Standardizes outcomes; in training mode, learns the scale first.

        Args:
            Y: A ``batch_shape x n x 1`` tensor of outcomes; ``n`` may be zero.
            Yvar: A ``batch_shape x n x 1`` tensor of noise variances.
            X: Ignored.

        Returns:
            The standardized outcomes and noise variances.
        """
        if self.training:
            # In double precision: squares of large outcomes overflow in single precision.
            mean, std = self._moments(Y.detach().double(), Y.dtype)
            shape = (*Y.shape[:-2], 1, 1)
            self.means = mean.to(Y.dtype).expand(shape).clone()
            self.stdvs = std.to(Y.dtype).expand(shape).clone()
            self._stdvs_sq = self.stdvs.square()
            self._is_trained = torch.tensor(True)
        Yvar = None if Yvar is None else Yvar / self._stdvs_sq
        return (Y - self.means) / self.stdvs, Yvar

    def subset_output(self, idcs: list[int]) -> Self:
        """Selects outcomes: there is one only.

        Args:
            idcs: ``[0]`` or ``[-1]``.

        Returns:
            A copy.

        Raises:
            ValueError: If there are no such outcomes.
        """
        if idcs not in ([0], [-1]):
            raise ValueError(f"There is one outcome: idcs must be [0] or [-1], not {idcs}.")
        return deepcopy(self)


class OutcomeMoments(NamedTuple):
    """Statistics of all source outcomes together, in the user's units.

    Args:
        number: How many there are.
        mean: Their mean, a tensor without dimensions.
        spread: Their biased standard deviation, which divides by their number.
    """

    number: int
    mean: Tensor
    spread: Tensor

    @classmethod
    def of(cls, outcomes: Tensor) -> OutcomeMoments:
        """Computes them from a tensor of any shape, in double precision."""
        exact = outcomes.detach().flatten().double()
        spread = exact.std(correction=0).to(outcomes)
        return cls(len(exact), exact.mean().to(outcomes), spread)


class PooledStandardize(TargetStandardize):
    r"""Standardizes by the outcomes of all source tasks and, if wanted, of the target.

    Use it if source and target outcomes have the same units. Unlike ``Standardize``, it is defined
    without any target outcome, and it does not jump with each of the first ones (Appendix C.1 of
    ScaML-GP's paper). Standard deviations are unbiased, as in ``Standardize``.

    Args:
        source_outcomes: A tensor of all source outcomes, of any shape, in the user's units; or
            their :class:`OutcomeMoments`.
        include_target: Whether the target's outcomes count too.
        batch_shape: The batch shape of the target's outcomes.

    Outcomes that differ by rounding errors count as constant; their standard deviation is one.

    Example:
        >>> transform = PooledStandardize(torch.tensor([1.0, 2.0, 3.0]))
        >>> transform(torch.tensor([[2.0]]))[0]
        tensor([[0.]])
    """

    _source_mean: Tensor
    _source_spread: Tensor

    def __init__(
        self,
        source_outcomes: Tensor | OutcomeMoments,
        include_target: bool = True,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
    ) -> None:
        super().__init__(m=1, batch_shape=batch_shape, min_stdv=0.0)
        self.include_target = include_target
        if isinstance(source_outcomes, Tensor):
            source_outcomes = OutcomeMoments.of(source_outcomes)
        self._count, mean, spread = source_outcomes
        self.register_buffer("_source_mean", mean.detach().clone())
        self.register_buffer("_source_spread", spread.detach().clone())

    def _moments(self, Y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Pools the source outcomes' mean and squares with the target's."""
        mean, count = self._source_mean.to(Y), self._count
        squares = count * self._source_spread.to(Y).square()
        if self.include_target and Y.shape[-2] > 0:
            n = Y.shape[-2]
            target_mean = Y.mean(dim=-2, keepdim=True)
            difference = target_mean - mean
            squares = squares + (Y - target_mean).square().sum(dim=-2, keepdim=True)
            squares = squares + difference.square() * (count * n / (count + n))
            mean, count = mean + difference * (n / (count + n)), count + n
        std = (squares / max(count - 1, 1)).sqrt()
        return mean, usable_std(std.to(dtype), mean.to(dtype))


class OwnStandardize(TargetStandardize):
    r"""Standardizes by the target's own outcomes, and by typical values while there are too few.

    Use it if source tasks may have other units than the target, so that pooling their outcomes
    makes no sense. One outcome has no standard deviation, and without outcomes there is no mean
    either: typical values of the source tasks take their place. Standard deviations are unbiased,
    as in ``Standardize``.

    Args:
        typical_mean: A scalar tensor: the mean without outcomes.
        typical_std: A scalar tensor: the standard deviation of a single outcome, or of constant
            ones.
        batch_shape: The batch shape of the target's outcomes.

    Outcomes that differ by rounding errors count as constant.

    Example:
        >>> transform = OwnStandardize(torch.tensor(5.0), torch.tensor(2.0))
        >>> transform(torch.tensor([[7.0]]))[0]
        tensor([[0.]])
        >>> transform.stdvs
        tensor([[2.]])
    """

    _typical_mean: Tensor
    _typical_std: Tensor

    def __init__(
        self,
        typical_mean: Tensor,
        typical_std: Tensor,
        batch_shape: torch.Size = torch.Size(),  # noqa: B008
    ) -> None:
        super().__init__(m=1, batch_shape=batch_shape, min_stdv=0.0)
        self.register_buffer("_typical_mean", typical_mean.detach().clone())
        self.register_buffer("_typical_std", typical_std.detach().clone())

    def _moments(self, Y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        n, typical_std = Y.shape[-2], self._typical_std.to(Y)
        mean = self._typical_mean.to(Y) if n == 0 else Y.mean(dim=-2, keepdim=True)
        squares = (Y - mean).square().sum(dim=-2, keepdim=True)
        std = (squares / max(n - 1, 1)).sqrt()
        return mean, usable_std(std, mean.to(dtype), typical_std)


# -------------------------------------------------------------------- element-wise transforms

Steps = Sequence[Sequence[Any]]
"""Element-wise transforms by name and arguments, as ``[["Log"], ["Power", 0.5]]``."""

_ELEMENTWISE: dict[str, Any] = {"Log": outcome.Log, "Bilog": outcome.Bilog, "Power": outcome.Power}


def split_transform(transform: Any) -> tuple[Steps, OutcomeTransform | None]:
    """Splits a model's transform into its element-wise steps, which old runs share, and the rest.

    Args:
        transform: The transform; ``None`` and ``DEFAULT`` have no parts.

    Returns:
        The steps, and the transform of the target alone that follows them, if there is one.

    Raises:
        ValueError: If an element-wise transform follows another one, as ``Standardize``.

    Example:
        >>> split_transform(ChainedOutcomeTransform(log=outcome.Log(), scale=Standardize(1)))
        ([['Log']], Standardize())
    """
    every = transform.modules() if isinstance(transform, OutcomeTransform) else ()
    parts: list[Any] = [part for part in every if not isinstance(part, ChainedOutcomeTransform)]
    shared = [type(part) in _ELEMENTWISE.values() for part in parts]
    if shared != sorted(shared, reverse=True):
        raise ValueError("Put Log, Bilog and Power first in a chain: old runs share these only.")
    first, rest = parts[: sum(shared)], parts[sum(shared) :]
    arguments = ([part.power] if isinstance(part, outcome.Power) else [] for part in first)
    steps = [[type(part).__name__, *own] for part, own in zip(first, arguments, strict=True)]
    return steps, transform if len(rest) > 1 else next(iter(rest), None)


def chained(steps: Steps, scale: OutcomeTransform | None = None) -> OutcomeTransform:
    """Builds a transform of element-wise steps and a scale; the identity of none."""
    parts = {f"step_{i}": _ELEMENTWISE[name](*own) for i, (name, *own) in enumerate(steps)}
    parts |= {} if scale is None else {"scale": scale}
    return ChainedOutcomeTransform(**parts) if len(parts) != 1 else next(iter(parts.values()))


def apply_steps(whose: str, steps: Steps, Y: Tensor, Yvar: Any = None) -> tuple[Tensor, Any]:
    """Applies element-wise transforms to outcomes.

    Args:
        whose: Whose outcomes they are, for the message.
        steps: The transforms.
        Y: A ``batch_shape x n x 1`` tensor of outcomes.
        Yvar: A ``batch_shape x n x 1`` tensor of noise variances.

    Returns:
        The transformed outcomes and noise variances.

    Raises:
        InputDataError: If an outcome has no finite value, as a negative one has no logarithm.

    Example:
        >>> apply_steps("train_Y", [["Power", 2.0]], torch.tensor([[3.0]]))[0]
        tensor([[9.]])
    """
    transformed, Yvar = chained(steps)(Y, Yvar)
    if bool((bad := ~transformed.isfinite()).any()):
        raise InputDataError(
            f"{whose} has the outcome {float(Y[bad][0]):g}, for which {steps[0][0]} is not finite: "
            "shift or negate the outcomes of all tasks before, or take Bilog."
        )
    return transformed, Yvar


def resolve_transform(
    given: Any, steps: Steps | None, default: Callable[[], Any], Y: Tensor, old: Any
) -> OutcomeTransform | None:
    """Resolves a model's outcome transform from its argument and its prior.

    By default it scales as the sources are scaled, and warns of a target in another unit.

    Args:
        given: The model's argument.
        steps: The element-wise transforms of the prior's outcomes; ``None`` if these may have been
            any, in a prior without outcomes.
        default: Builds the transform that follows the steps if the argument has none.
        Y: A ``batch_shape x n x 1`` tensor of the target's outcomes.
        old: The sources' outcomes after these steps, and the task of each one, two tensors; or
            ``None``.

    Returns:
        The transform.

    Raises:
        InputDataError: If it is not finite for an outcome of the target.
        ValueError: If its element-wise part is not the prior's.
    """
    own, scale = split_transform(given)
    if isinstance(given, DefaultType):
        own = steps or ()
    elif given is not None and steps is not None and own != list(steps):
        ours, theirs = (", ".join(step[0] for step in each) or "none" for each in (own, steps))
        raise ValueError(
            f"The element-wise part of outcome_transform is {ours}, but the prior's outcomes were "
            f"transformed by {theirs}: give the old runs themselves, or a prior made by "
            "fit_once(old_runs, outcome_transform=...)."
        )
    apply_steps("train_Y", own, Y)
    if given is None or scale is not None:
        return given
    if old is not None:
        _warn_of_another_unit(Y, chained(own).untransform(old[0].unsqueeze(-1))[0], old[1])
    return chained(own, default()) if own else default()


FACTORS = (0.001, 0.01, 100.0, 1000.0)
"""Usual factors between two units of an outcome."""

FAR, NEAR, CHANCE = 20.0, 1.0, 5e-4
"""Distances beyond the sources' range, in its widths, that are far without a usual factor and with
one; and the largest probability that a target's outcomes are so small by chance."""


def _warn_of_another_unit(Y: Tensor, outcomes: Tensor, task: Tensor) -> None:
    """Warns of a target that lies far outside all sources' outcomes, or is far smaller than them.

    Better outcomes than any old one may be small: a loss is if it has its minimum at zero. They
    count only if the sources' outcomes are nowhere near zero.
    """
    n, task = Y.shape[-2], task.cpu()
    y, values = (part.detach().cpu().double().flatten() for part in (Y, outcomes))
    (low, high), (least, most) = values.aminmax(), values.abs().aminmax()
    if n < 3 or bool(y.min() == y.max()) or bool(low == high):
        return
    beyond, largest = torch.maximum(low - y, y - high).median() / (high - low), y.abs().max()
    factor = min(FACTORS, key=lambda factor: abs(math.log(factor * largest / most)))
    scaled = factor * y.abs()
    fits = ((least / 1.5 < scaled) & (scaled < 1.5 * most)).double().mean() > 0.6
    smaller = torch.bincount(task, weights=(values.abs() <= largest).double())
    chance = ((smaller + 1) / (torch.bincount(task) + 1)).max() ** n
    is_small = largest * (most / least).clamp_min(10.0) < least or (
        chance < CHANCE and y.median() <= values.quantile(0.75)
    )
    if beyond > FAR or (fits and (beyond > NEAR or is_small)):
        times = f"times {factor:g}" if factor > 1 else f"divided by {1 / factor:g}"
        warn_of_data(
            f"train_Y is far from the outcomes of all source tasks, {low:.3g} to {high:.3g}: give "
            f"it in their unit{f' ({times} it fits)' if fits else ''}, or Standardize(1) as "
            "outcome_transform."
        )


# ------------------------------------------------------------------------------- robust limits

MILD, EXTREME = 3.0, 20.0
"""Distances below the median, in distances from the best outcome to it: nearer outcomes are never
limited, and further ones always."""


ANOTHER_UNIT = 200.0
"""Ratio of outcomes up to which they may be in another unit, such as per cent."""


FEW_OUTCOMES = 4
"""With fewer outcomes of the target, the worse half of each old task counts by rank."""


def best_gap(Y: Tensor) -> float:
    """Computes the distance from the best outcome of a task to its median.

    Args:
        Y: A tensor of the task's outcomes, of any shape, to be maximized.

    Returns:
        The distance. If most outcomes are the best one, the distance to the median of the others;
        zero for constant outcomes, or fewer than three. Of an even number, the better one of the
        two in the middle counts as the median.

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
    """Computes the limit to which worse outcomes of a task are raised.

    With the gap between the best outcome and the median, the limit is the tenth percentile, but at
    least three gaps and at most twenty gaps below the median. So it changes few outcomes of a task
    without a heavy tail, and a diverged run is no further away than other bad runs.

    Args:
        Y: A tensor of the task's outcomes, of any shape, to be maximized. With fewer than ten, the
            limit is three gaps below the median.
        depth: The least distance from the best outcome to the limit. Use the depth of other tasks
            for a target with few outcomes, or with good ones only. If the gap is 200 times larger,
            most outcomes are diverged ones, and the depth replaces the gap.
        limit: The least feasible value of a constrained outcome. Only outcomes that violate it are
            limited.

    Returns:
        The limit; minus infinity if neither the outcomes nor ``depth`` have a spread.

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
    """Ranks values from one; equal values share the mean of their ranks.

    SciPy's ``rankdata`` takes half a second to import.

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
    """Raises the worse half of a task's outcomes to the lower half of a normal distribution.

    Outcomes below the median get, by rank, the quantiles of a normal distribution whose standard
    deviation is the root mean square distance of the better half from the median, where these are
    larger. The better half does not change. It is a one-sided form of half-rank warping
    [Song2024vizier]_. Use it while a target has too few outcomes to correct what a model expects.

    Args:
        Y: An ``n x 1`` tensor of the task's outcomes, to be maximized.

    Returns:
        An ``n x 1`` tensor, no smaller than ``Y``; ``Y`` if most outcomes are the best one.

    Example:
        >>> raise_worse_half(torch.tensor([[4.0], [3.0], [2.0], [-1e6]])).T.round(decimals=1)
        tensor([[4.0000, 3.0000, 2.8000, 2.2000]])
    """
    median = Y.max() - best_gap(Y)
    better = Y[median <= Y]
    spread = (better - median).square().mean().sqrt()
    shares = (ranks(Y[:, 0]).unsqueeze(-1) - 0.5) / len(Y)
    # At most the median: rounding errors of the median must not change the order.
    normal = median + spread * ndtri(shares.clamp_max(0.5)).to(Y)
    return torch.where((median > Y) & (spread > 0), Y.maximum(normal), Y)


def limit_outcomes(
    Y: Tensor, lowest: float, Yvar: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Raises outcomes below a robust limit to it.

    Args:
        Y: An ``n x 1`` tensor of outcomes; NaN where there is none.
        lowest: The limit.
        Yvar: An ``n x 1`` tensor of noise variances.

    Returns:
        The outcomes, and the noise variances. A limited outcome has no larger variance than the
        other ones.

    Example:
        >>> limit_outcomes(torch.tensor([[1.0], [-1e6]]), 0.5)[0].flatten().tolist()
        [1.0, 0.5]
    """
    bad = lowest > Y
    if Yvar is not None and bool(bad.any()):
        Yvar = torch.where(bad, Yvar.clamp_max(Yvar[lowest <= Y].max()), Yvar)
    return torch.where(bad, lowest, Y), Yvar


# ------------------------------------------------------------------------------------ warping

SMALLEST_ERROR = 1e-10
"""Added to an error rate before its logarithm is taken."""

LOWEST, HIGHEST = -2.0, 2.0
"""The range of outcomes with failures."""


def negative_log_error(error: Tensor) -> Tensor:
    """Maps error rates, to be minimized, to ``-log(error + 1e-10)``, to be maximized.

    Halving an error then counts the same everywhere. The map needs no other task and no other
    outcome, so a target's outcomes can be warped one by one.

    Args:
        error: A tensor of error rates, or of other losses that are not negative.

    Returns:
        A tensor of the same shape.

    Raises:
        InputDataError: If a value is negative.

    Example:
        >>> negative_log_error(torch.tensor([0.5, 0.01]))
        tensor([0.6931, 4.6052])
    """
    if bool((error < 0).any()):
        raise InputDataError("An error rate is negative: warp accuracies as 1 - accuracy.")
    return -torch.log(error + SMALLEST_ERROR)


def compress_failures(Y: Tensor) -> Tensor:
    r"""Maps one task's outcomes to ``[-2, 2]``: the best to 2, failures to -2, bad ones near -2.

    With the median ``m`` and the maximum of the outcomes that are finite,

    .. code-block:: text

        y ← 4 softplus(y - m) / softplus(max - m) - 2

    so that a diverged run, however bad, is just bad. The map depends on all outcomes of the task:
    warp a target's measured outcomes again after each evaluation. Its softplus bends within one
    unit of the outcome, which suits error rates and cross entropies.

    Args:
        Y: An ``n x 1`` tensor of one task's outcomes, to be maximized; NaN or infinite where the
            evaluation failed.

    Returns:
        An ``n x 1`` tensor, finite.

    Example:
        >>> compress_failures(torch.tensor([[-0.7], [-0.5], [-1e9], [torch.nan]])).squeeze()
        tensor([ 1.4738,  2.0000, -2.0000, -2.0000])
    """
    feasible = Y.isfinite()
    if not bool(feasible.any()):
        return torch.full_like(Y, LOWEST)
    finite = Y[feasible].double()
    median = finite.quantile(0.5) if len(finite) < 2**24 else finite.median()
    share = softplus(Y.double() - median) / softplus(finite.max() - median)
    warped = LOWEST + (HIGHEST - LOWEST) * share
    return torch.where(feasible, warped, LOWEST).to(Y)
