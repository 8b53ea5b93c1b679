"""Standardization and warping of outcomes."""

import math
import warnings

import numpy as np
import pytest
import torch
from botorch.models.transforms.outcome import Standardize
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.types import DEFAULT
from gpytorch.distributions import MultivariateNormal
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close

from botorch_transfer.datasets import load_tuning_history
from botorch_transfer.outcome_transforms import (
    OutcomeMoments,
    PooledStandardize,
    best_gap,
    limit_outcomes,
    raise_worse_half,
    resolve_transform,
    robust_limit,
    usable_std,
)

SOURCES = torch.tensor([3.0, 5.0, 10.0, 2.0], dtype=torch.double)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.double).unsqueeze(-1)


def learned(transform: PooledStandardize, Y: torch.Tensor) -> tuple[float, float]:
    transform(Y)
    return transform.means.item(), transform.stdvs.item()


@given(st.lists(st.floats(-100, 100), max_size=6), st.lists(st.floats(-100, 100), min_size=2))
def test_scale_is_that_of_all_outcomes(target: list[float], sources: list[float]) -> None:
    sources = [*sources, 7.0, 8.0]
    pooled = torch.tensor(sources + target, dtype=torch.double)
    transform = PooledStandardize(torch.tensor(sources, dtype=torch.double))
    mean, stdv = learned(transform, torch.tensor(target, dtype=torch.double).reshape(-1, 1))
    assert mean == pytest.approx(pooled.mean().item(), abs=1e-10)
    assert stdv == pytest.approx(pooled.std().item(), rel=1e-10)


def test_without_the_target() -> None:
    transform = PooledStandardize(SOURCES, include_target=False)
    for target in (column(), column(1e3), column(1.0, 2.0, 3.0)):
        mean, stdv = learned(transform, target)
        assert (mean, stdv) == pytest.approx((5.0, SOURCES.std().item()))


def test_standardizes_outcomes_and_variances() -> None:
    transform, Y = PooledStandardize(SOURCES), column(4.0, 8.0)
    pooled = torch.cat([SOURCES, Y.flatten()])
    ours, Yvar = transform(Y, column(0.1, 0.2))
    assert_close(ours, (Y - pooled.mean()) / pooled.std())
    assert_close(Yvar, column(0.1, 0.2) / pooled.var())
    again, Yvar = transform.untransform(ours, Yvar)
    assert_close(again, Y)
    assert_close(Yvar, column(0.1, 0.2))


def test_learns_in_training_mode_only() -> None:
    transform = PooledStandardize(SOURCES)
    before = learned(transform, column(4.0))
    transform.eval()
    assert learned(transform, column(100.0, 200.0)) == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 1000.1, -1e9])
def test_constant_outcomes(value: float, dtype: torch.dtype) -> None:
    outcomes = torch.full((37,), value, dtype=dtype)
    for target in (outcomes[:0], outcomes[:1], outcomes):
        transform = PooledStandardize(outcomes)
        Y, _ = transform(target.unsqueeze(-1))
        assert transform.stdvs.item() == 1.0
        assert_close(Y, torch.zeros_like(Y), atol=1e-4 * max(1, abs(value)), rtol=0)


def test_one_outcome_in_all() -> None:
    transform = PooledStandardize(torch.tensor([4.0]).double())
    assert learned(transform, column()) == (4.0, 1.0)


def test_large_outcomes_do_not_overflow_in_single_precision() -> None:
    transform = PooledStandardize(torch.tensor([1e25, 3e25]))
    Y, _ = transform(torch.tensor([[2e25]]))
    assert torch.equal(Y, torch.zeros(1, 1))
    transform.to(torch.float32).train()
    assert transform(torch.tensor([[3e25]]))[0].isfinite().all()


def test_target_decides_the_dtype() -> None:
    transform = PooledStandardize(SOURCES)
    Y, _ = transform(column(1.0, 2.0).float())
    assert Y.dtype is transform.means.dtype is transform.stdvs.dtype is torch.float32


