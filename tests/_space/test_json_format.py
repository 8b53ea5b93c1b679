import pytest

from botorch_transfer.search_space import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    SearchSpace,
    SimplexParameter,
)

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
    assert SearchSpace.from_dict({"goal": "max", "params": EXAMPLE}) == SearchSpace.from_dict(
        EXAMPLE
    )


def test_simplex_entries_are_one_composition():
    specs = {name: {"type": "simplex", "step": 0.1} for name in ("Ni", "Fe")}
    space = SearchSpace.from_dict({"T": {"type": "int", "low": 0, "high": 9}, **specs})
    assert space.parameters[1] == SimplexParameter("composition", ("Ni", "Fe"), step=0.1)
    assert space.columns == ["T", "Ni", "Fe"]


def test_a_range_in_words_is_read():
    spec = {"beta1": {"type": "float", "note": "1-beta1 log-uniform 1e-4..1"}}
    assert SearchSpace.from_dict(spec).parameters == (
        FloatParameter("beta1", 0.0, 1 - 1e-4, log="1-x"),
    )


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
            "'q' has the active_if 'p': write 'parent==value'",
        ),
        (
            {"k": EXAMPLE["kernel"], "q": {**EXAMPLE["C"], "active_if": "k==rfb"}},
            "'q' is active if 'k' is 'rfb', which is not one of its values",
        ),
        (
            {"a": {"type": "simplex", "step": 0.1}, "b": {"type": "simplex"}},
            "fractions a, b must have one and the same step",
        ),
    ],
)
def test_faulty_specifications_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        SearchSpace.from_dict(spec)
