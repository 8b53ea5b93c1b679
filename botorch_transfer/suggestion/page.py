"""One HTML page about suggested rows: what to run next and why, and whether old runs help.

``python -m botorch_transfer suggest ... --report out.html`` writes the page. The page is one file
that works offline: it contains the data, the template ``page.html`` and Plotly's script, and its
security policy blocks all requests. Names and cells are embedded as JSON and shown as text. The
extra ``plot`` installs Plotly.

:func:`parameter_importance` computes total Sobol indices of predicted means. A parameter's index is
the share of the variance over the space that remains when all other parameters are known. A joint
effect counts for each of its parameters, so that the indices may add up to more than one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from importlib.metadata import version
from importlib.resources import files
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.utils.sampling import draw_sobol_samples
from numpy.typing import NDArray
from pandas import DataFrame
from torch import Tensor

from botorch_transfer.curves.tables import OwnCurves
from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.data.measurements import FATE, NEUTRAL, measured, numbers
from botorch_transfer.data.outcome import Outcome
from botorch_transfer.data.runs import Runs
from botorch_transfer.data.tables import has_failed
from botorch_transfer.model import TransferModel
from botorch_transfer.plotting import Line, leave_one_out, parameter_line
from botorch_transfer.report import ALL_SOURCES, POINTS_TO_JUDGE, transfer_report
from botorch_transfer.search_space import FloatParameter, SearchSpace
from botorch_transfer.suggestion.backtest import replay
from botorch_transfer.suggestion.next_rows import (
    QUANTILES,
    Suggestion,
    best_run,
    eligible,
    short,
    source_z_scores,
)
from botorch_transfer.suggestion.outcomes import PLAIN, moments
from botorch_transfer.suggestion.reading import EncodedTables
from botorch_transfer.suggestion.region import Region

#: Maximum number of important parameters to draw singly, and in pairs.
MAX_SLICES, MAX_MAPPED = 12, 5

#: Number of points along a range in a slice, and in a map.
SLICE_POINTS, MAP_POINTS = 60, 20

#: Maximum number of points of a learning curve.
MAX_STEPS = 200

#: Minimum number of runs to replay a plain GP, and number of random rows it may also choose.
ENOUGH_TO_REPLAY, NUM_REPLAYED = 20, 200

#: Minimum number of runs to compare predictions with.
ENOUGH_RUNS = 3

WORDS = {
    "helpful": "yes",
    "hardly used": "yes, but the model hardly uses it",
    "inverted": "no: what is good there is bad here",
    "irrelevant": "no",
    "unclear": "not clear yet",
    "used, not yet tested": "not clear yet",
}
#: Plain words for verdicts on one old task, and on all old tasks.
WHOLE = {
    "helpful": "old runs help: this study's runs follow them",
    "partly helpful": "some old tasks help: this study's runs follow them",
    "misleading": "old runs mislead: what was good there is bad here",
    "irrelevant": "old runs do not help: this study's runs do not follow them",
}

#: Number of points in each of the two samples for importances, a power of two.
NUM_POINTS = 256

NEW, OLD = "this study", "old tasks"


def suggestion_page(
    suggestion: Suggestion,
    runs: pd.DataFrame | None,
    status: str = "status",
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Writes a page about suggested rows.

    Args:
        suggestion: The rows and the models.
        runs: The runs so far.
        status: The column with the state of a run.
        settings: Further settings to show, such as the seed.

    Returns:
        The page as HTML.

    Raises:
        ImportError: If Plotly is missing.

    Example:
        >>> from pandas import DataFrame
        >>> from botorch_transfer.suggestion import read_study, suggest_rows
        >>> space = SearchSpace.from_dict({"C": {"type": "float", "low": 0.1, "high": 10}})
        >>> old = DataFrame({"task": "monday", "C": [1.0, 3.0, 9.0], "loss": [0.5, 0.2, 0.4]})
        >>> suggestion = suggest_rows(read_study(space, old))
        >>> suggestion_page(suggestion, None)[:15]
        '<!DOCTYPE html>'
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError("The page needs Plotly: pip install 'botorch_transfer[plot]'.") from error
    tables, outcomes = suggestion.tables, suggestion.tables.outcomes
    columns, digits = tables.region.columns, _digits(tables)
    table, known = _runs(runs, tables, status, digits)
    objectives = [i for i, outcome in enumerate(outcomes) if outcome.is_objective]
    parts = [_outcome(suggestion, i, 1 + np.flatnonzero(known[:, i])) for i in objectives]
    best = best_run(tables) if len(known) else None
    names = {type(model).__name__: None for model in suggestion.models.values()}
    noted = {
        "model": ", ".join(names) or "none: the rows are spread out, or old runs' best",
        "goal": "; ".join(
            f"{o.goal} {o.name}" if o.limit is None else f"{o.name} within its limit"
            for o in outcomes
        ),
        "parameters": len(tables.space.parameters),
        "date": date.today().isoformat(),
        "version": f"botorch_transfer {version('botorch_transfer')}",
        **(settings or {}),
    }
    told = {
        "columns": columns,
        "rows": [_cells(row, columns, digits) for row in suggestion.rows[columns].to_numpy(object)],
        "why": [_why(suggestion, i) for i in range(len(suggestion.rows))],
        "outlook": suggestion.outlook,
        "best": None if best is None else int(np.flatnonzero(known.any(axis=1))[best]),
        "outcomes": [part for part in parts if part is not None],
        "runs": table,
        "settings": {name: _text(value) for name, value in noted.items()},
    }
    data = json.dumps(told, allow_nan=False, default=str)
    for sign in "<>&":  # so that no cell can close the script element
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    inside = {"plotly": get_plotlyjs(), "data": data}
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return re.sub("@(plotly|data)@", lambda found: inside[found[1]], template)


def _text(value: Any, digits: int = 3) -> str:
    """Formats a cell or number for readers."""
    if isinstance(value, float | np.floating):
        number = short(value) if digits == 3 else f"{value:.{digits}g}"
        return "" if math.isnan(value) else number
    return "" if value is None or value is pd.NA else str(value)


def _cells(row: Any, columns: Any, digits: Mapping[str, int]) -> list[str]:
    return [_text(v, digits.get(name, 3)) for name, v in zip(columns, row, strict=True)]


def _digits(tables: EncodedTables) -> dict[str, int]:
    """Returns the number of digits to show of each parameter.

    A wide range has three digits. A narrow range has more, and steps and constraints have six.
    """
    digits = dict.fromkeys(tables.space.columns, 6)
    for p in tables.space.parameters:
        if isinstance(p, FloatParameter) and p.size is None and not tables.region.constraints:
            ratio = max(abs(p.lower), abs(p.upper)) / (p.upper - p.lower or math.inf)
            digits[p.name] = 3 + (int(math.log10(ratio)) if ratio > 1 and not p.log else 0)
    return digits


def _numbers(values: Any) -> list[float | None]:
    """Rounds numbers for JSON, with ``None`` for NaN and infinity."""
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in np.asarray(values, float)]


def _quantiles(outcome: Outcome, mean: Tensor, variance: Tensor) -> dict[str, list[float | None]]:
    """Computes the ends of the central 90 % interval of an outcome, and its median."""
    levels = torch.tensor(QUANTILES, dtype=torch.double)
    found = outcome.quantiles(mean.double(), variance.double(), levels).T
    return dict(zip(("low", "mid", "high"), map(_numbers, found), strict=True))


def _why(suggestion: Suggestion, row: int) -> str:
    """Explains in one sentence why a row was chosen."""
    x, parts = suggestion.X[row : row + 1], suggestion.prospects[row : row + 1]
    outcomes, models = suggestion.tables.outcomes, suggestion.models
    for outcome in outcomes:
        if outcome.name in models:
            found = _quantiles(outcome, *moments(models[outcome.name], x))
            low, mid, high = (_text(v[0]) for v in found.values())
            parts.append(f"expected {outcome.name} {mid} (nine times in ten {low} to {high})")
    names, sure = source_z_scores(models.get(outcomes[0].name), x)
    if names:
        parts.append(f"clearly above average in {int((sure > 1).sum())} of {len(names)} old tasks")
    return _sentence(parts) or "Chosen without a model."


def _outcome(suggestion: Suggestion, number: int, rows: NDArray[Any]) -> dict[str, Any] | None:
    """Returns the page's data of an objective; ``None`` without a model."""
    outcome = suggestion.tables.outcomes[number]
    if (model := suggestion.models.get(outcome.name)) is None:
        return None
    space, runs = suggestion.tables.space, suggestion.tables.runs.known(number)
    Y = runs.Y[:, 0]
    values = outcome.original(Y)
    known = suggestion.tables.runs.Y[:, number].isfinite()
    best = eligible(suggestion.tables, number)[known]
    best = best.cummax(dim=0).values if len(Y) else best
    tried = space.decode(runs.X.clamp(0.0, 1.0))
    importance = parameter_importance(model, space)
    verdict, tasks = _tasks(suggestion, outcome, runs.X, Y)
    slices, maps = _pictures(suggestion, outcome, list(importance.index), tried)
    return {
        "name": outcome.name,
        "goal": "small" if outcome.sign < 0 else "large",
        "log": outcome.log,
        "verdict": verdict,
        "tasks": tasks,
        "runs": rows.tolist() or list(range(1, len(Y) + 1)),
        "row": _quantiles(outcome, *moments(model, suggestion.X[:1]))["mid"][0],
        "curves": _curves(outcome, suggestion.tables.curves.get(outcome.name)),
        "values": _numbers(values),
        "best": _numbers(outcome.original(best).where(best.isfinite(), math.nan)),
        "predicted": (runs.added[:, 0] > 0).tolist(),
        "expected": _expected(suggestion, outcome, runs),
        "importance": {
            "names": list(importance.index),
            "new": _numbers(importance[NEW]),
            "old": _numbers(importance[OLD]),
        },
        "slices": slices,
        "maps": maps,
        "left_out": _left_out(model, outcome),
    }