@pytest.mark.parametrize("n", [0, 1, 5])
def test_batch(n: int) -> None:
    Y = torch.rand(3, 2, n, 1, dtype=torch.double)
    transform = PooledStandardize(SOURCES, batch_shape=torch.Size([3, 2]))
    ours, Yvar = transform(Y, Y + 1)
    assert ours.shape == Yvar.shape == Y.shape
    assert transform.means.shape == transform.stdvs.shape == (3, 2, 1, 1)
    alone, _ = PooledStandardize(SOURCES)(Y[1, 0])
    assert_close(ours[1, 0], alone)


def test_posterior_in_the_users_units() -> None:
    transform = PooledStandardize(SOURCES)
    transform(column(4.0, 8.0))
    root = torch.rand(3, 3, dtype=torch.double) + torch.eye(3)
    mvn = MultivariateNormal(torch.rand(3).double(), root @ root.mT)
    posterior = transform.untransform_posterior(GPyTorchPosterior(mvn))
    scale = transform.stdvs.item()
    assert isinstance(posterior, GPyTorchPosterior)
    assert_close(posterior.mean.squeeze(), transform.means.item() + scale * mvn.mean)
    covariance = posterior.distribution.covariance_matrix
    assert_close(covariance, scale**2 * mvn.covariance_matrix)


def test_untransform_needs_a_scale() -> None:
    with pytest.raises(RuntimeError, match="must be called on outcome data"):
        PooledStandardize(SOURCES).untransform(column(1.0))


def test_source_outcomes_of_any_shape_carry_no_graph() -> None:
    transform = PooledStandardize(SOURCES.reshape(2, 2, 1).requires_grad_())
    transform(column(1.0))
    assert not transform.stdvs.requires_grad


def test_usable_std() -> None:
    deviation = torch.tensor([0.0, 1e-9, 1e-3, 2.0], dtype=torch.double)
    ones = torch.ones(4).double()
    expected = torch.tensor([1.0, 1e-9, 1e-3, 2.0]).double()
    assert_close(usable_std(deviation, ones), expected, atol=0, rtol=1e-6)
    # Around 1e14, numbers are 0.016 apart.
    expected = torch.tensor([1.0, 1.0, 1.0, 2.0]).double()
    assert torch.equal(usable_std(deviation, 1e14 * ones), expected)
    # Variances of smaller ones would be zero.
    assert usable_std(torch.tensor(1e-25), torch.tensor(0.0)) == 1.0


@pytest.mark.parametrize("unit", [1e-12, 1e12])
@pytest.mark.parametrize("pooled", [True, False])
def test_outcomes_in_any_unit_have_a_scale(unit: float, pooled: bool) -> None:
    def standardized(unit: float) -> torch.Tensor:
        sources, Y = SOURCES.double() * unit, column(1.0, 2.0, 4.0).double() * unit
        if pooled:
            return PooledStandardize(sources)(Y)[0]
        return PooledStandardize(OutcomeMoments(0, sources.mean(), sources.std()))(Y)[0]

    assert_close(standardized(unit), standardized(1.0))


# ------------------------------------------------------------------- the target's outcomes alone


def own(*batch_shape: int) -> PooledStandardize:
    typical = OutcomeMoments(0, *torch.tensor([50.0, 10.0], dtype=torch.double))
    return PooledStandardize(typical, batch_shape=torch.Size(batch_shape))


