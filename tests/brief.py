"""Brief fits and searches, where tests are about other things than how good they are."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botorch.generation import gen

from botorch_transfer.gp.fit import MAPOptions
from botorch_transfer.model import TargetGP


def fit_briefly(patch: pytest.MonkeyPatch) -> None:
    """Makes models fit from one start, and priors from two starts with few steps."""
    _, _, *others = MAPOptions.__init__.__defaults__
    patch.setattr(MAPOptions.__init__, "__defaults__", (1, 30, *others))
    patch.setattr(TargetGP, "num_restarts", 0)


@contextmanager
def brief_optimization(max_iter: int = 3) -> Iterator[None]:
    """Fits from one start, and ends every optimization of an acquisition after a few iterations."""
    # BoTorch has no batched L-BFGS-B with SciPy 1.18 or newer.
    optimize: Any = getattr(gen, "fmin_l_bfgs_b_batched", None)

    def brief(*args: Any, maxiter: int = max_iter, **options: Any) -> Any:
        return optimize(*args, maxiter=min(maxiter, max_iter), **options)

    with pytest.MonkeyPatch.context() as patch:
        fit_briefly(patch)
        patch.setattr(gen, "fmin_l_bfgs_b_batched", brief, raising=False)
        yield
