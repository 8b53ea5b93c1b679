"""The look of the studies' methods in pictures: the package's, and those of what it is compared to.

A competitor joins with one line here; a model of the package with one in
``botorch_transfer.plotting.STYLES``.
"""

from __future__ import annotations

from botorch_transfer.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    PURPLE,
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
        "StackGP": Style(BLACK, "--", "D"),
        "STBOH": Style(GREY, "-", "p"),
        "RM-GP-UCB": Style(SKY, "-.", "*"),
        "GC3P": Style(GREEN, "--", "X"),
        "MIMO": Style(GREY, "-.", "d"),
        "RFGP": Style(PURPLE, ":", "P"),
        "multi-task GP": Style(VERMILLION, "-.", "h"),
    }
)
