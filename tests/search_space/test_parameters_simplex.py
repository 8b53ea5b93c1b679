import numpy as np
import pandas as pd
import pytest
from botorch.exceptions.errors import InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from botorch_transfer.search_space import SimplexParameter

ALLOY = SimplexParameter("alloy", ("Ni", "Fe", "Co"))
GRID = SimplexParameter("alloy", ("Ni", "Fe", "Co"), step=0.1)


def table(*rows):
    return pd.DataFrame(rows, columns=["Ni", "Fe", "Co"], dtype=float)


def test_fractions_are_their_own_encoding():
    rows = table((0.1, 0.2, 0.7), (1, 0, 0))
    for parameter in (ALLOY, GRID):
        np.testing.assert_allclose(parameter.encode(rows), rows, atol=1e-15)
        np.testing.assert_allclose(parameter.decode(parameter.encode(rows)), rows, atol=1e-15)


@settings(deadline=None, max_examples=30)
@given(arrays(np.float64, (4, 3), elements=st.floats(0, 1)))
def test_any_point_decodes_to_a_composition(unit):
    for parameter in (ALLOY, GRID):
        decoded = parameter.decode(unit)
        np.testing.assert_allclose(decoded.sum(axis=1), 1.0, atol=1e-12)
        assert (decoded >= 0).all(axis=None)
        np.testing.assert_allclose(parameter.encode(decoded), decoded, atol=1e-12)
    steps = GRID.decode(unit) * 10
    np.testing.assert_allclose(steps, np.rint(steps), atol=1e-9)


def test_rounding_favours_the_largest_remainders():
    assert GRID.decode(np.array([[0.37, 0.34, 0.29]])).iloc[0].tolist() == [0.4, 0.3, 0.3]
    half = SimplexParameter("alloy", ("Ni", "Fe"), step=0.5)
    assert half.decode(np.array([[0.8, 0.2]])).iloc[0].tolist() == [1.0, 0.0]


def test_grid_lists_every_composition_once():
    grid = GRID.unit_grid()
    assert len(grid) == GRID.size == 66
    assert len(np.unique(grid, axis=0)) == 66
    np.testing.assert_allclose(grid.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(GRID.decode(grid), grid, atol=1e-15)
    assert ALLOY.size is None


def test_samples_are_uniform_on_the_simplex():
    draws = ALLOY.sample(20_000, np.random.default_rng(0))
    np.testing.assert_allclose(draws.mean(axis=0), 1 / 3, atol=0.01)
    np.testing.assert_allclose(draws.var(axis=0), 1 / 18, atol=0.002)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SimplexParameter("s", ("a",)), "'s' .* at least two different ones"),
        (lambda: SimplexParameter("s", ("a", "a")), "'s' .* at least two different ones"),
        (lambda: SimplexParameter("s", ("a", "b"), step=0.3), "'s' has the step 0.3: a whole"),
        (lambda: SimplexParameter("s", ("a", "b"), step=0), "'s' has the step 0: a whole"),
        (lambda: SimplexParameter("s", ("a", "b"), step=-0.5), "'s' has the step -0.5: a whole"),
    ],
)
def test_impossible_compositions_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((0.1, 0.2, 0.3), "'alloy' is 0.6.* in row 0, the sum of Ni, Fe, Co, which must be 1"),
        ((-0.1, 0.5, 0.6), "'Ni' is -0.1 in row 0, not a fraction between 0 and 1"),
        ((0.15, 0.25, 0.6), "'Ni' is 0.15 in row 0, not a multiple of the step 0.1"),
        ((0.5, 0.5, np.nan), "'Co' has no value in row 0"),
    ],
)
def test_impossible_rows_are_refused(row, message):
    with pytest.raises(InputDataError, match=message):
        GRID.encode(table(row))