def _expected(suggestion: Suggestion, outcome: Outcome, runs: Runs) -> Any:
    """Predicts each run from old runs alone; ``None`` without old runs."""
    model, sources = suggestion.models[outcome.name], suggestion.tables.sources[outcome.name]
    X = runs.X
    if sources is None or len(X) == 0 or not isinstance(model, TransferModel):
        return None
    untold: Any = type(model)
    return _quantiles(outcome, *moments(untold(X[:0], runs.Y[:0], sources).eval(), X))


def _curves(outcome: Outcome, own: OwnCurves | None) -> dict[str, Any] | None:
    """Returns learning curves with their predicted ends, and whether a run is hopeless."""
    if own is None:
        return None
    found, curves = own.forecast(), own.curves
    ends = _quantiles(outcome, torch.from_numpy(found.mean), torch.from_numpy(found.variance))
    lines = []
    for i, curve in enumerate(curves):
        at = evenly_spaced(len(curve.steps), MAX_STEPS)
        values = outcome.original(torch.from_numpy(curve.values[at]))
        line = {"row": curve.row, "x": _numbers(curve.steps[at]), "y": _numbers(values)}
        if not curve.diverged and found.variance[i] != 0:
            line["end"] = {name: values[i] for name, values in ends.items()}
            if curve.stopped is None and own.prior is not None:
                others = [*curves[:i], *curves[i + 1 :]]
                line["hopeless"] = own.prior.is_hopeless(curve, others)
        lines.append(line)
    return {"step": own.step, "lines": lines}


