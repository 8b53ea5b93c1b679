"""The look of methods in pictures."""

from itertools import combinations

from botorch.models import SingleTaskGP

import botorch_transfer
from benchmarks.styles import NAMES, STYLES, Style, style_of
from botorch_transfer import ScaMLGP
from botorch_transfer.modular import SourcePosteriorGP
from botorch_transfer.plotting import BLACK


def test_no_two_methods_differ_in_colour_alone():
    for one, other in combinations(STYLES.values(), 2):
        assert (one.line, one.marker) != (other.line, other.marker)
        assert (one.color, one.line) != (other.color, other.line)
        assert one.color != other.color or one.marker != other.marker


def test_every_model_has_a_style():
    models = [name for name in botorch_transfer.__all__ if name.endswith("GP")]
    assert len(models) == 17
    for name in models:
        model = getattr(botorch_transfer, name)
        assert style_of(model) is style_of(name) is STYLES[NAMES.get(name, name)]
    assert style_of(SingleTaskGP) is style_of("SingleTaskGP") is STYLES["plain GP"]


def test_the_hierarchical_methods_differ_in_colour():
    family = ("MTGP", "MTKGP", "WSGP", "HGP", "SHGP", "MHGP", "BHGP")
    assert len({STYLES[name].color for name in family}) == len(family)


def test_a_subclass_looks_like_its_base():
    class Mine(ScaMLGP):
        pass

    assert style_of(Mine) is STYLES["ScaML-GP"]


def test_a_new_method_is_black():
    class Own(SourcePosteriorGP):
        pass

    assert style_of(Own) == style_of("own") == style_of("mine") == Style(BLACK, "-", "o")
