import numpy as np
import pandas as pd
import pytest
from botorch.exceptions.errors import InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_transfer.search_space import CategoricalParameter, OrdinalParameter


def encode(parameter, *values, dtype=None):
    return parameter.encode(pd.DataFrame({"p": pd.Series(values, dtype=dtype)}))


def test_ordinals_are_spaced_by_rank_or_by_logarithm():
    values = (1, 10, 1000)
    by_rank = encode(OrdinalParameter("p", values), *values)[:, 0]
    by_log = encode(OrdinalParameter("p", values, log=True), *values)[:, 0]
    np.testing.assert_allclose(by_rank, [0, 1 / 2, 1])
    np.testing.assert_allclose(by_log, [0, 1 / 3, 1])


def test_ordinals_of_text_keep_their_order():
    parameter = OrdinalParameter("p", ("low", "medium", "high"))
    np.testing.assert_allclose(encode(parameter, "high", "low", "medium")[:, 0], [1, 0, 0.5])
    assert parameter.decode(np.array([[0.9], [0.1]]))["p"].tolist() == ["high", "low"]


def test_equally_spaced_ordinals_have_equal_shares_when_rounded():
    u = (np.arange(90_000)[:, None] + 0.5) / 90_000
    for parameter in (
        OrdinalParameter("p", (0.0, 0.3, 0.9)),
        OrdinalParameter("p", (1, 10, 100), log=True),
    ):
        assert parameter.decode(u)["p"].value_counts().tolist() == [30_000] * 3


def test_a_single_ordinal_is_neutral():
    parameter = OrdinalParameter("p", (8,))
    assert encode(parameter, 8).tolist() == [[0.5]]
    assert parameter.decode(np.array([[0.0], [1.0]]))["p"].tolist() == [8, 8]


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 2.0), min_size=1, max_size=12), st.booleans())
def test_ordinals_are_invertible(steps, log):
    parameter = OrdinalParameter("p", np.cumsum(steps).tolist(), log=log)
    unit = encode(parameter, *parameter.values)
    assert ((unit >= 0) & (unit <= 1)).all()
    np.testing.assert_array_equal(unit, parameter.unit_grid())
    assert parameter.decode(unit)["p"].tolist() == list(parameter.values)


def test_ordinals_forgive_rounding_errors_only():
    parameter = OrdinalParameter("p", (0.0, 0.1, 0.3))
    assert encode(parameter, 0.1 + 0.2, -1e-17).tolist() == [[1.0], [0.0]]
    assert encode(parameter, 0.1, 0.3, dtype="float32").tolist() == [[0.5], [1.0]]
    with pytest.raises(InputDataError, match=r"'p' is 0.100001 in row 0, not one of 0.0, 0.1, 0.3"):
        encode(parameter, 0.100001)


def test_numbers_keep_their_type():
    frame = OrdinalParameter("p", (1, 2)).decode(np.array([[0.0], [1.0]]))
    assert frame["p"].dtype == np.int64
    mixed = OrdinalParameter("p", (0.5, 1)).decode(np.array([[0.0], [1.0]]))
    assert mixed["p"].tolist() == [0.5, 1.0]


def test_categories_are_one_hot_and_keep_their_type():
    parameter = CategoricalParameter("p", ("a", 3, True))
    assert parameter.feature_names == ["p=a", "p=3", "p=True"]
    unit = encode(parameter, True, "a", 3, dtype="object")
    assert unit.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    decoded = parameter.decode(np.array([[0.2, 0.1, 0.7], [0.4, 0.35, 0.3]]))["p"].tolist()
    assert decoded == [True, "a"]
    assert decoded[0] is True


def test_categories_are_read_from_any_column_type():
    parameter = CategoricalParameter("p", ("a", "b"))
    for dtype in ("object", "str", "category"):
        assert encode(parameter, "b", "a", dtype=dtype).tolist() == [[0, 1], [1, 0]]
    numbers = CategoricalParameter("p", (16, 32))
    for dtype in ("float32", "int64", "Int64"):
        assert encode(numbers, 32, 16, dtype=dtype).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OrdinalParameter("p", ()), "'p' has no values: give at least one"),
        (lambda: CategoricalParameter("p", []), "'p' has no values: give at least one"),
        (lambda: OrdinalParameter("p", (1, 2, 1)), "'p' repeats the value 1"),
        (lambda: CategoricalParameter("p", ("a", "a")), "'p' repeats the value 'a'"),
        (lambda: CategoricalParameter("p", "ab"), "'p' has the text 'ab' as its values"),
        (lambda: OrdinalParameter("p", (2, 1)), "'p' .* list numbers in increasing order"),
        (lambda: OrdinalParameter("p", (1, 1 + 1e-12)), "further apart than rounding errors"),
        (lambda: OrdinalParameter("p", (1, float("nan"))), "'p' .* list numbers in increasing"),
        (lambda: OrdinalParameter("p", (0, 1), log=True), "'p' has log=True .* positive numbers"),
        (lambda: OrdinalParameter("p", ("a", "b"), log=True), "'p' has log=True .* positive"),
    ],
)
def test_impossible_values_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_unknown_categories_are_refused():
    parameter = CategoricalParameter("p", ("True", "False"))
    with pytest.raises(InputDataError, match="'p' is True in row 0, not one of 'True', 'False'"):
        encode(parameter, True, dtype="object")
    with pytest.raises(InputDataError, match="'p' has no value in row 1"):
        encode(parameter, "True", None)


def test_long_lists_of_values_are_cut_in_messages():
    parameter = CategoricalParameter("p", list(range(100)))
    with pytest.raises(InputDataError, match=r"10, 11, \.\.\.: add it"):
        encode(parameter, 100)
