"""NLL and EKL against direct evaluations, matching inputs, and the losses made of them."""

import numpy as np
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from scipy.stats import multivariate_normal
from torch.distributions import MultivariateNormal

from botorch_transfer.data import as_datasets
from botorch_transfer.gp.likelihood import nll
from botorch_transfer.gp.tasks import PaddedTasks, outcome_scales
from botorch_transfer.hyperbo import fit
from botorch_transfer.hyperbo.fit import (
    EmpiricalGaussian,
    GroupEKL,
    RandomBatches,
    SourceLoss,
    ekl,
    find_matching_groups,
    nll_of_tasks,
)
from botorch_transfer.pretraining import PretrainedPrior, PretrainingOptions
from tests.families import ShiftedSines

FAMILY = ShiftedSines()


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))


def covariances(*shape, seed=1):
    root = draw(*shape, shape[-1], seed=seed)
    return root @ root.mT + 0.3 * torch.eye(shape[-1], dtype=torch.double)


def naive_nll(mean, covariance, Y):
    return -multivariate_normal(mean.numpy(), covariance.numpy()).logpdf(Y.numpy())


def naive_ekl(mean, covariance, Y, rank):
    """On an orthonormal basis of the support, where everything is an ordinary Gaussian."""
    Y, mean, covariance = Y.numpy(), mean.numpy(), covariance.numpy()
    empirical_mean = Y.mean(axis=1)
    empirical = np.cov(Y, bias=True).reshape(len(Y), len(Y))
    values, vectors = np.linalg.eigh(empirical)
    A = vectors[:, -rank:] * np.sqrt(values[-rank:])
    pinv = np.linalg.pinv(A)
    S, m = pinv @ covariance @ pinv.T, pinv @ (mean - empirical_mean)
    inverse = np.linalg.inv(S)
    return 0.5 * (np.trace(inverse) + m @ inverse @ m + np.log(np.linalg.det(S)) - rank)


def ranks(empirical):
    return (empirical.whitening != 0).any(dim=-1).sum(dim=-1).tolist()


def test_nll_of_ragged_tasks():
    mean, covariance, Y = draw(3, 5), covariances(3, 5), draw(3, 5, seed=2)
    sizes = torch.tensor([5, 1, 3])
    mask = torch.arange(5) < sizes.unsqueeze(-1)
    expected = [
        naive_nll(m[:n], K[:n, :n], y[:n])
        for m, K, y, n in zip(mean, covariance, Y, sizes.tolist(), strict=True)
    ]
    np.testing.assert_allclose(nll(mean, covariance, Y, mask), expected, rtol=1e-10)
    padded = Y.masked_fill(~mask, 1e3)
    assert torch.equal(nll(mean, covariance, padded, mask), nll(mean, covariance, Y, mask))


