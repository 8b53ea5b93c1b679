import json
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_transfer.search_space import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    SearchSpace,
)

SVM = SearchSpace(
    [
        CategoricalParameter("kernel", ("rbf", "poly", "linear")),
        FloatParameter("C", 0.01, 100.0, log=True),
        FloatParameter("gamma", 1e-3, 10.0, log=True, active_if={"kernel": "rbf"}),
        IntegerParameter("degree", 2, 4, active_if={"kernel": "poly"}),
    ]
)
NESTED = SearchSpace(
    [
        CategoricalParameter("booster", ("tree", "linear")),
        IntegerParameter("depth", 1, 3, active_if={"booster": "tree"}),
        OrdinalParameter("leaves", ("few", "many"), active_if={"depth": (2, 3)}),
        CategoricalParameter("split", (True, False), active_if={"leaves": "many", "depth": 3}),
    ]
)


@st.composite
def parameters(draw, name, earlier):
    parents = [p for p in earlier if not isinstance(p, FloatParameter)]
    condition = None
    if parents and draw(st.booleans()):
        parent = draw(st.sampled_from(parents))
        is_integer = isinstance(parent, IntegerParameter)
        allowed = range(parent.lower, parent.upper + 1) if is_integer else parent.values
        condition = {parent.name: draw(st.lists(st.sampled_from(allowed), min_size=1, unique=True))}
    kind = draw(st.integers(0, 3))
    log = draw(st.booleans())
    if kind == 0:
        lower = draw(st.floats(1e-6, 1e3))
        return FloatParameter(name, lower, lower * draw(st.floats(1.01, 1e6)), log, condition)
    if kind == 1:
        lower = draw(st.integers(1, 50))
        return IntegerParameter(name, lower, lower + draw(st.integers(1, 40)), log, condition)
    if kind == 2:
        steps = draw(st.lists(st.floats(0.01, 10), min_size=1, max_size=6))
        return OrdinalParameter(name, np.cumsum(steps).tolist(), log, condition)
    values = st.one_of(st.text("abc", min_size=1, max_size=2), st.integers(2, 9))
    listed = draw(st.lists(values, min_size=1, max_size=4, unique_by=str))
    return CategoricalParameter(name, listed, condition)


@st.composite
def spaces(draw):
    chosen = []
    for rank in range(draw(st.integers(1, 6))):
        chosen.append(draw(parameters(f"p{rank}", chosen)))
    return SearchSpace(chosen)


