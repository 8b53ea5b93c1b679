"""Markdown tables of the results of a study."""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from benchmarks.markdown import markdown_table
from benchmarks.studies.metrics import (
    areas,
    average,
    error_of_average,
    evaluations_to_reach,
    first_quarter,
)
from benchmarks.studies.problems import suite_of
from benchmarks.studies.statistics import (
    Estimate,
    critical_difference,
    friedman,
    geometric_mean,
    mean_ranks,
    of_cases,
    ratios,
)


def regret_table(regret: pd.DataFrame, at: Sequence[int], reference: str | None = None) -> str:
    """Tabulates mean regrets after some numbers of evaluations.

    Args:
        regret: The result of `metrics.regrets`, with one row per run.
        at: The numbers of evaluations.
        reference: The reference method of the last two columns: the number of evaluations that the
            median run needs to reach its final value, and the share of runs that reach it.

    Returns:
        A markdown table with one row per method.
    """
    mean = average(regret)
    header = ["method", *(f"after {n}" for n in at)]
    rows = [[method, *(f"{mean.loc[method, n]:.4f}" for n in at)] for method in mean.index]
    if reference is not None:
        header += [f"evaluations to {reference}'s final value", "runs that reach it"]
        needed = evaluations_to_reach(regret, reference).groupby("method")
        for row in rows:
            row += _reaching(needed.get_group(row[0]), last=int(regret.columns[-1]))
    return markdown_table(header, rows)


def _reaching(needed: pd.Series, last: int) -> list[str]:
    median = needed.median()
    number = f"{median:g}" if np.isfinite(median) else f"> {last}"
    return [number, f"{np.isfinite(needed).mean():.0%}"]


def mean_table(regret: pd.DataFrame, at: Sequence[int]) -> str:
    """Tabulates mean regrets, with standard errors over problems and seeds.

    Args:
        regret: The result of `metrics.complete`, with one row per run.
        at: The numbers of evaluations.

    Returns:
        A markdown table with one row per method, the method with the best final regret first.
    """
    mean = average(regret)
    error = error_of_average(regret)
    rows = [
        [method, *(f"{mean.loc[method, n]:.3f} ± {error.loc[method, n]:.3f}" for n in at)]
        for method in mean[at[-1]].sort_values(kind="stable").index
    ]
    return markdown_table(["method", *(f"after {n}" for n in at)], rows)


def rank_sentence(values: pd.DataFrame) -> str:
    """Summarizes the results of Friedman's and Nemenyi's tests.

    Args:
        values: A table with one row per problem and seed, and one column per method; small values
            are better.

    Returns:
        A sentence.
    """
    cases_of = of_cases(values)
    ranks, cases = mean_ranks(cases_of), len(cases_of)
    unit = "cases" if cases_of is values else "targets, means over their seeds"
    difference = critical_difference(len(ranks), cases)
    first = ranks[ranks <= ranks.iloc[0] + difference].index
    best = ", ".join(f"{name} {ranks[name]:.1f}" for name in first)
    return (
        f"Mean ranks of the areas over {cases} {unit} (Friedman's p = {friedman(cases_of):.1g}): "
        f"two methods differ if their mean ranks differ by {difference:.1f} (Nemenyi, 5 %). Not "
        f"significantly worse than the first: {best}."
    )


def suite_table(values: pd.DataFrame, reference: str, groups: Mapping[str, Sequence[str]]) -> str:
    """Compares methods with a reference, for each suite and for each group of suites.

    Args:
        values: A table with one row per problem and seed, and one column per method; NaN for
            unfinished runs.
        reference: The method to compare with.
        groups: The names of groups, with the suites of each group.

    Returns:
        A markdown table with one column per method: ratios of means over the cases that both
        methods have finished. Ratios of suites have the standard error of a paired bootstrap.
        Ratios of groups are geometric means over suites, with 95 % intervals, and the number of
        suites in parentheses if some suites are missing.
    """
    suites = values.index.get_level_values("problem").map(suite_of)
    told = [name for members in groups.values() for name in members if name in set(suites)]
    order = dict.fromkeys([*told, *suites])
    compared = [str(name) for name in values if name != reference]
    found: dict[str, dict[str, Estimate]] = {name: {} for name in compared}
    for suite in order:
        for name in compared:
            both = values.loc[suites == suite, [name, reference]].dropna()
            if len(both):
                # Suites are resampled independently; all methods have the same samples.
                seed = zlib.crc32(suite.encode())
                found[name][suite] = ratios(both, reference, seed)[name]
    rows = [[suite, *(_of_suite(found[name].get(suite)) for name in compared)] for suite in order]
    for group, members in groups.items():
        cells = [
            _of_group([of[suite] for suite in members if suite in of], len(members))
            for of in found.values()
        ]
        rows += [[f"**{group}**", *cells]] if any(cells) else []
    return markdown_table(["suite", *compared], rows)


