import pytest

from benchmarks.studies.definitions import DEFINITIONS
from benchmarks.studies.definitions.tables import LeaveOneOut
from benchmarks.studies.methods import methods


@pytest.mark.parametrize("name", DEFINITIONS)
def test_methods_are_known_and_the_plain_gp_is_among_them(name):
    definition = DEFINITIONS[name]
    chosen = methods(definition.methods, definition.acquisition, definition.fitting)
    assert set(chosen) >= {"plain GP", "ScaML-GP"}


def test_each_task_is_the_target_once(folder):
    problems = LeaveOneOut("svm", min_points=10, num_sources=1)(folder)
    names = [f"t{number:02d}" for number in range(20)]  # but not the one with few points
    assert [problem.name for problem in problems] == [f"svm: {name}" for name in names]
    assert set(problems[0].history) == set(names[1:])
    assert len(problems[0].instance(0, 4).history) == 1
