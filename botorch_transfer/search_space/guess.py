"""Guesses a search space from a table of runs, as a draft to edit.

A table does not determine the whole space, so some properties are guessed. A scale is logarithmic
if the median of the values is nearer to the middle of the range on a logarithmic scale than on a
linear scale. A column with few distinct numbers becomes an ordinal parameter; a column with many
distinct numbers becomes a parameter with a range. A parameter with empty cells is conditional if
the values of another parameter determine which cells are empty.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, cast

import numpy as np
from botorch.exceptions.errors import InputDataError
from numpy.typing import NDArray
from pandas import DataFrame, Series, factorize, to_numeric
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from botorch_transfer.search_space.cells import (
    DATE,
    DURATION,
    THOUSANDS,
    is_text,
    log_cell,
    plain,
    rows_of_tasks,
    sheets,
    stripped,
    thousands,
    with_numbers,
    without_codes,
    without_summaries,
    words_of,
)
from botorch_transfer.search_space.parameters import (
    MAX_NUMBER,
    ActiveIf,
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    Parameter,
    is_none,
    refuse_where,
)
from botorch_transfer.search_space.space import SearchSpace, check_arguments, check_table

logger = logging.getLogger(__name__)

#: Minimum ratio of the largest to the smallest number of a column that gets a logarithmic scale.
LOG_RATIO = 10

#: Relative tolerance for linear relations between parameters.
ROUGHLY = 0.02

#: Relations are looked for if the runs outnumber the parameters by at least ``MIN_SPARE``.
MIN_SPARE = 4

#: Maximum number of runs in which relations are looked for, up to a factor of two.
MAX_RELATED = 2_000

#: If a column has a 0, and its positive numbers span at least this number of decades, a warning is
#: logged that the 0 prevents a logarithmic scale.
MANY_DECADES = 3

#: A column of numbers becomes an ordinal parameter only if it has at most ``MAX_LEVELS``
#: distinct numbers, and on average at least ``RUNS_A_LEVEL`` runs with each of these numbers.
MAX_LEVELS, RUNS_A_LEVEL = 10, 5

#: Maximum number of distinct values in a column of text that becomes a categorical parameter.
MAX_CHOICES = 100

#: Empty cells of a column of choices count as the choice "none" if their share of all cells is at
#: least this value. With more than ten choices, half of the average share of a choice is enough.
MANY_EMPTY = 0.05

#: Pattern of choices that may stand for an unknown value.
UNKNOWN = r"[?–—-]+|<?(NA|na)>?|(?i:\W*(n[/. ]a|#nv|nan|unknown|missing|tbd|not (known|given))\W*)"

#: Pattern of names of columns with the place, time, number or seed of a run, or with comments.
NOTES = re.compile(
    r"(?i)[\W_\d]*((row|plate|well|date|time ?stamp|started|finished|id|uuid|barcode|index|unnamed|"
    r"no|nr|number|run|experiment|entry|at|(random[ _]?)?seed|random[ _]?state|fold|split"
    r"|rep|repeat|replicate|repetition|wdh|comments?|notes?|remarks?|bemerkung(en)?)[\W_\d]*)+"
)

#: Pattern of names of columns that hold the step of a learning curve.
STEPS = re.compile(r"(?i)ep(och)?|step|iter(ation)?")

LARGE_IS_GOOD = r"acc|accuracy|score|auc|f1|r2|yield|conversion|selectivity|ee|er|de|purity"
#: Words in names of outcomes to minimize; ``LARGE_IS_GOOD`` has words for outcomes to maximize.
SMALL_IS_GOOD = r"loss|error|err|rmse|mse|mae|mape"
#: Further words in names of outcomes to minimize. They may also name parameters.
COSTS = "cost|latency|runtime|wer|cer|perplexity|ppl|nll|brier|regret|fid"
COSTS += "|scrap|waste|defects|impurity|impurities|rejects|corrosion|wear|spoilage|mould|mold"
COSTS += "|porosity|mortality|crack|cracks|shrinkage|warpage|roughness|downtime|emissions|failures"
#: Words that suggest a goal only if no goal is given, and words that reverse the suggested goal.
VAGUE = {"score", "ee", "er", "de", "conversion"}
REVERSING = {"neg", "negative", "minus", "1", "drop", "gap", "reduction", "savings", "efficiency"}
REVERSING |= {"free", "removal", "removed", "rejection", "recycled", "recovery", "value"}

#: Pattern of names of measures. Units in brackets and per cent signs are removed before matching.
MEASURES = re.compile(
    r"(?i)((val(idation)?|test|train(ing)?|mean|best|final|balanced|top_?[15])_?)?("
    rf"{LARGE_IS_GOOD}|{SMALL_IS_GOOD}|roc_auc|f1_score|"
    r"(fit|train|training|score|eval)_?(seconds|time)|run_?time|wall_?(clock_?)?time|elapsed|"
    r"(predicted_(mean|std)|(expected|probability_of)_improvement)(_.+)?)"  # of suggestions
)

#: Words in the names of columns that may be measured in a run.
MEASURED = {"measured", "observed", "actual", "after", "gemessen", "duration", "gpu", "cpu", "best"}
MEASURED |= {"energy", "memory", "mem", "flops", "throughput", "latency", "overshoot", "settling"}

#: Words in the names of columns that name the measure in each row of a long table.
MELTED = {"metric", "measure", "kpi", "variable", "measurement"}

#: Patterns of cells with dates, durations or dictionaries, and reasons to leave out columns of such
#: cells. The last pattern matches seconds or milliseconds since 1970, and dates such as 20240502.
HOLD_NO_NUMBERS = {
    DATE: "holds dates",
    rf"{DURATION}|\d+ ?[hms]": "holds durations: convert the durations to numbers, such as minutes",
    r"\{[^{}]*:[\s\S]*\}": "holds dictionaries: expand them into columns by pandas.json_normalize",
    r"1\d{9}(?:\d{3})?|(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:[0-2]\d|3[01])": (
        "holds dates as numbers: if the column is a parameter, divide its numbers by 1e6"
    ),
}

#: Pattern of text that may be a number: the text has separators of thousands or a decimal comma, or
#: a spreadsheet has converted a number to a date.
UNCLEAR = rf"{DATE}|{DURATION}|\s*[-+]?(?:\d{{1,3}}(?:[., ']\d{{3}})+|\d+,\d+)\s*"

#: A column may be another measure if the magnitude of its correlation with the outcome is larger
#: than this number.
ALMOST_THE_OUTCOME = 0.97


def guess_space(
    frame: DataFrame,
    leave_out: Collection[str] = (),
    task: str | None = None,
    *,
    outcome: str | Sequence[str] = (),
    step: str | None = None,
    run: str | None = None,
) -> SearchSpace:
    """Guesses the search space of a table of runs; check the result before you use it.

    Some columns are left out, because they are not parameters. The log names these columns with the
    reason:

    - columns with a single value, or with a single value in each task;
    - columns of text with hardly any repeated values, such as comments;
    - columns with the number, the place, the date or the seed of a run, and columns with durations;
    - columns with the name of a measure, such as ``accuracy``;
    - columns that change within a run, and the column ``status``;
    - columns of text that only rename the values of another column, such as the CAS numbers of
      solvents. Of columns that rename one another, the column with the largest share of letters
      is kept.

    The range of a parameter is the range of its column, without codes of missing values such as
    -999, and without a number that is far from all others, maybe a typing error. Rows of tasks with
    names such as "Total" are left out. A warning is logged if a choice may stand for an unknown
    value, such as "?", or may be a typing error.

    Args:
        frame: The table, one row per run. Text such as ``"110 °C"`` is read as a number.
        leave_out: Columns that are not parameters, such as the task and the outcomes.
        task: The column that names the task.
        outcome: The columns of outcomes, which are not parameters. If the values or the ranks of
            another column have a correlation of almost 1 or -1 with an outcome in each task, the
            column is kept, and a warning is logged.
        step: The column of the step, in a table with one row per step.
        run: The column that identifies the run, in a table with one row per step. By default, a new
            run starts where the step does not increase.

    Returns:
        The space. Parameters without empty cells come first, because they may be the parents of
        parameters with empty cells. Otherwise, parameters have the order of the columns.

    Raises:
        InputDataError: If the table has no rows or lacks a named column, if a row has no task, or
            if no column is left.

    Example:
        >>> from pandas import DataFrame
        >>> runs = DataFrame({"lr": [0.001, 0.02, 0.3], "loss": [0.4, 0.5, 0.3]})
        >>> guess_space(runs, leave_out=["loss"]).parameters[0]
        FloatParameter(name='lr', lower=0.001, upper=0.3, log=True, active_if=None, step=None)
    """
    check_arguments(locals())
    leave_out = [leave_out] if isinstance(leave_out, str) else leave_out
    outcomes = [outcome] if isinstance(outcome, str) else list(outcome)
    named = [*outcomes, *(name for name in (task, step, run) if name is not None)]
    leave_out = [*map(str, leave_out), *named]
    given, frame = frame, check_table(frame, (), leave_out)
    if absent := [name for name in leave_out if name not in frame.columns]:
        text = f"The table has no column {absent[0]!r}: use one of {', '.join(frame.columns)}."
        raise InputDataError(f"{text}{sheets(frame)}")
    columns = [name for name in frame.columns if name not in leave_out]
    check_table(frame, [*named, *columns])
    frame = with_numbers(frame, columns, whole=True)
    frame = frame.assign(**{c: frame[c].map(stripped) for c in columns if is_text(frame[c])})
    if frame.empty:
        raise InputDataError("The table has no rows: give a table with old runs.")
    if task is not None:
        frame = frame.iloc[without_summaries(rows_of_tasks(frame[task]), frame.index)]
    tasks = None if task is None else frame[task]
    _warn_of_tasks(frame, columns, task)
    unused = {n: reason for n in columns if (reason := _describes_runs(frame[n], tasks))}
    labels = [name for name in columns if name not in [*map(str, given.columns)]]
    unused |= {name: "identifies a run" for name in labels if frame[name].is_unique}
    if step is not None or run is not None:
        varies = frame.groupby(_runs(frame, task, step, run))[columns].nunique(dropna=False) > 1
        unused |= {name: "changes within a run" for name in columns if varies[name].any()}
    unused |= (copies := _copies(frame, [name for name in columns if name not in unused]))
    left = [name for name in columns if name not in unused]
    _warn_of_columns(frame[left], [frame[name] for name in outcomes], tasks, step)
    found: dict[str, Parameter] = {}
    # Complete columns first: they may be parents of columns with empty cells.
    for name in sorted(left, key=lambda name: frame[name].hasnans):
        if is_numeric_dtype(frame[name]) and not is_bool_dtype(frame[name]):
            frame[name] = without_codes(frame[name])
            numbers = frame[name].dropna().to_numpy(np.float64)
            log_cell(frame[name].isin(thousands(numbers)), frame[name], THOUSANDS)
        known, column = list(found.values()), frame[name]
        condition = find_condition(frame, name, known) if column.hasnans else None
        empty = int(column.isna().sum())
        many = min(MANY_EMPTY, 0.5 / max(column.nunique(), 1)) * len(column)
        guessed = _guess(column.dropna(), len(column), condition)
        if isinstance(guessed, CategoricalParameter) and condition is None and empty >= many:
            filled = column.where(column.notna(), next(filter(is_none, column), "none"))
            guessed = _guess(filled, len(column))
            message = "%r is empty in %d of %d rows: these cells count as the choice 'none'"
            logger.info(message, name, empty, len(column))
        if isinstance(guessed, str):
            unused[name] = guessed
            continue
        found[name] = guessed
        if isinstance(guessed, CategoricalParameter):
            _warn_of_choices(column, tasks)
    listed = "; ".join(f"{name!r} {unused[name]}" for name in columns if name in unused)
    if unused:
        has_remedy = any(": " in reason for reason in unused.values())
        log = logger.warning if copies or has_remedy else logger.info
        log("Columns that are left out: %s", listed)
    if not found:
        problem = "No column is left as a parameter: add columns with the settings of each run."
        raise InputDataError(f"{problem} Left out: {listed}." if unused else problem)
    gaps = frame[[n for n, p in found.items() if p.active_if is None and frame[n].hasnans]].isna()
    for a, b in combinations(gaps, 2):
        if (gaps[a] != gaps[b]).all():
            logger.warning("No row has both %r and %r: if both mean the same, use one name", a, b)
    # A constraint on a sum needs parameters with a linear scale.
    for name in () if task is None else warn_of_relations(frame, [*found.values()]):
        found[name] = replace(cast(Any, found[name]), log=False)
    return SearchSpace(list(found.values()))


def _warn_of_tasks(frame: DataFrame, columns: Sequence[str], task: str | None) -> None:
    """Warns if the column "task" may be a parameter, or if the column of tasks may name runs."""
    if "task" in columns:
        logger.warning("'task' is a parameter: if this column has task names, give task='task'")
    if task is not None and frame[task].is_unique and len(frame) > 1:
        logger.warning("Each row has a %r of its own: does this column name runs, not tasks?", task)


def _warn_of_columns(
    frame: DataFrame, outcomes: Sequence[Series], tasks: Series | None, step: str | None
) -> None:
    """Warns of columns that may be measured in a run, or may be the step of a learning curve."""
    for name, column in frame.items():
        words, count = words_of(str(name)), column.nunique()
        is_outcome = usual_goal(" ".join(words - VAGUE)) and count > MAX_LEVELS
        if is_outcome or (words & MEASURED and count > 2):
            logger.warning("Add %r to leave_out= if it is measured in a run", name)
        if step is None and (
            STEPS.fullmatch(str(name)) or _grows(column, frame.drop(columns=name))
        ):
            message = "%r may be the step of a learning curve: if it is, set step= to this column"
            logger.warning(message, name)
        for other in outcomes:
            if _is_almost(column, other, tasks):
                message = "Add %r to leave_out= if this column is an outcome: it correlates with %r"
                logger.warning(message, name, other.name)
    close = frame.select_dtypes("number").rank().corr().abs()
    for i, j in np.argwhere(np.triu((close > ALMOST_THE_OUTCOME) & (close < 1 - 1e-3), 1)):
        first, second = close.columns[i], close.columns[j]
        if _is_almost(frame[second], frame[first], tasks):
            message = "%r nearly follows %r: add it to leave_out= if it is a measurement"
            logger.warning(message, second, first)


def warn_of_relations(
    frame: DataFrame,
    parameters: Sequence[Parameter],
    constraints: Sequence[str] = (),
    candidates: DataFrame | None = None,
) -> set[str]:
    """Warns if a parameter follows from others in all old runs.

    Parameters are linearly related if they are one quantity in two units, if one of them is
    measured and follows from the others, or if they have a constant sum, as the parts of a mixture
    have.

    Args:
        frame: Old runs.
        parameters: The parameters of the search space.
        constraints: The constraints. No warning is given for parameters that one of the constraints
            names together.
        candidates: The rows to choose from. If they are given, a warning is only logged about a
            candidate whose sum differs from the sum of all old runs.

    Returns:
        The numeric parameters that have a constant sum.

    Example:
        >>> runs = DataFrame({"a": [1, 5, 3, 2, 9, 4]})
        >>> runs["b"] = 10 - runs["a"]
        >>> sorted(warn_of_relations(runs, guess_space(runs).parameters, ["a + b == 10"]))
        ['a', 'b']
    """
    free = [p for p in parameters if p.active_if is None and p.name in frame]
    flags = {p.name for p in free if {*getattr(p, "values", ())} == {True, False}}
    names = [p.name for p in free if p.is_numeric or p.name in flags]
    cells = [to_numeric(frame[name], errors="coerce").to_numpy(np.float64) for name in names]
    X = np.column_stack([*cells, np.zeros(len(frame))])
    X = X[np.isfinite(X).all(axis=1)]
    X = X[:: 1 + len(X) // MAX_RELATED]
    if len(X) < len(names) + MIN_SPARE:
        return set()
    summed, centered, widths = set[str](), X - X.mean(axis=0), np.ptp(X, axis=0)
    left = [*np.flatnonzero(widths > 0)]
    while left:
        j, *left = left
        others = np.delete(np.arange(len(names)), j)
        slopes = np.linalg.lstsq(centered[:, others], centered[:, j])[0]
        residual = centered[:, j] - centered[:, others] @ slopes
        matter = np.abs(slopes) * widths[others] > ROUGHLY * widths[j]
        if not matter.any() or np.ptp(residual) > ROUGHLY * widths[j]:
            continue
        parts = sorted([j, *others[matter]])
        left = [other for other in left if other not in parts]
        group, sums = [names[part] for part in parts], X[:, parts].sum(axis=1)
        whole = [rf"(?<!\w){re.escape(name)}(?!\w)" for name in group]
        is_known = any(all(re.search(name, given) for name in whole) for given in constraints)
        text = f"{' and '.join(map(repr, group))} are linearly related in all old runs"
        remedy = "leave out measurements and repeated quantities"
        if np.ptp(sums) <= ROUGHLY * widths[parts].max():
            summed |= {*group} - flags
            if candidates is not None and not is_known:
                found = candidates[group].apply(to_numeric, errors="coerce").sum(axis=1)
                is_other = (found - sums.mean()).abs() > ROUGHLY * widths[parts].max()
                reason = f"but {sums.mean():g} in all old runs: correct or drop the row"
                log_cell(is_other, found.rename(" + ".join(group)), reason)
            total = " + ".join(n if n.isidentifier() else f"`{n}`" for n in group)
            total += f" == {round(float(sums.mean()), 6):.10g}"
            text = f"In all old runs, {total}, but suggestions may have other sums"
            choices = "replace these columns by one column of choices"
            remedy = choices if flags & {*group} else f"add the constraint {total!r}"
        if candidates is None and not is_known:
            logger.warning("%s: %s", text, remedy)
    return summed


def _warn_of_choices(column: Series, tasks: Series | None) -> None:
    """Warns of choices that may stand for unknown values, or may be typing errors.

    A choice may be a typing error if it occurs once, and if another order of the letters in its
    words gives a choice that occurs at least three times.
    """
    texts = column.dropna().astype(str)
    keys = np.zeros(len(texts)) if tasks is None else tasks.to_numpy()[column.notna().to_numpy()]
    shares = to_numeric(texts, errors="coerce").notna().groupby(keys).mean()
    if {*shares} == {0.0, 1.0}:
        text = "%r has numbers in task %r, but words in other tasks: use the same words"
        logger.warning(text, texts.name, shares.idxmax())
    if MELTED & words_of(str(texts.name)) or all(map(is_measure, texts.unique())):
        logger.warning("%r seems to name measures: give each measure a column", texts.name)
    # Next to a choice "+", the choice "-" means "without".
    unknown = texts.str.fullmatch(UNKNOWN) & ~(texts.eq("-") & ("+" in {*texts}))
    log_cell(unknown, texts, "which counts as a choice: if the value is unknown, empty the cell")
    forms = texts.str.replace(r"[^\W\d_]{3,}", lambda m: "".join(sorted(m[0])), regex=True)
    usual, counts = texts.groupby(forms).transform(lambda t: t.mode()[0]), texts.value_counts()
    odd = (texts.map(counts) == 1) & (usual.map(counts) > 2)
    is_date = texts.str.fullmatch(DATE)
    log_cell(is_date, texts, "maybe made by a spreadsheet from a text: if so, restore the text")
    log_cell(odd, texts, f"maybe instead of {usual[odd].head(1).squeeze()!r}: correct the cell")


def is_measure(name: str) -> bool:
    """Returns whether a column has the name of a measure, such as "loss" or "accuracy (%)"."""
    bare = re.sub(r"\([^)]*\)|\[[^\]]*\]|%", " ", name)
    return MEASURES.fullmatch(re.sub(r"\W+", "_", bare).strip("_")) is not None


def usual_goal(name: str) -> str:
    """Returns the goal that an outcome's name suggests: ``"min"``, ``"max"`` or ``""`` (none)."""
    kinds = {"min": f"{COSTS}|{SMALL_IS_GOOD}", "max": LARGE_IS_GOOD}
    found = (goal for goal, named in kinds.items() if words_of(name) & {*named.split("|")})
    return next(found, "")


