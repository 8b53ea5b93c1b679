from __future__ import annotations

import pytest

from benchmarks import drop_in


@pytest.mark.filterwarnings("ignore")
def test_ratios_and_errors(monkeypatch):
    def broken(build):
        if build is drop_in.MODELS["ScaMLGP"]:
            raise RuntimeError("no luck")

    monkeypatch.setitem(drop_in.LOOPS, "broken", broken)
    rows = drop_in.main(["fixed features", "broken"], ["ScaMLGP"])
    own, ratio = rows["fixed features"]
    assert own.endswith(" s")
    assert float(ratio) > 0
    assert rows["broken"][1] == "RuntimeError: no luck"
