import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import joblib
import pytest
import torch
from botorch.optim.fit import fit_gpytorch_mll_scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor
from torch.testing import assert_close

from botorch_transfer.data import datasets
from botorch_transfer.gp import fit as map_fit
from botorch_transfer.gp import likelihood as gaussian
from botorch_transfer.gp.conditioned import groups_of_like_size
from botorch_transfer.gp.fit import MAPResult, TaskObjective, draw_starts, fit_map
from botorch_transfer.gp.hyperpriors import RESIDUAL_HYPERPARAMETERS, SOURCE_HYPERPARAMETERS
from botorch_transfer.gp.tasks import PaddedTasks
from botorch_transfer.memo import Memo
from botorch_transfer.pretraining import MAPOptions, SourceGPs, clear_memos
from tests.gp.padded import KERNELS, points
from tests.gp.single_task import build_mll, doubles, negative_log_posterior, set_theta
from tests.gp.tasks import draw_data, padded

TASKS = padded(draw_data([6, 1, 9, 4], known_noise=[2]))


def draw_theta(rows: int, dim: int = 2, seed: int = 0) -> Tensor:
    """Logarithms of hyperparameters: lengthscales, outputscale, noise."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.tensor([0.5] * dim + [1.0, 5e-3], dtype=torch.double).log()
    return start + 0.5 * torch.randn(rows, dim + 2, generator=generator, dtype=torch.double)


def objective(tasks: PaddedTasks, kernel: str = "rbf", spec=SOURCE_HYPERPARAMETERS) -> Any:
    """The log posterior in nats, not per point."""
    evaluate = TaskObjective(tasks, kernel, spec.log_prior(tasks.X.shape[-1]))

    def total(theta: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = evaluate(theta, rows)
        count = tasks.num_points[rows]
        return value * count, gradient * count.unsqueeze(-1)

    return total


def negative_log_likelihood(theta: Tensor, tasks: PaddedTasks) -> Tensor:
    spec = SOURCE_HYPERPARAMETERS.without_priors()
    return objective(tasks, "rbf", spec)(theta, torch.arange(len(theta)))[0]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "spec",
    [SOURCE_HYPERPARAMETERS, RESIDUAL_HYPERPARAMETERS, SOURCE_HYPERPARAMETERS.without_priors()],
    ids=["source", "residual", "none"],
)
@doubles()  # A log-normal prior that was built in single precision stays so after `.double()`.
def test_equals_gpytorch(kernel: str, spec) -> None:
    theta = draw_theta(4)
    value, gradient = objective(TASKS, kernel, spec)(theta, torch.arange(4))
    for index in range(4):
        mll = build_mll(TASKS, index, kernel, spec)
        parameters = set_theta(mll, theta[index])
        expected = negative_log_posterior(mll)
        assert_close(value[index], expected.detach(), rtol=1e-8, atol=1e-8)
        parts = [part.flatten() for part in torch.autograd.grad(expected, parameters)]
        known_noise = [torch.zeros(1).double()] if TASKS.fixed_noise[index] else []
        assert_close(gradient[index], torch.cat([*parts, *known_noise]), rtol=1e-6, atol=1e-6)


def check_gradient(tasks: PaddedTasks, kernel: str, theta: Tensor) -> None:
    """Compares the gradient with central differences."""
    function, index = objective(tasks, kernel), torch.arange(len(theta))
    value, gradient = function(theta, index)
    assert value.isfinite().all()
    h = 1e-5
    for column in range(theta.shape[-1]):
        step = torch.zeros_like(theta)
        step[:, column] = h
        difference = (function(theta + step, index)[0] - function(theta - step, index)[0]) / (2 * h)
        assert_close(gradient[:, column], difference, rtol=1e-4, atol=1e-4)


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from(KERNELS),
    st.sets(st.integers(0, 3)),
    st.integers(0, 100),
)
def test_gradient(sizes: list[int], dim: int, kernel: str, known_noise: set[int], seed: int):
    tasks = padded(draw_data(sizes, dim, tuple(known_noise)))
    check_gradient(tasks, kernel, draw_theta(len(sizes), dim, seed))


@pytest.mark.parametrize("kernel", KERNELS)
def test_odd_tasks(kernel: str) -> None:
    X = torch.rand(5, 2, dtype=torch.double)
    Y = X.sum(dim=-1, keepdim=True)
    odd = {
        "constant": (X, torch.ones_like(Y)),
        "single": (X[:1], Y[:1]),
        "duplicates": (X[:2].repeat(3, 1), Y[:2].repeat(3, 1)),
        "contradictory": (X[:1].repeat(4, 1), Y[:4]),
        "constant input": (torch.cat([X[:, :1], torch.ones_like(Y)], dim=-1), Y),
    }
    tasks = padded(odd)
    check_gradient(tasks, kernel, draw_theta(len(odd)))


def test_rows_name_their_task() -> None:
    theta, index = draw_theta(5), torch.tensor([2, 0, 2, 1, 0])
    value, gradient = objective(TASKS)(theta, index)
    for row in range(5):
        alone = objective(TASKS)(theta[[row]], index[[row]])
        assert_close(value[[row]], alone[0])
        assert_close(gradient[[row]], alone[1])


def test_known_noise_ignores_its_hyperparameter() -> None:
    theta = draw_theta(1)
    other = theta.clone()
    other[:, -1] += 1.0
    index = torch.tensor([2])
    value, gradient = objective(TASKS)(theta, index)
    assert torch.equal(objective(TASKS)(other, index)[0], value)
    assert gradient[0, -1] == 0.0


def test_covariance_besides_the_kernel() -> None:
    tasks = padded(draw_data([5]))
    root = torch.rand(1, 5, 5, dtype=torch.double)
    extended = PaddedTasks(**{**vars(tasks), "covariance": root @ root.mT})
    theta = draw_theta(1)
    value = negative_log_likelihood(theta, extended)
    mll = build_mll(tasks, 0, "rbf", SOURCE_HYPERPARAMETERS)
    set_theta(mll, theta[0])
    signal = mll.model.covar_module(tasks.X[0]).to_dense()
    covariance = signal + extended.covariance[0] + theta[0, -1].exp() * torch.eye(5).double()
    mvn = torch.distributions.MultivariateNormal(torch.zeros(5).double(), covariance)
    assert_close(value[0], -mvn.log_prob(tasks.Y[0]), rtol=1e-6, atol=1e-6)
    check_gradient(extended, "rbf", theta)


def test_neither_graph_nor_change_of_arguments() -> None:
    theta = draw_theta(4).requires_grad_()
    before = TASKS.X.clone()
    value, gradient = objective(TASKS)(theta.detach(), torch.arange(4))
    assert not value.requires_grad
    assert not gradient.requires_grad
    assert torch.equal(TASKS.X, before)


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
def test_only_the_row_that_cannot_be_factorized_is_undefined(monkeypatch) -> None:
    monkeypatch.setattr(datasets, "LARGEST", math.inf)
    data = draw_data([4, 4, 4])
    data["task 1"][0][2] = 1e200
    tasks = padded(data)
    value, gradient = objective(tasks)(draw_theta(3), torch.arange(3))
    assert value.isnan().tolist() == [False, True, False]
    assert gradient.isnan().any(dim=-1).tolist() == [False, True, False]


def test_jitter_where_noise_is_too_small() -> None:
    X = torch.full((3, 1), 0.5, dtype=torch.double)
    tasks = padded([(X, points(3, 1), torch.full_like(X, 1e-20))])
    # Exactly singular, whatever the rounding: all ones.
    theta = torch.tensor([[0.0, 0.0, -5.0]], dtype=torch.double)
    with pytest.warns(NumericalWarning, match="added jitter"):
        value, gradient = objective(tasks)(theta, torch.tensor([0]))
    assert value.isfinite().all()
    assert gradient.isfinite().all()


FITTED = padded(draw_data([12, 5, 9, 1, 12, 7], known_noise=[1]))
#: As ``chunk_elements``: a chunk for every task, and its starts one after another.
ONE_BY_ONE = 1


@pytest.fixture(autouse=True)
def one_thread():
    """Chunks one after another, unless a test says otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fit(tasks: PaddedTasks = FITTED, kernel: str = "rbf", **options) -> MAPResult:
    spec = SOURCE_HYPERPARAMETERS
    return fit_map(tasks, kernel, spec, MAPOptions(**{"num_restarts": 1, **options}))


