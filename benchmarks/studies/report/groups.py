"""Which methods share a panel: more than eight lines in one cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence

KINDS: dict[str, tuple[str, ...]] = {
    "sums and ensembles": (
        "ScaML-GP, paper's hyperpriors",
        "TransferGP",
        "guarded",
        "RGPE",
        "SGPT",
        "RM-GP-UCB",
        "best of history",
    ),
    "hierarchical": ("population", "MHGP", "BHGP", "SHGP", "HGP"),
    "joint": ("ScaML-GP, joint", "WSGP", "MTGP", "MTKGP", "multi-task GP"),
    "task embeddings": ("MIMO", "RFGP"),
    "pre-trained": ("H-NLL", "H-EKL", "FSBO", "ABLR", "MPHD", "STBOH", "GC3P"),
}
IN_ALL = ("ScaML-GP", "plain GP", "random search")
FEW = 8
CHOICE = (
    "ScaML-GP",
    "guarded",
    "RGPE",
    "SHGP",
    "H-NLL",
    "plain GP",
    "best of history",
    "random search",
)


def chosen(methods: Sequence[str]) -> list[str]:
    """Those of many methods that are shown where there is one panel a problem."""
    if len(methods) <= FEW:
        return list(methods)
    return [name for name in methods if name in CHOICE]


def panels_of(methods: Sequence[str]) -> dict[str, list[str]]:
    """Sorts methods into panels.

    Args:
        methods: The methods' names.

    Returns:
        The methods of each panel by its title. A few methods are in all of them, to compare with;
        if there are few altogether, there is one panel.
    """
    if len(methods) <= FEW:
        return {"all methods": list(methods)}
    common = [name for name in methods if name in IN_ALL]
    panels = {
        title: common + own
        for title, kind in KINDS.items()
        if (own := [name for name in methods if name in kind])
    }
    known = {name for names in panels.values() for name in names}
    others = [name for name in methods if name not in known]
    return {**panels, "others": common + others} if others else panels