@settings(deadline=None, max_examples=30)
@given(spaces(), st.integers(0, 1000))
def test_configurations_survive_a_round_trip(space, seed):
    frame = space.sample(20, seed)
    X = space.encode(frame)
    assert X.shape == (20, space.dim)
    assert X.dtype == torch.float64
    assert ((X >= 0) & (X <= 1)).all()
    again = space.decode(X)
    pd.testing.assert_frame_equal(again, frame, rtol=1e-9)
    torch.testing.assert_close(space.encode(again), X, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(spaces(), st.integers(0, 1000))
def test_any_point_of_the_cube_decodes_to_a_valid_configuration(space, seed):
    X = torch.rand(20, space.dim, generator=torch.Generator().manual_seed(seed)).double()
    frame = space.decode(X)
    rounded = space.encode(frame)
    pd.testing.assert_frame_equal(space.decode(rounded), frame, rtol=1e-9)
    torch.testing.assert_close(space.round(rounded), rounded, rtol=0, atol=1e-12)
    for parameter in space.parameters:
        empty = frame[parameter.name].isna()
        assert parameter.active_if or not empty.any()


@settings(deadline=None, max_examples=30)
@given(spaces(), st.integers(0, 1000))
def test_discrete_columns_take_the_values_that_they_list(space, seed):
    X = space.encode(space.sample(30, seed))
    for column, values in space.discrete_dims.items():
        assert space.is_discrete[column]
        assert (values[0], values[-1]) == (0.0, 1.0)
        assert set(X[:, column].tolist()) <= {*values, 0.5}  # 0.5: inactive


def test_single_precision_points_decode_alike():
    X = SVM.encode(SVM.sample(50, seed=3))
    decoded = SVM.decode(X.float())
    pd.testing.assert_frame_equal(decoded, SVM.decode(X), rtol=1e-5)


def test_inactive_parameters_are_neutral_and_empty():
    frame = pd.DataFrame(
        {
            "kernel": ["rbf", "poly", "linear"],
            "C": [1.0, 1.0, 1.0],
            "gamma": [10.0, np.nan, 999.0],  # whatever an inactive cell holds is ignored
            "degree": [np.nan, 2.0, np.nan],
        }
    )
    X = SVM.encode(frame)
    expected = [[1, 0, 0, 0.5, 1, 0.5], [0, 1, 0, 0.5, 0.5, 0], [0, 0, 1, 0.5, 0.5, 0.5]]
    torch.testing.assert_close(X, torch.tensor(expected, dtype=torch.float64))
    decoded = SVM.decode(X)
    assert decoded["gamma"].isna().tolist() == [False, True, True]
    assert decoded["degree"].isna().tolist() == [True, False, True]
    assert decoded["degree"].dtype == "Int64"
    assert decoded["degree"][1] == 2


def test_a_child_of_an_inactive_parent_is_inactive():
    frame = pd.DataFrame(
        {
            "booster": ["tree", "tree", "tree", "linear"],
            "depth": [1, 2, 3, 3],
            "leaves": ["many"] * 4,
            "split": [True] * 4,
        }
    )
    decoded = NESTED.decode(NESTED.encode(frame))
    assert decoded["depth"].isna().tolist() == [False, False, False, True]
    assert decoded["leaves"].tolist() == [None, "many", "many", None]
    assert decoded["split"].tolist() == [None, None, True, None]
    assert NESTED.encode(frame)[3].tolist() == [0, 1, 0.5, 0.5, 0.5, 0.5]


def test_names_and_shapes():
    assert SVM.dim == 6
    assert SVM.columns == ["kernel", "C", "gamma", "degree"]
    names = SVM.feature_names
    assert names == ["kernel=rbf", "kernel=poly", "kernel=linear", "C", "gamma", "degree"]
    assert SVM.feature_indices == {"kernel": [0, 1, 2], "C": [3], "gamma": [4], "degree": [5]}
    assert SVM.is_discrete == [True, True, True, False, False, True]
    assert SVM.discrete_dims == {5: [0.0, 0.5, 1.0]}
    assert SVM.bounds.tolist() == [[0.0] * 6, [1.0] * 6]
    assert SVM.bounds.dtype == torch.float64


def test_long_ranges_of_integers_are_not_listed():
    space = SearchSpace([IntegerParameter("n", 1, 10**6), IntegerParameter("m", 1, 1000)])
    assert list(space.discrete_dims) == [1]
    assert space.is_discrete == [True, True]


def test_empty_tables_have_empty_encodings():
    assert SVM.encode(SVM.sample(0, seed=0)).shape == (0, 6)
    assert list(SVM.decode(torch.empty(0, 6))) == SVM.columns


def test_the_index_and_other_columns_do_not_matter():
    frame = SVM.sample(6, seed=0)
    X = SVM.encode(frame)
    other = frame.assign(note="x")[["note", "degree", "gamma", "C", "kernel"]]
    torch.testing.assert_close(SVM.encode(other.set_axis([7, 7, 7, 1, 1, 0])), X)


def test_an_absent_column_is_fine_where_it_is_never_active():
    frame = pd.DataFrame({"kernel": ["linear"], "C": [1.0]})
    assert SVM.encode(frame)[0].tolist() == pytest.approx([0, 0, 1, 0.5, 0.5, 0.5])
    with pytest.raises(InputDataError, match="no column 'gamma' for parameter 'gamma': add"):
        SVM.encode(frame.assign(kernel="rbf"))


def test_errors_name_the_parameter_the_value_and_the_row():
    frame = SVM.sample(20, seed=0).set_axis([f"run{i}" for i in range(20)])
    frame["kernel"] = "poly"
    frame["degree"] = 3
    frame.loc["run7", "degree"] = 9
    with pytest.raises(InputDataError, match=r"'degree' is 9 in row run7, outside of .*\[2, 4\]"):
        SVM.encode(frame)
    frame["degree"] = frame["degree"].astype(float)
    frame.loc["run7", "degree"] = np.nan
    with pytest.raises(InputDataError, match="'degree' has no value in row run7, but"):
        SVM.encode(frame)
    with pytest.raises(InputDataError, match=r"'kernel' is 'sigmoid' in row run0 .* of 'rbf"):
        SVM.encode(frame.assign(kernel="sigmoid"))


def test_points_of_another_shape_or_scale_are_refused():
    with pytest.raises(ValueError, match=r"X has shape or type \(3, 5\): give an n x 6"):
        SVM.decode(torch.rand(3, 5))
    with pytest.raises(ValueError, match="outside of the unit cube"):
        SVM.decode(torch.full((1, 6), 1.1))
    with pytest.raises(ValueError, match="outside of the unit cube"):
        SVM.decode(torch.full((1, 6), torch.nan))
    assert SVM.decode(torch.full((1, 6), 1 + 1e-8))["C"][0] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ([], "has no parameters"),
        ([FloatParameter("a", 0, 1)] * 2, "more than one parameter 'a'"),
        ([CategoricalParameter("a", (1, "1"))], "more than one feature 'a=1'"),
        ([FloatParameter("a", 0, 1, active_if={"b": 1})], "parent 'b': 'b' must be a categorical"),
        (
            [FloatParameter("a", 0, 1, active_if={"b": 1}), IntegerParameter("b", 0, 1)],
            "of 'a' has the parent 'b': 'b' must be .* listed before 'a'",
        ),
        (
            [IntegerParameter("a", 0, 1, active_if={"a": 1})],
            "of 'a' has the parent 'a': 'a' must be .* listed before 'a'",
        ),
        (
            [FloatParameter("a", 0, 1), FloatParameter("b", 0, 1, active_if={"a": 1.0})],
            "of 'b' has the parent 'a': 'a' must be a categorical, ordinal or integer",
        ),
        (
            [CategoricalParameter("a", ("x", "y")), FloatParameter("b", 0, 1, active_if={"a": 1})],
            "'b' is active if 'a' is 1, which is not a value of 'a'",
        ),
        (
            [FloatParameter("a=x", 0, 1), CategoricalParameter("a", ("x", "y"))],
            "more than one feature 'a=x': use different names",
        ),
        (
            [IntegerParameter("a", 0, 3), FloatParameter("b", 0, 1, active_if={"a": (1, 4)})],
            "'b' is active if 'a' is 4, which is not a value of 'a'",
        ),
    ],
)
def test_impossible_spaces_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        SearchSpace(parameters)


