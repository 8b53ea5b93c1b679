"""What the papers, and this package, say of each setting, as comparisons that a study judges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from benchmarks.studies.claims import Claim

JOINT_BEST = 1.05
TRANSFER = ("ScaML-GP", "RGPE", "MHGP", "BHGP", "SHGP", "HGP", "WSGP")


def _against(better: Sequence[str], worse: Sequence[str]) -> list[tuple[str, str]]:
    return [(a, b) for a, b in product(better, worse) if a != b]


def _early(methods: Iterable[str]) -> Claim:
    return Claim(
        "transfer beats the plain GP early (first quarter of the evaluations, the plain GP's "
        "shared first points included)",
        [(method, "plain GP") for method in methods],
        early=True,
    )


def _scaml(exception: str = "") -> Claim:
    competitors = ("RGPE", "SGPT", "MHGP", "ABLR", "FSBO", "RM-GP-UCB", "GC3P", "plain GP")
    text = f"ScaML-GP is best or joint best{exception}"
    return Claim(text, _against(("ScaML-GP",), competitors), JOINT_BEST)


SINGLE_SOURCE = (
    Claim(
        "the Bayesian SHGP, HGP and WSGP are ahead of MHGP and RGPE",
        _against(("SHGP", "HGP", "WSGP"), ("MHGP", "RGPE")),
    ),
    Claim("HGP is as good as SHGP or better", [("HGP", "SHGP")], JOINT_BEST),
    Claim("BHGP is better than MHGP", [("BHGP", "MHGP")]),
    Claim("SHGP is better than BHGP", [("SHGP", "BHGP")]),
    Claim(
        "MTKGP and MTGP are worse than HGP and WSGP",
        _against(("HGP", "WSGP"), ("MTKGP", "MTGP")),
    ),
    _early(TRANSFER),
)
ALPINE = (
    Claim(
        "SHGP and BHGP are ahead of the others",
        _against(("SHGP", "BHGP"), ("HGP", "WSGP", "MTKGP", "MHGP", "RGPE", "plain GP")),
    ),
    _early(TRANSFER),
)
MOST_TRANSFER = _early(("ScaML-GP", "RGPE", "SGPT", "MHGP", "ABLR", "FSBO"))
SVM = (
    Claim(
        "WSGP is ahead of all others",
        _against(("WSGP",), ("HGP", "SHGP", "BHGP", "MHGP", "RGPE", "MTKGP", "plain GP")),
    ),
    Claim("HGP is worse than WSGP", [("WSGP", "HGP")]),
    Claim("SHGP and BHGP are ahead of the plain GP", _against(("SHGP", "BHGP"), ("plain GP",))),
)
GUARD = Claim(
    "this package's: guarded ScaML-GP is as good as ScaML-GP", [("guarded", "ScaML-GP")], JOINT_BEST
)
EMBEDDED = (
    Claim("MIMO is ahead of STBOH", [("MIMO", "STBOH")]),
    Claim(
        "RFGP is no better than a single-task GP",
        [("STBOH", "RFGP"), ("plain GP", "RFGP")],
        JOINT_BEST,
    ),
)
ELSEWHERE = (_scaml(" (said of other data)"), MOST_TRANSFER, GUARD)

CLAIMS: Mapping[str, Sequence[Claim]] = {
    "branin-1": SINGLE_SOURCE,
    "hartmann3-1": SINGLE_SOURCE,
    "hartmann6-1": SINGLE_SOURCE,
    "alpine-5": ALPINE,
    "branin-8": (_scaml(), MOST_TRANSFER, GUARD),
    "hartmann6-8": (_scaml(), MOST_TRANSFER, GUARD),
    "svm": (*SVM, *ELSEWHERE),
    "fcnet": (_scaml(", but on Protein"), MOST_TRANSFER, GUARD),
    "mlp": (_scaml(), MOST_TRANSFER, GUARD, *EMBEDDED),
    "rf": ELSEWHERE,
    "rnn_optimizer": (
        Claim(
            "HyperBO (H-NLL) is ahead of FSBO, ABLR and the plain GP",
            _against(("H-NLL",), ("FSBO", "ABLR", "plain GP")),
        ),
        *EMBEDDED,
        *ELSEWHERE,
    ),
    "direct_arylation": ELSEWHERE,
}
