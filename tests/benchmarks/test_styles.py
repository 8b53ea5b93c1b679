"""The look of methods in pictures."""

from itertools import combinations

from botorch.models import SingleTaskGP

from benchmarks.studies.methods import METHODS, MODELS
from benchmarks.styles import NAMES, STYLES, Style, style_of
from botorch_transfer import ScaMLGP, models
from botorch_transfer.plotting import BLACK


def test_no_two_methods_differ_in_colour_alone():
    assert set(METHODS) <= set(STYLES)
    for one, other in combinations(STYLES.values(), 2):
        assert (one.line, one.marker) != (other.line, other.marker)
        assert (one.color, one.line) != (other.color, other.line)
        assert one.color != other.color or one.marker != other.marker
    family = ("MTGP", "MTKGP", "WSGP", "HGP", "SHGP", "MHGP", "BHGP")
    assert len({STYLES[name].color for name in family}) == len(family)


def test_models_with_a_style_are_methods_of_the_studies():
    names = [name for name in models.__all__ if NAMES.get(name, name) in STYLES]
    for name in names:
        model = getattr(models, name)
        assert style_of(model) is style_of(name) is STYLES[NAMES.get(name, name)]
    looks = {style_of(name) for name in MODELS}
    # Averaging over hyperparameters belongs to other search spaces.
    assert [c for c in names if style_of(c) not in looks] == ["FullyBayesianHyperpriorGP"]
    assert style_of(SingleTaskGP) is style_of("SingleTaskGP") is STYLES["plain GP"]
    subclass = type("Mine", (ScaMLGP,), {})
    assert style_of(subclass) is STYLES["ScaML-GP"]
    assert style_of("mine") == Style(BLACK, "-", "o")
