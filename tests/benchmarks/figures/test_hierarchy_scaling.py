from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.figures.hierarchy_scaling import (
    FACTOR,
    FIT,
    GROWTHS,
    POSTERIOR,
    exponent,
    main,
    operations,
    processor_time,
)


@pytest.mark.parametrize("power", [0, 1, 3])
def test_exponent_is_that_of_the_larger_half(power: int) -> None:
    sizes = [10, 20, 40, 80]
    seconds = [9.0, 9.0, *(2.0 * size**power for size in sizes[2:])]
    assert exponent(sizes, seconds) == pytest.approx(power, abs=1e-9)


def test_operations_are_the_models_own() -> None:
    timed = operations(num_sources=2, num_points=5)
    assert list(timed) == [FIT, FACTOR, POSTERIOR]
    for sides in timed.values():
        assert list(sides) == ["MHGP", "BHGP", "SHGP"]
    variances = {name: side() for name, side in timed[POSTERIOR].items()}
    assert bool((variances["BHGP"] >= variances["MHGP"]).all())
    assert timed[FACTOR]["SHGP"]().num_tasks == 2
    value, gradient = timed[FIT]["SHGP"]()
    assert torch.isfinite(value).all()
    assert gradient.shape == (1, 5)


def test_processor_time_counts_work() -> None:
    matrix = torch.rand(400, 400)
    assert processor_time(lambda: torch.linalg.inv(matrix), 3) > processor_time(lambda: None, 3)


def test_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    small = [type(g)(g.name, (16, 24, 32), g.levels, g.promised) for g in GROWTHS[:1]]
    main(["--out", str(tmp_path), "--repeats", "1"], small)
    assert "promised at most" in capsys.readouterr().out
    assert (tmp_path / "hierarchy_scaling.png").stat().st_size > 10_000
