from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch

from botorch_transfer.pretraining import PretrainedPrior, PretrainingOptions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "sgd"}, "Unknown optimizer 'sgd'"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be positive"),
        ({"batch_size": 0}, "batch_size=0 must be positive"),
        ({"task_batch_size": 0}, "task_batch_size=0 must be positive"),
        ({"patience": 0}, "patience=0 must be positive"),
        ({"steps": -1}, "steps=-1 is out of range"),
        ({"validation_every": 0}, "validation_every=0 is out of range"),
        ({"checkpoint_every": 0}, "checkpoint_every=0 is out of range"),
        ({"objective": "mll"}, "Unknown objective 'mll'"),
        ({"objective": "nll+ekl", "nll_weight": 0.0}, "nll_weight=0.0 must be positive"),
    ],
)
def test_options_out_of_range(options, message):
    X = torch.rand(4, 2, dtype=torch.double)
    with pytest.raises(ValueError, match=message):
        PretrainedPrior.stationary(2).fit([(X, X[:, :1])], **options)


def test_content_is_all_but_how():
    options = PretrainingOptions(optimizer="adam")
    how = {"progress": True, "checkpoint": "run", "checkpoint_every": 3}
    assert replace(options, **how).content() == options.content()
    for field in fields(options):
        if field.name not in how:
            other = "lbfgs" if field.name == "optimizer" else 12
            assert replace(options, **{field.name: other}).content() != options.content()
