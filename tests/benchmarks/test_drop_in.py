import pytest
from botorch.models import SingleTaskGP

from benchmarks import drop_in
from botorch_transfer import TransferGP


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", drop_in.SEARCHES)
def test_searches(name):
    model_class = TransferGP if name == "qLogNEI" else SingleTaskGP
    regrets = [drop_in.search(name, model_class, seed, 3) for seed in (0, 0, 1)]
    assert 0 <= regrets[0] == regrets[1] != regrets[2] < 3.33
