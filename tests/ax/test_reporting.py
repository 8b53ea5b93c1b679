"""The report on the models of an Ax study, without a private name."""

import pytest
from ax.api.client import Client
from ax.exceptions.core import UserInputError

from botorch_transfer import PretrainedGP
from botorch_transfer.ax import transfer_report


def test_reports_on_the_model_of_the_last_trial(make_client, complete, runs):
    client = make_client(history=runs)
    with pytest.raises(UserInputError, match=r"call get_next_trials\(\) before"):
        transfer_report(client)
    complete(client)
    complete(client)
    report = transfer_report(client)
    assert report.index.tolist() == [*runs["task"].unique(), "all sources"]
    assert report.equals(transfer_report(client, "loss"))
    # The second trial's model knew one point.
    assert report.loc["all sources", "verdict"] == "used, not yet tested"
    assert report["prediction"][:-1].sum() == pytest.approx(report["prediction"].iloc[-1])
    message = r"metric is 'cost', but transfer models exist for \['loss'\]"
    with pytest.raises(UserInputError, match=message):
        transfer_report(client, "cost")


def test_without_a_strategy_or_source_posteriors(make_client, complete, runs):
    with pytest.raises(UserInputError, match="No transfer model has chosen a trial"):
        transfer_report(Client())
    client = make_client(model=PretrainedGP, history=runs, pretraining={"steps": 2})
    complete(client)
    with pytest.raises(ValueError, match="PretrainedGP has no posteriors of source tasks"):
        transfer_report(client)
