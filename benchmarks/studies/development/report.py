"""What the development studies found so far, in markdown tables."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.markdown import markdown_table
from benchmarks.studies.development.methods import METHODS
from benchmarks.studies.development.results import CALIBRATION, KEYS, finished, read_table
from benchmarks.studies.development.run import CALIBRATED_AT
from benchmarks.studies.development.suites import GROUPS, STRESS, SUITES, Suite
from benchmarks.studies.estimate import AN_HOUR
from benchmarks.studies.statistics import Estimate, geometric_mean, ratios

REFERENCES = ("gp", "scaml")
AT = (5, 10, 25)
AFTER_STRESS = 10
SHOWN_GROUPS = ("tuning", "validation", "development", "few_sources", *STRESS)
Of = Callable[[pd.DataFrame], pd.Series]
"""One number of each run from its regret curve."""


def area(regret: pd.DataFrame) -> pd.Series:
    """The area under each regret curve: its mean over the evaluations."""
    return regret.mean(axis=1)


@dataclass(frozen=True)
class Curves:
    """The regret curves of a study.

    Args:
        regret: One row a run (index `suite`, `target`, `seed`, `method`), one column a step.
    """

    regret: pd.DataFrame

    @classmethod
    def of(cls, runs: pd.DataFrame, methods: Sequence[str] | None = None) -> Curves:
        """Those of some methods, or of all, from the table of `results.finished`."""
        if methods is not None:
            runs = runs[runs["method"].isin(methods)]
        return cls(runs.set_index([*KEYS, "step"])["regret"].unstack("step"))

    @property
    def methods(self) -> list[str]:
        """The methods that have run."""
        found = set(self.regret.index.unique("method"))
        return [name for name in METHODS if name in found]

    @property
    def suites(self) -> list[str]:
        """The suites on which a method has run, or one without history on the same pools."""
        found = set(self.regret.index.unique("suite"))
        return [name for name in SUITES if name in found]

    def on(self, suite: Suite) -> pd.DataFrame:
        """The runs on a suite, index `problem`, `seed`, `method`.

        What ignores the history has run on the unspoiled suite; that counts for the spoiled ones.
        """
        suites, methods = (self.regret.index.get_level_values(name) for name in ("suite", "method"))
        parts = []
        for method in self.methods:
            ran_on = suite if METHODS[method].pretrain else suite.unspoiled
            parts.append(self.regret[(suites == ran_on.full_name) & (methods == method)])
        runs = pd.concat(parts).droplevel("suite")
        return runs.rename_axis(index={"target": "problem"})

    def paired(self, suite: Suite, method: str, reference: str, of: Of) -> pd.DataFrame:
        """What runs of two methods have, on the cases that both have finished."""
        values = of(self.on(suite)).unstack("method")
        names = list(dict.fromkeys([method, reference]))
        return values.reindex(columns=names).dropna()


def write_report(out: Path, methods: Sequence[str] | None = None) -> str:
    """Lays out all that is finished.

    Args:
        out: The study's folder.
        methods: Only these methods; all by default.

    Returns:
        Markdown.

    Raises:
        ValueError: If no run is finished.
    """
    runs = finished(out)
    if runs.empty:
        raise ValueError(f"No run in {out} is finished: run the study first.")
    curves = Curves.of(runs, methods)
    shown = runs[runs["method"].isin(curves.methods)]
    sections = [_introduction(shown), run_table(curves)]
    for reference in REFERENCES:
        if reference in curves.methods:
            title = f"## Area under the regret curve over that of `{reference}`"
            sections += [title, ratio_table(curves, reference, area)]
    spoiled = {name: GROUPS[name] for name in STRESS}
    if "gp" in curves.methods and any(SUITES[name].history for name in curves.suites):
        title = f"## Misleading history: regret after {AFTER_STRESS} evaluations over that of `gp`"
        table = ratio_table(curves, "gp", lambda regret: regret[AFTER_STRESS], spoiled)
        sections += [title, table]
    at = ", ".join(map(str, AT[:-1]))
    sections += [f"## Mean regret after {at} and {AT[-1]} evaluations", regret_table(curves)]
    scores = read_table(out / CALIBRATION, [*KEYS, "points"])
    for method in curves.methods:
        own = scores[scores["method"] == method]
        if not own.empty:
            sections += [f"## Calibration of `{method}`", calibration_table(own)]
    sections += ["## Seconds of a processor", cost_table(shown)]
    return "\n\n".join(sections) + "\n"


def _introduction(runs: pd.DataFrame) -> str:
    count = len(runs[KEYS].drop_duplicates())
    hours = runs["seconds"].sum() / AN_HOUR
    revisions = ", ".join(sorted(set(runs["revision"].dropna().astype(str))))
    return (
        f"{count} runs, {hours:.2f} core-hours, {revisions}.\n\n"
        "Ratios of mean areas, or of mean regrets, on the targets and seeds that both methods "
        "have finished, ± the standard error of a paired bootstrap; of groups geometric means over "
        "their suites, with 95 % intervals, and in parentheses how many suites there are if not "
        "all. Calibration: root mean square z-score of unseen points, noise included, and per cent "
        "of them inside 90 % bands, by number of points seen; medians over runs. Only the first "
        "step of the method that came first on a case pre-trains what several have in common."
    )


def run_table(curves: Curves) -> str:
    """The number of finished runs.

    Args:
        curves: The runs.

    Returns:
        A markdown table, one row a suite, one column a method.
    """
    rows = []
    for name in curves.suites:
        count = curves.on(SUITES[name]).groupby("method").size()
        rows.append([name, *(str(count.get(method, "")) for method in curves.methods)])
    return markdown_table(["finished runs", *curves.methods], rows)


def ratio_table(
    curves: Curves,
    reference: str,
    of: Of,
    groups: Mapping[str, Sequence[Suite]] | None = None,
) -> str:
    """Compares methods with a reference, suite by suite and in the geometric mean of groups.

    Args:
        curves: The runs.
        reference: The method to compare with.
        of: What is compared.
        groups: Groups of suites; by default all of `SHOWN_GROUPS`.

    Returns:
        A markdown table, one column a method.
    """
    groups = groups or {name: GROUPS[name] for name in SHOWN_GROUPS}
    compared = [method for method in curves.methods if method != reference]
    suites = {suite.full_name: suite for each in groups.values() for suite in each}
    found = {
        (name, method): ratio
        for name, suite in suites.items()
        for method in compared
        if (ratio := _ratio(curves, suite, method, reference, of)) is not None
    }
    rows = []
    for name in suites:
        cells = [_of_suite(found.get((name, method))) for method in compared]
        rows += [[name, *cells]] if any(cells) else []
    for group, members in groups.items():
        cells = []
        for method in compared:
            keys = [(suite.full_name, method) for suite in members]
            cells.append(_of_group([found[key] for key in keys if key in found], len(members)))
        rows += [[f"**{group}**", *cells]] if any(cells) else []
    return markdown_table(["suite", *compared], rows)


def _ratio(curves: Curves, suite: Suite, method: str, reference: str, of: Of) -> Estimate | None:
    values = curves.paired(suite, method, reference, of)
    if values.empty or values.shape[1] < 2:
        return None
    # Suites are resampled independently of each other, methods of a suite alike.
    return ratios(values, reference, seed=zlib.crc32(suite.full_name.encode()))[method]


def _of_suite(ratio: Estimate | None) -> str:
    return "" if ratio is None else f"{ratio.value:.2f} ± {ratio.standard_error:.2f}"


def _of_group(found: Sequence[Estimate], size: int) -> str:
    if not found:
        return ""
    mean = geometric_mean(found)
    low, high = mean.interval
    some = f" ({len(found)})" if len(found) < size else ""
    return f"{mean.value:.2f} [{low:.2f}, {high:.2f}]{some}"


def regret_table(curves: Curves) -> str:
    """Mean regrets after some evaluations; of groups the means over suites.

    Args:
        curves: The runs.

    Returns:
        A markdown table, one row a suite or group, one column a method.
    """
    means = {
        name: curves.on(SUITES[name])[list(AT)].groupby(["problem", "method"]).mean()
        for name in curves.suites
    }
    of_suite = {name: mean.groupby("method").mean() for name, mean in means.items()}
    rows = [[name, *_regrets([mean], curves.methods)] for name, mean in of_suite.items()]
    for group in SHOWN_GROUPS:
        members = [each.full_name for each in GROUPS[group] if each.full_name in of_suite]
        if members:
            cells = _regrets([of_suite[name] for name in members], curves.methods)
            rows.append([f"**{group}**", *cells])
    return markdown_table(["suite", *curves.methods], rows)


def _regrets(means: Sequence[pd.DataFrame], methods: Sequence[str]) -> list[str]:
    """The cells of all methods; blank where one has not run on all the suites that count."""
    cells = []
    for method in methods:
        if all(method in mean.index for mean in means):
            regret = pd.concat([mean.loc[[method]] for mean in means]).mean()
            cells.append(", ".join(f"{regret[n]:.3f}" for n in AT))
        else:
            cells.append("")
    return cells


def calibration_table(scores: pd.DataFrame) -> str:
    """Lays out how honest a method's predictions are.

    Args:
        scores: The rows of `calibration.csv` of one method.

    Returns:
        A markdown table, one row a suite: medians over runs of the z-scores' root mean square, and
        of the per cent of outcomes inside 90 % bands.
    """
    medians = scores.groupby(["suite", "points"])[["z", "covered"]].median()
    cells = medians["z"].map("{:.2f}".format) + medians["covered"].map(", {:.0%}".format)
    table = cells.unstack("points", fill_value="").reindex(columns=CALIBRATED_AT, fill_value="")
    rows = [[name, *table.loc[name]] for name in SUITES if name in table.index]
    return markdown_table(["suite", *(f"{points} points" for points in CALIBRATED_AT)], rows)


def cost_table(runs: pd.DataFrame) -> str:
    """Lays out what methods cost.

    Args:
        runs: The table of `results.finished`.

    Returns:
        A markdown table, one row a method.
    """
    rows = []
    for method in (name for name in METHODS if name in set(runs["method"])):
        own = runs[runs["method"] == method]
        first, later = own[own["step"] == 1], own[own["step"] > 1]
        whole = own.groupby(KEYS)["seconds"].sum()
        seconds = (whole.mean(), first["seconds"].median(), later["seconds"].median())
        hours = own["seconds"].sum() / AN_HOUR
        rows.append([method, *(f"{each:.2f}" for each in seconds), f"{hours:.2f}"])
    header = ["method", "mean run", "median first step", "median other step", "core-hours"]
    return markdown_table(header, rows)
