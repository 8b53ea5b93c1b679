from __future__ import annotations

import pickle
from copy import deepcopy

import torch

from botorch_transfer.models.target import LogLikelihoodTerm


def test_copies_have_the_value_and_no_graph():
    value = torch.ones(2, requires_grad=True) * 3
    term = LogLikelihoodTerm(value)
    assert term.loss() is value
    for copy in (deepcopy(term), pickle.loads(pickle.dumps(term))):
        assert torch.equal(copy.loss(), value)
        assert not copy.loss().requires_grad