def _of_suite(ratio: Estimate | None) -> str:
    return "" if ratio is None else f"{ratio.value:.2f} ± {ratio.standard_error:.2f}"


def _of_group(found: Sequence[Estimate], size: int) -> str:
    if not found:
        return ""
    mean = geometric_mean(found)
    some = f" ({len(found)})" if len(found) < size else ""
    return f"{mean}{some}"


def calibration_table(results: pd.DataFrame) -> str:
    """Tabulates the calibration of predictions of unseen outcomes.

    Args:
        results: The table of `run_study`.

    Returns:
        A markdown table with one row per suite and method. The columns are numbers of points. A
        cell has the root mean square z-score and the percentage of outcomes inside 90 % bands, as
        medians over runs.
    """
    rows_of = results.dropna(subset="z")
    rows_of = rows_of.assign(
        suite=rows_of["problem"].map(suite_of), points=rows_of["evaluation"] - 1
    )
    medians = rows_of.groupby(["suite", "method", "points"], sort=False)[["z", "covered"]].median()
    cells = medians["z"].map("{:.2f}".format) + medians["covered"].map(", {:.0%}".format)
    table = cells.unstack("points", fill_value="").sort_index(axis=1)
    rows = [[*names, *table.loc[names]] for names in table.index]
    return markdown_table(["suite", "method", *(f"{n} points" for n in table)], rows)


def comparison_table(regret: pd.DataFrame, reference: str) -> str:
    """Compares methods by areas, ranks, final regrets and numbers of evaluations.

    Args:
        regret: The result of `metrics.complete`, with one row per run.
        reference: The method with which all methods are compared.

    Returns:
        A markdown table with one row per method, the smallest area first. The columns are the area
        under the regret curve divided by the reference's area, with a 95 % interval of a paired
        bootstrap over problems and seeds; the same ratio for the first quarter and the second half
        of the curves; the share of runs with a larger area than the reference; mean ranks by area
        and by final regret; the number of evaluations that the median run needs to reach the
        reference's final regret; the share of runs that reach it; and the ratio of the reference's
        number of evaluations to this number.
    """
    area, last = areas(regret), regret.iloc[:, -1].unstack("method")
    ratio = ratios(area, reference)
    by_area, by_end = (mean_ranks(of_cases(values)) for values in (area, last))
    needed = evaluations_to_reach(regret, reference).unstack("method")
    fewer = needed.rdiv(needed[reference], axis=0)
    early, late = (
        ratios(areas(part), reference)
        for part in (first_quarter(regret), regret.iloc[:, regret.shape[1] // 2 :])
    )
    rows = []
    for method in sorted(ratio, key=lambda method: ratio[method].value):
        worse = (area[method] > area[reference]).mean()
        rows.append(
            [
                method,
                str(ratio[method]),
                f"{early[method].value:.2f}",
                f"{late[method].value:.2f}",
                "" if method == reference else f"{worse:.0%}",
                f"{by_area[method]:.1f}",
                f"{by_end[method]:.1f}",
                *_reaching(needed[method], last=int(regret.columns[-1])),
                f"{fewer[method].median():.1f}",
            ]
        )
    header = [
        "method",
        f"area / {reference}'s [95 %]",
        "first quarter",
        "second half",
        "runs worse",
        "rank, area",
        "rank, end",
        f"evaluations to {reference}'s end",
        "runs there",
        "times fewer",
    ]
    return markdown_table(header, rows)


def cost_table(results: pd.DataFrame) -> str:
    """Tabulates the time of a step of each method.

    Args:
        results: The table of `run_study`.

    Returns:
        A markdown table with medians of wall-clock time and processor time over all steps but the
        first step, and the processor time of the first step, which may pre-train.
    """
    first = results["evaluation"] == 1
    by_method = results[~first].groupby("method", sort=False)
    wall = by_method["suggest_seconds"].median()
    cpu = by_method["cpu_seconds"].median()
    start = results[first].groupby("method", sort=False)["cpu_seconds"].median()
    rows = [
        [str(method), f"{wall[method]:.2f}", f"{cpu[method]:.2f}", f"{start[method]:.2f}"]
        for method in cpu.sort_values(kind="stable").index
    ]
    return markdown_table(["method", "seconds a step", "of a processor", "the first step's"], rows)
