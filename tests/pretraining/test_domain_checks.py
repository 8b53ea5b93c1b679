from __future__ import annotations

import pytest
import torch
from botorch.exceptions.errors import InputDataError

from botorch_transfer.data import Domain
from botorch_transfer.pretraining.hyperprior.distribution import (
    are_domains,
    check_domains,
    check_rows,
    find_domain,
)
from tests.families import ShiftedSines

SOURCES = ShiftedSines().sources()


def test_sound_domains_pass():
    domains = Domain(SOURCES, name="a"), Domain(SOURCES, name="b"), Domain(SOURCES)
    assert check_domains(domains) == list(domains)
    assert are_domains(domains)
    assert not are_domains([*SOURCES.values()])
    assert not are_domains(SOURCES)


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        (Domain(SOURCES), "put a single one into a list"),
        (SOURCES, "put a single one into a list"),
        ([], "There are no domains"),
        ([Domain(SOURCES), SOURCES], "Expected domains, not a dict: make one of each"),
        ([Domain(SOURCES, name="a"), Domain(SOURCES, name="a")], "have the name 'a': rename one"),
        ([Domain(SOURCES), Domain(SOURCES, context=torch.ones(2, 4))], "of different kinds"),
        (
            [Domain(SOURCES, context=torch.ones(2, size)) for size in (1, 2)],
            "contexts of the same size, or none",
        ),
    ],
)
def test_unfit_domains_are_refused(domains, message):
    with pytest.raises(InputDataError, match=message):
        check_domains(domains)


def test_a_context_has_a_row_for_each_input():
    check_rows(None, 3)
    check_rows(torch.ones(3, 5), 3)
    for context in (torch.ones(2, 5), torch.ones(3)):
        with pytest.raises(InputDataError, match="the target has 3 inputs: it must be d x s"):
            check_rows(context, 3)


def test_a_domain_has_a_name_and_a_number():
    assert find_domain(["a", "b"], "b") == find_domain(["a", "b"], 1) == 1
    for unknown in ("c", 2, -1):
        with pytest.raises(ValueError, match=r"There is no domain .* among 'a', 'b'"):
            find_domain(["a", "b"], unknown)
