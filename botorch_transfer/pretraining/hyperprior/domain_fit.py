"""The likelihood of one domain: all of its tasks are draws of one GP with a constant mean.

The parameters are ``log(lengthscale), log(outputscale), log(noise)`` and the mean itself. The
derivative in the mean ``c`` is ``-1ᵀ K⁻¹ (y - c)``.

Fitting a domain's hyperparameters by Adam, on a few points of each task at a time.

The gradient of the mean likelihood of sub-samples is unbiased, and its cost does not depend on the
number of points: for tasks too large for a Cholesky factor an iteration.

Step 1 of pre-training a hyperprior: one GP for each domain, shared by its tasks.

Each domain is brought to a mean of zero and a variance of one before its fit, and the estimates
back into its own units afterwards; maximum likelihood does not depend on units, an optimizer does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
import torch
from botorch.exceptions.errors import InputDataError
from botorch.optim.batched_lbfgs_b import fmin_l_bfgs_b_batched
from torch import Tensor
from tqdm.auto import tqdm

from botorch_transfer.data import Domain
from botorch_transfer.hyperpriors import GPHyperparameters, Hyperparameter
from botorch_transfer.kernels.stationary import StationaryFunction, stationary_function
from botorch_transfer.pretraining.hyperprior.estimates import DomainEstimates
from botorch_transfer.pretraining.input_transforms import (
    frozen_input_transform,
    warn_outside_unit_cube,
)
from botorch_transfer.pretraining.memo import Memo
from botorch_transfer.pretraining.parallel import run_jobs
from botorch_transfer.pretraining.source_gps.map_fit import (
    MAPOptions,
    draw_starts,
    likelihood_terms,
)
from botorch_transfer.pretraining.tasks import (
    MAX_PADDED_BYTES,
    OutcomeScale,
    PaddedTasks,
    check_padded_size,
    outcome_scales,
)


def domain_negative_log_likelihood(
    theta: Tensor, tasks: PaddedTasks, function: StationaryFunction
) -> tuple[Tensor, Tensor]:
    """Evaluates the sum of the tasks' negative log marginal likelihoods and its gradient.

    Args:
        theta: A ``P x (d + 3)`` tensor, one row a set of parameters.
        tasks: The domain's ``M`` padded tasks.
        function: The unit-variance stationary kernel.

    Returns:
        The ``P`` values and their ``P x (d + 3)`` gradient; NaN where a covariance matrix is not
        positive definite, even with some jitter.

    Example:
        >>> X, ones = torch.rand(3, 10, 2, dtype=torch.double), torch.ones(3, 10).double()
        >>> tasks = PaddedTasks(X, X.sum(-1), 0 * ones, ones.bool(), torch.zeros(3).bool())
        >>> theta = torch.tensor([[-1.0, -1.0, 0.0, -4.0, 0.5]], dtype=torch.double)
        >>> value, gradient = domain_negative_log_likelihood(
        ...     theta, tasks, stationary_function("matern52")
        ... )
        >>> value.shape, gradient.shape
        (torch.Size([1]), torch.Size([1, 5]))
    """
    num_rows, num_tasks = len(theta), len(tasks.X)
    index = torch.arange(num_tasks, device=theta.device).repeat(num_rows)
    spread = theta.repeat_interleave(num_tasks, dim=0)
    repeated = tasks[index]
    residual = (repeated.Y - spread[:, -1:]) * repeated.mask
    value, gradient, alpha = likelihood_terms(
        spread[:, :-1], replace(repeated, Y=residual), function
    )
    gradient = torch.cat([gradient, -alpha.sum(dim=-1, keepdim=True)], dim=-1)
    return (
        value.reshape(num_rows, num_tasks).sum(dim=-1),
        gradient.reshape(num_rows, num_tasks, -1).sum(dim=-2),
    )


def lengthscale_penalty(theta: Tensor, start: float, spread: float) -> tuple[Tensor, Tensor]:
    """Evaluates a weak penalty that keeps lengthscales where the likelihood says nothing of them.

    A function that is rough in one input looks like noise, and its likelihood does not depend on
    the lengthscales of the others; they would end up anywhere, mostly at a bound.

    Args:
        theta: A ``P x (d + 3)`` tensor, as :func:`domain_negative_log_likelihood` takes it.
        start: The lengthscale that is penalized least.
        spread: The deviation of a lengthscale's logarithm that costs half a nat.

    Returns:
        The ``P`` values and their ``P x (d + 3)`` gradient.

    Example:
        >>> theta = torch.zeros(1, 4)
        >>> lengthscale_penalty(theta, start=1.0, spread=2.0)
        (tensor([0.]), tensor([[0., 0., 0., 0.]]))
    """
    deviation = torch.zeros_like(theta)
    deviation[:, :-3] = (theta[:, :-3] - math.log(start)) / spread
    return 0.5 * deviation.square().sum(dim=-1), deviation / spread


class AdamOptions(Protocol):
    """What the optimization needs of its options."""

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        ...

    @property
    def learning_rate(self) -> float:
        """Adam's learning rate."""
        ...

    @property
    def batch_size(self) -> int:
        """How many points of each task a step sees; all of a task that has fewer."""
        ...

    @property
    def seed(self) -> int:
        """The seed of the sub-samples."""
        ...

    @property
    def lengthscale_spread(self) -> float:
        """How far lengthscales may go without reason, see :func:`lengthscale_penalty`."""
        ...


