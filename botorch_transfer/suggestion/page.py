"""HTML page about suggested rows: what to run next and why, and whether old runs help.

``python -m botorch_transfer suggest ... --report out.html`` writes the page. The page is one file
that works offline: it contains the data, the template ``page.html`` and Plotly's script, and its
security policy blocks all requests. Names and cells are embedded as JSON and shown as text. The
extra ``plot`` of this package installs Plotly.

:func:`parameter_importance` computes total Sobol indices of predicted means. A parameter's index is
the share of a predicted mean's variance over the space that remains when all other parameters are
known. A joint effect of several parameters counts for each of them, so that the indices may add up
to more than one.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
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

from botorch_transfer.curves import OwnCurves
from botorch_transfer.data.datasets import evenly_spaced
from botorch_transfer.data.measurements import FATE, NEUTRAL, Outcome, measured, numbers
from botorch_transfer.data.tables import Runs, has_failed
from botorch_transfer.model import TransferModel
from botorch_transfer.plotting import Line, leave_one_out, parameter_line
from botorch_transfer.report import ALL_SOURCES, POINTS_TO_JUDGE, transfer_report
from botorch_transfer.search_space import SearchSpace
from botorch_transfer.suggestion.next_rows import QUANTILES, Suggestion, short, source_z_scores
from botorch_transfer.suggestion.outcomes import moments
from botorch_transfer.suggestion.reading import EncodedTables

#: Maximum number of parameters that get their own plot, and maximum number of parameters in maps
#: of two parameters. The page shows the most important parameters.
MAX_SLICES, MAX_MAPPED = 12, 5

#: Number of points along each axis in a plot of one parameter, and in a map of two parameters.
SLICE_POINTS, MAP_POINTS = 60, 20

#: Maximum number of points of a learning curve.
MAX_STEPS = 200

#: Minimum number of runs for leave-one-out predictions and for correlations with old tasks.
ENOUGH_RUNS = 3

#: Words of the page for the verdicts of :func:`transfer_report` on one old task.
WORDS = {
    "helpful": "yes",
    "hardly used": "yes, but the model hardly uses it",
    "inverted": "no: its good settings are bad in this study",
    "irrelevant": "no",
    "unclear": "not clear yet",
    "used, not yet tested": "not clear yet",
}
#: Sentences of the page for the verdicts of :func:`transfer_report` on all old tasks together.
WHOLE = {
    "helpful": "Old runs help: they predict this study's outcomes.",
    "partly helpful": "Some old tasks help: they predict this study's outcomes.",
    "misleading": "Old runs mislead: good settings of old tasks are bad in this study.",
    "irrelevant": "Old runs do not help: they do not predict this study's outcomes.",
}

#: Number of points in each of the two Sobol samples for importances; a power of two.
NUM_POINTS = 256

NEW, OLD = "this study", "old tasks"


def suggestion_page(
    suggestion: Suggestion,
    runs: DataFrame | None,
    status: str = "status",
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Makes an HTML page about suggested rows.

    Args:
        suggestion: The rows and the models.
        runs: The table of this study's runs; ``None`` if there are none.
        status: The column of ``runs`` with the state of a run.
        settings: Further settings that the page lists, such as the seed. A setting whose value is
            ``None`` or an empty list is left out.

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
    columns = tables.region.columns
    table, Y = _runs(runs, tables, status)
    known = np.isfinite(Y)
    shown = [
        _outcome(suggestion, i, Y[:, i])
        for i, outcome in enumerate(outcomes)
        if outcome.is_objective and outcome.name in suggestion.models
    ]
    best = tables.best_run() if len(known) else None
    names = {type(model).__name__: None for model in suggestion.models.values()}
    noted = {
        "model": ", ".join(names) or "none: the rows are spread out, or ranked by old runs",
        "goal": "; ".join(f"{o.goal} {o.name}" for o in outcomes if o.is_objective),
        "date": date.today().isoformat(),
        "version": f"botorch_transfer {version('botorch_transfer')}",
        **{name: value for name, value in (settings or {}).items() if value not in (None, [])},
    }
    told = {
        "columns": columns,
        "rows": _cells(suggestion.rows[columns]),
        "why": [_why(suggestion, i) for i in range(len(suggestion.rows))],
        "outlook": suggestion.outlook,
        "best": None if best is None else int(np.flatnonzero(known.any(axis=1))[best]),
        "outcomes": shown,
        "runs": table,
        "settings": {name: _text(value) for name, value in noted.items()},
    }
    data = json.dumps(told, allow_nan=False, default=str)
    escapes = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&"}
    # Escaped, so that a cell cannot close the script element.
    inside = {"plotly": get_plotlyjs(), "data": data.translate(escapes)}
    template = files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return re.sub("@(plotly|data)@", lambda found: inside[found[1]], template)


def _text(cell: Any) -> str:
    """Formats a table cell as a text; numbers have six significant digits."""
    if isinstance(cell, float | np.floating):
        return "" if math.isnan(cell) else f"{cell:.6g}"
    if isinstance(cell, list):
        return ", ".join(map(_text, cell))
    return "" if cell is None or cell is pd.NA else str(cell)


def _cells(frame: DataFrame) -> list[list[str]]:
    """Formats all cells of a table as texts, row by row."""
    return [list(map(_text, row)) for row in frame.to_numpy(object)]


def _numbers(values: Any) -> list[float | None]:
    """Rounds numbers to five significant digits; replaces NaN and infinity by ``None``."""
    return [float(f"{v:.5g}") if math.isfinite(v) else None for v in np.asarray(values, float)]


def _quantiles(outcome: Outcome, mean: Tensor, variance: Tensor) -> dict[str, list[float | None]]:
    """Computes the median and the central 90 % interval of predictions, in the outcome's unit."""
    levels = torch.tensor(QUANTILES, dtype=torch.double)
    found = outcome.quantiles(mean.double(), variance.double(), levels).T
    return dict(zip(("low", "mid", "high"), map(_numbers, found), strict=True))


