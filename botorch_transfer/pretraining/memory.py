"""What the allocator has to know of long loops."""

from __future__ import annotations

import torch


def keep_freed_memory() -> None:
    """Has the allocator keep what one evaluation frees for the next one.

    The C library hands large freed pieces back to the system, and pays for every page of the next
    ones, until it has seen one of 32 MiB come and go. That cost a third of a fit.
    Where ``MALLOC_...`` in the environment says what to do, as in dask's workers, it stays so.

    Example:
        >>> keep_freed_memory()
    """
    torch.empty(2**22 - 2**10, dtype=torch.double)