def minimize_by_sub_samples(
    tasks: PaddedTasks,
    function: StationaryFunction,
    start: Tensor,
    limits: tuple[Tensor, ...],
    options: AdamOptions,
) -> Tensor:
    """Minimizes a domain's mean negative log likelihood of sub-samples.

    Args:
        tasks: The domain's padded tasks.
        function: The unit-variance stationary kernel.
        start: A ``d + 3`` tensor, as :func:`domain_negative_log_likelihood` takes a row of.
        limits: Lower and upper bounds like ``start``.
        options: How to optimize.

    Returns:
        The parameters after the last step, a ``d + 3`` tensor.
    """
    theta = start.clone().unsqueeze(0).requires_grad_(True)
    adam = torch.optim.Adam([theta], lr=options.learning_rate)
    sampler = SubSampler(tasks, options.batch_size, options.seed)
    num_drawn = float(tasks.num_points.clamp_max(options.batch_size).sum())
    num_points, least = float(tasks.num_points.sum()), math.exp(float(start[0]))
    for _ in range(options.num_steps):
        _, gradient = domain_negative_log_likelihood(theta.detach(), sampler.draw(), function)
        # A sub-sample whose matrix cannot be factorized tells nothing.
        theta.grad = gradient.nan_to_num(nan=0.0) / num_drawn
        _, penalty = lengthscale_penalty(theta.detach(), least, options.lengthscale_spread)
        theta.grad += penalty / num_points
        adam.step()
        with torch.no_grad():
            theta.clamp_(*limits)
    return theta.detach().squeeze(0)


class SubSampler:
    """Draws points of each task without replacement, in random order, time and again.

    Args:
        tasks: The padded tasks.
        size: How many points of each task to draw at a time.
        seed: The seed.
    """

    def __init__(self, tasks: PaddedTasks, size: int, seed: int) -> None:
        self.tasks = tasks
        self.size = min(size, tasks.X.shape[-2])
        self.generator = torch.Generator().manual_seed(seed)
        self.sizes = tasks.num_points.unsqueeze(-1)
        self.columns = torch.arange(self.size, device=tasks.X.device)
        # Of a task with fewer points, each is drawn once.
        self.mask = self.columns < self.sizes
        self.rows = torch.arange(len(tasks.X), device=tasks.X.device).unsqueeze(-1)
        self.position = tasks.X.shape[-2]

    def draw(self) -> PaddedTasks:
        """Draws the next points of each task."""
        tasks = self.tasks
        if self.position + self.size > tasks.X.shape[-2]:
            self._shuffle()
        columns = (self.position + self.columns) % self.sizes
        self.position += self.size
        chosen = self.order[self.rows, columns]
        mask = self.mask
        return replace(
            tasks,
            X=tasks.X[self.rows, chosen],
            Y=tasks.Y[self.rows, chosen] * mask,
            Yvar=tasks.Yvar[self.rows, chosen] * mask,
            mask=mask,
        )

    def _shuffle(self) -> None:
        random = torch.rand(self.tasks.mask.shape, generator=self.generator)
        # Padding goes last.
        random = random.to(self.tasks.X).masked_fill(~self.tasks.mask, 2.0)
        self.order = random.argsort(dim=-1)
        self.position = 0


