"""Checks of what hyperpriors are learned from, and asked about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_transfer.data import Domain


def are_domains(source_data: Any) -> bool:
    """Whether something is a sequence of domains, and not of source tasks."""
    return isinstance(source_data, Sequence) and any(
        isinstance(part, Domain) for part in source_data
    )


def check_domains(domains: Sequence[Domain]) -> list[Domain]:
    """Checks that a hyperprior can be learned from domains.

    Args:
        domains: The domains.

    Returns:
        A list of them.

    Raises:
        InputDataError: If there are none, two have one name, or their contexts differ in kind.
    """
    if isinstance(domains, Domain) or not isinstance(domains, Sequence):
        raise InputDataError("Expected a sequence of domains: put a single one into a list.")
    if not domains:
        raise InputDataError("There are no domains: pass at least one.")
    for domain in domains:
        if not isinstance(domain, Domain):
            raise InputDataError(
                f"Expected domains, not a {type(domain).__name__}: make one of each search space "
                "by Domain(source_data)."
            )
    given = [domain.name for domain in domains if domain.name is not None]
    twice = next((name for name in given if given.count(name) > 1), None)
    if twice is not None:
        raise InputDataError(f"Two domains have the name {twice!r}: rename one.")
    sizes = {domain.context.shape[-1] for domain in domains if domain.context is not None}
    defaults = {domain.has_default_context for domain in domains}
    if len(sizes) > 1 or len(defaults) > 1:
        raise InputDataError(
            "The domains' contexts are of different kinds: give all of them contexts of the same "
            "size, or none."
        )
    return list(domains)


def check_rows(context: Tensor | None, dim: int) -> None:
    """Checks that a target's context, if there is one, has a row for each input."""
    if context is not None and (context.ndim != 2 or len(context) != dim):
        raise InputDataError(
            f"The context is {tuple(context.shape)}, but the target has {dim} inputs: it must be "
            "d x s, with a row for each."
        )


def find_domain(names: Sequence[str], domain: str | int) -> int:
    """Finds the number of a domain that is given by its name or number."""
    if isinstance(domain, str) and domain in names:
        return list(names).index(domain)
    if isinstance(domain, int) and 0 <= domain < len(names):
        return domain
    raise ValueError(f"There is no domain {domain!r} among {', '.join(map(repr, names))}.")
