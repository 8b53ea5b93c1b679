import numpy as np
import pandas as pd
import pytest
from botorch.exceptions.errors import InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_transfer import FloatParameter, IntegerParameter, OrdinalParameter, SearchSpace


def encode(parameter, *values, dtype=None):
    return parameter.encode(pd.DataFrame({"p": pd.Series(values, dtype=dtype)}))[:, 0]


@pytest.mark.parametrize(
    ("parameter", "middle"),
    [
        (FloatParameter("p", -1.0, 3.0), 1.0),
        (FloatParameter("p", 1e-4, 1e2, log=True), 0.1),
        (FloatParameter("p", 0.9, 0.999, log="1-x"), 0.99),
    ],
)
def test_float_scales_place_the_middle_at_one_half(parameter, middle):
    found = encode(parameter, parameter.lower, middle, parameter.upper)
    np.testing.assert_allclose(found, [0.0, 0.5, 1.0], atol=1e-12)
    decoded = parameter.decode(np.array([[0.0], [0.5], [1.0]]))["p"]
    np.testing.assert_allclose(decoded, [parameter.lower, middle, parameter.upper], rtol=1e-12)
    assert decoded.between(parameter.lower, parameter.upper).all()


def test_one_minus_x_keeps_its_precision_close_to_one():
    parameter = FloatParameter("p", 0.0, 1 - 1e-6, log="1-x")
    x = 1 - 2e-6
    assert encode(parameter, x)[0] == pytest.approx(1 - np.log(2) / np.log(1e6), abs=1e-9)
    assert 1 - parameter.decode(encode(parameter, x)[:, None])["p"][0] == pytest.approx(2e-6)


def test_values_off_by_a_rounding_error_are_clipped():
    linear, log = FloatParameter("p", 0.0, 0.1), FloatParameter("p", 1e-8, 10.0, log=True)
    assert encode(linear, -1e-17, 0.1 + 1e-11).tolist() == [0.0, 1.0]
    assert encode(linear, 0.1, dtype="float32").tolist() == [1.0]
    assert encode(log, 1e-8 * (1 - 1e-10)).tolist() == [0.0]
    with pytest.raises(InputDataError, match="outside of its range"):
        encode(log, 0.99e-8)  # within 1e-9 of the bound, but not relative to its size
    with pytest.raises(InputDataError, match="outside of its range"):
        encode(linear, 0.1 + 1e-8)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("lower", "upper"), [(1, 2), (1, 3), (2, 20), (1, 1000), (7, 123_456)])
def test_integers_are_invertible_and_reach_both_bounds(lower, upper, log):
    parameter = IntegerParameter("p", lower, upper, log=log)
    unit = parameter.unit_grid()
    assert unit.shape == (parameter.size, 1)
    assert unit[0, 0] == 0.0
    assert unit[-1, 0] == 1.0
    assert (np.diff(unit[:, 0]) > 0).all()
    integers = np.arange(lower, upper + 1)
    np.testing.assert_array_equal(parameter.decode(unit)["p"], integers)
    single_precision = unit.astype(np.float32).astype(np.float64)
    np.testing.assert_array_equal(parameter.decode(single_precision)["p"], integers)
    np.testing.assert_array_equal(encode(parameter, *integers), unit[:, 0])


def test_rounding_uniform_points_gives_each_integer_its_share():
    u = (np.arange(120_000)[:, None] + 0.5) / 120_000
    linear = IntegerParameter("p", -2, 3).decode(u)["p"].value_counts()
    assert linear.to_dict() == pytest.approx(dict.fromkeys(range(-2, 4), 20_000), abs=1)
    log = IntegerParameter("p", 1, 4, log=True).decode(u)["p"].value_counts(normalize=True)
    shares = np.diff(np.log([0.5, 1.5, 2.5, 3.5, 4.5])) / np.log(9)
    np.testing.assert_allclose(log.sort_index(), shares, atol=1e-4)


@settings(deadline=None, max_examples=30)
@given(st.integers(-(10**6), 10**6), st.integers(1, 10**9), st.floats(0, 1), st.booleans())
def test_integers_of_any_point_are_in_range_and_encode_to_themselves(lower, width, u, log):
    lower = max(lower, 1) if log else lower
    parameter = IntegerParameter("p", lower, lower + width, log=log)
    first = parameter.decode(np.array([[u]]))
    assert lower <= first["p"][0] <= lower + width
    assert parameter.decode(parameter.encode(first))["p"][0] == first["p"][0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FloatParameter("p", 2.5, 2.0), "'p' has the bounds 2.5 and 2.0: give"),
        (lambda: FloatParameter("p", 0.0, np.inf), "give finite numbers"),
        (lambda: FloatParameter("p", np.nan, 1.0), "give finite numbers"),
        (lambda: FloatParameter("p", 0.0, 1.0, log=True), "log=True and the lower bound 0.0"),
        (lambda: FloatParameter("p", 0.0, 1.0, log="1-x"), "give an upper bound below 1"),
        (lambda: FloatParameter("p", 0.1, 1.0, log="ln"), "log='ln': use True, False or '1-x'"),
        (lambda: FloatParameter("p", 0, 1, step=0), "'p' has the step 0: give a step above 0"),
        (lambda: FloatParameter("p", 0.1, 0.4, step=0.5), "too few multiples of its step 0.5"),
        (lambda: FloatParameter("p", 0.0, 1.0, step=5), "too few multiples of its step 5 in"),
        (lambda: IntegerParameter("p", 5, 3), "'p' has the bounds 5 and 3: give"),
        (lambda: IntegerParameter("p", 0, 3, log=True), "log=True and the lower bound 0"),
        (lambda: IntegerParameter("p", 0.5, 3), "give whole numbers"),
    ],
)
def test_impossible_ranges_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("parameter", "values", "message"),
    [
        (
            FloatParameter("p", 0.0, 1.0),
            (0.5, 2.0, 3.0, 4.0),
            r"'p' is 2.0 in row 1 \(and 2 more rows\), outside of its range \[0.0, 1.0\]: check",
        ),
        (FloatParameter("p", 0.0, 1.0), (np.inf,), "'p' is inf in row 0, outside of its range"),
        (FloatParameter("p", 0.0, 1.0), ("0.5", "x"), "'p' is 'x' in row 1, not a number"),
        (FloatParameter("p", 0.0, 1.0), (0.5, None), "'p' has no value in row 1"),
        (IntegerParameter("p", 0, 9), (1, 10), r"'p' is 10 in row 1, outside of its range \[0, 9"),
        (IntegerParameter("p", 0, 9), (2.5, 1), r"'p' is 2.5 in row 0, not an integer: round the"),
    ],
)
def test_impossible_values_are_refused(parameter, values, message):
    with pytest.raises(InputDataError, match=message):
        encode(parameter, *values)


