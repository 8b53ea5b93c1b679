from __future__ import annotations

import numpy as np
import pytest

from botorch_transfer.search_space import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    SimplexParameter,
)
from botorch_transfer.search_space.space import check_conditions, check_names

KERNEL = CategoricalParameter("kernel", ["rbf", "poly"])
DEPTH = IntegerParameter("depth", 1, 3)


def test_a_sound_space_passes():
    degree = IntegerParameter("degree", 2, 5, active_if={"kernel": "poly", "depth": [1, 3]})
    parameters = [KERNEL, DEPTH, degree, FloatParameter("C", 0.0, 1.0)]
    check_names(parameters)
    check_conditions(parameters)


def test_values_of_a_table_are_values_of_an_integer_parent():
    values = np.array([1, 3])
    check_conditions([DEPTH, FloatParameter("C", 0.0, 1.0, active_if={"depth": values})])
    wrong = FloatParameter("C", 0.0, 1.0, active_if={"depth": values + 1})
    with pytest.raises(ValueError, match=r"4.*, which is not one of its values"):
        check_conditions([DEPTH, wrong])


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (FloatParameter("kernel", 0.0, 1.0), "parameter 'kernel'"),
        (SimplexParameter("mix", ["kernel", "b"]), "column 'kernel'"),
        (FloatParameter("kernel=rbf", 0.0, 1.0), "feature 'kernel=rbf'"),
    ],
)
def test_shared_names_are_refused(other, kind):
    mixture = CategoricalParameter("kernel", ["rbf", "poly", "linear"])
    with pytest.raises(ValueError, match=f"more than one {kind}: names must differ"):
        check_names([mixture, other])


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        ({"kernal": "rbf"}, "'kernal', which is not in the search space"),
        ({"late": 1}, "'late', which is not defined before it"),
        ({"C": 0.5}, "'C', which is continuous"),
        ({"kernel": ["rbf", "cubic"]}, "'kernel' is 'cubic', which is not one of its values"),
    ],
)
def test_unsuitable_conditions_are_refused(parents, message):
    child = FloatParameter("child", 0.0, 1.0, active_if=parents)
    late = IntegerParameter("late", 1, 2)
    with pytest.raises(ValueError, match=message):
        check_conditions([KERNEL, FloatParameter("C", 0.0, 1.0), child, late])
