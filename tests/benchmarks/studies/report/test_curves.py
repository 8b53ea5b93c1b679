import pandas as pd

from benchmarks.studies.metrics import average, error_of_average, regrets
from benchmarks.studies.report.curves import _panels
from tests.benchmarks.studies.test_metrics import results

FRAME = results(
    {
        (problem, seed, method): [-1.0 - seed, -0.5, gain]
        for problem in ("one", "two")
        for seed in (0, 1)
        for method, gain in (("ScaML-GP", 0.0), ("plain GP", -0.25))
    }
)


def test_bands_are_those_of_the_tables():
    regret = regrets(FRAME, {})
    panels = _panels(regret)
    assert list(panels) == ["mean over 2 tasks", "one", "two"]
    for name, rows in zip(panels, (regret, regret.loc[["one"]], regret.loc[["two"]]), strict=True):
        pd.testing.assert_frame_equal(panels[name].mean, average(rows))
        pd.testing.assert_frame_equal(panels[name].error, error_of_average(rows))