def check_equal(ours: MAPResult, expected: MAPResult, tolerance: float = 1e-5) -> None:
    close = {"rtol": tolerance, "atol": tolerance}
    assert_close(ours.log_posterior, expected.log_posterior, **close)
    assert_close(ours.lengthscale, expected.lengthscale, **close)
    assert_close(ours.outputscale, expected.outputscale, **close)
    assert_close(ours.noise, expected.noise, **close)


def theta_of(result: MAPResult, index: int) -> torch.Tensor:
    parts = result.lengthscale[index], result.outputscale[[index]], result.noise[[index]]
    return torch.cat(parts).log()


def check_log_posterior(
    result: MAPResult, tasks: PaddedTasks, index: int, spec=SOURCE_HYPERPARAMETERS, **close: float
) -> None:
    mll = build_mll(tasks, index, "rbf", spec)
    set_theta(mll, theta_of(result, index))
    expected = -negative_log_posterior(mll).item()
    assert result.log_posterior[index].item() == pytest.approx(expected, **close)


@pytest.mark.filterwarnings("ignore")
def test_no_worse_than_a_loop_of_single_task_gps() -> None:
    result = fit(kernel="matern52", num_restarts=1)
    starts = draw_starts(SOURCE_HYPERPARAMETERS, 2, MAPOptions(num_restarts=1))
    for index in range(3):
        mll = build_mll(FITTED, index, "matern52", SOURCE_HYPERPARAMETERS)
        optima = []
        for start in starts:
            set_theta(mll, start)
            fit_gpytorch_mll_scipy(mll)
            optima.append(-negative_log_posterior(mll).item())
        assert result.log_posterior[index] > max(optima) - 0.1
        set_theta(mll, theta_of(result, index))
        expected = -negative_log_posterior(mll).item()
        assert result.log_posterior[index].item() == pytest.approx(expected, abs=1e-6)


