from __future__ import annotations

import pytest
import torch

from botorch_transfer.kernels.gaussian import cholesky_or_nan


@pytest.mark.filterwarnings("ignore:A not p.d.")
def test_each_matrix_of_a_batch_by_itself():
    sound = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.double)
    matrices = torch.stack([sound, -sound, torch.ones_like(sound), sound * torch.nan])
    roots = cholesky_or_nan(torch.stack([matrices, matrices.flip(0)]))
    for batch, order in zip(roots, (range(4), reversed(range(4))), strict=True):
        found = dict(zip(order, batch, strict=True))
        torch.testing.assert_close(found[0], torch.linalg.cholesky(sound))
        assert found[1].isnan().all()
        torch.testing.assert_close(found[2] @ found[2].T, matrices[2], atol=1e-5, rtol=0)
        assert found[3].isnan().all()
