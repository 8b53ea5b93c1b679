"""Brief fits and searches, where tests are about other things than how good they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botorch.generation import gen

from botorch_transfer.gp.fit import MAPOptions
from botorch_transfer.model import TargetGP


@contextmanager
def brief_optimization(max_iter: int = 3) -> Iterator[None]:
    """Fits from one start, and ends every optimization of an acquisition after a few iterations."""
    # BoTorch has no batched L-BFGS-B with SciPy 1.18 or newer.
    optimize: Any = getattr(gen, "fmin_l_bfgs_b_batched", None)
    _, *others = MAPOptions.__init__.__defaults__

    def brief(*args: Any, maxiter: int = max_iter, **options: Any) -> Any:
        return optimize(*args, maxiter=min(maxiter, max_iter), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TargetGP, "num_restarts", 0)
        patch.setattr(MAPOptions.__init__, "__defaults__", (0, *others))
        patch.setattr(gen, "fmin_l_bfgs_b_batched", brief, raising=False)
        yield
