from __future__ import annotations

import pytest
import torch

from botorch_transfer import ScaMLGP

plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _no_window():
    plt.switch_backend("agg")
    yield
    plt.close("all")


def _model(*batch: int) -> ScaMLGP:
    X = torch.linspace(0, 1, 8, dtype=torch.double).unsqueeze(-1)
    history = {name: (X, (X * factor).sin()) for name, factor in (("low", 1.0), ("high", 9.0))}
    train_X = torch.rand(*batch, 2, 1, dtype=torch.double)
    model = ScaMLGP(train_X, train_X.sin(), history)
    if not batch:
        model.task_weights.weights = torch.tensor([0.2, 0.7])
    return model


def test_bars_are_the_weights_largest_on_top():
    from botorch_transfer.plotting import plot_weights

    ax = plot_weights(_model())
    assert [label.get_text() for label in ax.get_yticklabels()] == ["low", "high"]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([0.2, 0.7])


def test_shows_the_largest_only():
    from botorch_transfer.plotting import plot_weights

    _, ax = plt.subplots()
    assert plot_weights(_model(), ax=ax, max_tasks=1) is ax
    assert [label.get_text() for label in ax.get_yticklabels()] == ["high"]


def test_refuses_a_batch():
    from botorch_transfer.plotting import plot_weights

    with pytest.raises(ValueError, match="batch of models"):
        plot_weights(_model(3))