def test_samples_are_reproducible_and_cover_the_space():
    pd.testing.assert_frame_equal(SVM.sample(10, seed=1), SVM.sample(10, seed=1))
    frame = SVM.sample(3000, seed=0)
    assert frame["kernel"].value_counts().between(900, 1100).all()
    assert (frame["C"] < 1.0).mean() == pytest.approx(0.5, abs=0.05)
    degrees = frame["degree"].dropna().value_counts(normalize=True)
    assert degrees.to_dict() == pytest.approx({2: 1 / 3, 3: 1 / 3, 4: 1 / 3}, abs=0.06)


def test_grid_lists_each_configuration_once():
    grid = NESTED.grid()
    rows = [tuple(None if pd.isna(v) else v for v in row) for row in grid.to_numpy(dtype=object)]
    assert rows == [
        ("tree", 1, None, None),
        ("tree", 2, "few", None),
        ("tree", 2, "many", None),
        ("tree", 3, "few", None),
        ("tree", 3, "many", True),
        ("tree", 3, "many", False),
        ("linear", None, None, None),
    ]


def test_infinite_and_huge_grids_are_refused():
    with pytest.raises(ValueError, match="'C' is continuous"):
        SVM.grid()
    huge = SearchSpace([IntegerParameter("n", 1, 1000), IntegerParameter("m", 1, 10**9)])
    with pytest.raises(
        ValueError, match=r"With the parameter 'm', the space has more than 1,000,000 comb"
    ):
        huge.grid()


def test_fixed_features_are_the_unordered_choices():
    assert SVM.fixed_features_list() == [
        {0: 1, 1: 0, 2: 0, 5: 0.5},
        {0: 0, 1: 1, 2: 0, 4: 0.5},
        {0: 0, 1: 0, 2: 1, 4: 0.5, 5: 0.5},
    ]
    assert len(NESTED.fixed_features_list()) == 7  # `depth` and `leaves` are parents
    ordered = SearchSpace([FloatParameter("a", 0, 1), OrdinalParameter("b", (1, 2))])
    assert ordered.fixed_features_list() == [{}]
    single = SearchSpace([FloatParameter("a", 0, 1), OrdinalParameter("b", (1,))])
    assert single.fixed_features_list() == [{1: 0.5}]


def test_spaces_are_hashable_and_picklable():
    assert pickle.loads(pickle.dumps(SVM)) == SVM
    assert hash(SVM) == hash(pickle.loads(pickle.dumps(SVM)))
    assert SVM != NESTED


