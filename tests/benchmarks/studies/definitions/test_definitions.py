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


@pytest.mark.parametrize("name", [n for n, d in DEFINITIONS.items() if d.needs_data])
def test_tables_have_to_be_somewhere(name):
    with pytest.raises(ValueError, match=r"The study needs the table.*: add --data FOLDER"):
        DEFINITIONS[name].problems(None)


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


def test_regret_in_a_pool_is_to_its_best_row(folder):
    whole, small = (LeaveOneOut("toy", pool=pool)(folder)[0] for pool in (None, 3))
    assert len(whole.X) == 8
    assert len(small.X) == 3
    assert small.best_known == float(small.Y.max())
    assert LeaveOneOut("toy", pool=1)(folder)[0].best_known < whole.best_known
    again = LeaveOneOut("toy", pool=3)(folder)[0]
    assert small.key() == again.key()