def warn_of_goal(outcome: str, sign: float, where: str = "goal=") -> None:
    """Logs a warning if an outcome's goal is the opposite of the goal that its name suggests.

    Args:
        outcome: The name of the outcome.
        sign: 1 if the outcome is maximized, -1 if the outcome is minimized.
        where: The argument that determines the goal, for the message.
    """
    words, goal = words_of(outcome) - VAGUE, "max" if sign > 0 else "min"
    if not words & REVERSING and usual_goal(" ".join(words)) not in ("", goal):
        text = "%r is %simized, but the name suggests the opposite: correct %s"
        logger.warning(text, outcome, goal, where)


def checked_goals(names: Sequence[str], goal: Any, default: str) -> list[str]:
    """Returns the goal of each outcome, and compares goals with the names of the outcomes.

    Args:
        names: The names of the outcomes.
        goal: ``"min"``, ``"max"`` or a list of them. A single goal applies to all outcomes. If
            ``goal`` is ``None``, all outcomes have the goal ``default``.
        default: ``"min"`` or ``"max"``.

    Returns:
        The goals, each ``"min"`` or ``"max"``.

    Raises:
        ValueError: If a goal is neither ``"min"`` nor ``"max"``, or if the numbers of goals and
            outcomes differ. Also if ``goal`` is ``None``, and the name of an outcome suggests the
            opposite of ``default``.
    """
    usual = {str(name): usual_goal(str(name)) for name in names if goal is None}
    kinds = ("min", "small"), ("max", "large")
    (_, size), (other, opposite) = kinds if default == "min" else kinds[::-1]
    if wrong := [name for name, guess in usual.items() if guess == other]:
        text = f"The name {wrong[0]!r} suggests that {opposite} values are good, but there is no"
        raise ValueError(f"{text} goal: give goal='max' or goal='min'.")
    if unknown := [name for name, guess in usual.items() if not guess]:
        text = f"{size.title()} values of %s count as good: give goal=%r to %simize"
        logger.warning(text, " and ".join(unknown), other, other)
    goal = [default] * len(names) if goal is None else goal
    goals = [goal] if isinstance(goal, str) else list(goal)
    if len(goals) == 1 < len(names):
        message = "goal=%r applies to all outcomes %s: give a list if the goals differ"
        logger.warning(message, goals[0], names)
        goals = goals * len(names)
    if not names or len(goals) != len(names):
        text = f"There are {len(names)} outcomes and {len(goals)} goals"
        raise ValueError(f"{text}: give each outcome a goal.")
    if bad := [value for value in goals if value not in ("min", "max")]:
        raise ValueError(f"goal is {bad[0]!r}: use 'min' or 'max'.")
    for name, value in zip(names, goals, strict=True):
        warn_of_goal(str(name), 1.0 if value == "max" else -1.0)
    return goals


