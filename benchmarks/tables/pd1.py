"""PD1, tuning of optimizers for large neural networks [Wang2024hyperbo].

PD1 has up to four files of JSON lines, `pd1_{matched,unmatched}_phase{0,1}_results.jsonl`, with or
without gzip compression. A line has one training run. This module reads `study_group` (the task: a
dataset, a model and a batch size), the four hyperparameters of `PD1_SPACE`, the metric, and
`status`. Runs with the status `"diverged"` have failed, whatever the metric. The matched files have
the same configurations on every task.

[Wang2024hyperbo]: Z. Wang et al. Pre-trained Gaussian Processes for Bayesian Optimization.
JMLR 2024. Section 7.1, Table 4.
"""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from benchmarks.tables.table import Table, make_table
from botorch_transfer import FloatParameter, SearchSpace

logger = logging.getLogger(__name__)

#: The paper's ranges and warpings, Table 4.
PD1_SPACE = SearchSpace(
    [
        FloatParameter("hps.lr_hparams.initial_value", 1e-5, 10.0, log=True),
        FloatParameter("hps.lr_hparams.power", 0.1, 2.0),
        FloatParameter("hps.opt_hparams.momentum", 0.0, 1 - 1e-3, log="1-x"),
        FloatParameter("hps.lr_hparams.decay_steps_factor", 0.01, 0.99),
    ]
)

METRIC = "best_valid/error_rate"  # a small value is good
TINY = 1e-10  # keeps the logarithm of error rate zero finite
ROWS_AT_A_TIME = 2_000  # learning curves would fill the memory

_NAME = re.compile(r"pd1_(matched|unmatched)_phase(\d)_results\.jsonl(\.gz)?")


def read_pd1(folder: Path, kind: Literal["matched", "unmatched", "all"] = "matched") -> Table:
    """Reads PD1; the negative logarithm of the outcome is maximized, as in the paper.

    Args:
        folder: The folder with the files. Files of both phases are concatenated.
        kind: `"matched"` for the same configurations on every task, `"unmatched"` for different
            configurations, `"all"` for both.

    Returns:
        The table. Diverged runs are dropped, as in the paper. Runs outside of the published ranges
        are left out; a log line counts them. The columns `matched` and `phase` of the table's frame
        identify the file of each row.

    Raises:
        FileNotFoundError: If the folder has no file of this kind.
        ValueError: If an entry is missing in a file.
    """
    frame = pd.concat(_read_files(folder, kind), ignore_index=True)
    frame = frame[_inside(frame)]
    finished = (frame["status"] != "diverged") & (frame[METRIC] >= 0)
    frame = frame.assign(outcome=-np.log(frame[METRIC].where(finished) + TINY))
    return make_table(f"PD1 {kind}", frame, PD1_SPACE, "outcome", "max", task="study_group")


def _read_files(folder: Path, kind: str) -> Iterator[pd.DataFrame]:
    columns = ["study_group", "status", *PD1_SPACE.columns, METRIC]
    names = {path: _NAME.fullmatch(path.name) for path in sorted(folder.glob("pd1_*"))}
    chosen = {path: name for path, name in names.items() if name and kind in ("all", name[1])}
    if not chosen:
        raise FileNotFoundError(f"The folder {folder} has no file of PD1's {kind} runs.")
    for path, name in chosen.items():
        # The default parser rounds the last digits, which matters near 1.
        chunks = pd.read_json(
            path, orient="records", lines=True, precise_float=True, chunksize=ROWS_AT_A_TIME
        )
        with chunks:
            for chunk in chunks:
                absent = [column for column in columns if column not in chunk]
                if absent:
                    raise ValueError(f"The file {path.name} has no entry {absent[0]!r}.")
                yield chunk[columns].assign(matched=name[1] == "matched", phase=int(name[2]))


def _inside(frame: pd.DataFrame) -> pd.Series:
    inside = pd.Series(True, index=frame.index)
    for parameter in PD1_SPACE.parameters:
        if isinstance(parameter, FloatParameter):
            inside &= frame[parameter.name].between(parameter.lower, parameter.upper)
    if not inside.all():
        logger.info("%s of %s runs are outside of PD1's ranges", (~inside).sum(), len(inside))
    return inside
