"""Optuna's distributions as parameters, and back."""

import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from botorch_transfer import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    SearchSpace,
)
from botorch_transfer.old_studies import distribution_of, has_value, merged, parameter_of, value_of
from botorch_transfer.search_space import Parameter

KINDS = [
    (FloatDistribution(-1.0, 2.0), FloatParameter("x", -1.0, 2.0)),
    (FloatDistribution(1e-5, 1.0, log=True), FloatParameter("x", 1e-5, 1.0, log=True)),
    (FloatDistribution(0.0, 1.0, step=0.25), OrdinalParameter("x", (0.0, 0.25, 0.5, 0.75, 1.0))),
    (IntDistribution(1, 9), IntegerParameter("x", 1, 9)),
    (IntDistribution(1, 100, log=True), IntegerParameter("x", 1, 100, log=True)),
    (IntDistribution(2, 11, step=3), OrdinalParameter("x", (2, 5, 8, 11))),
    (CategoricalDistribution(("a", 2, True)), CategoricalParameter("x", ("a", 2, True))),
]


@pytest.mark.parametrize(("distribution", "parameter"), KINDS)
def test_there_and_back(distribution: BaseDistribution, parameter):
    assert parameter_of("x", distribution) == parameter
    assert distribution_of(parameter) == distribution


@pytest.mark.parametrize("distribution", [distribution for distribution, _ in KINDS])
def test_decoded_values_are_the_distributions(distribution: BaseDistribution):
    space = SearchSpace([parameter_of("x", distribution)])
    values = [value_of(distribution, cell) for cell in space.sample(50, seed=0)["x"]]
    assert all(distribution._contains(distribution.to_internal_repr(value)) for value in values)
    assert all(has_value(distribution, value) for value in values)
    kind = {FloatDistribution: float, IntDistribution: int}.get(type(distribution))
    assert kind is None or {type(value) for value in values} == {kind}


def test_choices_that_no_cell_can_hold():
    distribution = CategoricalDistribution((None, "l2"))
    parameter = parameter_of("penalty", distribution)
    assert parameter.values == ("None", "l2")
    assert [value_of(distribution, cell) for cell in parameter.values] == [None, "l2"]


def test_steps_too_many_to_list_are_rounded_to():
    distribution = IntDistribution(0, 100_000, step=5)
    assert parameter_of("x", distribution) == IntegerParameter("x", 0, 100_000)
    assert value_of(distribution, 12.6) == 15
    assert value_of(FloatDistribution(0.0, 10_000.0, step=0.5), 12.6) == 12.5


def test_single_values_and_others_are_told_apart():
    assert not has_value(FloatDistribution(0, 1), 1.5)
    assert not has_value(IntDistribution(2, 11, step=3), 4)
    assert not has_value(FloatDistribution(0, 1), "a")
    assert not has_value(CategoricalDistribution(("a",)), "b")


def test_ordinals_of_unequal_steps_are_choices():
    assert distribution_of(OrdinalParameter("x", (1, 2, 8))) == CategoricalDistribution((1, 2, 8))


def test_merged_keeps_what_all_have():
    assert merged([FloatDistribution(0, 1), FloatDistribution(-1, 0.5)]) == FloatDistribution(-1, 1)
    stepped = [IntDistribution(0, 6, step=3), IntDistribution(3, 12, step=3)]
    assert merged(stepped) == IntDistribution(0, 12, step=3)
    shifted = [IntDistribution(0, 6, step=3), IntDistribution(1, 7, step=3)]
    assert merged(shifted) == IntDistribution(0, 7)


def test_parameters_of_somebodys_own_are_refused():
    class Alloy(Parameter):
        name, size, active_if = "alloy", None, None
        encode = decode = None

    with pytest.raises(TypeError, match=r"'alloy' is a Alloy.*leave the parameter out"):
        distribution_of(Alloy())