def _describes_runs(column: Series, tasks: Series | None) -> str | None:
    """Returns the reason why a column is not a parameter.

    Returns ``None`` if the column may be a parameter.
    """
    if NOTES.fullmatch(str(column.name)):
        return "identifies a run"
    if column.name == "status":
        return "has the status of runs"
    groups = None if tasks is None or tasks.is_unique else column.groupby(tasks.to_numpy())
    if groups and column.nunique(dropna=False) > 1 >= groups.nunique(dropna=False).max():
        return "has one value in each task"
    cells = column.dropna()
    texts = cells.astype(str)
    if is_numeric_dtype(column.dtype):
        are_close = len(cells) and np.ptp(cells.astype(float)) < 0.1 * cells.max()
        texts = cells.map("{:.0f}".format) if are_close else texts[:0]
    for pattern, reason in HOLD_NO_NUMBERS.items():
        if len(texts) and texts.str.fullmatch(pattern).all():
            is_choice = pattern == DATE and RUNS_A_LEVEL * texts.nunique() <= len(texts)
            return reason + ": write other text if they are choices" * is_choice
    if is_measure(str(column.name)):
        return "has the name of a measured result"
    return None


def _runs(frame: DataFrame, task: str | None, step: str | None, run: str | None) -> Series:
    """Returns the run number of each row, for a table with several rows per run."""
    keys = [frame[name] for name in (task, run) if name is not None]
    if run is not None or step is None:
        return frame.groupby([key.to_numpy() for key in keys], dropna=False).ngroup()
    starts = ~(to_numeric(frame[step], errors="coerce").diff() > 0)
    for key in keys:
        starts |= key != key.shift()
    return starts.cumsum()


