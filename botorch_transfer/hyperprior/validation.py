"""How well a hyperprior predicts whole tasks: likelihoods of its draws, and unseen domains.

Read this for the papers' second metric, the negative log likelihood of a hierarchical GP (Eq. 2 of
[Fan2022hyperboplus]_), and for measuring the transfer to an unseen search space by leaving one
domain out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_transfer.data import Domain, SourceData, as_datasets
from botorch_transfer.gp.likelihood import BLOCK_ELEMENTS, stationary_nll
from botorch_transfer.gp.stationary import Stationary
from botorch_transfer.gp.tasks import check_choice
from botorch_transfer.hyperprior.estimates import HyperparameterDraws
from botorch_transfer.hyperprior.prior import Hyperprior, Kind, check_domains


@torch.no_grad()
def log_likelihoods(
    draws: HyperparameterDraws, X: Tensor, Y: Tensor, Yvar: Tensor | None, kernel: str
) -> Tensor:
    """Evaluates one task's log marginal likelihood under each draw, in one batch.

    Args:
        draws: ``R`` draws of hyperparameters.
        X: An ``n x d`` tensor of inputs; ``n`` may be zero.
        Y: An ``n`` tensor of outcomes.
        Yvar: An ``n`` tensor of known noise variances; the draws' if omitted.
        kernel: The stationary kernel's name.

    Returns:
        An ``R`` tensor in double precision; minus infinity where a covariance matrix cannot be
        factorized.

    Example:
        >>> ones = torch.ones(3, dtype=torch.double)
        >>> draws = HyperparameterDraws(0 * ones, ones.unsqueeze(-1), ones, ones)
        >>> log_likelihoods(draws, ones[:2, None], ones[:2], None, "rbf").shape
        torch.Size([3])
    """
    X, Y = X.double(), Y.double()
    num_rows = max(1, BLOCK_ELEMENTS // max(1, len(X) ** 2))
    values = []
    for start in range(0, len(draws), num_rows):
        some = draws[start : start + num_rows].to(X)
        stationary = Stationary(kernel, some.lengthscale.unsqueeze(-2), some.outputscale)
        noise = some.noise.unsqueeze(-1) if Yvar is None else Yvar.double()
        values.append(-stationary_nll(some.constant.unsqueeze(-1), X, stationary, noise, Y))
    return torch.cat(values).nan_to_num(nan=-torch.inf, neginf=-torch.inf)


def hierarchical_negative_log_likelihood(
    hyperprior: Hyperprior,
    tasks: Sequence[SourceData] | Mapping[str, SourceData],
    context: Tensor | None = None,
    num_samples: int = 500,
    seed: int = 0,
) -> Tensor:
    r"""Estimates ``-log p(D)`` of whole tasks under a hyperprior: the papers' second metric.

    Use it to compare hyperpriors on tasks that they were not learned from; lower is better. The
    estimate is ``-log mean_q p(D | θ_q)`` over draws ``θ_q`` of the hyperprior: Eq. 2 of
    [Fan2022hyperboplus]_ without its factor ``p(θ_q)``, which would count the hyperprior twice.

    Args:
        hyperprior: The hyperprior.
        tasks: The tasks, each ``D`` a ``SupervisedDataset`` or tensors ``X`` (``n x d``, in the
            unit cube), ``Y`` (``n x 1``) and optionally ``Yvar``; outcomes in the hyperprior's
            units, that is standardized unless its ``outcome_scale`` is ``"raw"``.
        context: A ``d x s`` tensor that describes the inputs.
        num_samples: The number of draws, the same for all tasks.
        seed: Their seed.

    Returns:
        A tensor with the value of each task, in double precision.

    Raises:
        InputDataError: If the tasks are unfit; the message names the task.
        ValueError: If there are no draws.

    Example:
        >>> from gpytorch.priors import GammaPrior, NormalPrior
        >>> positive = GammaPrior(2.0, 4.0)
        >>> constant = NormalPrior(0.0, 1.0)
        >>> hyperprior = Hyperprior.specified(constant, positive, positive, positive)
        >>> X = torch.rand(10, 3, dtype=torch.double)
        >>> task = (X, X.sum(-1, keepdim=True) - 1.5)
        >>> hierarchical_negative_log_likelihood(hyperprior, [task]).shape
        torch.Size([1])
    """
    if num_samples < 1:
        raise ValueError(f"num_samples={num_samples} must be positive.")
    datasets = as_datasets(tasks)
    draws = hyperprior.sample(num_samples, datasets[0].X.shape[-1], context, seed)
    values = []
    for data in datasets:
        Yvar = None if data.Yvar is None else data.Yvar.squeeze(-1)
        found = log_likelihoods(draws, data.X, data.Y.squeeze(-1), Yvar, hyperprior.kernel)
        values.append(math.log(num_samples) - found.logsumexp(dim=0))
    return torch.stack(values)


def leave_one_domain_out(
    domains: Sequence[Domain], **options: Any
) -> Iterator[tuple[Domain, Hyperprior]]:
    """Learns a hyperprior for each domain from all the other domains.

    The papers measure the transfer to an unseen search space in this way. Step 1 is run once, step
    2 once for each domain.

    Args:
        domains: The domains, two at least.
        **options: The arguments of :meth:`Hyperprior.fit`.

    Yields:
        Each domain and its hyperprior.

    Raises:
        InputDataError: If there are fewer than two domains.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> lab = Domain([(X, X.sum(-1, keepdim=True))], name="lab")
        >>> shop = Domain([(X[:, :1], X[:, :1].sin())], name="shop")
        >>> for domain, hyperprior in leave_one_domain_out([lab, shop], kind="universal"):
        ...     print(domain.name, hyperprior.domain_names)
        lab ('shop',)
        shop ('lab',)
    """
    domains = check_domains(domains)
    if len(domains) < 2:
        raise InputDataError("To leave one domain out, give two domains at least.")
    network, kind = options.pop("network", None), options.pop("kind", "mphd")
    check_choice("kind", kind, Kind)
    kernel = options.pop("kernel", None) or ("matern52" if kind == "mphd" else "matern32")
    # Step 2 of all domains is not needed: the cheapest kind will do.
    everything = Hyperprior.fit(domains, kind="universal", kernel=kernel, **options)
    for number, domain in enumerate(domains):
        yield domain, everything.refit(kind, without=number, network=network)
