"""Announces how long pre-training takes, by a log line and by a progress bar on a terminal.

Read this to announce long work. The expected time is extrapolated from the first part of the work.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from logging import LogRecord, getLogger
from time import perf_counter
from typing import Any, TypeVar

from tqdm.auto import tqdm

T = TypeVar("T")

#: Maximum expected time, in seconds, of work that is not announced.
PATIENCE = 3.0

#: Time, in seconds, after which the total time is extrapolated.
_ENOUGH = 0.3

_show: ContextVar[bool | None] = ContextVar("show", default=None)

logger = getLogger(__name__)


def announce(what: str, seconds: float, show: bool | None = None) -> None:
    """Logs the expected time of work, unless the work is short.

    Args:
        what: A description of the work.
        seconds: The expected time.
        show: See :func:`track`.
    """
    show = _show.get() if show is None else show
    if seconds > PATIENCE and show is not False:
        logger.info("Pre-training takes about %.0f seconds (%s).", seconds, what)


@contextmanager
def logged_once(logged: set[str]) -> Iterator[None]:
    """Suppresses repeated log lines of this package within a ``with`` block.

    Args:
        logged: The lines to suppress. Each new line is logged once, and added to this set.

    Example:
        >>> with logged_once(set()):
        ...     getLogger("botorch_transfer.data.tables").info("logged once")
    """

    def is_new(record: LogRecord) -> bool:
        text = record.getMessage()
        return text not in logged and not logged.add(text)  # type: ignore[func-returns-value]

    with ExitStack() as stack:
        for name in list(getLogger().manager.loggerDict):
            if name.startswith(f"{__package__}."):
                getLogger(name).addFilter(is_new)
                stack.callback(getLogger(name).removeFilter, is_new)
        yield


def track(
    items: Iterable[T], what: str, total: int, show: bool | None = None
) -> Generator[T, None, None]:
    """Iterates over the parts of long work, and shows the progress.

    Args:
        items: The parts of the work.
        what: A description of the parts, in the plural.
        total: The number of parts.
        show: ``True`` for a progress bar; ``False`` for neither a bar nor a log line. By default,
            work of more than three seconds is logged, and has a bar if the output is a terminal.

    Yields:
        The parts.

    Example:
        >>> [number**2 for number in track([1, 2, 3], "squares", total=3)]
        [1, 4, 9]
    """
    shown = _show.get() if show is None else show
    start, delay, is_announced = perf_counter(), 0.0 if shown else PATIENCE, False
    disable = None if shown is None else not shown  # with None, tqdm needs a terminal
    bar = tqdm(items, desc=what, total=total, disable=disable, delay=delay)
    for done, item in enumerate(bar, start=1):
        yield item
        elapsed = perf_counter() - start
        if not is_announced and elapsed > _ENOUGH and done < total:
            announce(what, elapsed * total / done, show)
            is_announced = True


@contextmanager
def overridden(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Sets a context variable to ``value`` within a ``with`` block; ``None`` changes nothing."""
    token = variable.set(variable.get() if value is None else value)
    try:
        yield
    finally:
        variable.reset(token)


def showing(progress: bool | None) -> AbstractContextManager[None]:
    """Sets whether pre-training within a ``with`` block shows its progress by default.

    Args:
        progress: See ``show`` of :func:`track`; ``None`` does not change the default.

    Returns:
        The context manager.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> with showing(False):
        ...     sources = SourceGPs.fit([(X, X.sum(-1, keepdim=True))])
    """
    return overridden(_show, progress)
