"""Source GPs of three small tasks, and what their tests share."""

import torch

from botorch_transfer.gp import fit as map_fit
from botorch_transfer.pretraining import SourceGPs
from tests.gp.padded import points
from tests.gp.tasks import draw_data

DATA = draw_data([6, 3, 8], known_noise=[1])
X = points(5, 2, seed=7)


def fit(data=DATA, **kwargs) -> SourceGPs:
    return SourceGPs.fit(data, **{"num_restarts": 0, **kwargs})


def count_fits(monkeypatch) -> list[int]:
    """Records how many chunks are fitted."""
    calls: list[int] = []
    optimize = map_fit._optimize
    monkeypatch.setattr(
        map_fit, "_optimize", lambda *args: calls.append(len(args[0].X)) or optimize(*args)
    )
    return calls


def check_predictions(first: SourceGPs, expected: SourceGPs, tolerance: float = 1e-5) -> None:
    close = {"atol": tolerance, "rtol": tolerance}
    for ours, theirs in (
        (first.mean(X), expected.mean(X)),
        (first.covariance(X), expected.covariance(X)),
        (first.outcome_mean, expected.outcome_mean),
        (first.outcome_std, expected.outcome_std),
        (first.log_posterior, expected.log_posterior),
    ):
        torch.testing.assert_close(ours, theirs, **close)