def test_own_outcomes_count_as_in_standardize():
    Y = 3 + 7 * torch.rand(2, 5, 1, dtype=torch.double)
    Yvar = torch.rand(2, 5, 1, dtype=torch.double)
    transform, expected = own(2), Standardize(1, batch_shape=torch.Size([2]))
    assert_close(transform(Y, Yvar), expected(Y, Yvar))
    assert_close(transform.untransform(Y, Yvar), expected.untransform(Y, Yvar))


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [([], 50.0, 10.0), ([3.0], 3.0, 10.0), ([3.0, 3.0, 3.0], 3.0, 10.0), ([1.0, 3.0], 2.0, 2**0.5)],
)
def test_what_is_typical_stands_in(values, mean, std):
    transform = own()
    Y = torch.tensor(values, dtype=torch.double).unsqueeze(-1)
    found, _ = transform(Y)
    assert float(transform.means) == pytest.approx(mean)
    assert float(transform.stdvs) == pytest.approx(std)
    assert_close(found, (Y - mean) / std)
    transform.eval()
    above = torch.full((1, 1), mean + std, dtype=torch.double)
    assert_close(transform(above)[0], torch.ones_like(above))


@pytest.mark.parametrize("include_target", [False, True])
def test_moments_stand_in_for_the_outcomes(include_target):
    outcomes, Y = torch.randn(9).double(), torch.randn(4, 1).double()
    expected = PooledStandardize(outcomes, include_target)(Y)[0]
    mean, spread = outcomes.mean(), outcomes.std(correction=0)
    transform = PooledStandardize(OutcomeMoments(9, mean, spread), include_target)
    assert_close(transform(Y)[0], expected)
    transform.load_state_dict({n: t + 1 for n, t in transform.state_dict().items()})
    assert_close(mean, outcomes.mean())  # a copy was loaded into


# ------------------------------------------------------------------------------- robust limits


@pytest.mark.parametrize(
    ("outcomes", "gap"),
    [
        ([], 0.0),
        ([7.0], 0.0),
        ([2.0, 2.0, 2.0], 0.0),
        ([1.0, 3.0, 4.0], 1.0),
        ([-1e30, 3.0, 4.0], 1.0),
        ([4.0, 1.0], 0.0),  # the median of two tells nothing
        ([4.0, 3.0, 1.0, 0.0], 1.0),
        ([4.0, 4.0, 1.0], 3.0),  # most outcomes tie at the best
        ([0.0, 0.0, 0.0, -1.0, -5.0, -7.0], 5.0),
        ([4.0, 4.0, 1.0, 1.0], 3.0),
        ([1e308, -1e308, -1e308], math.inf),
    ],
)
def test_best_gap(outcomes: list[float], gap: float) -> None:
    assert best_gap(column(*outcomes)) == gap
    assert best_gap(column(*outcomes).flip(0).squeeze(-1)) == gap


@pytest.mark.parametrize(
    ("outcomes", "options", "lowest"),
    [
        ([], {"depth": 8.0}, -math.inf),
        ([7.0], {}, -math.inf),  # tells no limit
        ([7.0], {"depth": 8.0}, -1.0),
        ([2.0, 2.0], {}, -math.inf),
        ([2.0, 2.0], {"depth": 4.0}, -2.0),
        ([4.0, 3.0, 0.0], {}, 0.0),  # 3 - 3 * (4 - 3)
        ([4.0, 3.0, 0.0], {"depth": 2.0}, 0.0),  # own outcomes have the larger one
        ([4.0, 3.0, 0.0], {"depth": 8.0}, -4.0),
        ([4.0, 4.0, 4.0, 4.0, 3.0, 1.0, -9.0], {}, -8.0),  # the other ones' median is 1
        ([*range(10)], {}, -7.0),  # the median is 5
        ([9, 8, 7, 6, 5, -30, -40, -50, -60, -1e6], {}, -60.0),  # the tenth percentile
        ([9, 8, 7, 6, 5, -30, -40, -50, -1e5, -1e6], {}, -75.0),  # 20 gaps below the median
        ([-1.2, -1e5, -2e5, -3e5], {"depth": 0.4}, -2.8),  # most outcomes are diverged ones
        ([4.0, 3.0, 0.0], {"limit": -100.0}, -101.0),  # only what violates the limit, and clearly
        ([4.0, 3.0, 0.0], {"limit": 0.5}, -0.5),
        ([4.0, 3.0, 0.0], {"limit": 3.5}, 0.0),
    ],
)
def test_robust_limit(outcomes: list[float], options: dict[str, float], lowest: float) -> None:
    assert robust_limit(column(*outcomes), **options) == pytest.approx(lowest)


