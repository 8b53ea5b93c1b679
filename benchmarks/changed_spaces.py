"""Do old runs of a search space that has changed since still help? On three shared tables.

    python -m benchmarks.changed_spaces --data FOLDER

Each target task of a table is tuned by `suggest`, which may try the table's configurations. The
history is drawn from the other tasks: as they are, or from those rows only that an earlier search
space would have had, without the column of a parameter that is new. A plain GP without any history
starts with three random rows. Finished runs are not repeated.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from botorch.models import SingleTaskGP
from torch import Tensor
from tqdm import tqdm

from benchmarks.markdown import markdown_table
from benchmarks.studies.statistics import ratio_of_means
from botorch_transfer import CategoricalParameter, OrdinalParameter, SearchSpace, suggest

EVALUATIONS, INITIAL, AT = 15, 3, (1, 5, 15)
NONE, UNCHANGED = "no history", "unchanged"


@dataclass(frozen=True)
class Change:
    """How the search space of the old runs differed.

    Args:
        keep: What an earlier row was like: values by column.
        drop: A column that the old runs lack.
        missing: What `suggest` is told about it.
    """

    keep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    drop: str | None = None
    missing: Mapping[str, Any] | None = None

    def history(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The old runs of the earlier space; a parameter that is inactive in a row does not count.

        Args:
            rows: Rows of the table.
        """
        for column, values in self.keep.items():
            rows = rows[rows[column].isin(values) | rows[column].isna()]
        return rows if self.drop is None else rows.drop(columns=self.drop)


def _new_parameter(name: str, value: Any) -> dict[str, Change]:
    """A parameter that old runs do not record, whose value is known or not."""
    keep = {name: [value]}
    return {
        "new parameter, value known": Change(keep, name, {name: value}),
        "new parameter, value unknown": Change(keep, name, {name: None}),
    }


@dataclass(frozen=True)
class Setting:
    """A table, and what may have changed.

    Args:
        table: The table's name.
        space: Its search space; all configurations are in the table.
        changes: The changes by name.
        size: The number of runs of each old task.
        where: Rows of the table to take: a value by column.
    """

    table: str
    space: SearchSpace
    changes: Mapping[str, Change]
    size: int
    where: Mapping[str, Any] = field(default_factory=dict)

    def read(self, folder: Path) -> pd.DataFrame:
        """Reads the rows of the table that are in the space, the outcome to be maximized."""
        frame = pd.read_parquet(folder / f"{self.table}.parquet")
        for column, value in self.where.items():
            frame = frame[frame[column] == value]
        frame = frame[["task", *self.space.columns, "y"]].assign(task=frame["task"].astype(str))
        return frame[~self.space.place(frame).isnan().any(dim=-1).numpy()].reset_index(drop=True)


def _ordinal(name: str, *values: float, **options: Any) -> OrdinalParameter:
    return OrdinalParameter(
        name, values, log=values[0] > 0 and values[-1] > 20 * values[0], **options
    )


MLP = SearchSpace(
    [
        _ordinal("alpha", 1e-08, 5.994842e-07, 3.5938137e-05, 0.0021544348, 0.12915497),
        _ordinal("batch_size", 4, 10, 25, 64, 161),
        _ordinal(
            "learning_rate_init",
            *(1e-05, 3.5938137e-05, 0.00012915497, 0.0004641589, 0.0016681006),
            *(0.0059948424, 0.021544347, 0.07742637, 0.27825594, 1.0),
        ),
        _ordinal("width", 16, 40, 101, 256, 645),
    ]
)

SVM = SearchSpace(
    [
        CategoricalParameter("kernel", ("rbf", "poly", "linear")),
        _ordinal("C", *(2.0**power for power in range(-5, 7))),
        _ordinal(
            "gamma",
            *(1e-4, 1e-3, 1e-2, 0.05, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1000.0),
            active_if={"kernel": "rbf"},
        ),
        _ordinal("degree", *range(2, 11), active_if={"kernel": "poly"}),
    ]
)

LIGANDS = (
    *("(t-Bu)PhCPhos", "1268824-69-6", "BrettPhos", "Di-tert-butylphenylphosphine", "JackiePhos"),
    *("Me2PPh", "Methyldiphenylphosphine", "P(2-furyl)3", "PPh3", "SCHEMBL15068049"),
    *("Tricyclohexylphosphine", "XPhos"),
)

REACTION = SearchSpace(
    [
        CategoricalParameter(
            "Base",
            ("Cesium acetate", "Cesium pivalate", "Potassium acetate", "Potassium pivalate"),
        ),
        CategoricalParameter("Ligand", LIGANDS),
        CategoricalParameter("Solvent", ("Butyl Ester", "Butyornitrile", "DMAc", "p-Xylene")),
        _ordinal("Concentration", 0.057, 0.1, 0.153),
    ]
)

SETTINGS = {
    "mlp": Setting(
        "mlp",
        MLP,
        {
            **_new_parameter("learning_rate_init", 0.0004641589),
            "wider range": Change({"learning_rate_init": MLP.parameters[2].values[:5]}),  # type: ignore[attr-defined]
        },
        size=40,
        where={"depth": 2},
    ),
    "svm": Setting(
        "svm",
        SVM,
        {
            **_new_parameter("C", 1.0),
            "wider range": Change({"C": [2.0**power for power in range(-5, 0)]}),
            "new choice": Change({"kernel": ["poly", "linear"]}),
        },
        size=40,
    ),
    "direct_arylation": Setting(
        "direct_arylation",
        REACTION,
        {
            **_new_parameter("Concentration", 0.057),
            "wider range": Change({"Concentration": [0.057, 0.1]}),
            "new choice": Change({"Ligand": LIGANDS[3:]}),
        },
        size=60,
    ),
}