def _why(suggestion: Suggestion, row: int) -> str:
    """Explains in one sentence why the suggested row with the index ``row`` was chosen."""
    x, parts = suggestion.X[row : row + 1], suggestion.prospects[row : row + 1]
    outcomes, models = suggestion.tables.outcomes, suggestion.models
    for outcome in outcomes:
        if outcome.name in models:
            found = _quantiles(outcome, *moments(models[outcome.name], x))
            low, mid, high = ("?" if v[0] is None else short(v[0]) for v in found.values())
            parts.append(f"expected {outcome.name} {mid} (nine times in ten {low} to {high})")
    names, sure = source_z_scores(models.get(outcomes[0].name), x)
    if names:
        parts.append(f"better than average in {int((sure > 1).sum())} of {len(names)} old tasks")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if parts else "Chosen without a model."


def _outcome(suggestion: Suggestion, number: int, Y: NDArray[Any]) -> dict[str, Any]:
    """Collects the data that the page shows about one objective.

    Args:
        suggestion: The rows and the models.
        number: The index of the objective among the outcomes.
        Y: An array with a value of the objective for each run in the table of runs. Very bad values
            are not clipped. Unknown values are NaN.
    """
    tables = suggestion.tables
    outcome, runs = tables.outcomes[number], tables.runs.known(number)
    model = suggestion.models[outcome.name]
    known = tables.runs.Y[:, number].isfinite()
    best = tables.eligible(number)[known].cummax(dim=0).values
    importance = parameter_importance(model, tables.space)
    order = list(importance.index)
    shares = {"new": _numbers(importance[NEW]), "old": _numbers(importance[OLD])}
    verdict, tasks = _tasks(model, runs)
    tried = tables.space.decode(runs.X.clamp(0.0, 1.0))
    slices, maps = _pictures(suggestion, outcome, order, tried)
    values, rows = outcome.original(runs.Y[:, 0]), np.flatnonzero(np.isfinite(Y))
    return {
        "name": outcome.name,
        "goal": "small" if outcome.sign < 0 else "large",
        "log": outcome.log,
        "verdict": verdict,
        "tasks": tasks,
        "runs": (1 + rows).tolist() or list(range(1, len(runs.Y) + 1)),
        "is_limited": len(rows) == len(values) and not np.allclose(Y[rows], values),
        "row": _quantiles(outcome, *moments(model, suggestion.X[:1]))["mid"][0],
        # The page compares predicted final outcomes with learning curves. Curves are not clipped.
        "curves": _curves(replace(outcome, within=None), tables.curves.get(outcome.name)),
        "values": _numbers(values),
        "best": _numbers(outcome.original(best).where(best.isfinite(), math.nan)),
        "predicted": (runs.added[:, 0] > 0).tolist(),
        "expected": _expected(suggestion, outcome, runs),
        "importance": {"names": order, **shares},
        "slices": slices,
        "maps": maps,
        "left_out": _left_out(model, outcome),
    }


