from __future__ import annotations

import torch

from botorch_transfer.kernels.source_conditional import SourceConditionalMean
from tests.kernels.test_source_conditional import build, dense, inputs


def test_is_the_conditional_mean():
    conditional = build("HGP")
    x = inputs(4)
    mean = SourceConditionalMean(conditional)(x)
    torch.testing.assert_close(mean, dense(conditional, x, x)[0])


def test_shares_its_parameters_with_the_kernel():
    conditional = build()
    parameters = set(SourceConditionalMean(conditional).parameters())
    assert parameters == set(conditional.parameters())
