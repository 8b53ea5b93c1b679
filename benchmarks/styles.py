"""The look of the studies' methods in pictures: the package's, and those of what it is compared to.

What is no model of the package joins with one line here; a model of the package with one in
``botorch_transfer.plotting.STYLES``.
"""

from __future__ import annotations

from botorch_transfer.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    SKY,
    STYLES,
    VERMILLION,
    Style,
    style_of,
)

__all__ = ["STYLES", "style_of"]

STYLES.update(
    {
        "ScaML-GP, paper's hyperpriors": Style(BLUE, ":", "<"),
        "suggest": Style(BLACK, "-.", "v"),
        "best of history": Style(GREEN, "-.", "^"),
        "multi-task GP": Style(VERMILLION, "-.", "h"),
        "sorted": Style(GREY, "-", "+"),
        "sorted, then plain GP": Style(GREY, "-.", "1"),
        "portfolio": Style(SKY, "-.", "2"),
        "portfolio, then plain GP": Style(GREEN, "--", "3"),
    }
)