Optimizer = Literal["auto", "lbfgs", "adam"]

DOMAIN_HYPERPARAMETERS = GPHyperparameters(
    # In the unit cube, a function of lengthscale 30 hardly varies.
    lengthscale=Hyperparameter(None, start=0.5, lower=1e-3, upper=30.0),
    outputscale=Hyperparameter(None, start=1.0, lower=1e-4, upper=1e2),
    noise=Hyperparameter(None, start=1e-2, lower=1e-8, upper=10.0),
)
"""Starts and bounds where a domain's outcomes have the mean zero and the variance one."""

_MAX_CONSTANT = 1e2
_UNDEFINED = 1e100
_LEAST_NOISE = 1e-5
"""The lowest estimate of a noise variance, relative to the signal's: what is less is no noise at
all, and a hyperprior that says so makes covariance matrices singular."""

# The fits of single domains: small, and what an interrupted run need not repeat.
_finished = Memo(size=4096)


@dataclass(frozen=True)
class DomainFitOptions:
    """How the hyperparameters of the domains are fitted.

    Args:
        optimizer: ``"lbfgs"`` on all points, ``"adam"`` on sub-samples, or ``"auto"``: the former
            for domains whose largest task has at most ``max_points`` points.
        max_points: See ``optimizer``.
        num_restarts: The number of further starts of L-BFGS-B, drawn at random.
        max_iter: The most L-BFGS-B iterations of one start.
        num_steps: The number of steps of Adam.
        learning_rate: Adam's learning rate, for the logarithms of hyperparameters.
        batch_size: How many points of each task a step of Adam sees.
        lengthscale_spread: How far, on a logarithmic scale, lengthscales go from their start of 0.5
            without the likelihood having a reason: a weak penalty, half a nat at this distance.
            Infinity gives maximum likelihood.
        seed: The seed of starts and sub-samples.
        chunk_elements: How many covariance matrix elements are worked on at once, at 90 bytes each.
        max_bytes: How much memory a domain may take; more is refused.
        n_jobs: How many domains joblib fits in parallel; ``None`` follows
            ``joblib.parallel_config``, so that a dask cluster can take them.
        progress: Whether to show a progress bar over the domains.

    Raises:
        ValueError: If a number is out of range, or there is no such optimizer.

    Example:
        >>> DomainFitOptions(optimizer="adam", num_steps=100).batch_size
        50
    """

    optimizer: Optimizer = "auto"
    max_points: int = 512
    num_restarts: int = 1
    max_iter: int = 500
    num_steps: int = 20_000
    learning_rate: float = 1e-3
    batch_size: int = 50
    lengthscale_spread: float = 1.5
    seed: int = 0
    chunk_elements: int = 2**22
    max_bytes: float = MAX_PADDED_BYTES
    n_jobs: int | None = 1
    progress: bool = False

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(Optimizer):
            names = ", ".join(repr(name) for name in get_args(Optimizer))
            raise ValueError(f"Unknown optimizer {self.optimizer!r}: choose one of {names}.")
        numbers = (self.max_points, self.max_iter, self.num_steps, self.batch_size)
        if self.num_restarts < 0 or min(*numbers, self.chunk_elements) < 1:
            raise ValueError("num_restarts must not be negative; other numbers must be positive.")
        if not 0 < self.learning_rate < math.inf or not self.lengthscale_spread > 0:
            raise ValueError("learning_rate and lengthscale_spread must be positive.")


