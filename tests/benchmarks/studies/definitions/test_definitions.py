import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.studies.definitions import DEFINITIONS
from benchmarks.studies.definitions.tables import LeaveOneOut
from benchmarks.studies.methods import methods


@pytest.mark.parametrize("name", DEFINITIONS)
def test_methods_are_known_and_the_plain_gp_is_among_them(name):
    definition = DEFINITIONS[name]
    chosen = methods(definition.methods, definition.acquisition, definition.fitting)
    assert set(chosen) >= {"plain GP", "ScaML-GP"}


@pytest.fixture
def folder(tmp_path):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(
        [
            {"task": task, "x": x, "y": x + random.random()}
            for task, n in (("a", 8), ("b", 8), ("c", 8), ("tiny", 2))
            for x in np.linspace(0.1, 0.9, n)
        ]
    )
    frame.to_parquet(tmp_path / "toy.parquet")
    space = {"goal": "max", "params": {"x": {"type": "float", "low": 0.0, "high": 1.0}}}
    (tmp_path / "toy.space.json").write_text(json.dumps(space))
    return tmp_path


def test_each_task_is_the_target_once(folder):
    problems = LeaveOneOut("toy", min_points=5, num_sources=1)(folder)
    assert [problem.name for problem in problems] == ["toy: a", "toy: b", "toy: c"]
    assert set(problems[0].history) == {"b", "c"}
    assert len(problems[0].instance(0, 4).history) == 1