@pytest.mark.parametrize(("P", "N"), [(4, 9), (1, 2), (3, 4)])
def test_ekl_of_full_rank_is_the_divergence(P, N):
    Y, mean, covariance = draw(P, N), draw(P, seed=3), covariances(P)
    value = ekl(mean[None], covariance[None], EmpiricalGaussian.of([Y]))
    ours = MultivariateNormal(mean, covariance)
    sample = MultivariateNormal(Y.mean(-1), torch.cov(Y, correction=0).reshape(P, P))
    expected = torch.distributions.kl_divergence(sample, ours)
    torch.testing.assert_close(value[0], expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(value, [naive_ekl(mean, covariance, Y, P)], rtol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_rounding_errors_are_no_rank(seed):
    """Rounding leaves singular values of five to ten ε, relative to the largest, besides three."""
    Y = draw(40, 3, seed=seed) @ draw(3, 30, seed=seed + 100) + 20.0
    empirical = EmpiricalGaussian.of([Y])
    assert ranks(empirical) == [3]
    mean, covariance = draw(40, seed=3), covariances(40)
    value = ekl(mean[None], covariance[None], empirical)
    np.testing.assert_allclose(value, [naive_ekl(mean, covariance, Y, 3)], rtol=1e-8)


def test_ekl_of_tasks_that_are_copies():
    """Rank is what differs, not the number of tasks."""
    Y, mean, covariance = draw(6, 3), draw(6, seed=3), covariances(6)
    doubled = EmpiricalGaussian.of([Y.repeat(1, 2)])
    assert ranks(doubled) == [2]
    value = ekl(mean[None], covariance[None], doubled)
    torch.testing.assert_close(value, ekl(mean[None], covariance[None], EmpiricalGaussian.of([Y])))


def test_ekl_of_several_groups_of_different_sizes():
    sizes = [(6, 3, 2), (2, 8, 2), (4, 5, 4), (1, 2, 1)]
    outcomes = [draw(P, N, seed=P) for P, N, _ in sizes]
    empirical = EmpiricalGaussian.of(outcomes)
    assert ranks(empirical) == [rank for _, _, rank in sizes]
    mean, covariance = draw(4, 6, seed=9), covariances(4, 6)
    expected = [
        naive_ekl(m[:P], K[:P, :P], Y, rank)
        for m, K, Y, (P, _, rank) in zip(mean, covariance, outcomes, sizes, strict=True)
    ]
    np.testing.assert_allclose(ekl(mean, covariance, empirical), expected, rtol=1e-8)


def assert_matching(group, tasks):
    """The rows of a group are the same inputs in all of its tasks."""
    pairs = zip(group.tasks.tolist(), group.rows.mT, strict=True)
    first, *others = (tasks[task][rows] for task, rows in pairs)
    for other in others:
        torch.testing.assert_close(first, other, atol=1e-8, rtol=0)


def test_several_designs_are_several_groups():
    A, B = FAMILY.inputs(4), FAMILY.inputs(3, seed=1)
    own = [FAMILY.inputs(2, seed=seed) for seed in range(2, 6)]
    tasks = [torch.cat(parts) for parts in zip([A, A, B, torch.cat([A, B])], own, strict=True)]
    first, second = find_matching_groups(tasks)
    assert first.tasks.tolist() == [0, 1, 3]
    assert second.tasks.tolist() == [2, 3]
    assert (len(first.rows), len(second.rows)) == (4, 3)
    for group in (first, second):
        assert_matching(group, tasks)


def test_rounding_errors_don_t_part_inputs():
    X = torch.linspace(0, 1, 7).double().unsqueeze(-1)
    tasks = [X, X + 3e-10, X - 3e-10]
    (group,) = find_matching_groups(tasks)
    assert group.rows.shape == (7, 3)
    with pytest.raises(InputDataError, match="objective='nll'"):
        find_matching_groups(tasks, tolerance=1e-12)


def test_a_tolerance_of_zero_compares_exactly():
    tasks = [(X, X[:, :1]) for X in (FAMILY.inputs(4), FAMILY.inputs(4) + 1e-9)]
    for tolerance in (0.0, 1e-12):
        with pytest.raises(InputDataError, match="objective='nll'"):
            PretrainedPrior.stationary(2).fit(tasks, "ekl", tolerance=tolerance)


def test_repeated_inputs_count_once_with_their_first_row():
    X = FAMILY.inputs(3)
    (group,) = find_matching_groups([X[[0, 1, 0, 2]], X[[2, 2, 0]]])
    assert group.rows.tolist() == [[0, 2], [3, 0]]


def test_given_groups_may_overlap():
    A, B = FAMILY.inputs(4), FAMILY.inputs(3, seed=1)
    tasks = [torch.cat([A, B]), A, torch.cat([B, A])]
    pair, triple = find_matching_groups(tasks, groups=[[0, 2], [0, 1, 2]])
    assert len(pair.rows) == 7
    assert len(triple.rows) == 4
    for group in (pair, triple):
        assert_matching(group, tasks)


@pytest.mark.parametrize("members", [[0], [0, 0], [0, 5], [-1, 0]])
def test_unfit_groups_are_refused(members):
    with pytest.raises(InputDataError, match="two or more source tasks"):
        find_matching_groups([FAMILY.inputs(3), FAMILY.inputs(3)], groups=[members])


def test_a_group_without_common_inputs_is_refused():
    tasks = [FAMILY.inputs(3), FAMILY.inputs(3), FAMILY.inputs(3, seed=1)]
    with pytest.raises(InputDataError, match="that share an input"):
        find_matching_groups(tasks, groups=[[0, 1], [0, 2]])


def parts():
    parts = PretrainedPrior.hyperbo(2, hidden=(4,)).gp(torch.Size(), fit=True)
    parts.mean_module.weight.data.fill_(0.3)
    return parts


def ragged(known_noise=()):
    tasks = []
    for name, (X, Y) in FAMILY.sources((9, 1, 12)).items():
        noise = torch.full_like(Y, 0.2) if name in known_noise else None
        tasks.append((X, (Y - 50) / 10) if noise is None else (X, (Y - 50) / 10, noise))
    return PaddedTasks.from_datasets(as_datasets(tasks))


def loss_of(tasks, objective="nll", **options):
    return SourceLoss(tasks, PretrainingOptions(objective=objective, **options))


def naive_task_nll(gp, X, Y, noise):
    mean, covariance = gp.mean_module(X), gp.covar_module(X).to_dense()
    covariance = covariance + torch.diag(noise.expand(len(X)))
    return -MultivariateNormal(mean, covariance).log_prob(Y)


@pytest.mark.parametrize("known_noise", [(), ("task 0",), ("task 0", "task 1", "task 2")])
@pytest.mark.parametrize("chunk_elements", [1, 200, 2**20])
def test_full_nll(known_noise, chunk_elements, monkeypatch):
    monkeypatch.setattr(fit, "CHUNK_ELEMENTS", chunk_elements)
    gp, tasks = parts(), ragged(known_noise)
    expected = [
        naive_task_nll(gp, X[mask], Y[mask], Yvar[mask] if fixed else gp.noise)
        for X, Y, Yvar, mask, fixed in zip(
            tasks.X, tasks.Y, tasks.Yvar, tasks.mask, tasks.fixed_noise, strict=True
        )
    ]
    values = torch.cat(list(nll_of_tasks(gp, tasks)))
    torch.testing.assert_close(values.sort().values, torch.stack(expected).sort().values)
    loss = loss_of(tasks).evaluate(gp)
    torch.testing.assert_close(loss, torch.stack(expected).mean().detach())
    expected_gradients = torch.autograd.grad(
        torch.stack(expected).mean(), list(gp.parameters()), allow_unused=True
    )
    for parameter, gradient in zip(gp.parameters(), expected_gradients, strict=True):
        expected_gradient = torch.zeros_like(parameter) if gradient is None else gradient
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found, expected_gradient, rtol=1e-6, atol=1e-8)


def test_ekl_of_groups_of_different_sizes_and_noise():
    A, B = FAMILY.inputs(5), FAMILY.inputs(3, seed=1)
    inputs = [A, torch.cat([B, A]), A.flip(0), B]
    shifts = (0.1, 0.5, 0.9, 0.3)
    outcomes = [FAMILY.value(X, s) / 10 for X, s in zip(inputs, shifts, strict=True)]
    noise = torch.full_like(outcomes[1], 0.4)
    data = list(zip(inputs, outcomes, strict=True))
    tasks = PaddedTasks.from_datasets(as_datasets([data[0], (*data[1], noise), *data[2:]]))
    gp, loss = parts(), GroupEKL.of(tasks, find_matching_groups(inputs))
    expected = []
    for X, Y, own_noise in (
        (A, [outcomes[0], outcomes[1][3:], outcomes[2].flip(0)], (2 * gp.noise + 0.4) / 3),
        (B, [outcomes[1][:3], outcomes[3]], (gp.noise + 0.4) / 2),
    ):
        covariance = gp.covar_module(X).to_dense() + torch.eye(len(X)) * own_noise
        empirical = EmpiricalGaussian.of([torch.cat(Y, dim=-1)])
        expected.append(ekl(gp.mean_module(X)[None], covariance[None], empirical))
    torch.testing.assert_close(loss.full(gp), torch.cat(expected).mean())


def test_both_objectives_at_once():
    X = FAMILY.inputs(6)
    tasks = prepare(as_datasets([(X, FAMILY.value(X, shift)) for shift in (0.1, 0.4, 0.9)]))
    gp = parts()
    losses = {}
    for objective in ("nll", "ekl", "nll+ekl"):
        loss = loss_of(tasks, objective, nll_weight=0.3)
        losses[objective] = loss.evaluate(gp)
        sampled = loss.evaluate(gp, step=0)
        torch.testing.assert_close(sampled, losses[objective])
    torch.testing.assert_close(losses["nll+ekl"], losses["ekl"] + 0.3 * losses["nll"])


def test_huge_groups_are_thinned():
    X = FAMILY.inputs(50)
    tasks = prepare(as_datasets([(X, FAMILY.value(X)), (X.flip(0), FAMILY.value(X, 0.3).flip(0))]))
    thin = loss_of(tasks, "ekl", seed=3, max_points=20).group_ekl.X[0]
    rows = (thin.unsqueeze(1) == X).all(dim=-1).nonzero()[:, 1]
    assert len(rows) == 20
    assert (rows.diff() > 0).all()
    assert torch.equal(loss_of(tasks, "ekl", seed=3, max_points=20).group_ekl.X[0], thin)
    assert not torch.equal(loss_of(tasks, "ekl", seed=4, max_points=20).group_ekl.X[0], thin)
    assert torch.equal(loss_of(tasks, "ekl", max_points=50).group_ekl.X[0], X)


@pytest.mark.parametrize("level", [0.0, 1e6])
def test_groups_of_equal_tasks_are_left_out(level):
    X, other = FAMILY.inputs(4), FAMILY.inputs(3, seed=1)
    same = [(X, level + FAMILY.value(X))] * 2
    different = [(other, FAMILY.value(other, shift)) for shift in (0.0, 0.5)]
    tasks = PaddedTasks.from_datasets(as_datasets(same + different))
    inputs = [X[mask] for X, mask in zip(tasks.X, tasks.mask, strict=True)]
    assert GroupEKL.of(tasks, find_matching_groups(inputs)).X.shape == (1, 3, 2)
    only_same = PaddedTasks.from_datasets(as_datasets(same))
    with pytest.raises(InputDataError, match="have the same outcomes at these inputs"):
        GroupEKL.of(only_same, find_matching_groups([X, X]))


DATA = as_datasets(FAMILY.sources((6, 4)))


def prepare(data=DATA):
    tasks = PaddedTasks.from_datasets(data)
    return tasks.standardize(*outcome_scales(tasks, "pooled"))


# -------------------------------------------------------------------------------------- sub-samples


STEPS = 600


def sub_samples(tasks, batch_size, task_batch_size, seed=0):
    options = PretrainingOptions(batch_size=batch_size, task_batch_size=task_batch_size, seed=seed)
    return RandomBatches(tasks, options)


def numbered(sizes=(9, 1, 12), known_noise=(), device=None):
    """Tasks whose points are told by their outcome: ``100 task + row``, which is the input, too."""
    tasks = []
    for task, size in enumerate(sizes):
        Y = (100.0 * task + torch.arange(size, dtype=torch.double, device=device)).unsqueeze(-1)
        X = torch.cat([Y, -Y], dim=-1)
        tasks.append((X, Y, Y + 0.5) if task in known_noise else (X, Y))
    return PaddedTasks.from_datasets(as_datasets(tasks))


def drawn(batches, steps=STEPS):
    """Outcomes, ``steps x T x B``; NaN where there is none."""
    found = (batches[step] for step in range(steps))
    return torch.stack([torch.where(tasks.mask, tasks.Y, torch.nan) for tasks in found])


@pytest.mark.parametrize("batch_size", [1, 5])
def test_every_point_is_equally_likely(batch_size):
    tasks = numbered()
    Y = drawn(sub_samples(tasks, batch_size, task_batch_size=10, seed=0))
    assert Y.shape == (STEPS, 3, batch_size)
    for number, size in enumerate([9, 1, 12]):
        values = Y[:, number]
        kept = values[~values.isnan()].reshape(STEPS, -1)
        assert kept.shape[1] == min(batch_size, size)
        assert all(len(row.unique()) == len(row) for row in kept)
        share = torch.stack([(kept == y).any(-1).double().mean() for y in tasks.Y[number, :size]])
        expected = min(batch_size, size) / size
        torch.testing.assert_close(share, torch.full_like(share, expected), atol=0.09, rtol=0)


def test_every_task_is_equally_likely():
    Y = drawn(sub_samples(numbered((5, 5, 5, 5)), batch_size=2, task_batch_size=3, seed=1))
    number = Y[..., 0].div(100, rounding_mode="floor")
    assert all(len(row.unique()) == 3 for row in number)
    share = torch.stack([(number == task).any(-1).double().mean() for task in range(4)])
    torch.testing.assert_close(share, torch.full_like(share, 0.75), atol=0.06, rtol=0)


def test_rows_stay_together():
    batches = sub_samples(numbered((9, 4, 12), known_noise=(0, 2)), 6, 2, seed=0)
    for step in range(20):
        tasks = batches[step]
        X, Y, mask = tasks.X, tasks.Y, tasks.mask
        torch.testing.assert_close(X[mask], torch.stack([Y, -Y], dim=-1)[mask])
        assert (Y[~mask] == 0).all()
        number = Y.amax(dim=-1).div(100, rounding_mode="floor")
        assert torch.equal(tasks.fixed_noise, number != 1)
        expected = torch.where(tasks.fixed_noise.unsqueeze(-1), Y + 0.5, 0.0)
        torch.testing.assert_close(tasks.Yvar[mask], expected[mask])


def test_padding_is_announced():
    assert not sub_samples(numbered((5, 9)), 5, 2).is_padded
    assert sub_samples(numbered((4, 9)), 5, 2).is_padded


@pytest.mark.parametrize("elements", [1, 100, 2**17])
def test_a_step_has_its_batch_whenever_it_is_asked_for(elements, monkeypatch):
    """So an interrupted run goes on with the batches that it would have had."""
    monkeypatch.setattr(fit, "RANDOM_NUMBERS", elements)
    batches = sub_samples(numbered(), 4, 2, seed=3)
    assert batches.block_size == max(1, elements // 24)
    forwards = [batches[step] for step in range(12)]
    for step in (11, 0, 5, 4, 7):
        again = sub_samples(numbered(), 4, 2, seed=3)[step]
        for batch in (batches[step], again):
            assert torch.equal(batch.X, forwards[step].X)
            assert torch.equal(batch.Y, forwards[step].Y)


@pytest.mark.parametrize("elements", [1, 2**17])
def test_steps_and_seeds_differ(elements, monkeypatch):
    monkeypatch.setattr(fit, "RANDOM_NUMBERS", elements)
    batches = [sub_samples(numbered((50, 50)), 20, 2, seed) for seed in (0, 1, -1)]
    found = {tuple(each[step].Y.flatten().tolist()) for each in batches for step in range(5)}
    assert len(found) == 15
