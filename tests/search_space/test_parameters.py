import numpy as np
import pytest
from botorch.exceptions.errors import InputDataError
from pandas import Series

from botorch_transfer.search_space import FloatParameter, IntegerParameter
from botorch_transfer.search_space.parameters import refuse_where


def conditional(active_if):
    return FloatParameter("degree", 0.0, 1.0, active_if=active_if).active_if


@pytest.mark.parametrize("values", ["rbf", ("rbf",), ["rbf"], {"rbf"}])
def test_a_condition_is_one_value_or_several(values):
    assert conditional({"kernel": values}) == {"kernel": ("rbf",)}


def test_numbers_in_a_condition():
    assert conditional({"depth": 3}) == {"depth": (3,)}
    assert conditional({"depth": np.array([1, 3])}) == {"depth": (1, 3)}
    assert conditional(None) is None


@pytest.mark.parametrize("condition", [{}, {"kernel": []}])
def test_an_empty_condition_is_refused(condition):
    with pytest.raises(ValueError, match=r"'degree' has the active_if .*: give a dictionary"):
        conditional(condition)


def test_what_is_wrong_is_shown():
    column = Series([1, 7, 9], name="C")
    refuse_where(np.zeros(3, dtype=bool), column, "too large")
    with pytest.raises(InputDataError, match=r"'C' is 7 in row 1 \(and one more row\), too large"):
        refuse_where(np.array([False, True, True]), column, "too large")


def test_only_values_of_a_discrete_parameter_are_contained():
    number = IntegerParameter("n", 1, 3)
    assert number.contains(2)
    assert not any(number.contains(value) for value in ("2", 2.5, 4))
    assert not FloatParameter("x", 0.0, 1.0).contains(0.5)