def _tasks(
    suggestion: Suggestion, outcome: Outcome, X: Tensor, Y: Tensor
) -> tuple[str, list[dict[str, Any]]]:
    """Returns a sentence on all old tasks, and a table row for each old task."""
    model = suggestion.models[outcome.name]
    try:
        report = transfer_report(model)
    except (AttributeError, ValueError):  # a model without a report
        return "", []
    all_of_them, told = report["verdict"][ALL_SOURCES], report.drop(index=ALL_SOURCES)
    sentence = WHOLE.get(all_of_them) or _against_plain(suggestion, outcome, X)
    words = dict(WORDS)
    if all_of_them in ("misleading", "irrelevant"):
        words["helpful"] = "yes, maybe by chance: most other old tasks do not help"
    names, _ = source_z_scores(model, X[:0])
    similar: list[float | None] = [None] * len(told)
    if len(Y) >= ENOUGH_RUNS and names:
        means = pd.DataFrame(model.member_on_sources.prior.moments(X)[0].T.numpy())
        similar = _numbers(means.corrwith(pd.Series(Y.numpy()), method="spearman"))
    rows = [
        {"name": str(name), "similar": s, "share": float(f"{share:.3g}"), "words": words[verdict]}
        for name, s, share, verdict in zip(
            told.index, similar, told["prediction"], told["verdict"], strict=True
        )
    ]
    return _sentence([sentence]), rows


