from __future__ import annotations

from itertools import combinations

import pytest

import botorch_transfer
from botorch_transfer import ScaMLGP, plotting
from botorch_transfer.plotting import NAMES, STYLES, Style, style_of


def test_no_two_methods_differ_in_colour_alone():
    for one, other in combinations(STYLES.values(), 2):
        assert (one.line, one.marker) != (other.line, other.marker)
        assert (one.color, one.line) != (other.color, other.line)
        assert one.color != other.color or one.marker != other.marker


def test_every_model_has_a_style():
    models = [name for name in botorch_transfer.__all__ if name.endswith("GP")]
    assert len(models) == 15
    for name in models:
        assert style_of(getattr(botorch_transfer, name)) is STYLES[NAMES[name]]
        assert style_of(name) is STYLES[NAMES[name]]


def test_the_hierarchical_methods_differ_in_colour():
    family = ("MTGP", "MTKGP", "WSGP", "HGP", "SHGP", "MHGP", "BHGP")
    assert len({STYLES[name].color for name in family}) == len(family)


def test_a_subclass_looks_like_its_base():
    class Mine(ScaMLGP):
        pass

    assert style_of(Mine) is STYLES["ScaML-GP"]


def test_a_new_method_joins_with_a_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(STYLES, "mine", Style(plotting.BLACK, "-.", "o"))
    assert style_of("mine").line == "-."


def test_method_without_a_style_is_refused():
    with pytest.raises(ValueError, match="Method 'mine' has no colour yet"):
        style_of("mine")