def _expected(suggestion: Suggestion, outcome: Outcome, runs: Runs) -> Any:
    """Predicts the outcomes of this study's runs from old runs alone.

    Returns ``None`` if the model uses no old runs, or if this study has no runs.
    """
    model, sources = suggestion.models[outcome.name], suggestion.tables.sources[outcome.name]
    if sources is None or len(runs.X) == 0 or not isinstance(model, TransferModel):
        return None
    untold: Any = type(model)
    return _quantiles(outcome, *moments(untold(runs.X[:0], runs.Y[:0], sources).eval(), runs.X))


def _curves(outcome: Outcome, own: OwnCurves | None) -> dict[str, Any] | None:
    """Collects the learning curves that the page shows; ``None`` if this study has no curves.

    An incomplete curve has a predicted final outcome. If the run may still be running, a flag also
    states whether the run is unlikely to become the best run.
    """
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
                line["hopeless"] = own.prior.is_hopeless(curve, curves)
        lines.append(line)
    return {"step": own.step, "lines": lines}


def _why_unclear(num_runs: int) -> str:
    """Explains, for a study with ``num_runs`` runs, why it is unclear whether old runs help."""
    if num_runs < POINTS_TO_JUDGE:
        few = f"this takes {POINTS_TO_JUDGE} runs with outcomes, and there are {num_runs}"
        return f"It is too early to say whether old runs help: {few}."
    mixed = "only some old tasks predict this study's outcomes, or the new runs are too similar"
    return f"It is not clear whether old runs help: {mixed}. To compare models, run backtest."


def _tasks(model: Any, runs: Runs) -> tuple[str, list[dict[str, Any]]]:
    """Judges whether old tasks help to predict this study's runs.

    Args:
        model: The fitted model of an outcome.
        runs: The runs of this study that have this outcome.

    Returns:
        A sentence about all old tasks together, and a row of the page's table for each old task.
        Both are empty if :func:`transfer_report` does not support the model.
    """
    try:
        report = transfer_report(model)
    except (AttributeError, ValueError):  # a model without a report
        return "", []
    all_of_them, told = report["verdict"][ALL_SOURCES], report.drop(index=ALL_SOURCES)
    if all_of_them not in WHOLE and told["verdict"].isin(["irrelevant", "inverted"]).mean() == 1:
        all_of_them = "irrelevant"
    sentence = WHOLE.get(all_of_them) or _why_unclear(len(runs.Y))
    words = dict(WORDS)
    if all_of_them in ("misleading", "irrelevant"):
        words["helpful"] = "yes, maybe by chance: most other old tasks do not help"
    names, _ = source_z_scores(model, runs.X[:0])
    similar: list[float | None] = [None] * len(told)
    if len(runs.Y) >= ENOUGH_RUNS and names:
        means = DataFrame(model.member_on_sources.prior.moments(runs.X)[0].T.numpy())
        similar = _numbers(means.corrwith(pd.Series(runs.Y[:, 0].numpy()), method="spearman"))
    columns = told.index, similar, told["prediction"], told["verdict"]
    rows = [
        {"name": str(name), "similar": s, "share": float(f"{share:.3g}"), "words": words[verdict]}
        for name, s, share, verdict in zip(*columns, strict=True)
    ]
    return sentence, rows