def _against_plain(suggestion: Suggestion, outcome: Outcome, X: Tensor) -> str:
    """Compares the study with a plain GP that is replayed on the model's predicted outcomes."""
    if len(X) < ENOUGH_TO_REPLAY:
        few = f"{POINTS_TO_JUDGE} to {ENOUGH_TO_REPLAY} runs with outcomes (so far {len(X)})"
        return f"it is too early to say whether old runs help: that takes {few}"
    tables, model = suggestion.tables, suggestion.models[outcome.name]
    rows = torch.cat([X, tables.region.sample(NUM_REPLAYED, seed=0)]).clamp(0.0, 1.0)
    region = Region(tables.space, table=tables.space.decode(rows).drop_duplicates())
    values, own = (moments(model, each)[0].numpy() for each in (region.candidates, X))
    plain = [replay(PLAIN, None, outcome, region, values, seed, False) for seed in range(3)]
    n, best = len(plain[0]), np.mean([each.max() for each in plain])
    if (own[:n] < best).all():
        return f"old runs have not helped: a plain GP would have been better after {n} runs"
    k = 1 + int((own >= best).argmax())
    return (
        f"old runs have helped: this study was as good after {k} run{'s' * (k > 1)} as a plain GP "
        f"would have been after {n}"
    )


def _sentence(parts: Sequence[str]) -> str:
    joined = "; ".join(parts)
    return f"{joined[:1].upper()}{joined[1:]}." if joined else ""


def _left_out(model: Any, outcome: Outcome) -> Any:
    """Predicts each run from all other runs; ``None`` with few runs."""
    if getattr(model, "num_outputs", 1) != 1 or len(model.train_targets) < ENOUGH_RUNS:
        return None
    try:
        return _quantiles(outcome, *leave_one_out(model))
    except (UnsupportedError, NotImplementedError):
        return None


def _pictures(
    suggestion: Suggestion, outcome: Outcome, order: Sequence[str], tried: pd.DataFrame
) -> tuple[list[Any], list[Any]]:
    """Predicts outcomes along each free parameter, and over pairs of parameters.

    All other parameters have the values of the best run, or of the first row without a best run.
    """
    space, best = suggestion.tables.space, best_run(suggestion.tables)
    first = suggestion.X[0]
    center = first if best is None else suggestion.tables.runs.X[best].clamp(0.0, 1.0)
    here, row = space.decode(torch.stack([center, first])).to_dict("records")
    fixed = suggestion.tables.region.fixed or ()
    by_name = {p.name: p for p in space.parameters if p.name not in fixed}
    drawn = [by_name[n] for n in order if n in by_name and _text(here[n])][:MAX_SLICES]

    def predicted(lines: Sequence[Line]) -> dict[str, Any]:
        sizes = [range(len(line.values)) for line in lines]
        places = torch.cartesian_prod(*(torch.tensor(list(size)) for size in sizes))
        points = center.repeat(len(places), 1)
        for line, place in zip(lines, places.reshape(len(places), -1).T, strict=True):
            points[:, line.columns] = line.values.to(points)[place]
        found = moments(suggestion.models[outcome.name], space.round(points))
        return _quantiles(outcome, *found)

    def axis(line: Line) -> dict[str, Any]:
        cells = pd.Series([here[line.name], row[line.name], *tried[line.name]], dtype=object)
        numbers = pd.to_numeric(cells, errors="coerce") if line.ticks is None else cells
        at, first, *runs = _numbers(numbers) if line.ticks is None else map(str, cells)
        return {
            "name": line.name,
            "log": line.log,
            "is_choice": line.ticks is not None,
            "x": _numbers(line.x) if line.ticks is None else line.ticks,
            "at": at,
            "row": first,
            "runs": runs,
        }

    lines = [parameter_line(space, p, SLICE_POINTS) for p in drawn]
    slices = [axis(line) | predicted([line]) for line in lines]
    coarse = [parameter_line(space, p, MAP_POINTS) for p in drawn[:MAX_MAPPED]]
    maps = [
        {"a": axis(a), "b": axis(b), "z": predicted([a, b])["mid"]}
        for a, b in combinations(coarse, 2)
    ]
    return slices, maps


