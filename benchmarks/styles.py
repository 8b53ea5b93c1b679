"""The look of the studies' methods in pictures: the package's, and those of what it is compared to.

What is no model of the package joins with one line here; a model of the package with one in
``botorch_transfer.plotting.STYLES``.
"""

from __future__ import annotations

from botorch_transfer import plotting as p
from botorch_transfer.plotting import STYLES, Style, style_of

__all__ = ["STYLES", "style_of"]

STYLES.update(
    {
        "ScaML-GP, paper's hyperpriors": Style(p.BLUE, ":", "<"),
        "TransferGP, robust": Style(p.BLACK, "--", "P"),
        "suggest": Style(p.BLACK, "-.", "v"),
        "best of history": Style(p.GREEN, "-.", "^"),
        "multi-task GP": Style(p.VERMILLION, "-.", "h"),
        "sorted": Style(p.GREY, "-", "+"),
        "sorted, then plain GP": Style(p.GREY, "-.", "1"),
        "portfolio": Style(p.SKY, "-.", "2"),
        "portfolio, then plain GP": Style(p.GREEN, "--", "3"),
    }
)
