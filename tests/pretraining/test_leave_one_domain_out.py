from __future__ import annotations

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_transfer.pretraining import Hyperprior, NetworkOptions, leave_one_domain_out
from botorch_transfer.pretraining.hyperprior import domain_fit
from tests.pretraining.domains import draw_domain, draw_domains


def test_each_domain_is_left_out_once(monkeypatch):
    calls, original = [], domain_fit._fit_domain
    monkeypatch.setattr(domain_fit, "_fit_domain", lambda *args: calls.append(1) or original(*args))
    domains = draw_domains()
    options = {"kind": "mphd", "num_restarts": 0, "network": NetworkOptions(num_steps=5)}
    pairs = list(leave_one_domain_out(domains, **options))
    assert len(calls) == 3
    assert [domain for domain, _ in pairs] == domains
    for left_out, (domain, found) in enumerate(pairs):
        assert domain.name not in found.domain_names
        expected = Hyperprior.fit(domains[:left_out] + domains[left_out + 1 :], **options)
        assert found.kernel == "matern52"
        for name, tensor in expected.state_dict().items():
            torch.testing.assert_close(found.state_dict()[name], tensor)


def test_a_single_domain_is_refused():
    with pytest.raises(InputDataError, match="two domains at least"):
        list(leave_one_domain_out([draw_domain([0.3])]))


def test_an_unknown_kind_is_refused_before_anything_is_fitted(monkeypatch):
    monkeypatch.delattr(Hyperprior, "fit")
    with pytest.raises(ValueError, match="Unknown kind 'mhpd'"):
        next(iter(leave_one_domain_out(draw_domains(), kind="mhpd")))
