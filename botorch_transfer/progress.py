"""Announces the duration of pre-training: a line in the log, and a bar on a terminal.

Read this to announce long work. The expected time is measured on the machine, by the first
part of the work.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from logging import LogRecord, getLogger
from time import perf_counter
from typing import TypeVar

from tqdm.auto import tqdm

T = TypeVar("T")

PATIENCE = 3.0
"""Seconds of work that need no announcement."""

_ENOUGH = 0.3
"""After so many seconds, the speed of the work is known."""

_show: ContextVar[bool | None] = ContextVar("show", default=None)

logger = getLogger(__name__)


def announce(what: str, seconds: float, show: bool | None = None) -> None:
    """Logs how long work will take, if that is long.

    Args:
        what: What is worked on.
        seconds: The expected time.
        show: See :func:`track`.
    """
    show = _show.get() if show is None else show
    if seconds > PATIENCE and show is not False:
        logger.info("Pre-training takes about %.0f seconds (%s).", seconds, what)


@contextmanager
def logged_once(logged: set[str], *names: str) -> Iterator[None]:
    """Drops log lines that have been logged before.

    Args:
        logged: The lines so far; new lines are added.
        names: The loggers, modules of this package.

    Example:
        >>> with logged_once(set(), "data.tables"):
        ...     getLogger("botorch_transfer.data.tables").info("logged once")
    """

    def is_new(record: LogRecord) -> bool:
        text = record.getMessage()
        return text not in logged and not logged.add(text)  # type: ignore[func-returns-value]

    loggers = [getLogger(f"{__package__}.{name}") for name in names]
    for each in loggers:
        each.addFilter(is_new)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(is_new)


def track(
    items: Iterable[T], what: str, total: int, show: bool | None = None
) -> Generator[T, None, None]:
    """Goes through the parts of long work, or their results as they become available.

    Args:
        items: The parts.
        what: What they are, in the plural.
        total: How many there are.
        show: ``True`` for a bar, ``False`` for neither a bar nor a line in the log; by default,
            work of more than three seconds is logged, and has a bar on a terminal.

    Yields:
        The parts.

    Example:
        >>> [number**2 for number in track([1, 2, 3], "squares", total=3)]
        [1, 4, 9]
    """
    shown = _show.get() if show is None else show
    start, delay, is_announced = perf_counter(), 0.0 if shown else PATIENCE, False
    disable = None if shown is None else not shown  # None: unless there is a terminal
    bar = tqdm(items, desc=what, total=total, disable=disable, delay=delay)
    for done, item in enumerate(bar, start=1):
        yield item
        elapsed = perf_counter() - start
        if not is_announced and elapsed > _ENOUGH and done < total:
            announce(what, elapsed * total / done, show)
            is_announced = True


@contextmanager
def showing(progress: bool | None) -> Iterator[None]:
    """Sets whether pre-training shows its progress, unless its own option is given.

    Args:
        progress: See :func:`track`; ``None`` changes nothing.

    Yields:
        Nothing.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> with showing(False):
        ...     sources = SourceGPs.fit([(X, X.sum(-1, keepdim=True))])
    """
    token = _show.set(_show.get() if progress is None else progress)
    try:
        yield
    finally:
        _show.reset(token)