def fit_domains(
    domains: Sequence[Domain], kernel: str, outcome_scale: OutcomeScale, options: DomainFitOptions
) -> DomainEstimates:
    """Fits a GP with constant mean and ARD lengthscales to each domain, by maximum likelihood.

    Lengthscales have a weak penalty, see :func:`~.domain_objective.lengthscale_penalty`.

    Args:
        domains: The domains.
        kernel: The stationary kernel's name.
        outcome_scale: Whether each task is standardized by itself beforehand (``"per_task"``), or
            not at all (``"raw"``).
        options: How to optimize.

    Returns:
        The estimates, in double precision on the CPU. The noise of a domain whose noise is known is
        its mean.

    Raises:
        InputDataError: If a domain is too large for the memory, or its outcomes never vary.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> domain = Domain({"monday": (X, X.sum(-1, keepdim=True))}, name="lab")
        >>> options = DomainFitOptions(num_restarts=0)
        >>> fit_domains([domain], "matern52", "raw", options).to_frame()
          domain  input  lengthscale ...
    """
    names = [domain.name or f"domain {number}" for number, domain in enumerate(domains)]
    prepared = [
        _prepare(name, domain, outcome_scale, options)
        for name, domain in zip(names, domains, strict=True)
    ]
    jobs = [(tasks, kernel, options) for tasks, _, _ in prepared]
    found = list(
        tqdm(
            run_jobs("domain_fit", _fit_domain, jobs, options.n_jobs, _finished),
            total=len(jobs),
            desc="domains",
            disable=not options.progress,
        )
    )
    parts = torch.tensor([row[1:] for row in found], dtype=torch.double)
    outcome = torch.tensor([[mean, std] for _, mean, std in prepared], dtype=torch.double)
    return DomainEstimates(
        names=tuple(names),
        constant=parts[:, 0],
        lengthscale=torch.cat([row[0] for row in found]),
        outputscale=parts[:, 1],
        noise=parts[:, 2],
        dims=torch.tensor([domain.dim for domain in domains]),
        context=torch.cat([_context(domain) for domain in domains]),
        log_likelihood=parts[:, 3],
        outcome_mean=outcome[:, 0],
        outcome_std=outcome[:, 1],
    )


def _context(domain: Domain) -> Tensor:
    assert domain.context is not None  # the constructor fills it in
    return domain.context.double().cpu()


def _prepare(
    name: str, domain: Domain, outcome_scale: OutcomeScale, options: DomainFitOptions
) -> tuple[PaddedTasks, float, float]:
    """Pads a domain's tasks, in the units of the hyperprior; its outcomes' mean and deviation."""
    sizes = [len(data.X) for data in domain.datasets]
    labels = [f"{name}: {task}" for task in domain.task_names]
    check_padded_size(labels, sizes, options.max_bytes)
    transform = frozen_input_transform(domain.input_transform)
    tasks = PaddedTasks.from_datasets(domain.datasets, transform).double()
    warn_outside_unit_cube(tasks.X, f"the domain {name!r}")
    mean, std = tasks.moments()
    typical = float(mean.mean()), float(std.square().mean().sqrt())
    tasks = tasks.standardize(*outcome_scales(tasks, outcome_scale))
    outcomes = tasks.Y[tasks.mask]
    if float(outcomes.max() - outcomes.min()) <= 1e-12 * float(outcomes.abs().max()):
        raise InputDataError(
            f"The outcomes of {name!r} never vary, so they tell nothing about such functions: "
            "leave this domain out, or use SingleTaskGP."
        )
    return tasks, *typical


