from matplotlib import image

from benchmarks.studies.metrics import regrets
from benchmarks.studies.report.profiles import profile_figure, solved
from tests.benchmarks.studies.report.test_curves import FRAME


def test_shares_of_runs_that_are_good_enough():
    shares = solved(regrets(FRAME, {}), 1.2)
    assert shares.loc["plain GP"].tolist() == [0.5, 1.0, 1.0]
    assert solved(regrets(FRAME, {}), 0.1).loc["plain GP"].tolist() == [0.0, 0.0, 0.0]


def test_picture_is_saved(tmp_path):
    profile_figure(regrets(FRAME, {}), tmp_path / "profiles.png", "Title")
    assert image.imread(tmp_path / "profiles.png").shape[1] > 400
