"""What papers, and this package, claim of their methods, held against a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from benchmarks.studies.metrics import areas, first_quarter
from benchmarks.studies.statistics import of_cases, ratio_of_means

FEW = 6
"""Of fewer cases a bootstrap's interval is far too short to decide by."""

VERDICTS = ("holds", "rather holds", "rather not", "does not hold")


@dataclass(frozen=True)
class Claim:
    """That some methods have smaller areas under their regret curves than others.

    Args:
        text: The claim in words.
        pairs: The better and the worse method of each comparison.
        margin: By how much the better one may be worse and still count as equal: 1.05 for "best or
            joint best".
        early: Whether areas are those of the first quarter of the evaluations.
    """

    text: str
    pairs: Sequence[tuple[str, str]]
    margin: float = 1.0
    early: bool = False

    def verdict(self, areas: pd.DataFrame) -> tuple[str, str] | None:
        """Compares means of areas.

        Args:
            areas: One row a problem and seed, one column a method.

        Returns:
            The verdict and its numbers, of the pairs that were part of the study; `None` if there
            are none. "holds" and "does not hold" are said where a pair's 95 % interval says so,
            "rather holds" and "rather not" where only its mean does, or the cases are few.
        """
        pairs = [pair for pair in self.pairs if set(pair) <= set(areas.columns)]
        if not pairs:
            return None
        few = len(of_cases(areas)) < FEW
        verdicts, numbers = [], []
        for better, worse in pairs:
            row = ratio_of_means(areas[[better, worse]], worse).loc[better]
            ratio, low, high = row["ratio"], row["low"], row["high"]
            numbers.append(f"{better} / {worse} {ratio:.2f} [{low:.2f}, {high:.2f}]")
            verdicts.append(
                "holds"
                if high < self.margin and not few
                else "does not hold"
                if low > self.margin and not few
                else "rather holds"
                if ratio < self.margin
                else "rather not"
            )
        return _together(verdicts), "; ".join(numbers)


def _together(verdicts: Sequence[str]) -> str:
    """One verdict if it is that on all pairs, or how many pairs there are of each."""
    counts = {verdict: verdicts.count(verdict) for verdict in VERDICTS if verdict in verdicts}
    if len(counts) == 1:
        return verdicts[0]
    return "of {}: {}".format(
        len(verdicts), ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    )


def claims_list(claims: Sequence[Claim], regret: pd.DataFrame) -> str:
    """Lays out the verdicts.

    Args:
        claims: The claims.
        regret: One row a run, as `metrics.complete` gives it.

    Returns:
        A markdown list; empty if none of the claims can be judged.
    """
    whole, early = areas(regret), areas(first_quarter(regret))
    found = [(claim.text, claim.verdict(early if claim.early else whole)) for claim in claims]
    return "\n".join(
        f"- {text}: **{verdict[0]}** ({verdict[1]})" for text, verdict in found if verdict
    )