def test_away_from_an_inputs_only_value_the_prediction_is_the_outcomes_mean_and_spread() -> None:
    X = points(2, 30, 3, seed=0)
    Y = 10 - (X[..., :2] - 0.4).square().sum(dim=-1, keepdim=True)
    X[0, :, 2] = 0.1
    data = {"at one value": (X[0], Y[0]), "everywhere": (X[1], Y[1])}
    gps = SourceGPs.fit(data, num_restarts=1).gps
    best = torch.tensor([[0.4, 0.4, u] for u in (0.1, 0.3, 0.55, 1.0)], dtype=torch.double)
    mean, variance = (part[0] for part in gps.moments(best))
    assert mean[0] > 1.0
    assert (mean.diff() < 0).all()
    assert mean[-1].abs() < 0.15
    assert (variance.diff() > 0).all()
    assert 0.8 < variance[-1] <= 1.0
    # The other task is fitted as without this one.
    alone = padded({"everywhere": data["everywhere"]})
    expected = fit_map(alone, "rbf", SOURCE_HYPERPARAMETERS, MAPOptions(num_restarts=1))
    assert_close(gps.outputscale[1], expected.outputscale[0], rtol=1e-3, atol=1e-3)
    assert gps.outputscale[1] > 5.0


def test_optima_are_stationary_within_the_bounds() -> None:
    result = fit()
    for index in range(len(FITTED.X)):
        mll = build_mll(FITTED, index, "rbf", SOURCE_HYPERPARAMETERS)
        parameters = set_theta(mll, theta_of(result, index))
        gradients = torch.autograd.grad(negative_log_posterior(mll), parameters)
        at_bound = torch.isclose(result.noise[index], torch.tensor([1e-8, 10.0]).double()).any()
        for gradient in gradients[: 2 if at_bound else 3]:
            assert gradient.abs().max() < 1e-3 * int(FITTED.num_points[index])
    assert ((result.noise >= 0.999e-8) & (result.noise <= 10.01)).all()


