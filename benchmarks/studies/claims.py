"""What a paper claims of its methods, held against a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from benchmarks.studies.statistics import ratio_of_means


@dataclass(frozen=True)
class Claim:
    """That some methods have smaller areas under their regret curves than others.

    Args:
        text: The claim in words.
        pairs: The better and the worse method of each comparison.
        margin: By how much the better one may be worse and still count as equal: 1.05 for "best or
            joint best".
    """

    text: str
    pairs: Sequence[tuple[str, str]]
    margin: float = 1.0

    def verdict(self, areas: pd.DataFrame) -> tuple[str, str] | None:
        """Compares means of areas.

        Args:
            areas: One row a case, one column a method.

        Returns:
            The verdict and its numbers, of the pairs that were part of the study; `None` if there
            are none. "holds" and "does not hold" are said where the 95 % intervals of all pairs
            say so, "rather holds" and "rather not" where only their means do.
        """
        pairs = [pair for pair in self.pairs if set(pair) <= set(areas.columns)]
        if not pairs:
            return None
        verdicts, numbers = [], []
        for better, worse in pairs:
            row = ratio_of_means(areas[[better, worse]], worse).loc[better]
            ratio, low, high = row["ratio"], row["low"], row["high"]
            numbers.append(f"{better} / {worse} {ratio:.2f} [{low:.2f}, {high:.2f}]")
            verdicts.append(
                "holds"
                if high < self.margin
                else "does not hold"
                if low > self.margin
                else "rather holds"
                if ratio < self.margin
                else "rather not"
            )
        return _together(verdicts), "; ".join(numbers)


def _together(verdicts: Sequence[str]) -> str:
    """One verdict of those on all pairs: the weakest, or how many hold."""
    positive = [verdict for verdict in verdicts if verdict in ("holds", "rather holds")]
    if len(positive) == len(verdicts):
        return "holds" if set(verdicts) == {"holds"} else "rather holds"
    if not positive:
        return "does not hold" if set(verdicts) == {"does not hold"} else "rather not"
    return f"{len(positive)} of {len(verdicts)} hold"


def claims_list(claims: Sequence[Claim], areas: pd.DataFrame) -> str:
    """Lays out the verdicts.

    Args:
        claims: The claims.
        areas: One row a case, one column a method.

    Returns:
        A markdown list; empty if none of the claims can be judged.
    """
    found = [(claim.text, claim.verdict(areas)) for claim in claims]
    return "\n".join(
        f"- {text}: **{verdict[0]}** ({verdict[1]})" for text, verdict in found if verdict
    )
