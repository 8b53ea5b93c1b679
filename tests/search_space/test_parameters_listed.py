import json

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_transfer import ScaMLGP, suggest
from botorch_transfer.search_space import (
    CategoricalParameter,
    FloatParameter,
    OrdinalParameter,
    SearchSpace,
)
from tests.suggestion.brief_search import brief_search


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


@settings(deadline=None, max_examples=30)
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


def place(parameter, *values):
    return parameter.place(pd.DataFrame({"p": values}))[:, 0]


@pytest.mark.parametrize(
    ("parameter", "numbers", "places"),
    [
        (OrdinalParameter("p", (0, 5, 10)), [-0.01, 0.01, 9, 10.01], [-0.001, 0.001, 0.9, 1.001]),
        (OrdinalParameter("p", (1, 10, 1000)), [-8, 5.5, 505, 1990], [-0.5, 0.25, 0.75, 1.5]),
        (OrdinalParameter("p", (1, 10, 1000), log=True), [0.1, 100, 1e4], [-1 / 3, 2 / 3, 4 / 3]),
        (OrdinalParameter("p", (2, 4)), [1, 2.5, 6], [-0.5, 0.25, 2]),
    ],
)
def test_numbers_between_and_beyond_levels_keep_their_place(parameter, numbers, places):
    np.testing.assert_allclose(place(parameter, *numbers), places, atol=1e-12)
    assert np.isnan(place(parameter, np.inf)).all()
    levels = place(parameter, *parameter.values)
    np.testing.assert_array_equal(levels, encode(parameter, *parameter.values)[:, 0])
    rounded = parameter.decode(np.clip(places, 0, 1)[:, None])["p"]
    assert rounded.isin(parameter.values).all()
    with pytest.raises(InputDataError, match=rf"'p' is {numbers[1]} in row 1, not one of"):
        encode(parameter, parameter.values[0], numbers[1], dtype="object")


def test_some_numbers_and_all_other_text_have_no_place_between_levels():
    log = OrdinalParameter("p", (1, 10), log=True)
    assert np.isnan(place(log, 5.0, 0.0, -1.0)).tolist() == [False, True, True]
    assert np.isnan(place(OrdinalParameter("p", (8,)), 8, 9)).tolist() == [False, True]
    words = OrdinalParameter("p", ("low", "high"))
    assert np.isnan(place(words, "high", "medium")).tolist() == [False, True]
    assert place(OrdinalParameter("p", (0.0, 0.1, 0.3)), 0.1 + 0.2, 0.2)[0] == 1.0
    with pytest.raises(InputDataError, match="'p' is 'x' in row 1, not a number"):
        place(log, 5, "x")


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


@pytest.mark.parametrize("kind", [CategoricalParameter, OrdinalParameter])
def test_numbers_are_read_from_text(kind):
    parameter = kind("p", (50, 100))
    unit = encode(parameter, 100, 50, 100)
    assert (encode(parameter, "100", "50.0", " 1e2 ", dtype="object") == unit).all()
    with pytest.raises(InputDataError, match=r"'p' is (70|'70') in row 0, not one of 50, 100"):
        encode(parameter, "70", dtype="object")


def test_numbers_are_read_as_text():
    parameter = CategoricalParameter("p", ("1", "2", "True"))
    assert encode(parameter, 2, 1.0, "2", dtype="object").argmax(-1).tolist() == [1, 0, 1]
    for cell in (3, True):
        with pytest.raises(InputDataError, match=f"'p' is {cell} in row 0, not one of"):
            encode(parameter, cell, dtype="object")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OrdinalParameter("p", ()), "'p' has no values: give at least one"),
        (lambda: CategoricalParameter("p", []), "'p' has no values: give at least one"),
        (lambda: OrdinalParameter("p", (1, 2, 1)), "'p' repeats the value 1"),
        (lambda: CategoricalParameter("p", ("a", "a")), "'p' repeats the value 'a'"),
        (lambda: CategoricalParameter("p", "ab"), "'p' has the values 'ab'"),
        (lambda: OrdinalParameter("p", (2, 1)), "'p' .* list numbers in increasing order"),
        (lambda: OrdinalParameter("p", ("5", "10", "2")), "'p' .* list numbers in increasing"),
        (lambda: OrdinalParameter("p", (1, 1 + 1e-12)), "further apart than rounding errors"),
        (lambda: OrdinalParameter("p", (1, float("nan"))), "'p' has the value nan: give text or"),
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
    with pytest.raises(InputDataError, match=r"10, 11, \.\.\.: add the value"):
        encode(parameter, 100)


DESCRIPTORS = pd.DataFrame(
    {"pKa": [15.7, 30.0, 16.0, 35.0], "polarity": [1.0, 0.21, 0.76, 0.44]},
    index=["water", "THF", "méthanol", "DMSO"],
)


