"""How each method looks in all pictures: the one place for colours."""

from __future__ import annotations

from typing import NamedTuple


class Style(NamedTuple):
    """A line's look.

    Args:
        color: From the palette of Okabe and Ito, whose colours most colour-blind readers can tell
            apart.
        line: A matplotlib line style; no two methods differ in colour alone.
        marker: A matplotlib marker.
    """

    color: str
    line: str
    marker: str


STYLES: dict[str, Style] = {
    "ScaML-GP": Style("#0072B2", "-", "o"),
    "plain GP": Style("#D55E00", "--", "s"),
    "best of history": Style("#009E73", "-.", "^"),
    "random search": Style("#7F7F7F", ":", "x"),
}


def style_of(method: str) -> Style:
    """Looks a method's style up.

    Args:
        method: The method's name.

    Returns:
        Its style.

    Raises:
        ValueError: If it has none.
    """
    if method not in STYLES:
        raise ValueError(f"Method {method!r} has no colour yet: give it a line in STYLES.")
    return STYLES[method]