def _runs(
    runs: pd.DataFrame | None, tables: EncodedTables, status: str, digits: Mapping[str, int]
) -> tuple[dict[str, Any] | None, NDArray[Any]]:
    """Returns the table of runs, with states and outcomes first, and a mask of known outcomes."""
    names = [outcome.name for outcome in tables.outcomes]
    if runs is None or runs.empty:
        return None, np.empty((0, len(names)), dtype=bool)
    (read,) = measured([runs], tables.outcomes, status)
    Y = np.stack([numbers(read, name) for name in names], axis=1)
    unfinished, kept = np.zeros(len(runs), dtype=bool), np.ones(len(runs), dtype=bool)
    for name, own in tables.curves.items():  # one row a run, with its predicted end
        last, ends = [curve.row for curve in own.curves], own.forecast()
        kept &= runs[own.step].isna().to_numpy() | np.isin(np.arange(len(runs)), last)
        Y[last, names.index(name)] = np.where([c.diverged for c in own.curves], np.inf, ends.mean)
        unfinished[last] = ends.variance != 0
    without = np.where(read[FATE] == "ended", "ended", "pending")
    states = np.where(np.isnan(Y).all(axis=1), without, "done")
    states = np.where(unfinished, "stopped or running", states)
    if status in runs.columns:
        told = runs[status].map(_text)
        states = np.where(told.str.lower().isin(["", *NEUTRAL]), states, told)
    states = np.where(has_failed(read, Y), "failed", states)
    shown = runs.drop(columns=status, errors="ignore")[kept]
    shown = shown.iloc[:, np.argsort(~shown.columns.isin(names), kind="stable")]
    rows = [
        [str(1 + number), str(state), *_cells(row, shown.columns, digits)]
        for number, (state, row) in enumerate(
            zip(states[kept], shown.to_numpy(object), strict=True)
        )
    ]
    table = {"columns": ["run", "state", *map(str, shown.columns)], "rows": rows}
    table["places"] = np.flatnonzero(kept).tolist()
    return table, np.isfinite(Y[kept])


@torch.no_grad()
def parameter_importance(model: Model, space: SearchSpace, seed: int = 0) -> DataFrame:
    """Computes the importance of each parameter to a model's predictions and to its old tasks.

    Args:
        model: A fitted model of one outcome on encoded rows of the space.
        space: The search space.
        seed: The seed of the points.

    Returns:
        A table of total Sobol indices between 0 and 1. The index is the parameter, the most
        important parameter first. The column ``this study`` is about the model's predicted mean.
        The column ``old tasks`` is an average over the posterior means of the old tasks, and NaN
        for a model without a posterior of each old task.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> space = SearchSpace([FloatParameter("a", 0, 1), FloatParameter("b", 0, 1)])
        >>> list(parameter_importance(SingleTaskGP(X, X[:, :1]), space).index)
        ['a', 'b']
    """
    drawn = draw_sobol_samples(space.bounds.repeat(1, 2), NUM_POINTS, 1, seed=seed).squeeze(-2)
    A, B = (space.round(half) for half in drawn.split(space.dim, dim=-1))
    mixed = []
    for parameter in space.parameters:
        columns = space.feature_indices[parameter.name]
        changed = A.clone()
        changed[:, columns] = B[:, columns]
        mixed.append(space.round(changed))  # a choice may activate or deactivate parameters
    X = torch.cat([A, B, *mixed])

    def indices(values: Tensor) -> NDArray[Any]:
        """Averages total indices over ``s`` functions, from ``s x (p + 2) n`` function values."""
        f = values.double().unflatten(-1, (-1, NUM_POINTS))
        variance = f[:, :2].flatten(start_dim=1).var(dim=-1, correction=0)
        left = (f[:, :1] - f[:, 2:]).square().mean(dim=-1) / 2  # by Jansen's formula
        varying = left[variance > 1e-24] / variance[variance > 1e-24].unsqueeze(-1)
        return varying.clamp(0.0, 1.0).sum(dim=0).numpy() / max(len(varying), 1)

    table = DataFrame(index=[parameter.name for parameter in space.parameters])
    table[NEW] = indices(moments(model, X)[0].unsqueeze(0))
    informed = model.member_on_sources if isinstance(model, TransferModel) else None
    prior: Any = None if informed is None else informed.prior
    table[OLD] = float("nan") if prior is None else indices(prior.moments(X)[0])
    return table.sort_values(NEW, ascending=False, kind="stable")