def _left_out(model: Any, outcome: Outcome) -> Any:
    """Computes leave-one-out predictions of the model's training runs.

    Returns ``None`` if there are fewer than :data:`ENOUGH_RUNS` runs, or if the model does not
    support leave-one-out predictions.
    """
    if getattr(model, "num_outputs", 1) == 1 and len(model.train_targets) >= ENOUGH_RUNS:
        with suppress(UnsupportedError, NotImplementedError):
            return _quantiles(outcome, *leave_one_out(model))
    return None


def _pictures(
    suggestion: Suggestion, outcome: Outcome, order: Sequence[str], tried: DataFrame
) -> tuple[list[Any], list[Any]]:
    """Computes predictions for plots of one parameter and for maps of two parameters.

    All other parameters have the values of the best run. If there is no best run, they have the
    values of the first suggested row.

    Args:
        suggestion: The rows and the models.
        outcome: The predicted outcome.
        order: The names of parameters, the most important parameter first.
        tried: A table of the runs with this outcome, to mark them in the plots.

    Returns:
        The data of the plots, and the data of the maps.
    """
    space, best = suggestion.tables.space, suggestion.tables.best_run()
    first = suggestion.X[0]
    center = first if best is None else suggestion.tables.runs.X[best].clamp(0.0, 1.0)
    here, row = space.decode(torch.stack([center, first])).to_dict("records")
    fixed = suggestion.tables.region.fixed or ()
    by_name = {p.name: p for p in space.parameters if p.name not in fixed}
    drawn = [by_name[n] for n in order if n in by_name and _text(here[n])][:MAX_SLICES]

    def predicted(lines: Sequence[Line]) -> dict[str, Any]:
        places = torch.cartesian_prod(*(torch.arange(len(line.values)) for line in lines))
        points = center.repeat(len(places), 1)
        for line, place in zip(lines, places.reshape(len(places), -1).T, strict=True):
            points[:, line.columns] = line.values.to(points)[place]
        return _quantiles(outcome, *moments(suggestion.models[outcome.name], space.round(points)))

    def axis(line: Line) -> dict[str, Any]:
        cells: Any = pd.Series([here[line.name], row[line.name], *tried[line.name]], dtype=object)
        x: Any = line.ticks
        if is_number := x is None:
            x, cells = _numbers(line.x), _numbers(pd.to_numeric(cells, errors="coerce"))
        at, first, *runs = cells if is_number else map(str, cells)
        shown = {"name": line.name, "log": line.log, "is_choice": not is_number}
        return shown | {"x": x, "at": at, "row": first, "runs": runs}

    lines = [parameter_line(space, p, SLICE_POINTS) for p in drawn]
    slices = [axis(line) | predicted([line]) for line in lines]
    coarse = [parameter_line(space, p, MAP_POINTS) for p in drawn[:MAX_MAPPED]]
    maps = [
        {"a": axis(a), "b": axis(b), "z": predicted([a, b])["mid"]}
        for a, b in combinations(coarse, 2)
    ]
    return slices, maps