EXAMPLE = {
    "kernel": {"type": "categorical", "choices": ["rbf", "poly", "linear"], "note": "as fitted"},
    "C": {"type": "float", "low": 0.01, "high": 100, "log": True},
    "gamma": {"type": "float", "low": 1e-3, "high": 10, "log": True, "active_if": "kernel==rbf"},
    "degree": {"type": "int", "low": 2, "high": 5, "active_if": {"kernel": ["poly"]}},
    "momentum": {"type": "float", "low": 0.5, "high": 0.99, "log": "1-x"},
    "batch": {"type": "ordinal", "values": [8, 16, 32], "log": True},
    "seed_batch": {"type": "ordinal", "values": [1, 2], "active_if": "batch == 16"},
}


def test_each_type_is_read():
    assert SearchSpace.from_dict(EXAMPLE).parameters == (
        CategoricalParameter("kernel", ("rbf", "poly", "linear")),
        FloatParameter("C", 0.01, 100, log=True),
        FloatParameter("gamma", 1e-3, 10, log=True, active_if={"kernel": "rbf"}),
        IntegerParameter("degree", 2, 5, active_if={"kernel": "poly"}),
        FloatParameter("momentum", 0.5, 0.99, log="1-x"),
        OrdinalParameter("batch", (8, 16, 32), log=True),
        OrdinalParameter("seed_batch", (1, 2), active_if={"batch": 16}),
    )
    spec = {"goal": "max", "params": EXAMPLE}
    assert SearchSpace.from_dict(spec) == SearchSpace.from_dict(EXAMPLE)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"p": {"type": "complex"}}, "'p' has the type 'complex': use one of float, int"),
        ({"p": {"low": 0, "high": 1}}, "'p' has the type None: use one of float"),
        ({"p": {"type": "float", "low": 0}}, "'p' of type float needs the entry 'high'"),
        ({"p": {"type": "categorical"}}, "'p' of type categorical needs the entry 'choices'"),
        ({"p": {"type": "float", "low": 0, "high": 1, "lgo": True}}, "unknown entry 'lgo': use"),
        (
            {"p": {"type": "int", "low": 0, "high": 1}, "q": {**EXAMPLE["C"], "active_if": "p"}},
            "'q' has active_if 'p': write 'parent==value'",
        ),
        (
            {"k": EXAMPLE["kernel"], "q": {**EXAMPLE["C"], "active_if": "k==rfb"}},
            "'q' is active if 'k' is 'rfb', which is not a value of 'k'",
        ),
    ],
)
def test_faulty_specifications_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        SearchSpace.from_dict(spec)


def test_json_files(tmp_path):
    spec = {"C": {"type": "float", "low": 0.1, "high": 1}}
    path = tmp_path / "space.json"
    path.write_text(json.dumps({"goal": "max", "params": spec}))
    assert SearchSpace.from_json(path) == SearchSpace.from_dict(spec)


ROW = SVM.sample(1, seed=0)
TWICE = pd.concat([ROW, ROW[["C"]]], axis=1)


@pytest.mark.parametrize(
    ("misuse", "error", "message"),
    [
        (lambda: SVM.encode({"C": [0.1]}), InputDataError, "a dict: give"),
        (lambda: SVM.encode(ROW.iloc[0]), InputDataError, "a Series: give"),
        (lambda: SVM.encode(TWICE), InputDataError, "several columns 'C': keep one"),
        (lambda: SVM.place({"C": 0.1}), InputDataError, "a dict: give"),
        (lambda: SVM.place(TWICE), InputDataError, "several columns 'C'"),
        (lambda: SVM.decode([[0.1] * 6]), ValueError, "shape or type list: give an n x 6"),
        (lambda: SVM.decode(torch.rand(6)), ValueError, "give an n x 6"),
        (lambda: SVM.sample(-1, 0), ValueError, "n is -1: give a whole number"),
        (lambda: SVM.sample(2.5, 0), ValueError, "n is 2.5: give a whole number"),
        (lambda: SearchSpace("lr"), TypeError, "takes a list of parameters, not 'lr': gi"),
        (lambda: SearchSpace(None), TypeError, "takes a list of parameters, not None"),
        (lambda: SearchSpace([("lr", 0, 1)]), TypeError, "such as FloatParameter"),
        (lambda: SearchSpace({"C": (0, 1)}), TypeError, r"use SearchSpace\.from_dict"),
        (lambda: SearchSpace(SVM.parameters[0]), TypeError, "give a list of"),
        (lambda: SearchSpace.from_dict([1]), TypeError, "space is a list: give a dictionary"),
        (lambda: SearchSpace.from_dict({"a": 3}), ValueError, "use one of float"),
        (lambda: FloatParameter("a", "0", 1), ValueError, "'0' and 1: give finite"),
        (lambda: IntegerParameter("a", None, 3), ValueError, "None and 3: give"),
        (lambda: IntegerParameter("a", 0, 1, log="1-x"), ValueError, "use True or False"),
        (lambda: FloatParameter("a", 0, 1, active_if="b"), ValueError, "'b': give a dictionary"),
        (lambda: CategoricalParameter("a", 3), ValueError, "give a list of"),
        (lambda: OrdinalParameter("a", 3), ValueError, "the values 3: give"),
    ],
)
def test_misuse_is_refused(misuse, error, message):
    with pytest.raises(error, match=message):
        misuse()


