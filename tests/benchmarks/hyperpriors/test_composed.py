from __future__ import annotations

import math

import pytest
import torch
from pandas import DataFrame

from benchmarks.hyperpriors import composed
from benchmarks.hyperpriors.composed import draw_history, main, negative_log_density, paired_table
from benchmarks.hyperpriors.real_domains import read_domains
from botorch_transfer import Hyperprior


def test_command(tables, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(composed, "AT", (1, 2))
    monkeypatch.setattr(composed, "CONTEXT", (0, 2))
    monkeypatch.setattr(composed, "NUM_SOURCES", (2,))
    monkeypatch.setattr(composed, "SPACES", ("SVC",))
    left_out = []
    refit = Hyperprior.refit
    monkeypatch.setattr(
        Hyperprior,
        "refit",
        lambda self, kind, names: left_out.append(sorted(names)) or refit(self, kind, names),
    )
    arguments = [str(tables), "--out", str(tmp_path / "out"), "--tasks", "1", "--points", "8"]
    main(arguments)
    first = capsys.readouterr().out
    for name in ("ScaML-GP, hyperprior", "population", "NLL @ 2", "regret @ 2", "plain GP"):
        assert name in first
    # A space is left out together with the same algorithm in another table.
    assert left_out == [["SVC", "svm"]] * 2
    monkeypatch.setattr(composed, "measure", None)  # nothing is run again
    main(arguments)
    assert capsys.readouterr().out == first
    assert len(list((tmp_path / "out" / "composed").glob("*/*.json"))) == 2


def test_fewer_sources_are_among_more_and_never_the_target(tables):
    (domain,) = (each for each in read_domains(tables, 3, 30) if each.name == "mlp")
    one, two = (draw_history(domain, 1, n) for n in (1, 2))
    assert domain.task_names[1] not in two
    assert list(one) == list(two)[:1]
    for (X, Y), (same_X, same_Y) in zip(one.values(), two.values(), strict=False):
        assert torch.equal(X, same_X)
        assert torch.equal(Y, same_Y)
        assert X.shape == (10, domain.dim)


def test_log_densities_are_of_unknown_points_in_units_of_their_deviation():
    X = torch.arange(6.0).double().unsqueeze(-1)
    Y = 100 * X

    class Certain:
        def posterior(self, points, observation_noise):
            assert observation_noise
            assert points.shape == (4, 1, 1)
            variance = Y.var().expand(4, 1, 1)
            return type("P", (), {"mean": 100 * points, "variance": variance})

    found = negative_log_density(X, Y, lambda X, Y, last: Certain(), 2, seed=0)
    assert found == pytest.approx(0.5 * math.log(2 * math.pi))


def test_differences_are_those_of_one_target_with_the_same_sources(monkeypatch):
    monkeypatch.setattr(composed, "NUM_SOURCES", (1,))
    rows = [
        {"space": "a", "task": str(task), "sources": 1, "method": f"{model}{suffix}", "regret": r}
        for model in composed.KERNELS
        for suffix, values in (("", (0.3, 0.5, 0.1)), (composed.WITH, (0.1, 0.6, 0.1)))
        for task, r in enumerate(values)
    ]
    table = paired_table(DataFrame(rows), ["regret"])
    assert "-0.033" in table
    assert "1 : 1" in table
