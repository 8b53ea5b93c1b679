"""Saves the documentation's pictures: ``python docs/pictures.py``.

Those of the page *Transfer in ten minutes* come from its own code, which saves them where it runs;
``results.png`` is drawn from the raw table of the development study.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

HERE = Path(__file__).parent
STUDY = HERE.parent / "benchmarks" / "results" / "development" / "regrets.csv.gz"
TEN_TABLES = {"aryl", "fcnet", "mlp", "rf", "rnn", "svm"}
TEN_TABLES |= {"pmlb_dt", "pmlb_gb", "pmlb_rf", "pmlb_svc"}
LINES = {
    "gp": ("without old runs (plain GP)", "#7f7f7f", 2.0),
    "scaml": ("with old runs, one model (ScaML-GP)", "#56B4E9", 2.0),
    "transfer_average": ("with old runs (the default)", "#D55E00", 3.0),
}


def draw_results(path: Path) -> None:
    """Draws mean regrets over the ten tables of real tuning runs, each table counting alike."""
    runs = pd.read_csv(STUDY)
    runs = runs[runs["suite"].isin(TEN_TABLES) & runs["method"].isin(LINES)]
    means = runs.groupby(["method", "suite", "step"])["regret"].mean()
    means = means.groupby(["method", "step"]).mean()
    number = runs.drop_duplicates(["suite", "target", "seed"]).shape[0]

    figure, ax = plt.subplots(figsize=(7.2, 3.9), layout="constrained")
    for method, (label, color, width) in LINES.items():
        line = means[method]
        ax.plot(line.index, line, color=color, linewidth=width)
        ax.text(25.4, line.iloc[-1], label.replace(" (", "\n("), color=color, va="center")
    same = int((means["transfer_average"] <= means["gp"].iloc[-1]).idxmax())
    ends = {"xy": (same, means["gp"].iloc[-1]), "xytext": (25, means["gp"].iloc[-1])}
    ax.annotate("", **ends, arrowprops={"arrowstyle": "->", "color": "black", "linewidth": 1})
    ax.text(17, 0.092, f"the same after {same} runs", ha="center", va="bottom", fontsize=9)
    ax.set_yscale("log")
    marks = {0.02: "2 %", 0.05: "5 %", 0.1: "10 %", 0.2: "20 %", 0.5: "50 %", 1: "median run"}
    ax.set_yticks(list(marks), list(marks.values()))
    ax.minorticks_off()
    ax.set(xlim=(1, 25), ylim=(0.018, 1))
    ax.set(xlabel="runs of the new task", ylabel="distance of the best run to the optimum")
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(f"Tuning with and without old runs, {number} studies on ten tables", loc="left")
    figure.savefig(path)


def run_ten_minutes() -> None:
    """Runs the page's code in the folder of its pictures."""
    page = (HERE / "ten_minutes.md").read_text(encoding="utf-8")
    (HERE / "pictures").mkdir(exist_ok=True)
    os.chdir(HERE / "pictures")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(block, "ten_minutes.md", "exec"), names)


if __name__ == "__main__":
    plt.switch_backend("agg")
    plt.rcParams["savefig.dpi"] = 110
    draw_results(HERE / "results.png")
    run_ten_minutes()