OUTCOMES = st.one_of(
    st.floats(-5, 5), st.sampled_from([0.0, 1.0, -1e3, 1e3, -1e30, 1e30, -1.7e308, 1.7e308])
)


@given(st.lists(OUTCOMES, max_size=24), st.floats(0, 9), st.none() | st.floats(-4, 4))
def test_outcomes_on_the_good_side_never_change(
    outcomes: list[float], depth: float, limit: float | None
) -> None:
    Y = column(*outcomes)
    assume(not best_gap(Y) > 200 * depth > 0)  # then most outcomes are diverged ones
    limited, _ = limit_outcomes(Y, lowest := robust_limit(Y, depth, limit))
    raised = Y.lt(lowest)
    assert torch.equal(limited, Y.clamp_min(lowest))
    good = Y.ge(float(np.median(outcomes)) if outcomes else 0.0)
    if limit is not None:
        good |= Y.ge(limit)
    assert not (raised & good).any()
    assert (raised.sum() <= len(Y) / 2) or limit is not None
    assert (limited.diff(dim=0).sign() * Y.diff(dim=0).sign() >= 0).all()  # order is kept
    assert_close(limit_outcomes(limited, robust_limit(limited, depth, limit))[0], limited)


def test_limited_outcomes_are_no_noisier_than_others() -> None:
    Y, Yvar = column(1.0, 0.9, 0.8, -1e6, -1e3), column(0.1, 0.3, 0.2, 1e9, 0.05)
    found, variances = limit_outcomes(Y, 0.4, Yvar)
    assert found.flatten().tolist() == [1.0, 0.9, 0.8, 0.4, 0.4]
    assert variances.flatten().tolist() == [0.1, 0.3, 0.2, 0.3, 0.05]
    Y = column(1.0, math.nan, 0.1)
    assert limit_outcomes(Y, 0.4)[0].isnan().flatten().tolist() == [False, True, False]
    assert Y[2] == 0.1  # a copy
    unchanged = limit_outcomes(Y, -math.inf, Yvar[:3])[1]
    assert torch.equal(unchanged, Yvar[:3])


# ------------------------------------------------------------------------------- ranks of bad runs


def test_the_worse_half_counts_by_rank():
    Y = torch.tensor([[4.0], [3.0], [2.0], [-1e6]], dtype=torch.double)
    raised = raise_worse_half(Y)
    spread = 0.5**0.5  # of 4 and 3 around the median 3
    normal = torch.distributions.Normal(3.0, spread)
    expected = [4.0, 3.0, *normal.icdf(torch.tensor([0.375, 0.125])).tolist()]
    assert raised.flatten().tolist() == pytest.approx(expected, abs=1e-6)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_ranks_only_raise_and_keep_the_order(values):
    Y = torch.tensor(values, dtype=torch.double).unsqueeze(-1)
    raised = raise_worse_half(Y)
    assert bool((raised >= Y).all())
    better = Y.max() - best_gap(Y) <= Y
    assert torch.equal(raised[better], Y[better])
    order = Y[:, 0].argsort()
    assert bool((raised[order, 0].diff() >= -1e-9 * Y.abs().max().clamp_min(1)).all())


def test_outcomes_near_the_median_are_not_made_worse():
    Y = torch.tensor([[10.0], [5.0], [1.0], [0.9], [0.8]], dtype=torch.double)
    assert torch.equal(raise_worse_half(Y), Y)


# ---------------------------------------------------------------------------------- another unit


def of_tasks(*outcomes):
    values = [torch.as_tensor(each, dtype=torch.double) for each in outcomes]
    task = torch.arange(len(values)).repeat_interleave(torch.tensor([len(v) for v in values]))
    return torch.cat(values), task


