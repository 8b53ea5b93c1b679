from typing import Any

import pytest
import torch
from ax.core.search_space import SearchSpaceDigest
from ax.exceptions.core import UserInputError
from ax.generators.torch.botorch_modular.surrogate import Surrogate
from ax.generators.torch.botorch_modular.utils import ModelConfig
from botorch.utils.datasets import SupervisedDataset

from botorch_transfer import SourceGPs, models
from botorch_transfer.ax.adapter import TransferDataset, transfer_inputs_for_ax

SPACE = SearchSpaceDigest(
    feature_names=["a", "b"], bounds=[(0.0, 10.0), (1.0, 5.0)], ordinal_features=[1]
)


def data(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    X = X * torch.tensor([10.0, 4.0]) + torch.tensor([0.0, 1.0])
    return X, (X[:, :1] / 3).sin() + 0.1 * X[:, 1:]


SOURCES = {"monday": data(9, 1), "tuesday": data(12, 2)}


NAMES = {"feature_names": ["a", "b"], "outcome_names": ["loss"]}


def dataset_of(X, Y, sources=SOURCES, **options) -> TransferDataset:
    dataset = TransferDataset(X, Y, **NAMES, **options)
    dataset.sources = sources
    return dataset


def target(n: int = 4, **options) -> TransferDataset:
    return dataset_of(*data(n), **options)


def inputs_of(model_class, dataset, **options) -> dict[str, Any]:
    config = ModelConfig(model_options=options)
    return transfer_inputs_for_ax(model_class, config, dataset, SPACE, Surrogate())


def unit(X: torch.Tensor) -> torch.Tensor:
    return (X - torch.tensor([0.0, 1.0])) / torch.tensor([10.0, 4.0])


@pytest.mark.parametrize(
    "model_class",
    [
        models.ScaMLGP,
        models.SequentialHierarchicalGP,
        models.PopulationGP,
        models.RankWeightedGP,
        models.WeightedSourceGP,
        models.JointHierarchicalGP,
    ],
)
def test_sources_with_the_data_are_the_models_own_in_the_unit_cube(model_class):
    inputs = inputs_of(model_class, target())
    model = model_class(**inputs).eval()
    twin = model_class(
        unit(data(4)[0]), data(4)[1], {name: (unit(X), Y) for name, (X, Y) in SOURCES.items()}
    ).eval()
    test_X = data(5, 7)[0]
    found, expected = model.posterior(test_X), twin.posterior(unit(test_X))
    torch.testing.assert_close(found.mean, expected.mean, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.variance, expected.variance, atol=1e-5, rtol=1e-5)


def test_bounds_are_widened_to_the_sources():
    far = {"monday": (torch.tensor([[-5.0, 2.0], [10.0, 9.0]]).double(), torch.ones(2, 1).double())}
    inputs = inputs_of(models.ScaMLGP, target(sources=far))
    expected = torch.tensor([[-5.0, 1.0], [10.0, 9.0]], dtype=torch.double)
    assert torch.equal(inputs["input_transform"].bounds, expected)


def test_noise_is_known_of_all_points_or_inferred():
    Yvar = torch.full((4, 1), 0.01, dtype=torch.double)
    known = target(Yvar=Yvar)
    inputs = inputs_of(models.ScaMLGP, known)
    assert torch.equal(inputs["train_Yvar"], Yvar)
    zero = target(Yvar=0.0 * Yvar)
    assert (inputs_of(models.ScaMLGP, zero)["train_Yvar"] == 1e-6).all()
    some = target(Yvar=Yvar.index_fill(0, torch.tensor(2), torch.nan))
    assert "train_Yvar" not in inputs_of(models.ScaMLGP, some)


def test_options_of_any_generator_do():
    plain = SupervisedDataset(*data(4), **NAMES)
    assert inputs_of(models.ScaMLGP, plain, prior=SOURCES)["prior"] is SOURCES
    with pytest.raises(ValueError, match="no option 'sauce'"):
        inputs_of(models.ScaMLGP, plain, prior=SOURCES, sauce=1)


def test_levels_and_scales_are_those_of_the_tasks_within_pooled_units():
    """Ax's outcomes are standardized by those of all tasks, whose levels are far apart."""
    (X, Y), new_X = data(9, 1), data(4)[0]
    raw = {name: (X, Y + level) for name, level in (("low", 0.0), ("high", 100.0))}
    outcomes = torch.cat([Y for _, Y in raw.values()])
    mean, std = outcomes.mean(), outcomes.std()
    pooled = {name: (X, (Y - mean) / std) for name, (X, Y) in raw.items()}
    new_Y = (data(4)[1] + 50.0 - mean) / std
    dataset = dataset_of(new_X, new_Y, pooled)
    model = models.PopulationGP(**inputs_of(models.PopulationGP, dataset)).eval()
    scale = Y.std() / std
    assert scale < 0.05
    torch.testing.assert_close(model.outcome_transform.stdvs, scale.reshape(1, 1))
    twin = models.PopulationGP(
        unit(new_X), data(4)[1] + 50.0, {name: (unit(X), Y) for name, (X, Y) in raw.items()}
    ).eval()
    test_X = data(5, 7)[0]
    found, expected = model.posterior(test_X), twin.posterior(unit(test_X))
    torch.testing.assert_close(std * found.mean + mean, expected.mean, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(std**2 * found.variance, expected.variance, rtol=1e-3, atol=1e-5)


def test_a_prior_in_the_unit_cube_is_scaled_to_the_search_space():
    prior = SourceGPs.fit({name: (unit(X), Y) for name, (X, Y) in SOURCES.items()})
    plain = SupervisedDataset(*data(4), **NAMES)
    model = models.ScaMLGP(**inputs_of(models.ScaMLGP, plain, prior=prior)).eval()
    twin = models.ScaMLGP(unit(data(4)[0]), data(4)[1], prior).eval()
    test_X = data(5, 7)[0]
    expected = twin.posterior(unit(test_X)).mean
    torch.testing.assert_close(model.posterior(test_X).mean, expected)


def test_options_of_pretraining():
    options = {"steps": 3, "batch_size": 5}
    first = inputs_of(models.PretrainedGP, target(), pretraining=options)["prior"]
    again = inputs_of(models.PretrainedGP, target().clone(deepcopy=True), pretraining=options)[
        "prior"
    ]
    assert first is again
    few = {"num_restarts": 0}
    stack = inputs_of(models.SequentialHierarchicalGP, target(), pretraining=few)["prior"]
    assert stack.propagate == "covariance"
    with pytest.raises(UserInputError, match="has no pre-trained prior"):
        inputs_of(models.WeightedSourceGP, target(), pretraining=few)
    with pytest.raises(UserInputError, match=r"pretraining= is wrong .*'num_restart'"):
        inputs_of(models.ScaMLGP, target(), pretraining={"num_restart": 0})


@pytest.mark.parametrize("guarded", [False, True])
def test_joint_models_take_the_scale_of_outcomes(guarded):
    dataset, options = target(), {"outcome_scale": "raw"}
    model_class = models.JointHierarchicalGP
    if guarded:
        options = {"transfer_model": model_class, "transfer_options": options}
        model_class = models.GuardedTransferGP
    model = model_class(**inputs_of(model_class, dataset, **options))
    joint = model.transfer if guarded else model
    expected = torch.cat([Y for _, Y in SOURCES.values()]).squeeze(-1)
    assert torch.equal(joint.conditional.points.Y, expected)
    assert torch.equal(model.train_targets, data(4)[1].squeeze(-1))


def test_pretraining_of_a_guard_is_that_of_the_model_it_weighs():
    inputs = inputs_of(models.GuardedTransferGP, target(), pretraining={"num_restarts": 0})
    assert isinstance(inputs["prior"], SourceGPs)


def test_copies_and_folds_keep_the_source_tasks():
    X = torch.rand(4, 2)
    sources = {"monday": (X, X[:, :1])}
    dataset = dataset_of(X, X[:, 1:], sources)
    fold = dataset.clone(mask=torch.tensor([True, False, True, True]))
    assert fold.sources is sources
    assert len(fold.X) == 3
    assert dataset.clone(deepcopy=True) == dataset


def test_variances_that_are_added_follow_the_rows_and_come_on_top_of_known_noise():
    X, Y = data(4)
    dataset = dataset_of(X, Y, Yvar=torch.full_like(Y, 0.5))
    dataset.added = torch.tensor([0.0, 1.0, 0.0, 2.0]).to(Y)
    mask = torch.tensor([True, True, False, True])
    dataset = dataset.clone(mask=mask)
    assert dataset.added.tolist() == [0.0, 1.0, 2.0]
    inputs = inputs_of(models.ScaMLGP, dataset)
    assert inputs["train_Yvar"].flatten().tolist() == [0.5, 1.5, 2.5]
    assert "likelihood" not in inputs
