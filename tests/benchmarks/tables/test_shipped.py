import pytest

from benchmarks.tables import read_shipped
from botorch_transfer.datasets import load_tuning_history, tuning_search_space


@pytest.mark.parametrize("space", ["svm", "gbm", "mlp", "forest"])
def test_every_space(space):
    table = read_shipped(space)
    assert len(table.tasks) == 18
    assert table.space == tuning_search_space(space)
    losses = load_tuning_history(space)["log_loss"].dropna()
    assert len(table.frame) == len(losses)
    assert max(Y.max().item() for _, Y in table.tasks.values()) == -losses.min()