def test_descriptors_are_points_of_the_unit_cube():
    solvent = CategoricalParameter("solvent", descriptors=DESCRIPTORS)
    assert solvent.values == ("water", "THF", "méthanol", "DMSO")
    assert solvent.feature_names == ["solvent: pKa", "solvent: polarity"]
    grid = solvent.unit_grid()
    np.testing.assert_allclose(grid.min(axis=0), 0)
    np.testing.assert_allclose(grid.max(axis=0), 1)
    np.testing.assert_allclose(grid[0], [0, 1])
    assert solvent.decode(grid + 0.05)["solvent"].tolist() == list(solvent.values)
    space = SearchSpace([solvent, FloatParameter("x", 0, 1)])
    rows = space.sample(400, seed=0)
    assert rows["solvent"].value_counts().min() > 60
    assert torch.equal(space.round(space.encode(rows)), space.encode(rows))
    assert len(space.fixed_features_list()) == 4
    assert space.fixed_features(space.encode(rows[:1]))[0].keys() == {0, 1}
    assert space.is_discrete == [True, True, False]
    read = SearchSpace.from_dict(json.loads(json.dumps(space.to_dict())))
    assert read == space
    assert hash(read) == hash(space)
    table = DESCRIPTORS.rename_axis("solvent").reset_index()
    assert CategoricalParameter("solvent", descriptors=table) == solvent


def test_old_values_with_descriptors_keep_their_place():
    solvent = CategoricalParameter("solvent", ("water", "DMSO"), descriptors=DESCRIPTORS)
    runs = pd.DataFrame({"solvent": ["DMSO", "THF", "unknown", None]})
    placed = solvent.place(runs)
    np.testing.assert_allclose(placed[1], [14.3 / 19.3, 0])
    assert np.isnan(placed).any(axis=1).tolist() == [False, False, True, True]
    with pytest.raises(InputDataError, match=r"'solvent' is 'THF' in row 1.*not one of 'water'"):
        solvent.encode(runs[:3])
    inactive = CategoricalParameter("s", ("a", "b"), {"k": "y"}, {"s": ["a", "b"], "p": [1, 3]})
    space = SearchSpace([CategoricalParameter("k", ("x", "y")), inactive])
    X = space.encode(pd.DataFrame({"k": ["x", "y"], "s": [None, "b"]}))
    assert X[:, 2].tolist() == [0.5, 1.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pKa": [1, 2, None, 4]}, "'méthanol' has descriptors that are missing or not finite"),
        ({"pKa": [1, 2, 3, -999]}, "'DMSO' has descriptors that are missing or not finite"),
        ({"pKa": ["x", 2, 3, 4]}, "'water' has descriptors that are missing or not finite"),
        ({"pKa": 1.0, "polarity": [1, 2, 3, 2]}, "'DMSO' has the descriptors of another value"),
        ({"solvent": ["water", "water", "b", "c"]}, "'water' has two rows of descriptors"),
        ({"solvent": ["water", "THF", "a", "b"]}, "'DMSO' has descriptors that are missing"),
    ],
)
def test_wrong_descriptors_are_refused(change, message):
    values, table = ("water", "THF", "DMSO"), DESCRIPTORS.assign(**change)
    with pytest.raises(ValueError, match=f"Parameter 'solvent': the value {message}"):
        CategoricalParameter("solvent", values, descriptors=table)


def test_a_new_solvent_is_near_to_known_ones():
    rng = np.random.default_rng(0)
    points = pd.DataFrame({"d": np.linspace(0, 1, 8)}, index=list("abcdefgh"))
    old = [pd.DataFrame({"task": str(t), "s": rng.choice(list("abcdeh"), 12)}) for t in range(4)]
    history = pd.concat(old, ignore_index=True)
    history["loss"] = (history["s"].map(points["d"]) - 0.7) ** 2
    choices = CategoricalParameter("s", ("a", "c", "f", "h"), descriptors=points)
    with brief_search():
        row = suggest(SearchSpace([choices]), history, model=ScaMLGP)
    assert row["s"].tolist() == ["f"]  # no old run has it


@pytest.mark.parametrize("value", [None, float("nan"), pd.NA, [1]])
@pytest.mark.parametrize("kind", [OrdinalParameter, CategoricalParameter])
def test_empty_values_are_refused(kind, value):
    with pytest.raises(ValueError, match=r"'p' has the value .*: give text or numbers, and 'none'"):
        kind("p", ("low", value))


@pytest.mark.parametrize("values", [("low", 1, "high"), (1, "2", 3), (True, 2, 3)])
def test_ordinals_of_several_types_are_refused(values):
    with pytest.raises(ValueError, match=r"'p' has the values .*: give only text, or only"):
        OrdinalParameter("p", values)


def test_codes_of_missing_values_have_no_place():
    parameter = OrdinalParameter("p", (50, 100, 150))
    places = parameter.place(pd.DataFrame({"p": [-999, 9999, 25, 200]})).ravel()
    assert np.isnan(places).tolist() == [True, True, False, False]
