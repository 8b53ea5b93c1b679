"""Measuring the transfer to an unseen search space, with domains that one has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from botorch.exceptions.errors import InputDataError

from botorch_transfer.data import Domain
from botorch_transfer.pretraining.domain_checks import check_domains
from botorch_transfer.pretraining.hyperprior import Hyperprior, check_kind


def leave_one_domain_out(
    domains: Sequence[Domain], **options: Any
) -> Iterator[tuple[Domain, Hyperprior]]:
    """Goes through domains, each with a hyperprior that was learned from all the others.

    That is how the papers measure the transfer to an unseen search space. Step 1 is run once, step
    2 for each domain.

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
    check_kind(kind)
    kernel = options.pop("kernel", None) or ("matern52" if kind == "mphd" else "matern32")
    # Step 2 of all domains is not needed: the cheapest kind will do.
    everything = Hyperprior.fit(domains, kind="universal", kernel=kernel, **options)
    for number, domain in enumerate(domains):
        yield domain, everything.refit(kind, without=number, network=network)
