"""The page about suggested rows; that of the command line is in ``test___main__``."""

from __future__ import annotations

import pytest
import torch
from botorch.models import SingleTaskGP

from botorch_transfer import (
    CategoricalParameter,
    FloatParameter,
    PretrainedPrior,
    SearchSpace,
    SourceGPs,
    models,
)

pytest.importorskip("matplotlib")
from botorch_transfer.suggestion import EncodedTables, Outcome, Suggestion
from botorch_transfer.suggestion.page import suggestion_page
from botorch_transfer.suggestion.reading import read_runs
from tests.members import hyperprior


def suggestion(space, row, model, sign):
    outcomes = (Outcome("loss", sign),)
    tables = EncodedTables(space, outcomes, {}, read_runs(space, None, outcomes, "status"))
    return Suggestion(row, {"loss": model}, space.encode(row), tables)


@pytest.mark.parametrize("name", models.__all__)
def test_there_is_a_report_on_every_model(name):
    kind, space = getattr(models, name), SearchSpace([FloatParameter("C", 0.0, 1.0)])
    if not isinstance(kind, type):
        pytest.skip("a function")
    X = torch.tensor([[0.1], [0.4], [0.9]], dtype=torch.double)
    prior = {"a": (X, X.sin()), "b": (X, X.cos())}
    if name == "PretrainedGP":
        prior = PretrainedPrior.fsbo(1)
    elif name in ("HyperpriorGP", "FullyBayesianHyperpriorGP"):
        prior = hyperprior()
    elif name == "TransferGP":
        prior = SourceGPs.fit(prior, num_restarts=0)  # an average of one member and a plain GP
    models_of = {"loss": kind(X[:2], X[:2], prior)}
    page = suggestion_page(suggestion(space, space.decode(X[:1]), models_of["loss"], -1.0), None)
    calibrated = name in ("PopulationGP", "ScaMLGP", "GuardedTransferGP", "TransferGP")
    calibrated |= name in ("RankWeightedGP", "TwoStageTransferGP")
    assert ("2 source tasks predict one another" in page) == calibrated


def test_a_plain_gp_and_a_parameter_that_is_switched_off():
    switch = CategoricalParameter("kind", ("svm", "none"))
    C = FloatParameter("C", 0.1, 10.0, log=True, active_if={"kind": "svm"})
    space = SearchSpace([switch, C])
    rows = space.sample(4, seed=0)
    X = space.encode(rows)
    Y = torch.arange(4.0, dtype=torch.double).unsqueeze(-1)
    for kind, pictures in (("svm", 2), ("none", 1)):
        row = rows[rows["kind"] == kind].iloc[:1]
        page = suggestion_page(suggestion(space, row, SingleTaskGP(X, Y), 1.0), None)
        assert page.count("data:image/png;base64,") == pictures