CHANGED = SearchSpace(
    [
        CategoricalParameter("kernel", ("rbf", "poly")),
        FloatParameter("C", 1.0, 100.0, log=True),
        IntegerParameter("degree", 2, 4, active_if={"kernel": "poly"}),
        IntegerParameter("units", 8, 64, log=True),
        OrdinalParameter("batch", (16, 32)),
    ]
)


def test_runs_of_a_space_that_has_changed_keep_their_place():
    runs = pd.DataFrame(
        {
            "kernel": ["rbf", "poly", "poly", "rbf"],
            "C": [10.0, 1000.0, 1.0 + 1e-12, 0.1],
            "degree": [None, 5, 3, None],
            "units": [8, 64, 128, 4],
            "batch": [16, 32, 16, 32],
        }
    )
    placed = CHANGED.place(runs)
    inside = CHANGED.round(placed.clamp(0, 1))
    torch.testing.assert_close(placed[:, 2], torch.tensor([0.5, 1.5, 0.0, -0.5]).double())
    assert placed[:, 3].tolist() == [0.5, 1.5, 0.5, 0.5]
    torch.testing.assert_close(placed.clamp(0, 1), inside)
    assert placed[2:, 4].tolist() == pytest.approx([4 / 3, -1 / 3])
    valid = runs.iloc[[0]]
    assert torch.equal(CHANGED.place(valid), CHANGED.encode(valid))


@pytest.mark.parametrize(
    "change", [{"kernel": "linear"}, {"batch": np.inf}, {"C": 0.0}, {"units": np.inf}]
)
def test_what_has_no_place_in_a_changed_space_is_not_a_number(change):
    row = {"kernel": "rbf", "C": 10.0, "degree": None, "units": 16, "batch": 16}
    placed = CHANGED.place(pd.DataFrame([row, {**row, **change}]))
    assert placed[0].isfinite().all()
    assert placed[1].isnan().all()


def test_fixed_features_are_those_of_the_list():
    points = CHANGED.encode(CHANGED.sample(40, seed=0))
    found, listed = CHANGED.fixed_features(points), CHANGED.fixed_features_list()
    assert all(fixed in listed for fixed in found)
    assert all(any(fixed == other for fixed in found) for other in listed)
    for point, fixed in zip(points, found, strict=True):
        assert {j: point[j].item() for j in fixed} == fixed


def test_a_space_is_written_as_it_is_read():
    space = SearchSpace(
        [
            *CHANGED.parameters,
            FloatParameter("momentum", 0.5, 0.99, log="1-x"),
            OrdinalParameter("level", ("low", "high"), active_if={"kernel": ["rbf"], "batch": 16}),
        ]
    )
    text = json.dumps(space.to_dict())
    assert SearchSpace.from_dict(json.loads(text)) == space


def test_fractions_in_a_file_are_floats_whose_sum_is_a_constraint(caplog):
    parts = {name: {"type": "simplex", "step": 0.1} for name in ("a", "b")}
    space = SearchSpace.from_dict(parts)
    assert space.parameters[1] == FloatParameter("b", 0.0, 1.0, step=0.1)
    assert caplog.messages == ["The fractions a, b must sum to 1: give the constraint 'a + b == 1'"]


def test_what_a_dictionary_cannot_hold_is_refused():
    class OwnParameter(FloatParameter):
        pass

    with pytest.raises(ValueError, match=r"'a' is a Own.*, which cannot be written"):
        SearchSpace([OwnParameter("a", 0.0, 1.0)]).to_dict()
