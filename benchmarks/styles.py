"""Line styles of methods in pictures: of the package's models, and of the methods compared to them.

Two methods always differ in line or marker, because there are more methods than colours. So methods
can be distinguished in black and white, too. To add a method, add an entry to `STYLES`.
"""

from itertools import takewhile
from typing import NamedTuple

from botorch_transfer.model import TransferModel
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


#: Names of models in the papers, or short names, by the name of the class.
NAMES = {
    "BoostedHierarchicalGP": "BHGP",
    "FullyBayesianHyperpriorGP": "HyperBO+",
    "GuardedTransferGP": "guarded",
    "HyperpriorGP": "MPHD",
    "IntrinsicCoregionalizationGP": "MTKGP",
    "JointHierarchicalGP": "HGP",
    "JointScaMLGP": "ScaML-GP, joint",
    "LinearCoregionalizationGP": "MTGP",
    "MeanHierarchicalGP": "MHGP",
    "PlainGP": "plain GP",
    "PopulationGP": "population",
    "PretrainedGP": "H-NLL",
    "RankWeightedGP": "RGPE",
    "ScaMLGP": "ScaML-GP",
    "SequentialHierarchicalGP": "SHGP",
    "SingleTaskGP": "plain GP",
    "TwoStageTransferGP": "SGPT",
    "WeightedSourceGP": "WSGP",
}

#: Style of each method, by its name in ``NAMES`` or in the papers.
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
    if isinstance(method, str):
        names = [method]
    else:  # a transfer model without a style does not look like a plain GP
        bases = takewhile(lambda base: base is not TransferModel, method.__mro__)
        names = [base.__name__ for base in bases]
    styles = (STYLES.get(NAMES.get(name, name)) for name in names)
    return next(filter(None, styles), Style(BLACK, "-", "o"))
