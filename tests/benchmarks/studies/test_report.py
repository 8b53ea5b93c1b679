import pandas as pd
import pytest
from matplotlib import image

from benchmarks.studies.metrics import regrets
from benchmarks.studies.report import regret_figure, regret_table
from tests.benchmarks.studies.test_metrics import results

FRAME = results(
    {
        (problem, seed, method): [-1.0 - seed, -0.5, gain]
        for problem in ("one", "two")
        for seed in (0, 1)
        for method, gain in (("ScaML-GP", 0.0), ("plain GP", -0.25))
    }
)


@pytest.fixture
def regret() -> pd.DataFrame:
    return regrets(FRAME, {})


def test_table_of_regrets(regret):
    assert regret_table(regret, at=(1, 3)).splitlines() == [
        "| method   | after 1 | after 3 |",
        "|:---------|--------:|--------:|",
        "| ScaML-GP |  1.5000 |  0.0000 |",
        "| plain GP |  1.5000 |  0.2500 |",
    ]


def test_table_with_evaluations_to_a_reference(regret):
    header, _, first, second = regret_table(regret, at=(3,), reference="ScaML-GP").splitlines()
    assert "evaluations to ScaML-GP's final value" in header
    assert [cell.strip() for cell in first.split("|")[3:5]] == ["3", "100%"]
    assert [cell.strip() for cell in second.split("|")[3:5]] == ["> 3", "0%"]


@pytest.mark.parametrize("problems", [["one"], ["one", "two"]])
def test_picture_is_saved(tmp_path, regret, problems):
    path = tmp_path / "new folder" / "regret.png"
    shown = regret.loc[regret.index.isin(problems, level="problem")]
    regret_figure(shown, path, title="Title", ylabel="regret")
    height, width, _ = image.imread(path).shape
    assert width > 400
    assert height > 400
