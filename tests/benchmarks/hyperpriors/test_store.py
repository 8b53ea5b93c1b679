from __future__ import annotations

import pytest
from gpytorch.priors import GammaPrior, NormalPrior

from benchmarks.hyperpriors.store import remembered, remembered_hyperprior
from botorch_transfer import Hyperprior


def test_results_are_computed_once(tmp_path):
    calls = []
    path = tmp_path / "deep" / "result.json"
    for _ in range(2):
        assert remembered(path, lambda: calls.append(1) or [1.5, 2.0]) == [1.5, 2.0]
    assert calls == [1]
    assert [file.name for file in path.parent.iterdir()] == ["result.json"]


def test_what_fails_is_not_remembered(tmp_path):
    with pytest.raises(ZeroDivisionError):
        remembered(tmp_path / "result.json", lambda: 1 / 0)
    assert remembered(tmp_path / "result.json", lambda: 3) == 3


def test_hyperpriors_are_learned_once(tmp_path):
    calls = []

    def learn() -> Hyperprior:
        calls.append(1)
        positive = GammaPrior(2.0, 4.0)
        return Hyperprior.specified(NormalPrior(0.0, 1.0), positive, positive, positive)

    first, second = (
        remembered_hyperprior(tmp_path / "folder" / "it.safetensors", learn) for _ in range(2)
    )
    assert calls == [1]
    assert str(first) == str(second)
