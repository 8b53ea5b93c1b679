"""Which runs are wanted, and what is left of those that are finished: two tables in a folder.

A finished run is appended at once, so that a study goes on where it stopped, on another day and
with more methods, targets or seeds.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from joblib import Parallel, delayed
from tqdm import tqdm

from benchmarks.studies.development.methods import METHODS
from benchmarks.studies.development.run import EVALUATIONS, Run, run
from benchmarks.studies.development.suites import Suite, draw, targets, tasks
from benchmarks.studies.run import revision
from benchmarks.studies.study import until

logger = logging.getLogger(__name__)

REGRETS, CALIBRATION = "regrets.csv", "calibration.csv"
KEYS = ["suite", "target", "seed", "method"]


class Wanted(NamedTuple):
    """A run by name.

    Args:
        suite: The suite.
        target: The target.
        seed: The seed.
        method: The method's name.
    """

    suite: Suite
    target: str
    seed: int
    method: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        """What finds it in a table."""
        return self.suite.full_name, self.target, self.seed, self.method


def plan(
    suites: Sequence[Suite],
    methods: Sequence[str],
    folder: Path,
    num_targets: int,
    num_seeds: int,
) -> list[Wanted]:
    """Lists runs, the first seed of everything first.

    Args:
        suites: The suites. A method without history runs on the unspoiled ones instead.
        methods: The methods' names.
        folder: Where the tables are.
        num_targets: The number of targets a suite.
        num_seeds: The number of seeds.

    Returns:
        The runs.
    """
    wanted = {}
    for seed in range(num_seeds):
        for suite in suites:
            for target in targets(list(tasks(suite, folder)), num_targets):
                for name in methods:
                    same = suite if METHODS[name].pretrain else suite.unspoiled
                    each = Wanted(same, target, seed, name)
                    wanted[each.key] = each
    return list(wanted.values())


def read_table(path: Path, keys: Sequence[str]) -> pd.DataFrame:
    """Reads a table, without what a kill left of a row.

    Args:
        path: The file; it need not exist.
        keys: The columns that tell rows apart; of equal ones the last counts.

    Returns:
        The table.
    """
    if not path.exists():
        return pd.DataFrame(columns=list(keys))
    text = path.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
    return pd.read_csv(path, dtype={"target": str}).drop_duplicates(list(keys), keep="last")


def finished(out: Path) -> pd.DataFrame:
    """The regrets of whole runs.

    Args:
        out: The folder of a study.

    Returns:
        One row a step: `suite`, `target`, `seed`, `method`, `step` (from 1), `regret`, `seconds` of
        a processor, and the `revision` that ran it.
    """
    table = read_table(out / REGRETS, [*KEYS, "step"])
    whole = table.groupby(KEYS)["step"].transform("count") >= EVALUATIONS
    return table[whole.astype(bool)]


def run_missing(
    wanted: Sequence[Wanted],
    folder: Path,
    out: Path,
    progress: bool = False,
    time_limit: float | None = None,
) -> list[Wanted]:
    """Runs what is not finished yet; joblib's configuration says in how many processes.

    All methods of a case run one after another in one process, so that what they pre-train alike
    is pre-trained once. A run that fails is logged, and tried again next time.

    Args:
        wanted: The runs.
        folder: Where the tables are.
        out: Where results are appended.
        progress: Whether to show a progress bar.
        time_limit: The number of seconds after which no case is begun any more.

    Returns:
        The runs that failed.
    """
    out.mkdir(parents=True, exist_ok=True)
    done = set(finished(out)[KEYS].itertuples(index=False, name=None))
    missing = [each for each in wanted if each.key not in done]
    failed = []
    cases: dict[tuple[str, str, int], list[Wanted]] = {}
    for each in missing:
        cases.setdefault(each.key[:3], []).append(each)
    parallel = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="n_jobs")
    jobs = until(time_limit, list(cases.values()))
    bar = tqdm(total=len(wanted), initial=len(wanted) - len(missing), disable=not progress)
    with bar:
        for case in parallel(delayed(_run_case)(job, folder) for job in jobs):
            for each, found in case:
                bar.update()
                if isinstance(found, Run):
                    _append(out, each, found)
                else:
                    logger.warning("%s failed: %s", each.key, found)
                    failed.append(each)
    return failed


def _run_case(case: Sequence[Wanted], folder: Path) -> list[tuple[Wanted, Run | str]]:
    return [(each, _run_one(each, folder)) for each in case]


def _run_one(wanted: Wanted, folder: Path) -> Run | str:
    suite, target, seed, method = wanted
    try:
        return run(draw(suite, target, seed, folder), METHODS[method])
    except Exception as error:  # the other runs go on
        return repr(error)


def _append(out: Path, wanted: Wanted, found: Run) -> None:
    key = dict(zip(KEYS, wanted.key, strict=True))
    # Regrets say which runs are finished, so they come last.
    _append_rows(out / CALIBRATION, [key | each._asdict() for each in found.calibration])
    steps = zip(found.regrets, found.seconds, strict=True)
    _append_rows(
        out / REGRETS,
        [
            key | {"step": step, "regret": regret, "seconds": seconds, "revision": revision()}
            for step, (regret, seconds) in enumerate(steps, start=1)
        ],
    )


def _append_rows(path: Path, rows: list[dict[str, object]]) -> None:
    if not rows:
        return
    text = pd.DataFrame(rows).to_csv(index=False, header=not path.exists())
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
