"""The synthetic studies of the papers on hierarchical models and on ScaML-GP.

.. [Tighineanu2022hierarchical]
    P. Tighineanu et al. Transfer Learning with Gaussian Processes for Bayesian Optimization.
    AISTATS 2022. arXiv:2111.11223.

.. [Tighineanu2023scaml]
    P. Tighineanu et al. Scalable Meta-Learning with Gaussian Processes. AISTATS 2024.
    arXiv:2312.00742.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.studies.definitions.definition import (
    BASELINES,
    JOINT,
    MODULAR,
    PRETRAINED,
    Definition,
)
from benchmarks.studies.families import FamilyProblem
from benchmarks.studies.run import Budget
from botorch_transfer.test_functions import (
    AlpineFamily,
    BraninFamily,
    Hartmann3Family,
    Hartmann6Family,
    TaskFamily,
)


def _study(
    title: str,
    source: str,
    family: type[TaskFamily],
    num_sources: int,
    num_points: int,
    evaluations: int,
    methods: Sequence[str],
    seeds: int = 20,
) -> Definition:
    def problems(folder: Path | None) -> list[FamilyProblem]:
        return [FamilyProblem(title, family, num_sources, num_points)]

    return Definition(
        title,
        source,
        problems,
        Budget(evaluations, initial=1),  # in the papers, the plain GP has no initial design
        methods,
        seeds,
        acquisition="ucb",
        scale="median",
    )


HIERARCHICAL, SCAML = "the hierarchical models' paper", "ScaML-GP's paper"
# Joint models of eight tasks are not in ScaML-GP's study; networks need more than one task.
FEW_SOURCES = (*MODULAR, *JOINT, *BASELINES)
MANY_SOURCES = (*MODULAR, *PRETRAINED, *BASELINES)

SYNTHETIC = {
    "branin-1": _study(
        "Branin, one source × 40 points",
        f"{HIERARCHICAL}, Fig. 2",
        BraninFamily,
        1,
        40,
        30,
        FEW_SOURCES,
    ),
    "hartmann3-1": _study(
        "Hartmann 3D, one source × 60 points",
        f"{HIERARCHICAL}, Fig. 2",
        Hartmann3Family,
        1,
        60,
        30,
        FEW_SOURCES,
    ),
    "hartmann6-1": _study(
        "Hartmann 6D, one source × 120 points",
        f"{HIERARCHICAL}, Fig. 2",
        Hartmann6Family,
        1,
        120,
        40,
        FEW_SOURCES,
    ),
    "alpine-5": _study(
        "Alpine, five sources × 20 points",
        f"{HIERARCHICAL}, Fig. 4",
        AlpineFamily,
        5,
        20,
        20,
        FEW_SOURCES,
    ),
    "branin-8": _study(
        "Branin, eight sources × 32 points",
        f"{SCAML}, Fig. 2",
        BraninFamily,
        8,
        32,
        30,
        MANY_SOURCES,
    ),
    "hartmann6-8": _study(
        "Hartmann 6D, eight sources × 128 points",
        f"{SCAML}, Fig. 2",
        Hartmann6Family,
        8,
        128,
        40,
        MANY_SOURCES,
    ),
}