def test_known_noise_stays_at_its_start() -> None:
    assert fit(num_restarts=0).noise[1].item() == pytest.approx(1e-3)


@pytest.mark.parametrize("chunk_elements", [ONE_BY_ONE, 500])
def test_chunks_change_nothing(chunk_elements: int) -> None:
    check_equal(fit(chunk_elements=chunk_elements), fit())


@settings(max_examples=30)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=12), st.integers(1, 5000))
def test_groups_hold_what_they_may(sizes: list[int], limit: int) -> None:
    sizes = torch.tensor(sizes)
    groups = list(groups_of_like_size(sizes, torch.arange(len(sizes)), limit))
    assert torch.equal(torch.cat(groups).sort().values, torch.arange(len(sizes)))
    for group, following in zip(groups, [*groups[1:], None], strict=True):
        assert len(group) * int(sizes[group].max()) ** 2 <= limit or len(group) == 1
        assert following is None or sizes[following].max() <= sizes[group].min()


def record_blocks(monkeypatch) -> list[torch.Size]:
    """Records the shapes of the scaled inputs of all blocks that are evaluated."""
    shapes, evaluate = [], gaussian._evaluate
    monkeypatch.setattr(
        gaussian,
        "_evaluate",
        lambda name, squares, scaled, *others: (
            shapes.append(scaled.shape) or evaluate(name, squares, scaled, *others)
        ),
    )
    return shapes


def test_memory_is_bounded_by_the_chunk(monkeypatch) -> None:
    blocks = record_blocks(monkeypatch)
    for num_threads in (1, 2, 4):
        torch.set_num_threads(num_threads)
        blocks.clear()
        clear_memos()
        fit(padded(draw_data([10, 10])), num_restarts=5, chunk_elements=400)
        assert max(rows for rows, _, _ in blocks) == 4 // min(num_threads, 2)


@pytest.mark.parametrize("sizes", [[10], [1, 1, 1, 10]])
def test_starts_of_a_task_stay_together_with_more_threads_than_chunks(monkeypatch, sizes) -> None:
    blocks = record_blocks(monkeypatch)
    torch.set_num_threads(4)
    fit(padded(draw_data(sizes)), num_restarts=5, chunk_elements=1200)
    assert max(rows for rows, points, _ in blocks if points == 10) == 6


def test_threads_of_the_caller_stay_as_they_are(monkeypatch) -> None:
    threads = []
    evaluate = map_fit.TaskObjective.__call__
    monkeypatch.setattr(
        map_fit.TaskObjective,
        "__call__",
        lambda self, *args: threads.append(torch.get_num_threads()) or evaluate(self, *args),
    )
    expected = fit(chunk_elements=ONE_BY_ONE)
    clear_memos()
    torch.set_num_threads(2)
    threads.clear()
    check_equal(fit(chunk_elements=ONE_BY_ONE), expected, tolerance=0.0)
    assert set(threads) == {1}
    assert torch.get_num_threads() == 2


def test_order_of_tasks_does_not_matter() -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    expected, ours = fit(), fit(FITTED[order])
    parts = {name: tensor[order] for name, tensor in vars(expected).items()}
    check_equal(ours, MAPResult(**parts))


def test_same_seed_same_numbers() -> None:
    first = fit(seed=3)
    clear_memos()
    torch.manual_seed(99)
    check_equal(fit(seed=3), first, tolerance=0.0)