def _grows(column: Series, others: DataFrame) -> bool:
    """Returns whether most rows repeat ``others`` of the previous row, with a larger number."""
    is_same = (others == others.shift()).all(axis=1).fillna(False).to_numpy(np.bool_)
    are_most = is_numeric_dtype(column) and 2 * is_same.sum() > len(column) and len(others.columns)
    return bool(are_most and (column[is_same] > column.shift()[is_same]).all())


def _is_almost(column: Series, outcome: Series, tasks: Series | None) -> bool:
    """Returns whether a column and an outcome have a correlation near ±1 in each task.

    This is the larger one of the correlations of values and of ranks.
    """
    both = DataFrame({"a": to_numeric(column, "coerce"), "b": to_numeric(outcome, "coerce")})
    both["task"] = "" if tasks is None else tasks.to_numpy()
    both = both.replace([np.inf, -np.inf], np.nan).dropna(subset=["a", "b"])
    pairs = [(g["a"], g["b"]) for _, g in both.groupby("task") if g["a"].nunique() >= 5]
    found = [max(abs(a.corr(b)), abs(a.rank().corr(b.rank()))) for a, b in pairs]
    return bool(found) and min(found) > ALMOST_THE_OUTCOME


def _copies(frame: DataFrame, columns: Sequence[str]) -> dict[str, str]:
    """Finds columns of text that only rename the values of another column.

    Returns a mapping from each of these columns to the reason to leave out the column.
    """
    distinct = frame[columns].drop_duplicates()  # counts replicates once
    same: dict[bytes, list[str]] = {}
    for name in columns:
        codes, levels = factorize(distinct[name])
        if 2 <= len(levels) <= len(codes) / 2:
            same.setdefault(codes.tobytes(), []).append(name)
    reasons: dict[str, str] = {}
    for names in same.values():
        texts = {name: "".join(map(str, distinct[name].dropna().unique())) for name in names}
        kept = max(names, key=lambda name: np.mean([*map(str.isalpha, texts[name])]))
        copies = [name for name in names if name != kept and not is_numeric_dtype(frame[name])]
        reasons |= dict.fromkeys(copies, f"has other names for the values of {kept!r}")
    return reasons


