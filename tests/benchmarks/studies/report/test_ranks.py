import numpy as np
import pandas as pd
from matplotlib import image

from benchmarks.studies.report.ranks import rank_figure, rank_sentence

VALUES = pd.DataFrame(
    np.random.default_rng(0).random((30, 3)) + np.array([0.0, 0.05, 3.0]),
    columns=["ScaML-GP", "SHGP", "plain GP"],
)


def test_sentence_names_those_that_cannot_be_told_from_the_first():
    sentence = rank_sentence(VALUES)
    assert "over 30 cases" in sentence
    end = sentence.split("Not told apart from the first: ")[1]
    assert "ScaML-GP" in end
    assert "SHGP" in end
    assert "plain GP" not in end


def test_picture_is_saved(tmp_path):
    rank_figure(VALUES, tmp_path / "ranks.png", "Title")
    assert image.imread(tmp_path / "ranks.png").shape[1] > 400
