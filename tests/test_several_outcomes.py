"""One transfer model an outcome."""

import pytest
import torch
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.exceptions.errors import InputDataError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.transforms.input import Normalize
from botorch.utils.datasets import SupervisedDataset
from gpytorch.mlls import SumMarginalLogLikelihood
from pandas import DataFrame, concat

from botorch_transfer import (
    FloatParameter,
    ScaMLGP,
    SearchSpace,
    SourceGPs,
    TransferGP,
    from_dataframe,
    transfer_models,
)
from tests.families import ShiftedSines
from tests.models.contract import assert_same_posterior

FAMILY = ShiftedSines()
X, Y = FAMILY.target(4)
BOTH = torch.cat([Y, -2.0 * Y + X[:, :1]], dim=-1)
HISTORY = {
    name: (x, torch.cat([y, -2.0 * y + x[:, :1]], dim=-1))
    for name, (x, y) in FAMILY.sources().items()
}
TEST_X = FAMILY.inputs(5, seed=71)


def test_each_outcome_is_learned_from_its_own_column():
    noise = torch.full_like(BOTH, 0.1) * torch.tensor([1.0, 2.0])
    models = transfer_models(X, BOTH, HISTORY, noise, ScaMLGP)
    assert isinstance(models, ModelListGP)
    for column, model in enumerate(models.models):
        history = {name: (x, y[:, [column]]) for name, (x, y) in HISTORY.items()}
        twin = ScaMLGP(X, BOTH[:, [column]], history, noise[:, [column]])
        assert_same_posterior(model.posterior(TEST_X), twin.posterior(TEST_X))


def test_data_sets_options_and_an_empty_target():
    names = {"feature_names": ["a", "b"], "outcome_names": ["y", "z"]}
    noisy = [SupervisedDataset(x, y, Yvar=torch.ones_like(y), **names) for x, y in HISTORY.values()]
    models = transfer_models(X[:0], BOTH[:0], noisy, input_transform=Normalize(2))
    assert all(isinstance(model, TransferGP) for model in models.models)
    assert models.posterior(TEST_X).mean.isfinite().all()


def test_a_history_for_each_outcome():
    space = SearchSpace([FloatParameter("a", 0, 1), FloatParameter("b", 0, 1)])
    frames = [
        DataFrame(x.numpy(), columns=["a", "b"]).assign(task=n) for n, (x, _) in HISTORY.items()
    ]
    outcomes = torch.cat([y for _, y in HISTORY.values()]).numpy()
    old = concat(frames, ignore_index=True).assign(err=-outcomes[:, 0], mem=outcomes[:, 1])
    histories = from_dataframe(old, space, ["err", "mem"], "task", ["min", "max"])
    expected = transfer_models(X, BOTH, HISTORY, model_class=ScaMLGP)
    priors = [SourceGPs.fit(each) for each in histories.values()]
    for sources in (histories, list(histories.values()), priors):
        models = transfer_models(X, BOTH, sources, model_class=ScaMLGP)
        for model, twin in zip(models.models, expected.models, strict=True):
            assert_same_posterior(model.posterior(TEST_X), twin.posterior(TEST_X))
    with pytest.raises(InputDataError, match="histories of 1 outcomes, but train_Y has 2"):
        transfer_models(X, BOTH, {"err": histories["err"]})
    with pytest.raises(ValueError, match="There are 2 outcomes and 3 goals: give each outcome"):
        from_dataframe(old, space, ["err", "mem"], "task", ["min"] * 3)


def test_hypervolume_improvement():
    models = transfer_models(X, BOTH, HISTORY, model_class=ScaMLGP)
    fit_gpytorch_mll(SumMarginalLogLikelihood(models.likelihood, models), num_restarts=0)
    improvement = qLogNoisyExpectedHypervolumeImprovement(models, BOTH.amin(dim=0), X)
    assert improvement(TEST_X.unsqueeze(1)).isfinite().all()


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputDataError, match="Task 'task 1' has 1 outcomes, but train_Y has 2"):
        transfer_models(X, BOTH, {**HISTORY, "task 1": (X, Y)})
    with pytest.raises(ValueError, match="TransferGP has no option 'kernel'"):
        transfer_models(X, BOTH, HISTORY, kernel=None)
    with pytest.raises(TypeError, match="A str object is not a class: use a model class"):
        transfer_models(X, BOTH, HISTORY, model_class="ScaMLGP")
    with pytest.raises(InputDataError, match=r"transfer_models\(train_X, train_Y, sources\)"):
        TransferGP(X, BOTH, FAMILY.sources())