def test_starts() -> None:
    options = MAPOptions(num_restarts=3, seed=1)
    starts = draw_starts(SOURCE_HYPERPARAMETERS, 4, options)
    assert starts.shape == (4, 6)
    expected = torch.tensor([0.5] * 4 + [1.0, 1e-3]).double()
    assert_close(starts[0].exp(), expected, check_dtype=False, rtol=1e-6, atol=0)
    assert len(starts[1:].unique()) == 18
    assert torch.equal(starts, draw_starts(SOURCE_HYPERPARAMETERS, 4, options))
    other = draw_starts(SOURCE_HYPERPARAMETERS, 4, MAPOptions(num_restarts=3, seed=2))
    assert not torch.isclose(other[1:], starts[1:]).any()
    assert len(draw_starts(SOURCE_HYPERPARAMETERS, 4, MAPOptions(num_restarts=0))) == 1


def test_more_starts_are_never_worse() -> None:
    assert (fit(num_restarts=4).log_posterior >= fit(num_restarts=0).log_posterior - 1e-6).all()


def test_max_iter() -> None:
    brief, full = fit(max_iter=1, num_restarts=0), fit(num_restarts=0)
    assert (brief.log_posterior <= full.log_posterior).all()


def test_maximum_likelihood() -> None:
    spec = SOURCE_HYPERPARAMETERS.without_priors()
    result = fit_map(FITTED, "rbf", spec, MAPOptions(num_restarts=1))
    check_log_posterior(result, FITTED, 0, spec, abs=1e-6)


@pytest.mark.parametrize("size", [1e7, 1e20])
def test_outcomes_of_any_size(size: float) -> None:
    """Far from standardized outcomes the objective is large, and defined all the same."""
    large = replace(FITTED, Y=size * FITTED.Y)
    result = fit(large)
    check_log_posterior(result, large, 0, rel=1e-6)
    assert (result.log_posterior > fit(large, num_restarts=0, max_iter=1).log_posterior).any()


@pytest.mark.filterwarnings("ignore:A not p.d., added jitter")
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_task_that_cannot_be_fitted_leaves_the_others_alone(monkeypatch) -> None:
    monkeypatch.setattr(datasets, "LARGEST", math.inf)
    data = draw_data([6, 6, 6])
    data["task 1"][0][2] = 1e200
    result = fit(padded(data))
    assert result.log_posterior[1] == -math.inf
    del data["task 1"]
    expected = fit(padded(data))
    ours = MAPResult(**{name: tensor[[0, 2]] for name, tensor in vars(result).items()})
    check_equal(ours, expected)


def test_single_precision_data_are_fitted_in_double() -> None:
    single = replace(FITTED, X=FITTED.X.float(), Y=FITTED.Y.float(), Yvar=FITTED.Yvar.float())
    result = fit(single)
    assert result.lengthscale.dtype is torch.double
    assert_close(result.log_posterior, fit().log_posterior, atol=1e-2, rtol=0)


def test_parallel_processes() -> None:
    expected = fit(chunk_elements=200)
    clear_memos()
    with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
        check_equal(fit(chunk_elements=200, n_jobs=2), expected)


def test_dask_cluster(monkeypatch) -> None:
    distributed = pytest.importorskip("distributed")
    expected = fit(chunk_elements=200)
    clear_memos()
    threads, bounds = set(), map_fit.log_bounds
    monkeypatch.setattr(
        map_fit,
        "log_bounds",
        lambda *args: threads.add(threading.current_thread().name) or bounds(*args),
    )
    # Joblib hands a cluster of one single thread nothing.
    cluster = {"n_workers": 1, "threads_per_worker": 2, "processes": False}
    with (
        distributed.Client(**cluster, dashboard_address=None),
        joblib.parallel_config(backend="dask"),
    ):
        check_equal(fit(chunk_elements=200, n_jobs=None), expected)
    assert threads
    assert all("Dask" in name for name in threads), threads


def count_chunks(monkeypatch, interrupt_at: int | None = None) -> list[int]:
    """Records the number of tasks of each chunk as it is fitted."""
    sizes: list[int] = []
    optimize = map_fit._optimize

    def counting(tasks: PaddedTasks, *args):
        if len(sizes) == interrupt_at:
            time.sleep(0.2)  # the results of the other thread are collected meanwhile
            raise KeyboardInterrupt
        sizes.append(len(tasks.X))
        return optimize(tasks, *args)

    monkeypatch.setattr(map_fit, "_optimize", counting)
    return sizes


