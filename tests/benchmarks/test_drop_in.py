import pytest
from botorch.models import SingleTaskGP

from benchmarks import drop_in
from botorch_transfer import TransferGP


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", drop_in.SEARCHES)
def test_searches(name):
    model_class = TransferGP if name == "qLogNEI" else SingleTaskGP
    regrets = [drop_in.search(name, model_class, seed, 3) for seed in (0, 0, 1)]
    assert 0 <= regrets[0] == regrets[1] != regrets[2] < 3.33