@pytest.mark.parametrize("log", [False, True])
def test_numbers_between_integers_lie_between_them(log):
    parameter = IntegerParameter("p", 1, 5, log=log)
    space = SearchSpace([parameter])
    numbers = pd.DataFrame({"p": [0.95, 1, 1.5, 2, 2.5, 3, 3.999, 4, 5, 5.25]})
    placed = space.place(numbers, within=0.1).numpy()[:, 0]
    assert (np.diff(placed) > 0).all()
    whole = [1, 3, 5, 7, 8]
    np.testing.assert_array_equal(placed[whole], parameter.unit_grid()[:, 0])
    with pytest.raises(InputDataError, match=r"'p' is 9.0 in row 0, outside of its range \[1, 5\]"):
        space.place(pd.DataFrame({"p": [9, 2.5]}), within=0.1)


def test_numbers_of_any_column_type_are_read():
    parameter = IntegerParameter("p", 0, 4)
    for dtype in ("int8", "Int64", "float32", "object", "category", "str"):
        np.testing.assert_allclose(encode(parameter, 1, 4, dtype=dtype), [0.25, 1.0])


def test_multiples_of_a_step_are_exact():
    volume = FloatParameter("v", 0.05, 0.96, step=0.1)
    assert (volume.lower, volume.upper, volume.size) == (0.1, 0.9, 9)
    unit = np.random.default_rng(0).random((500, 1))
    values = volume.decode(unit)["v"]
    assert sorted(set(values)) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    grid = volume.unit_grid()
    np.testing.assert_allclose(grid[[0, -1], 0], [0, 1])
    assert volume.decode(grid)["v"].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    runs = pd.DataFrame({"v": [0.26, 0.9]})  # what was done is no multiple, and keeps its place
    np.testing.assert_allclose(volume.encode(runs)[:, 0], [0.2, 1.0])
    space = SearchSpace([volume, FloatParameter("t", 20, 5000, log=True, step=5)])
    assert {column: len(values) for column, values in space.discrete_dims.items()} == {0: 9, 1: 997}
    assert (space.sample(20, seed=0)["t"] % 5 == 0).all()
    assert SearchSpace.from_dict(space.to_dict()) == space
    assert len(SearchSpace([volume]).grid()) == 9


@pytest.mark.parametrize("make", [FloatParameter, IntegerParameter])
@pytest.mark.parametrize("log", [False, True])
def test_a_range_of_one_value_is_a_constant(make, log):
    space = SearchSpace([make("c", 2, 2, log), FloatParameter("x", 0, 1)])
    runs = pd.DataFrame({"c": [2, 2], "x": [0.0, 1.0]})
    X = space.encode(runs)
    assert X.tolist() == [[0.5, 0], [0.5, 1]] == space.place(runs).tolist()
    assert space.decode(X)["c"].tolist() == [2, 2]
    assert space.fixed_features_list() == [{0: 0.5}]
    assert space.discrete_dims == {}
    assert space.place(runs.assign(c=[2, 3]))[:, 0].isnan().tolist() == [False, True]
    with pytest.raises(InputDataError, match="'c' is 3 in row 1, outside of its range"):
        space.encode(runs.assign(c=[2, 3]))
    assert SearchSpace.from_dict(space.to_dict()) == space


def test_a_range_has_no_grid():
    with pytest.raises(NotImplementedError):
        FloatParameter("x", 0.0, 1.0).unit_grid()


@pytest.mark.parametrize(
    "make", [lambda: IntegerParameter("p", 1, 2**60), lambda: OrdinalParameter("p", (1, 2**60))]
)
def test_whole_numbers_that_are_not_exact_are_refused(make):
    with pytest.raises(ValueError, match=r"'p' has .*: give (whole )?numbers up to 2\*\*53"):
        make()


def test_codes_of_missing_values_have_no_place():
    parameter = FloatParameter("p", 50, 150)
    places = parameter.place(pd.DataFrame({"p": [-999, -1, 999, 9999, 1e30, -5, 1000]})).ravel()
    assert np.isnan(places).tolist() == [True] * 5 + [False] * 2
    wide = FloatParameter("p", 1, 1000, log=True)
    assert np.isfinite(wide.place(pd.DataFrame({"p": [9999.0]}))).all()