def _fit_domain(
    tasks: PaddedTasks, kernel: str, options: DomainFitOptions
) -> tuple[Tensor, float, float, float, float]:
    """Fits one domain: lengthscales, constant, outputscale, noise and log likelihood."""
    outcomes = tasks.Y[tasks.mask]
    offset, scale = float(outcomes.mean()), float(outcomes.std(correction=0))
    everywhere = torch.ones(len(tasks.X), dtype=torch.double, device=tasks.X.device)
    scaled = tasks.standardize(offset * everywhere, scale * everywhere)
    by_points = options.optimizer == "lbfgs" or (
        options.optimizer == "auto" and tasks.X.shape[-2] <= options.max_points
    )
    if by_points:
        theta, value = _minimize(scaled, kernel, options)
        log_likelihood = -value - len(outcomes) * math.log(scale)
    else:
        first = torch.from_numpy(_starts(scaled, options)[0]).to(scaled.X)
        function = stationary_function(kernel)
        limits = torch.tensor(_bounds(tasks.X.shape[-1])).to(scaled.X).unbind(dim=-1)
        theta = minimize_by_sub_samples(scaled, function, first, limits, options)
        log_likelihood = math.nan
    theta = theta.cpu()
    outputscale, noise = (theta[-3:-1].exp() * scale**2).tolist()
    if bool(tasks.fixed_noise.all()):
        noise = float(tasks.Yvar[tasks.mask].mean())
    noise = max(noise, _LEAST_NOISE * outputscale)
    return theta[:-3].exp(), float(theta[-1]) * scale + offset, outputscale, noise, log_likelihood


def _minimize(tasks: PaddedTasks, kernel: str, options: DomainFitOptions) -> tuple[Tensor, float]:
    """Runs L-BFGS-B on all points, from all starts at once, and keeps the best optimum."""
    function, num_points = stationary_function(kernel), int(tasks.num_points.sum())
    num_rows = max(1, options.chunk_elements // tasks.mask.numel() // tasks.X.shape[-2])

    penalty = partial(
        lengthscale_penalty,
        start=DOMAIN_HYPERPARAMETERS.lengthscale.start,
        spread=options.lengthscale_spread,
    )

    def evaluate(
        x: npt.NDArray[np.float64],
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        theta = torch.from_numpy(x).to(tasks.X)
        packed = torch.cat(
            [
                torch.column_stack(domain_negative_log_likelihood(rows, tasks, function))
                for rows in theta.split(num_rows)
            ]
        )
        packed += torch.column_stack(penalty(theta))
        array = (packed / num_points).cpu().numpy()
        # Where the objective is not defined, a line search turns back, and a start comes to rest.
        array[np.isnan(array).any(axis=-1)] = [_UNDEFINED, *[0.0] * x.shape[-1]]
        return array[:, 0], array[:, 1:]

    bounds = _bounds(tasks.X.shape[-1])
    theta, value, _ = fmin_l_bfgs_b_batched(
        evaluate, _starts(tasks, options), bounds=bounds, maxiter=options.max_iter
    )
    best = torch.from_numpy(theta[int(value.argmin())])
    penalized = float(value.min()) * num_points
    return best, penalized - float(penalty(best.unsqueeze(0))[0])


def _starts(tasks: PaddedTasks, options: DomainFitOptions) -> npt.NDArray[np.float64]:
    """Draws the starts, all with the outcomes' mean as constant."""
    drawn = draw_starts(
        DOMAIN_HYPERPARAMETERS,
        tasks.X.shape[-1],
        MAPOptions(num_restarts=options.num_restarts, seed=options.seed),
    )
    return np.hstack([drawn, np.zeros((len(drawn), 1))])


def _bounds(dim: int) -> list[tuple[float, float]]:
    spec = DOMAIN_HYPERPARAMETERS
    parts: list[Any] = [spec.lengthscale] * dim + [spec.outputscale, spec.noise]
    logs = [(math.log(part.lower), math.log(part.upper)) for part in parts]
    return [*logs, (-_MAX_CONSTANT, _MAX_CONSTANT)]