@pytest.mark.parametrize(
    ("num_threads", "interrupt_at", "left"), [(1, 2, [4]), (2, 5, [0, 1, 2, 3])]
)
def test_interrupted_run_does_not_repeat_what_was_finished(
    monkeypatch, num_threads: int, interrupt_at: int, left: list[int]
) -> None:
    expected = fit(chunk_elements=ONE_BY_ONE)
    clear_memos()
    torch.set_num_threads(num_threads)
    with monkeypatch.context() as context:
        done = count_chunks(context, interrupt_at)
        with pytest.raises(KeyboardInterrupt):
            fit(chunk_elements=ONE_BY_ONE)
        assert len(done) == interrupt_at
    again = count_chunks(monkeypatch)
    check_equal(fit(chunk_elements=ONE_BY_ONE), expected, tolerance=0.0)
    assert len(again) in left


def test_failed_run_does_not_repeat_what_was_finished(monkeypatch) -> None:
    with monkeypatch.context() as context:
        context.setattr(map_fit, "log_bounds", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            fit()
    again = count_chunks(monkeypatch)
    fit()
    assert len(again) == 1


def test_new_tasks_are_all_that_is_fitted(monkeypatch) -> None:
    fit(FITTED[torch.tensor([0, 2])], chunk_elements=ONE_BY_ONE)
    sizes = count_chunks(monkeypatch)
    fit(chunk_elements=ONE_BY_ONE)
    assert len(sizes) == 4


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"num_restarts": 2}, {"max_iter": 3}, {"kernel": "matern32"}]
)
def test_other_options_are_fitted_anew(monkeypatch, change) -> None:
    fit()
    sizes = count_chunks(monkeypatch)
    fit(**change)
    assert sizes == [6]


def test_equal_tasks_are_fitted_once_a_run(monkeypatch) -> None:
    sizes = count_chunks(monkeypatch)
    twice = FITTED[torch.tensor([0, 0, 1])]
    result = fit(twice, chunk_elements=ONE_BY_ONE)
    assert len(sizes) == 2
    assert torch.equal(result.lengthscale[0], result.lengthscale[1])


def test_more_chunks_than_the_memo_holds(monkeypatch) -> None:
    expected = fit(chunk_elements=ONE_BY_ONE)
    clear_memos()
    monkeypatch.setattr(map_fit, "_finished", map_fit.Memo(size=2))
    for _ in range(2):
        check_equal(fit(chunk_elements=ONE_BY_ONE), expected, tolerance=0.0)


def test_progress_where_it_is_asked_for(capsys) -> None:
    fit(progress=True, chunk_elements=ONE_BY_ONE)
    shown = capsys.readouterr().err
    assert "source GPs: 100%" in shown
    assert "6/6" in shown
    fit(seed=1)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("options", [{"num_restarts": -1}, {"max_iter": 0}, {"fit_points": 0}])
def test_options_out_of_range(options) -> None:
    with pytest.raises(ValueError, match="num_restarts= must not be negative; max_iter=, chunk"):
        MAPOptions(**options)


def test_threads_side_by_side():
    """Each with PyTorch on one thread; the caller's number stays as it is."""
    both_run = threading.Barrier(2, timeout=60)

    def work(value):
        both_run.wait()
        return value, torch.get_num_threads()

    torch.set_num_threads(3)
    jobs = [(value,) for value in range(4)]
    found = dict(Memo(size=9).run("work", map_fit._on_one_thread(work), jobs, 2, "threading"))
    assert torch.get_num_threads() == 3
    with ThreadPoolExecutor() as later:  # threads begin with what was set last
        assert later.submit(torch.get_num_threads).result() == 3
    assert found == {value: (value, 1) for value in range(4)}
