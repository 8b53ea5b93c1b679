"""How each method looks in all pictures: the one place for colours, lines and markers.

Colours are those of Okabe and Ito (and a grey), which most colour-blind readers can tell apart.
There are more methods than colours, so no two methods differ in colour alone: in a black-and-white
copy line and marker tell them apart.
"""

from __future__ import annotations

from typing import NamedTuple

BLUE, VERMILLION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#7F7F7F"


class Style(NamedTuple):
    """A line's look.

    Args:
        color: One of the palette's colours, or any other of matplotlib's.
        line: A matplotlib line style.
        marker: A matplotlib marker.

    Example:
        >>> Style(BLUE, "-", "o").color
        '#0072B2'
    """

    color: str
    line: str
    marker: str


STYLES: dict[str, Style] = {
    "ScaML-GP": Style(BLUE, "-", "o"),
    "ScaML-GP, joint": Style(BLUE, "--", "8"),
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
    "best of history": Style(GREEN, "-.", "^"),
    "random search": Style(GREY, ":", "x"),
    "StackGP": Style(BLACK, "--", "D"),
    "STBOH": Style(GREY, "-", "p"),
    "RM-GP-UCB": Style(SKY, "-.", "*"),
    "GC3P": Style(GREEN, "--", "X"),
    "multi-task GP": Style(VERMILLION, "-.", "h"),
}
"""The look of every method, by its name in the papers; a new method joins with one line."""

NAMES: dict[str, str] = {
    "BoostedHierarchicalGP": "BHGP",
    "FullyBayesianHyperpriorGP": "HyperBO+",
    "GuardedTransferGP": "guarded",
    "HyperpriorGP": "MPHD",
    "IntrinsicCoregionalizationGP": "MTKGP",
    "JointHierarchicalGP": "HGP",
    "JointScaMLGP": "ScaML-GP, joint",
    "LinearCoregionalizationGP": "MTGP",
    "MeanHierarchicalGP": "MHGP",
    "PretrainedGP": "H-NLL",
    "RankWeightedGP": "RGPE",
    "ScaMLGP": "ScaML-GP",
    "SequentialHierarchicalGP": "SHGP",
    "SingleTaskGP": "plain GP",
    "TwoStageTransferGP": "SGPT",
    "WeightedSourceGP": "WSGP",
}
"""The methods' names in pictures, by model class."""


def style_of(method: str | type) -> Style:
    """Looks a method's style up.

    Args:
        method: The method's name in the papers, a model class of this package, or its name.

    Returns:
        Its style. A subclass without a style of its own has its nearest base class's.

    Raises:
        ValueError: If it has none.

    Example:
        >>> style_of("SHGP") == style_of(SequentialHierarchicalGP)
        True
        >>> STYLES["my method"] = Style("#332288", "-.", "o")
        >>> style_of("my method").marker
        'o'
    """
    classes = [method] if isinstance(method, str) else [base.__name__ for base in method.__mro__]
    for name in classes:
        if (known := NAMES.get(name, name)) in STYLES:
            return STYLES[known]
    raise ValueError(
        f"Method {classes[0]!r} has no colour yet: give it a line in "
        "botorch_transfer.palette.STYLES."
    )
