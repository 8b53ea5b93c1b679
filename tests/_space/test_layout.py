from __future__ import annotations

import numpy as np
import pytest

from botorch_transfer.search_space import CategoricalParameter, FloatParameter, IntegerParameter
from botorch_transfer.search_space.space import combinations, is_active, placed

KERNEL = CategoricalParameter("kernel", ["rbf", "poly", "linear"])
DEGREE = IntegerParameter("degree", 2, 3, active_if={"kernel": "poly"})
SHIFT = IntegerParameter("shift", 0, 1, active_if={"degree": 3})
PARAMETERS = [KERNEL, DEGREE, SHIFT]


def test_parameters_follow_one_another():
    assert [columns for _, columns in placed(PARAMETERS)] == [slice(0, 3), slice(3, 4), slice(4, 5)]


def test_conditions_are_inherited():
    combined = combinations(PARAMETERS, PARAMETERS, limit=10)
    degrees = is_active(DEGREE, PARAMETERS, combined)
    shifts = is_active(SHIFT, PARAMETERS, combined)
    assert degrees.sum() == 3
    assert shifts.sum() == 2
    assert (degrees | ~shifts).all()  # where the parent is off, so is the child


def test_all_combinations_are_there_once():
    combined = combinations(PARAMETERS, PARAMETERS, limit=5)
    assert len(combined) == 5  # rbf, linear, poly of degree 2, and of degree 3 with two shifts
    assert len(np.unique(combined, axis=0)) == 5
    off = ~is_active(SHIFT, PARAMETERS, combined)
    assert (combined[off, 4] == SHIFT.neutral).all()


def test_what_is_not_chosen_stays_open_where_it_is_active():
    weight = FloatParameter("weight", 0.0, 1.0, active_if={"kernel": "rbf"})
    combined = combinations([KERNEL, weight], [KERNEL], limit=3)
    assert np.isnan(combined[:, 3]).tolist() == [True, False, False]


def test_too_many_combinations_and_continuous_parameters_are_refused():
    with pytest.raises(ValueError, match=r"more than 4 combinations \(reached at .*'shift'\)"):
        combinations(PARAMETERS, PARAMETERS, limit=4)
    weight = FloatParameter("weight", 0.0, 1.0)
    with pytest.raises(ValueError, match="'weight' is continuous"):
        combinations([weight], [weight], limit=4)
