"""Line styles of methods in pictures: of the package's models, and of the methods compared to them.

Two methods always differ in line or marker, because there are more methods than colours. So methods
can be distinguished in black and white, too. To add a method, add an entry to `STYLES`.
"""

from typing import NamedTuple

from botorch.models import SingleTaskGP

from botorch_transfer.arguments import MODELS
from botorch_transfer.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION


class Style(NamedTuple):
    """Color, line style and marker of a method.

    Args:
        color: A matplotlib color.
        line: A matplotlib line style.
        marker: A matplotlib marker.

    Example:
        >>> Style(BLUE, "-", "o").color
        '#0072B2'
    """

    color: str
    line: str
    marker: str


#: Style of each method, by its name in the papers (the ``label`` of a model).
STYLES: dict[str, Style] = {
    "ScaML-GP": Style(BLUE, "-", "o"),
    "ScaML-GP, joint": Style(BLUE, "--", "8"),
    "TransferGP": Style(VERMILLION, "-", "^"),
    "population": Style(ORANGE, ":", "o"),
    "guarded": Style(ORANGE, "--", "d"),
    "RGPE": Style(PURPLE, "-", "v"),
    "SGPT": Style(SKY, "-", "P"),
    "SHGP": Style(GREEN, "-", "d"),
    "BHGP": Style(ORANGE, "-", "<"),
    "MHGP": Style(SKY, "--", ">"),
    "HGP": Style(PURPLE, "--", "h"),
    "WSGP": Style(BLACK, ":", "p"),
    "MTGP": Style(VERMILLION, ":", "*"),
    "MTKGP": Style(GREY, "--", "H"),
    "H-NLL": Style(BLACK, "-", "X"),
    "H-EKL": Style(SKY, ":", "s"),
    "FSBO": Style(GREEN, ":", "v"),
    "ABLR": Style(ORANGE, "-.", "s"),
    "MPHD": Style(BLUE, "-.", "D"),
    "HyperBO+": Style(PURPLE, "-.", ">"),
    "plain GP": Style(VERMILLION, "--", "s"),
    "random search": Style(GREY, ":", "x"),
    "ScaML-GP, paper's hyperpriors": Style(BLUE, ":", "<"),
    "TransferGP, robust": Style(BLACK, "--", "P"),
    "suggest": Style(BLACK, "-.", "v"),
    "best of history": Style(GREEN, "-.", "^"),
    "multi-task GP": Style(VERMILLION, "-.", "h"),
    "sorted": Style(GREY, "-", "+"),
    "sorted, then plain GP": Style(GREY, "-.", "1"),
    "portfolio": Style(SKY, "-.", "2"),
    "portfolio, then plain GP": Style(GREEN, "--", "3"),
}


def style_of(method: str | type) -> Style:
    """Finds the style of a method.

    Args:
        method: The name of the method in the papers, a model class, or the name of the class.

    Returns:
        The style. A class without its own style has the style of its nearest base class. Methods
        without a style are black.

    Example:
        >>> style_of("SHGP") == style_of(SequentialHierarchicalGP)
        True
        >>> STYLES["my method"] = Style("#332288", "-.", "o")
        >>> style_of("my method").marker
        'o'
    """
    model = MODELS.get(method) if isinstance(method, str) else method
    bases: tuple[type, ...] = getattr(model, "__mro__", ())
    names = [method, *(vars(base).get("label") for base in bases)]
    if method == "SingleTaskGP" or (SingleTaskGP in bases and not hasattr(model, "label")):
        names = ["plain GP"]
    return next((STYLES[name] for name in names if name in STYLES), Style(BLACK, "-", "o"))
