"""Long work says how long it takes; a bar is only where somebody looks."""

import logging
import sys

import pytest
import torch

from botorch_transfer import progress as room
from botorch_transfer.gp import fit
from botorch_transfer.pretraining import SourceGPs, SourcePopulation
from botorch_transfer.progress import announce, showing, track

pytestmark = pytest.mark.usefixtures("nothing_remembered")

X = torch.rand(8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
HISTORY = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}


@pytest.fixture
def clock(monkeypatch):
    """A clock that runs by a second whenever it is read."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(room, "perf_counter", lambda: next(seconds))


@pytest.fixture(autouse=True)
def _messages(caplog):
    caplog.set_level(logging.INFO, room.__name__)


def test_what_takes_long_is_one_line(clock, caplog):
    assert list(track("abcde", "letters", 5)) == list("abcde")
    assert caplog.messages == ["Pre-training takes about 5 seconds (letters)."]


@pytest.mark.parametrize(("total", "show"), [(2, None), (5, False)])
def test_nobody_is_told_of_short_work_or_who_does_not_want_it(total, show, clock, caplog):
    assert list(track(range(total), "numbers", total, show)) == list(range(total))
    announce("it", 2.0)
    announce("it", 100.0, show=False)
    assert caplog.messages == []


def test_a_bar_is_shown_on_request(capsys):
    list(track("ab", "letters", 2))
    assert capsys.readouterr().err == ""
    list(track("ab", "letters", 2, show=True))
    assert "letters: 100%" in capsys.readouterr().err
    with showing(True):
        SourceGPs.fit(HISTORY, num_restarts=0)
    assert "source GPs: 100%" in capsys.readouterr().err


def test_on_a_terminal_long_work_has_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    list(track("ab", "letters", 2))
    assert "letters" not in capsys.readouterr().err
    monkeypatch.setattr(room, "PATIENCE", 0.0)
    list(track("ab", "letters", 2))
    assert "letters: 100%" in capsys.readouterr().err


def test_fits_are_announced_and_stay_the_same(caplog, clock, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    options = {"num_restarts": 0, "chunk_elements": 1}
    with showing(False):
        expected = SourceGPs.fit(HISTORY, **options), SourcePopulation.fit(HISTORY)
    assert caplog.messages == []
    fit._finished._results.clear()
    monkeypatch.setattr(room, "PATIENCE", 0.0)
    found = SourceGPs.fit(HISTORY, **options), SourcePopulation.fit(HISTORY)
    told = [message.split(" seconds ")[1] for message in caplog.messages]
    assert told == ["(source GPs).", "(one GP of 2 tasks)."]
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one.mean(X), other.mean(X))
