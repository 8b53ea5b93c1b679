"""Pre-training of a hyperprior: a GP for each domain, then MPHD's network.

A domain is a search space with its source tasks. Step 1 estimates one GP for each domain. All tasks
of a domain are assumed to be draws of one GP with a constant mean. The hyperparameters of the GP
are estimated by maximum likelihood (Section 4 of [Fan2022hyperboplus]_), here with a weak
hyperprior of the lengthscales. From a large task, only points at evenly spaced ranks of the outcome
are used.

Each domain's outcomes are scaled to mean zero and variance one before the fit, and the estimates
are scaled back afterwards. The scaling does not change the optimum, but the optimizer needs
outcomes of order one.

Step 2 of MPHD [Fan2024mphd]_ trains a network that maps the context of an input (a vector that
describes the input) to the Gamma distribution of the input's lengthscale. Training minimizes
``-Σ_j log Gamma(ℓ_j | network(s_j))`` for the lengthscales ``ℓ_j`` of step 1 and their contexts
``s_j``. This sum alone has no minimum: the distribution for a context with one lengthscale would
become arbitrarily narrow. Two priors, which are not in the paper, prevent this. A standard normal
prior on the weights shrinks all distributions towards a common distribution. A log-normal prior on
each Gamma's shape parameter keeps the distribution broad if a few estimates are close by chance.

The module also defines containers of estimated and of sampled hyperparameters. It evaluates a
task's likelihood for each sample of hyperparameters, and fits Gamma and Normal distributions to
estimates.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple, cast

import torch
from botorch.exceptions.errors import InputDataError
from botorch.optim.core import torch_minimize
from gpytorch.priors import GammaPrior
from torch import Tensor
from torch.distributions import Gamma
from torch.nn import Linear, Module, Sequential, Tanh
from torch.nn.functional import pad, softplus

from botorch_transfer.data import Domain
from botorch_transfer.gp.fit import MAPOptions, TaskObjective, draw_starts, log_bounds
from botorch_transfer.gp.hyperpriors import (
    GPHyperparameters,
    Hyperparameter,
    LogDensityLogNormalPrior,
)
from botorch_transfer.gp.likelihood import BLOCK_ELEMENTS, nll
from botorch_transfer.gp.objective import drop_gradients, gradient_closure, minimize_batched
from botorch_transfer.gp.state import freeze, savable
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.gp.tasks import OutcomeScale, PaddedTasks, check_padded_size, outcome_scales
from botorch_transfer.input_transforms import warn_outside_unit_cube
from botorch_transfer.memo import Memo
from botorch_transfer.progress import track

logger = logging.getLogger(__name__)

#: A Gamma distribution whose shape parameter exceeds this value counts as degenerate: its standard
#: deviation is below 3.2 % of its mean.
MAX_SHAPE = 1e3

#: Shape parameter of the broad Gamma distribution that replaces a degenerate Gamma. The broad
#: distribution has a standard deviation of 71 % of its mean, and the density zero at zero.
BROAD_SHAPE = 2.0


class HyperparameterDraws(NamedTuple):
    """``R`` samples of the hyperparameters of a GP with ``d`` inputs.

    Args:
        constant: An ``R`` tensor of constant means.
        lengthscale: An ``R x d`` tensor of lengthscales.
        outputscale: An ``R`` tensor of signal variances.
        noise: An ``R`` tensor of noise variances.
    """

    constant: Tensor
    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor

    def to(self, other: Tensor) -> HyperparameterDraws:
        """Converts all samples to the dtype and the device of the tensor ``other``."""
        return HyperparameterDraws(*(part.to(other) for part in self))


@savable
@dataclass(frozen=True)
class DomainEstimates:
    """Penalized maximum likelihood estimates of the GP hyperparameters of ``N`` domains.

    A domain is a search space with its source tasks. The domains have ``D`` inputs in total. Means
    and variances have the units of the fit: standardized or raw outcomes.

    Args:
        names: The domains' names.
        constant: An ``N`` tensor of constant means.
        lengthscale: A ``D`` tensor: the lengthscales of all domains, concatenated.
        outputscale: An ``N`` tensor of signal variances.
        noise: An ``N`` tensor of noise variances; a lower bound replaces smaller values.
        dims: An ``N`` tensor of integers: each domain's number of inputs.
        context: A ``D x s`` tensor: ``s`` features that describe each input.
        log_likelihood: An ``N`` tensor: for each domain, the log marginal likelihood of its tasks.
            The likelihood is evaluated with the fitted noise variance, even if this variance is
            below the lower bound and ``noise`` contains the bound.
        outcome_mean: An ``N`` tensor: for each domain, the mean of its tasks' mean outcomes, in the
            user's units.
        outcome_std: An ``N`` tensor: for each domain, the root mean square of the standard
            deviations of its tasks' outcomes.
    """

    names: Sequence[str]
    constant: Tensor
    lengthscale: Tensor
    outputscale: Tensor
    noise: Tensor
    dims: Tensor
    context: Tensor
    log_likelihood: Tensor
    outcome_mean: Tensor
    outcome_std: Tensor


@torch.no_grad()
def log_likelihoods(
    draws: HyperparameterDraws, X: Tensor, Y: Tensor, Yvar: Tensor | None, kernel: str
) -> Tensor:
    """Evaluates the log marginal likelihood of one task for each sample of GP hyperparameters.

    Args:
        draws: ``R`` samples of hyperparameters.
        X: An ``n x d`` tensor of inputs; ``n`` may be zero.
        Y: An ``n`` tensor of outcomes.
        Yvar: An ``n`` tensor of known noise variances. If omitted, the sampled noise variances are
            used.
        kernel: The stationary kernel's name.

    Returns:
        An ``R`` tensor in double precision. A value is minus infinity if the covariance matrix
        cannot be factorized.

    Example:
        >>> ones = torch.ones(3, dtype=torch.double)
        >>> draws = HyperparameterDraws(0 * ones, ones.unsqueeze(-1), ones, ones)
        >>> log_likelihoods(draws, ones[:2, None], ones[:2], None, "rbf").shape
        torch.Size([3])
    """
    X, Y = X.double(), Y.double()
    num_rows = max(1, BLOCK_ELEMENTS // max(1, len(X) ** 2))
    values = []
    for rows in zip(*(part.to(X).split(num_rows) for part in draws), strict=True):
        constant, lengthscale, outputscale, noise = rows
        covariance = Stationary(kernel, lengthscale.unsqueeze(-2), outputscale).between(X, X)
        noise = noise.unsqueeze(-1) if Yvar is None else Yvar.double()
        values.append(-nll(constant.unsqueeze(-1), covariance, Y, noise=noise))
    return torch.cat(values).nan_to_num(nan=-torch.inf, neginf=-torch.inf)


#: Starting values and bounds of the hyperparameters, for outcomes of mean zero and variance one.
DOMAIN_HYPERPARAMETERS = GPHyperparameters(
    # In the unit cube, a function of lengthscale 30 hardly varies.
    lengthscale=Hyperparameter(None, start=0.5, lower=1e-3, upper=30.0),
    outputscale=Hyperparameter(None, start=1.0, lower=1e-4, upper=1e2),
    noise=Hyperparameter(None, start=1e-2, lower=1e-8, upper=10.0),
)

_MAX_CONSTANT = 1e2
#: Lower bound of an estimated noise variance, relative to the signal variance. A hyperprior fitted
#: to lower estimates would make covariance matrices singular.
_LEAST_NOISE = 1e-5

# Cache of the fit of each domain: after an interruption, finished domains are not fitted again.
_finished = Memo(size=4096)


@dataclass(frozen=True)
class DomainFitOptions(MAPOptions):
    """Options for fitting a GP to each domain (a search space with its source tasks).

    Args:
        fit_points: The maximum number of points of a task. From a larger task, this number of
            points is used, at evenly spaced ranks from the worst to the best outcome.
        num_restarts: The number of random starts of L-BFGS-B. One more start uses fixed values.
        max_iter: The maximum number of L-BFGS-B iterations of each start.
        lengthscale_spread: The standard deviation of the log lengthscale in a weak log-normal
            hyperprior with median 0.5. Infinity removes the hyperprior.
        seed: The seed of the random starts.
        chunk_elements: The maximum number of covariance matrix elements in memory at once. Each
            element needs 90 bytes.
        max_bytes: The maximum memory of the fit of one domain. If the fit needs more memory, an
            error is raised.
        n_jobs: The number of domains that joblib fits in parallel. ``None`` follows
            ``joblib.parallel_config``, for instance to fit domains on a dask cluster.
        progress: ``True`` for a progress bar over the domains, ``False`` for none. By default a fit
            of more than three seconds logs its expected duration, and shows a bar if the output is
            a terminal.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> DomainFitOptions(num_restarts=0).fit_points
        512
    """

    fit_points: int = 512
    num_restarts: int = 1
    max_iter: int = 500
    lengthscale_spread: float = 1.5
    chunk_elements: int = 2**22

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lengthscale_spread > 0:
            raise ValueError("lengthscale_spread= must be positive.")


def fit_domains(
    domains: Sequence[Domain], kernel: str, outcome_scale: OutcomeScale, options: DomainFitOptions
) -> DomainEstimates:
    """Fits a GP to each domain, with constant mean and ARD lengthscales.

    The fit maximizes the likelihood times the density of a weak log-normal hyperprior of the
    lengthscales: see :class:`DomainFitOptions`.

    Args:
        domains: The domains.
        kernel: The stationary kernel's name.
        outcome_scale: How outcomes are scaled before the fit: ``"per_task"`` standardizes each task
            by itself, and ``"raw"`` changes nothing.
        options: How to optimize.

    Returns:
        The estimates, in double precision on the CPU. For a domain with known noise, the noise
        estimate is the mean of the known noise variances.

    Raises:
        InputDataError: If two domains have the same name, if a domain needs more memory than
            ``max_bytes``, or if the outcomes of a domain are constant.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> domain = Domain({"monday": (X, X.sum(-1, keepdim=True))}, name="lab")
        >>> options = DomainFitOptions(num_restarts=0)
        >>> fit_domains([domain], "matern52", "raw", options).lengthscale.shape
        torch.Size([2])
    """
    names = [domain.name or f"domain {number}" for number, domain in enumerate(domains)]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputDataError(f"Two domains have the name {twice[0]!r}: rename one domain.")
    prepared = [
        _prepare(name, domain, outcome_scale, options)
        for name, domain in zip(names, domains, strict=True)
    ]
    jobs = [(tasks, kernel, options) for tasks, _, _ in prepared]
    results = _finished.run("domain_fit", _fit_domain, jobs, options.n_jobs)
    fitted = dict(track(results, "domains", len(jobs), options.progress))
    found = [fitted[number] for number in range(len(jobs))]
    parts = torch.tensor([row[1:] for row in found], dtype=torch.double)
    outcome = torch.tensor([[mean, std] for _, mean, std in prepared], dtype=torch.double)
    return DomainEstimates(
        names=tuple(names),
        constant=parts[:, 0],
        lengthscale=torch.cat([row[0] for row in found]),
        outputscale=parts[:, 1],
        noise=parts[:, 2],
        dims=torch.tensor([domain.dim for domain in domains]),
        context=torch.cat([cast(Tensor, domain.context).double().cpu() for domain in domains]),
        log_likelihood=parts[:, 3],
        outcome_mean=outcome[:, 0],
        outcome_std=outcome[:, 1],
    )


def _prepare(
    name: str, domain: Domain, outcome_scale: OutcomeScale, options: DomainFitOptions
) -> tuple[PaddedTasks, float, float]:
    """Pads the tasks of a domain, scales their outcomes, and computes moments of the outcomes.

    Returns:
        The padded tasks with scaled outcomes; the mean of the tasks' mean outcomes; and the root
        mean square of the tasks' standard deviations of outcomes. Both moments are in the user's
        units.
    """
    sizes = [len(data.X) for data in domain.datasets]
    labels = [f"{name}: {task}" for task in domain.task_names]
    check_padded_size(labels, sizes, options.max_bytes)
    tasks = PaddedTasks.from_datasets(domain.datasets, domain.input_transform).double()
    warn_outside_unit_cube(tasks.X, f"the domain {name!r}")
    mean, std = tasks.moments()
    typical = float(mean.mean()), float(std.square().mean().sqrt())
    tasks = tasks.standardize(*outcome_scales(tasks, outcome_scale))
    outcomes = tasks.Y[tasks.mask]
    if float(outcomes.max() - outcomes.min()) <= 1e-12 * float(outcomes.abs().max()):
        text = f"The outcomes of domain {name!r} are constant, so no GP can be learned from them"
        raise InputDataError(f"{text}: leave this domain out, or use SingleTaskGP.")
    return tasks, *typical


def _fit_domain(
    tasks: PaddedTasks, kernel: str, options: DomainFitOptions
) -> tuple[Tensor, float, float, float, float]:
    """Fits one GP to all tasks of a domain.

    Returns:
        The lengthscales, the constant mean, the signal variance, the noise variance and the log
        marginal likelihood.
    """
    tasks = tasks.typical(options.fit_points)
    outcomes = tasks.Y[tasks.mask]
    moments = torch.stack([outcomes.mean(), outcomes.std(correction=0)])
    theta, value = _minimize(tasks.standardize(*moments.unsqueeze(-1)), kernel, options)
    offset, scale = moments.tolist()
    outputscale, noise = (theta[-3:-1].exp() * scale**2).tolist()
    if bool(tasks.fixed_noise.all()):
        noise = float(tasks.Yvar[tasks.mask].mean())
    noise = max(noise, _LEAST_NOISE * outputscale)
    log_likelihood = -value - len(outcomes) * math.log(scale)
    return theta[:-3].exp(), float(theta[-1]) * scale + offset, outputscale, noise, log_likelihood


def _objective(tasks: PaddedTasks, kernel: str, options: DomainFitOptions) -> TaskObjective:
    """Builds the objective for fitting one GP to all tasks of a domain.

    The objective is the negative log marginal likelihood of the tasks, with a weak hyperprior of
    the lengthscales. If one lengthscale is very short, the likelihood does not depend on the other
    lengthscales. Without the hyperprior, the other lengthscales would end at a bound.
    """
    lengthscale, spread = DOMAIN_HYPERPARAMETERS.lengthscale, options.lengthscale_spread
    if math.isfinite(spread):
        prior = partial(LogDensityLogNormalPrior, math.log(lengthscale.start), spread)
        lengthscale = replace(lengthscale, make_prior=prior)
    hyperparameters = replace(DOMAIN_HYPERPARAMETERS, lengthscale=lengthscale)
    log_prior = hyperparameters.log_prior(tasks.X.shape[-1])
    return TaskObjective(tasks, kernel, log_prior, options.chunk_elements, shared=True)


def _minimize(tasks: PaddedTasks, kernel: str, options: DomainFitOptions) -> tuple[Tensor, float]:
    """Minimizes the objective of a domain's fit by L-BFGS-B, from several starts.

    Returns:
        The best optimum, and its negative log marginal likelihood. The optimum is a tensor of log
        lengthscales, log signal variance, log noise variance and constant mean.
    """
    objective, dim = _objective(tasks, kernel, options), tasks.X.shape[-1]
    # In all starts the constant is zero, the mean of the outcomes.
    starts = pad(draw_starts(DOMAIN_HYPERPARAMETERS, dim, options), (0, 1)).to(tasks.X.device)
    constant = torch.tensor([[-_MAX_CONSTANT], [_MAX_CONSTANT]], dtype=torch.double)
    bounds = torch.cat([log_bounds(DOMAIN_HYPERPARAMETERS, dim), constant], dim=-1)
    theta, value = minimize_batched(objective, starts, bounds, options.max_iter)
    best = int(value.argmin())
    found = theta[best : best + 1].to(starts).exp()
    log_prior, _ = objective.log_prior(found, torch.zeros(1, dtype=torch.long))
    return theta[best], float(value[best]) * int(tasks.num_points.sum()) + float(log_prior)


def fit_gamma(sample: Tensor, name: str = "hyperparameter") -> Tensor:
    """Fits a Gamma distribution by maximum likelihood.

    For a single value, or for almost equal values, the maximum likelihood distribution is so narrow
    that it would fix the hyperparameter in all later fits. In this case, the function logs a
    warning and returns a broad Gamma distribution with the same mean.

    Args:
        sample: An ``n`` tensor of one or more positive values.
        name: The hyperparameter's name, for the warning.

    Returns:
        A tensor of two elements: shape and rate, the arguments of ``GammaPrior``.

    Example:
        >>> fit_gamma(torch.tensor([1.0, 2.0, 4.0], dtype=torch.double))
        tensor([3.4..., 1.4...], dtype=torch.float64)
    """
    from scipy.stats import gamma  # imported here, because the import is slow

    values = sample.detach().double().cpu()
    mean = float(values.mean())
    # The maximum likelihood shape is about 0.5 / (mean / geometric mean - 1).
    if float(mean * (-values.log().mean()).exp()) - 1 < 0.5 / MAX_SHAPE:
        _warn_of_agreement(values, name, "Gamma")
        return torch.tensor([BROAD_SHAPE, BROAD_SHAPE / mean]).to(sample)
    # Values are divided by their mean, because SciPy's search starts well for values of order one.
    shape, _, scale = gamma.fit((values / mean).numpy(), floc=0)
    return torch.tensor([shape, 1 / (scale * mean)], dtype=torch.double).to(sample)


def fit_normal(sample: Tensor, broad: float, name: str = "hyperparameter") -> Tensor:
    """Fits a Normal distribution by maximum likelihood.

    Args:
        sample: An ``n`` tensor of one or more values.
        broad: The standard deviation to use if the values are almost equal, see :func:`fit_gamma`.
        name: The hyperparameter's name, for the warning.

    Returns:
        A tensor of two elements: mean and standard deviation, the arguments of ``NormalPrior``.

    Example:
        >>> fit_normal(torch.tensor([1.0, 3.0]), broad=1.0)
        tensor([2., 1.])
    """
    values = sample.detach().double()
    mean, std = values.mean(), values.std(correction=0)
    if float(std) < 1e-3 * broad:
        _warn_of_agreement(values, name, "Normal")
        std = torch.full_like(std, broad)
    return torch.stack([mean, std]).to(sample)


def _warn_of_agreement(values: Tensor, name: str, family: str) -> None:
    logger.warning(
        f"The estimates of the {name} ({len(values)} in all) differ too little for a fit by "
        f"maximum likelihood: a broad {family} distribution with their mean is used instead."
    )


@savable
class ContextNetwork(Module):
    r"""A small network that maps features of an input to a Gamma prior of its lengthscale.

    It is the network of MPHD [Fan2024mphd]_. The context of an input is a vector of features that
    describe the input. Contexts are first clipped to the range of the training contexts, and then
    standardized. The network does not extrapolate, because contexts are clipped. Without
    ``bounded_head``, the outputs are the logarithms of the Gamma's shape and mean, relative to
    ``base``: if the outputs are zero, the result is the Gamma distribution ``base``.

    Args:
        contexts: An ``n x s`` tensor: the contexts of the training data.
        base: A tensor of two elements: the Gamma's shape and rate if the outputs are zero.
        hidden: The widths of the hidden layers, each followed by tanh.
        bounded_head: Whether tanh and softplus follow the last layer, as in the authors' program.
            The results are then the Gamma's shape and rate themselves, in (0.31, 1.31), and
            ``base`` is not used.
        state: The trained weights of the layers, for a frozen network. Without ``state``, the
            weights are random.

    Example:
        >>> contexts = torch.tensor([[1.0, 2.0], [1.0, 5.0]])
        >>> network = ContextNetwork(contexts, base=torch.tensor([3.0, 6.0]))
        >>> shape, rate = network(contexts)
        >>> shape.shape, rate.shape
        (torch.Size([2]), torch.Size([2]))
    """

    contexts: Tensor
    base: Tensor

    def __init__(
        self,
        contexts: Tensor,
        base: Tensor,
        hidden: Sequence[int] = (16, 16),
        bounded_head: bool = False,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("contexts", contexts.detach())
        self.register_buffer("base", base.detach().to(contexts).clone())
        self.hidden, self.bounded_head = tuple(hidden), bounded_head
        widths = [contexts.shape[-1], *hidden]
        layers = [part for pair in pairwise(widths) for part in (Linear(*pair), Tanh())]
        self.layers = Sequential(*layers, Linear(widths[-1], 2)).to(contexts)
        if state is not None:
            self.layers.load_state_dict(state)
            freeze(self)

    @property
    def state(self) -> dict[str, Tensor]:
        """The weights of the network's layers, by name."""
        return self.layers.state_dict()

    def forward(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Computes the Gamma distributions of lengthscales from the contexts of their inputs.

        Args:
            contexts: A ``... x s`` tensor: ``s`` features of each input.

        Returns:
            The shapes and the rates of the Gamma distributions: two tensors, with the shape of
            ``contexts`` without its last dimension.
        """
        clipped = contexts.clamp(*self.contexts.aminmax(dim=0))
        std, mean = torch.std_mean(self.contexts, dim=0, correction=0)
        # A constant feature is zero after standardization.
        output = self.layers((clipped - mean) / torch.where(std > 0, std, 1.0))
        if self.bounded_head:
            shape, rate = softplus(torch.tanh(output)).unbind(dim=-1)
            return shape, rate
        log_shape, log_mean = output.unbind(dim=-1)
        shape = self.base[0] * log_shape.exp()
        return shape, shape * self.base[1] / self.base[0] * (-log_mean).exp()

    def prior(self, context: Tensor) -> GammaPrior:
        """Builds the Gamma hyperprior of the lengthscales of a GP with ``d`` inputs.

        Args:
            context: A ``d x s`` tensor: ``s`` features that describe each input.

        Returns:
            A prior of ``d`` independent lengthscales.
        """
        shape, rate = (part.detach() for part in self(context.to(self.contexts)))
        if len(shape) == 1:
            # A univariate prior, because BoTorch then draws starting values that have the shape of
            # the hyperparameter.
            shape, rate = shape.squeeze(0), rate.squeeze(0)
        return GammaPrior(shape, rate)


@dataclass(frozen=True)
class NetworkOptions:
    """Options of the network that predicts priors of lengthscales (MPHD), and of its training.

    Args:
        hidden: The widths of the network's hidden layers.
        bounded_head: Whether to confine shape and rate to (0.31, 1.31), as in the authors' program.
        num_steps: The number of steps of Adam, each on all lengthscales.
        learning_rate: Adam's learning rate.
        weight_penalty: The objective includes half the sum of squared weights, multiplied by this
            factor.
        shape_spread: The prior standard deviation of the log of each Gamma's shape parameter. The
            prior mean is the log shape of one Gamma distribution that is fitted to all
            lengthscales. ``shape_spread`` has no effect if ``bounded_head``. The paper's objective
            is ``weight_penalty=0, shape_spread=math.inf``; it overfits if there are few domains.
        seed: The seed of the initial weights.

    Raises:
        ValueError: If a number is out of range.

    Example:
        >>> NetworkOptions(hidden=(8,)).num_steps
        10000
    """

    hidden: tuple[int, ...] = (16, 16)
    bounded_head: bool = False
    num_steps: int = 10_000
    learning_rate: float = 1e-3
    weight_penalty: float = 1.0
    shape_spread: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        positive = self.num_steps, self.learning_rate, self.shape_spread, *self.hidden
        if min(positive) <= 0 or self.weight_penalty < 0:
            raise ValueError(
                "num_steps=, learning_rate=, shape_spread= and the widths of hidden= must be "
                "positive, and weight_penalty= must not be negative."
            )


def network_objective(
    network: ContextNetwork,
    context: Tensor,
    index: Tensor,
    lengthscale: Tensor,
    options: NetworkOptions,
) -> Tensor:
    """Evaluates the training objective of MPHD's network for estimated lengthscales.

    Args:
        network: The network.
        context: A ``C x s`` tensor of distinct contexts, each a vector of features of an input. The
            prior on the Gamma's shape counts once for each context.
        index: A ``D`` tensor of integers: the row of ``context`` for each lengthscale.
        lengthscale: A ``D`` tensor of estimated lengthscales.
        options: The options that define the priors. The network's biases have no prior.

    Returns:
        A scalar tensor, differentiable in the network's parameters.
    """
    shape, rate = network(context)
    loss = -Gamma(shape[index], rate[index], validate_args=False).log_prob(lengthscale).sum()
    layers = [layer for layer in network.layers if isinstance(layer, Linear)]
    squares = torch.stack([layer.weight.square().sum() for layer in layers]).sum()
    loss = loss + 0.5 * options.weight_penalty * squares
    if network.bounded_head or math.isinf(options.shape_spread):
        return loss
    scaled = (shape / network.base[0]).log() / options.shape_spread
    return loss + 0.5 * scaled.square().sum()


def fit_network(
    context: Tensor, lengthscale: Tensor, base: Tensor, options: NetworkOptions
) -> ContextNetwork:
    """Trains MPHD's network on the lengthscales that were estimated for all domains.

    Args:
        context: A ``D x s`` tensor: for each lengthscale, ``s`` features of its input.
        lengthscale: A ``D`` tensor of estimated lengthscales.
        base: A tensor of two elements: the shape and rate of one Gamma distribution for all
            lengthscales, see :class:`ContextNetwork`.
        options: How to train.

    Returns:
        The frozen network.

    Example:
        >>> context = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.double)
        >>> lengthscale = torch.tensor([0.1, 0.2, 0.4], dtype=torch.double)
        >>> base = torch.tensor([3.0, 12.0], dtype=torch.double)
        >>> network = fit_network(context, lengthscale, base, NetworkOptions(num_steps=10))
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(options.seed)
        network = ContextNetwork(context, base, options.hidden, options.bounded_head)
    distinct, index = context.unique(dim=0, return_inverse=True)
    parameters: dict[str, Tensor] = dict(network.named_parameters())

    def evaluate() -> Tensor:
        loss = network_objective(network, distinct, index, lengthscale, options)
        loss.backward()
        return loss

    torch_minimize(
        gradient_closure(evaluate, parameters),
        parameters,
        optimizer=partial(torch.optim.Adam, lr=options.learning_rate, fused=True),
        step_limit=options.num_steps,
    )
    drop_gradients(parameters)
    freeze(network)
    return network
