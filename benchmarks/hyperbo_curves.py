"""Learning curves of pre-training: `python -m benchmarks.hyperbo_curves --data FOLDER`.

The same targets and variants as in `benchmarks.hyperbo_study`. Each target is looked at while its
history is trained on, which no optimization run does: it shows from when on training harms.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.hyperbo_study import IDENTIFIERS, OUTCOME_SCALES, PRETRAINED, read_problems
from benchmarks.markdown import markdown_table
from benchmarks.studies import TableProblem
from botorch_transfer import PretrainedPrior
from botorch_transfer.hyperbo.checkpoints import LearningCurve

NUM_LOOKS = 50
SHOWN = (0, 1, 2, 3, 4, 6, 8, 10, 15, 20, 30, 40, 50)
"""Which of the looks at the target are printed."""


def learning_curve(
    problem: TableProblem, preset: str, objective: str, steps: int | None
) -> LearningCurve:
    """Trains on a problem's history, and looks at the problem meanwhile.

    Args:
        problem: The problem.
        preset: The prior's preset.
        objective: What is minimized.
        steps: The number of steps; the default one if omitted.

    Returns:
        The losses; those of validation are the problem's.
    """
    prior = getattr(PretrainedPrior, preset)(problem.dim)
    prior.fit(
        problem.history,
        objective,
        outcome_scale=OUTCOME_SCALES[problem.name.split(":")[0]],
        validation_data={problem.name: (problem.X, problem.Y)},
        patience=2 * NUM_LOOKS,
        steps=steps,
    )
    curve: LearningCurve = prior.learning_curve
    return curve


def curve_table(problems: Sequence[TableProblem], steps: int) -> str:
    """Medians over targets, in markdown: the loss in training, and the target's NLL a point."""
    rows = []
    for name, (preset, objective) in PRETRAINED.items():
        own_steps = None if objective == "ekl" else steps
        curves = [learning_curve(problem, preset, objective, own_steps) for problem in problems]
        for look in SHOWN:
            seen = [
                (curve, problem, curve.validation_steps[look])
                for curve, problem in zip(curves, problems, strict=True)
                if look < len(curve.validation_steps)
            ]
            if not seen:
                continue
            loss = median(_smoothed(curve, step) for curve, _, step in seen)
            held_out = median(
                curve.validation_loss[look] / len(problem.Y) for curve, problem, _ in seen
            )
            step = round(median(step for *_, step in seen))
            rows.append([name, str(step), f"{loss:.2f}", f"{held_out:.2f}"])
    return markdown_table(["method", "steps", "loss in training", "target's NLL a point"], rows)


def _smoothed(curve: LearningCurve, step: int) -> float:
    """The mean loss around a step: that of a sub-sample is noisy."""
    width = max(1, len(curve.loss) // NUM_LOOKS)
    start = min(step, len(curve.loss) - width)
    return float(np.nanmean(curve.loss[start : start + width]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the tables")
    parser.add_argument("--tables", nargs="+", choices=IDENTIFIERS, default=list(IDENTIFIERS))
    parser.add_argument("--rows", type=int, default=500, help="configurations that can be had")
    parser.add_argument("--history", type=int, default=200, help="evaluations of a source task")
    parser.add_argument("--steps", type=int, default=1500, help="steps of Adam")
    parser.add_argument("--tasks", type=int, help="only the first tasks as targets")
    options = parser.parse_args(arguments)
    for name in options.tables:
        whole = read_problems(options.data, name, options.rows)[: options.tasks]
        problems = [problem.instance(0, options.history) for problem in whole]
        print(f"\n{name}: {len(problems)} targets\n", flush=True)
        print(curve_table(problems, options.steps), flush=True)


if __name__ == "__main__":
    main()