def noticed(Y, *outcomes):
    Y = torch.as_tensor(Y, dtype=torch.double).unsqueeze(-1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resolve_transform(DEFAULT, (), lambda: None, Y, of_tasks(*outcomes))
    return "".join(str(each.message) for each in caught)


OLD = {
    "around zero": [torch.linspace(-2.0, 2.0, 30), torch.linspace(-1.0, 3.0, 20)],
    "per cent": [torch.linspace(20.0, 80.0, 30), torch.linspace(40.0, 95.0, 20)],
    "losses": [-torch.linspace(20.0, 80.0, 30), -torch.linspace(40.0, 95.0, 20)],
    "down to zero": [torch.linspace(0.1, 80.0, 30), torch.linspace(0.5, 95.0, 20)],
}


@pytest.mark.parametrize("sources", OLD.values(), ids=OLD)
def test_units_of_a_target(sources):
    Y = sources[1][::4]
    assert noticed(Y, *sources) == ""
    has_sign = "opposite sign of the old outcomes" in noticed(-Y[:2], *sources)
    assert has_sign == (len(torch.cat(sources).sign().unique()) == 1)
    assert "(divided by 100 it fits)" in noticed(100 * Y, *sources)
    assert "(divided by 1000 it fits)" in noticed(1000 * Y, *sources)
    assert "(times 100 it fits)" in noticed(Y / 100, *sources)
    found = noticed(1e9 * Y, *sources)
    assert "it fits" not in found
    ends = found.split("far from the outcomes of all old tasks, ")[1].split(": ")[0].split(" to ")
    assert float(ends[0]) < float(ends[1])


@pytest.mark.parametrize("name", OLD)
def test_targets_that_are_in_no_other_unit(name):
    sources, Y = OLD[name], OLD[name][1][::4]
    for few in (Y[:0], 100 * Y[:1], 100 * Y[:2], 100 * Y[[0, 0, 0]]):  # none, one, two, constant
        assert noticed(few, *sources) == ""
    high, low = (max(float(y.max()) for y in sources), min(float(y.min()) for y in sources))
    better = high + (high - low) * torch.tensor([0.2, 0.5, 0.9])
    assert noticed(better, *sources) == ""
    assert noticed(Y / 100, *sources, sources[0] / 100) == ""  # the sources' units differ
    assert noticed(100 * Y, *sources, 100 * sources[0]) == ""
    assert noticed([*Y, -1e9], *sources) == ""  # one run diverged
    assert noticed(Y, torch.ones(20)) == ""


def test_another_level_that_no_usual_factor_explains_is_no_other_unit():
    sources = OLD["per cent"]
    assert noticed(300 + sources[1][::4], *sources) == ""
    assert noticed(1000 * sources[0][::3], *(sources[0] * 10**i for i in range(3))) == ""
    assert "fits" not in noticed([0.8, 0.85, 0.9], -torch.linspace(0.02, 0.5, 20))
    losses = -torch.linspace(0.1, 3.0, 40)  # that approach zero
    assert noticed([-0.02, -0.03, -0.01, -0.02], losses, 2 * losses) == ""


@pytest.mark.parametrize("outcome", ["log_loss", "accuracy", "fit_seconds"])
@pytest.mark.parametrize("space", ["svm", "gbm", "mlp", "forest"])
def test_no_task_of_the_shipped_history_is_in_another_unit(space, outcome):
    history = load_tuning_history(space).dropna(subset=[outcome])
    sign = 1.0 if outcome == "accuracy" else -1.0
    tasks = {name: sign * rows[outcome].to_numpy() for name, rows in history.groupby("task")}
    for name, Y in tasks.items():
        others = [each for other, each in tasks.items() if other != name]
        for few in (Y[:3], Y[:10], np.sort(Y)[-5:]):
            assert noticed(few, *others) == ""