def _runs(
    runs: DataFrame | None, tables: EncodedTables, status: str
) -> tuple[dict[str, Any] | None, NDArray[Any]]:
    """Makes the table of all runs for the page.

    Args:
        runs: The table of this study's runs, as given.
        tables: The encoded tables of the study.
        status: The column of ``runs`` with the state of a run.

    Returns:
        The table, or ``None`` if there are no runs; and an array of all outcomes of each row of the
        table. The first columns of the table are the number, the state and the outcomes of a run.
    """
    names = [outcome.name for outcome in tables.outcomes]
    if runs is None or runs.empty:
        return None, np.empty((0, len(names)))
    (read,) = measured([runs], tables.outcomes, status)
    Y = np.stack([numbers(read, name) for name in names], axis=1)
    unfinished, kept = np.zeros(len(runs), dtype=bool), np.ones(len(runs), dtype=bool)
    # Keep only the last row of a run with a learning curve, with the predicted final outcome.
    for name, own in tables.curves.items():
        last, ends = [curve.row for curve in own.curves], own.forecast()
        kept &= runs[own.step].isna().to_numpy() | np.isin(np.arange(len(runs)), last)
        at = names.index(name)
        mean = tables.outcomes[at].original(torch.from_numpy(ends.mean))
        Y[last, at] = np.where([curve.diverged for curve in own.curves], np.inf, mean)
        unfinished[last] = ends.variance != 0
    told = runs[status].map(_text) if status in runs.columns else pd.Series("", runs.index)
    is_told = ~told.str.lower().isin(["", *NEUTRAL])
    without = np.where(read[FATE] == "ended", "ended", "pending").astype(object)
    conditions: list[Any] = [has_failed(read, Y), is_told, unfinished, ~np.isnan(Y).all(axis=1)]
    choices: list[Any] = ["failed", told.to_numpy(object), "stopped or running", "done"]
    states = np.select(conditions, choices, without)
    shown = runs.drop(columns=status, errors="ignore")[kept]
    shown = shown.iloc[:, np.argsort(~shown.columns.isin(names), kind="stable")]
    shown.insert(0, "state", states[kept], allow_duplicates=True)
    shown.insert(0, "run", np.arange(1, 1 + len(shown)), allow_duplicates=True)
    table: dict[str, Any] = {"columns": list(map(str, shown.columns)), "rows": _cells(shown)}
    return table | {"places": np.flatnonzero(kept).tolist()}, Y[kept]


@torch.no_grad()
def parameter_importance(model: Model, space: SearchSpace, seed: int = 0) -> DataFrame:
    """Computes the importance of each parameter in this study and in old tasks.

    Args:
        model: A fitted model of one outcome on encoded rows of the space.
        space: The search space.
        seed: The seed of the Sobol points at which the model is evaluated.

    Returns:
        A table of total Sobol indices between 0 and 1, with one row for each parameter, the most
        important parameter first. The column ``"this study"`` contains the indices of the
        model's predicted mean. The column ``"old tasks"`` contains the indices of the old tasks'
        posterior means, averaged over these tasks. This column is NaN unless the model has a
        posterior for each old task.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> space = SearchSpace([FloatParameter("a", 0, 1), FloatParameter("b", 0, 1)])
        >>> list(parameter_importance(SingleTaskGP(X, X[:, :1]), space).index)
        ['a', 'b']
    """
    drawn = draw_sobol_samples(space.bounds.repeat(1, 2), NUM_POINTS, 1, seed=seed).squeeze(-2)
    A, B = (space.round(half) for half in drawn.split(space.dim, dim=-1))
    mixed = []
    for columns in space.feature_indices.values():
        changed = A.clone()
        changed[:, columns] = B[:, columns]
        mixed.append(space.round(changed))  # a new value may activate or deactivate parameters
    X = torch.cat([A, B, *mixed])

    def indices(values: Tensor) -> NDArray[Any]:
        """Computes total Sobol indices, averaged over functions.

        ``values`` is an ``s x m`` tensor with ``m = (p + 2) * n``: the values of ``s`` functions at
        the points ``X``. There are ``p`` parameters, and ``n`` is :data:`NUM_POINTS`.
        """
        f = values.double().unflatten(-1, (-1, NUM_POINTS))
        variance = f[:, :2].flatten(start_dim=1).var(dim=-1, correction=0)
        left = (f[:, :1] - f[:, 2:]).square().mean(dim=-1) / 2  # Jansen's formula
        varying = left[variance > 1e-24] / variance[variance > 1e-24].unsqueeze(-1)
        return varying.clamp(0.0, 1.0).sum(dim=0).numpy() / max(len(varying), 1)

    table = DataFrame(index=space.columns)
    table[NEW] = indices(moments(model, X)[0].unsqueeze(0))
    informed: Any = getattr(model, "member_on_sources", None)
    table[OLD] = math.nan if informed is None else indices(informed.prior.moments(X)[0])
    return table.sort_values(NEW, ascending=False, kind="stable")