def plain(X: Tensor, Y: Tensor, sources: Any, train_Yvar: Tensor | None = None) -> SingleTaskGP:
    """BoTorch's GP, which takes no notice of the sources."""
    return SingleTaskGP(X, Y, train_Yvar)


def run(setting: Setting, table: pd.DataFrame, target: str, name: str, seed: int) -> list[float]:
    """Tunes one target task.

    Args:
        setting: The table and its changes.
        table: Its rows.
        target: The target task.
        name: Which change; or `NONE`, or `UNCHANGED`.
        seed: The seed of history, first rows and suggestions.

    Returns:
        The regret after each evaluation: that of the best one yet, divided by the median's.
    """
    space, columns = setting.space, setting.space.columns
    rows, others = table[table["task"] == target], table[table["task"] != target]
    drawn = zlib.crc32(f"{setting.table}/{target}/{seed}".encode())
    change = setting.changes.get(name, Change())
    shuffled = others.sample(frac=1.0, random_state=drawn)
    history = change.history(shuffled).groupby("task", sort=False).head(setting.size)
    history = history.sort_values("task", kind="stable")
    found = rows.sample(INITIAL, random_state=drawn) if name == NONE else rows.iloc[:0]
    model: Callable[..., Any] | None = plain if name == NONE else None
    values = rows.set_index(_keys(space, rows))["y"]
    while len(found) < EVALUATIONS:
        row = suggest(
            space,
            history,
            found,
            outcome="y",
            goal="max",
            model=model,
            missing=change.missing,
            seed=seed,
        )[columns]
        outcome = values[_keys(space, row).item()]
        found = pd.concat([found, row.assign(y=outcome)], ignore_index=True)
    best, median = rows["y"].max(), rows["y"].median()
    return ((best - found["y"].cummax()) / (best - median)).clip(upper=1.0).tolist()


def _keys(space: SearchSpace, frame: pd.DataFrame) -> pd.Series:
    """One text a configuration."""
    X = space.encode(frame).round(decimals=6).tolist()
    return pd.Series([str(row) for row in X], index=frame.index)


def report(results: pd.DataFrame) -> str:
    """Mean regrets after some evaluations, and their ratios to those without history.

    Args:
        results: One row a finished run: `table`, `history`, `problem`, `seed`, `1`, `2`, ...

    Returns:
        One markdown table a table.
    """
    parts = []
    for table, own in results.groupby("table", sort=False):
        cells: dict[str, list[str]] = {name: [name] for name in own["history"].unique()}
        for step in AT:
            values = own.pivot(index=["problem", "seed"], columns="history", values=str(step))
            against = ratio_of_means(values, NONE)
            for name, row in cells.items():
                row.append(f"{values[name].mean():.3f}")
                ratio, low, high = against.loc[name]
                row.append("" if name == NONE else f"{ratio:.2f} [{low:.2f}, {high:.2f}]")
        header = ["history", *(text for n in AT for text in (f"after {n}", "ratio"))]
        parts.append(f"{table}, {own['problem'].nunique()} targets\n\n")
        parts.append(markdown_table(header, list(cells.values())) + "\n\n")
    return "".join(parts).rstrip()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        arguments: Those of the command line by default.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="the folder with the tables")
    parser.add_argument("--tables", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--targets", type=int, default=8, help="target tasks of each table")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out/changed_spaces.csv"))
    options = parser.parse_args(arguments)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    keys = ["table", "history", "problem", "seed"]
    text = {"problem": str}  # tasks may have numbers for names
    known = pd.DataFrame(columns=keys)
    if options.out.exists():
        known = pd.read_csv(options.out, dtype=text)
    done = set(known[keys].itertuples(index=False, name=None))
    tables = {name: SETTINGS[name].read(options.data) for name in options.tables}
    asked = []
    for name, table in tables.items():
        tasks = sorted(table["task"].unique())
        tasks = tasks[:: max(len(tasks) // options.targets, 1)][: options.targets]
        changes = (NONE, UNCHANGED, *SETTINGS[name].changes)
        asked += [
            (name, change, task, seed)
            for seed in range(options.seeds)
            for task in tasks
            for change in changes
        ]
    for name, change, task, seed in tqdm([each for each in asked if each not in done], unit="run"):
        regrets = run(SETTINGS[name], tables[name], task, change, seed)
        row = dict(zip(keys, (name, change, task, seed), strict=True))
        row |= {str(n): regret for n, regret in enumerate(regrets, start=1)}
        new = pd.DataFrame([row])
        new.to_csv(options.out, mode="a", header=not options.out.exists(), index=False)
    results = pd.read_csv(options.out, dtype=text)
    wanted = {tuple(map(str, each)) for each in asked}
    chosen = [tuple(map(str, row)) in wanted for row in results[keys].to_numpy()]
    print(report(results[chosen]))


if __name__ == "__main__":
    main()