def _guess(column: Series, num_rows: int, active_if: ActiveIf | None = None) -> Parameter | str:
    """Guesses the parameter of a column. If the column is not a parameter, returns the reason."""
    name = str(column.name)
    is_choice = is_bool_dtype(column.dtype) or not is_numeric_dtype(column.dtype)
    finite = column if is_choice else column[np.isfinite(column)]
    if len(values := finite.unique()) < 2:
        return "never changes"
    if is_choice:
        choices = sorted((plain(value) for value in values), key=str)
        once = [text for text, number in Counter(map(str, column)).items() if number == 1]
        sentences = [text for text in once if text.count(" ") >= 2]
        rare = 2 * len(choices) > len(column) or 2 * len(sentences) > len(choices)
        is_dropped = len(choices) > MAX_CHOICES or (rare and num_rows > 4)
        is_number = to_numeric(column, errors="coerce").notna()
        is_unclear = ~is_number & column.astype(str).str.fullmatch(UNCLEAR)
        if (is_number | is_unclear).all() and (is_number.any() or is_dropped):
            problem = "which is an unclear number: write a number as 1022 or 64.32, a list as 64-32"
            refuse_where(is_unclear.to_numpy(np.bool_), column, problem)
        if not is_dropped:
            return CategoricalParameter(name, choices, active_if)
        words = column[~is_number].astype(str)
        if 0 < 2 * words.nunique() <= len(words) <= len(column) / 2:
            texts = " and ".join(map(repr, words.unique()[:2]))
            return f"holds numbers and the text {texts}: split the column into two"
        around = column.astype(str).str.replace(r"[-+]?[\d.,]+", "", regex=True)
        if re.fullmatch(r".+[=:]\s*", around.iloc[0]) and around.nunique() == 1:
            return f"holds numbers after {around.iloc[0]!r}: leave only the numbers"
        if column.astype(str).str.fullmatch(r"[\[(].*[\])]").all():
            return "holds lists: give each number a column of its own"
        return "hardly repeats"
    numbers = np.sort(values)
    log = _is_logarithmic(finite.to_numpy(dtype=np.float64))
    decades = np.log10(numbers[-1] / numbers[1]) if numbers[0] == 0 else 0.0
    if decades >= MANY_DECADES and _is_logarithmic(finite[finite > 0].to_numpy(np.float64)):
        message = "%r spans %.1f decades but is 0 in some rows, so its scale is linear: for "
        logger.warning(f"{message}a logarithmic scale, replace 0 by a small number", name, decades)
    whole = bool((numbers == np.rint(numbers)).all())
    if np.abs(numbers).max() > MAX_NUMBER:
        return "has numbers above 2**53: use a larger unit"
    is_run = whole and bool((np.diff(numbers) == 1).all())
    if len(numbers) <= min(MAX_LEVELS, len(column) / RUNS_A_LEVEL) and not is_run:
        levels = [int(number) if whole else float(number) for number in numbers]
        geometric = len(numbers) > 2 and numbers[0] > 0 and np.ptp(np.diff(np.log(numbers))) < 1e-6
        return OrdinalParameter(name, levels, log or bool(geometric), active_if)
    if is_run and len(numbers) == len(column) > MAX_LEVELS:
        return "counts the rows"
    if whole:
        return IntegerParameter(name, int(numbers[0]), int(numbers[-1]), log, active_if)
    return FloatParameter(name, float(numbers[0]), float(numbers[-1]), log, active_if)


def find_condition(frame: DataFrame, name: str, parents: list[Parameter]) -> dict[str, Any] | None:
    """Finds an ``active_if`` for a column: a parent whose value decides which cells are filled.

    Returns ``None`` if no parameter in ``parents`` is such a parent.
    """
    filled = frame[name].notna()
    for parent in parents:
        if isinstance(parent, CategoricalParameter | OrdinalParameter):
            values = frame[parent.name].map(plain)
            active = tuple(value for value in parent.values if filled[values == value].all())
            if active and values.isin(active).equals(filled):
                return {parent.name: active}
    return None


def _is_logarithmic(values: NDArray[np.float64]) -> bool:
    if values.min() <= 0 or values.max() < LOG_RATIO * values.min():
        return False
    low, middle, high = np.quantile([np.log(values), values], [0.0, 0.5, 1.0], axis=1)
    off = np.abs(middle - (low + high) / 2) / (high - low)
    return bool(off[0] < off[1])
