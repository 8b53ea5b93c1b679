"""Real tables go from file to source data; skipped where the folder with them isn't there."""

import logging
import re

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.tables.shared import read_space
from botorch_transfer.data import as_datasets, from_dataframe
from tests.tables_folder import FOLDER, needs_tables

# name: tasks, columns of the encoding
TABLES = {
    "svm": (50, 6),
    "fcnet": (4, 12),
    "mlp": (8, 5),
    "rf": (68, 7),
    "rnn_optimizer": (12, 8),
    "direct_arylation": (3, 21),
    "oer_plates": (4, 11),
    "gcc": (29, 9),
    "lingeling": (49, 10),
    "nodejs": (60, 6),
    "pmlb/DecisionTreeClassifier": (164, 5),
    "pmlb/GradientBoostingClassifier": (160, 5),
    "pmlb/KNeighborsClassifier": (164, 3),
    "pmlb/LogisticRegression": (164, 7),
    "pmlb/RandomForestClassifier": (164, 6),
    "pmlb/SVC": (164, 6),
}
# Its losses span several orders of magnitude.
DIFFER_BY_FACTORS = ("fcnet",)

pytestmark = needs_tables


def load(name, max_rows=20_000):
    pytest.importorskip("pyarrow")
    frame = pd.read_parquet(FOLDER / f"{name}.parquet")
    if len(frame) > max_rows:
        frame = frame.iloc[:: len(frame) // max_rows]
    return frame, *read_space(FOLDER / f"{name}.parquet")


def absent_elements(name, frame, space):
    """Elements that aren't on a plate have the fraction zero there."""
    gaps = [column for column in space.columns if frame[column].isna().any()]
    return dict.fromkeys(gaps, 0.0) if name == "oer_plates" else None


# The tables of one folder differ in their parameters, which the round trip is about.
@pytest.mark.parametrize(
    "name", [name for name in TABLES if "pmlb" not in name or name.endswith("SVC")]
)
def test_tables_become_source_data(name, caplog):
    frame, space, goal = load(name, max_rows=5_000)
    tasks, dim = TABLES[name]
    with caplog.at_level(logging.INFO, logger="botorch_transfer"):
        options = {"goal": goal, "missing": absent_elements(name, frame, space), "robust": None}
        data = from_dataframe(frame, space, "y", "task", **options)
    datasets = as_datasets(data)
    assert len(datasets) == tasks
    assert list(data) == list(dict.fromkeys(frame["task"].astype(str)))

    X, Y = torch.cat([ds.X for ds in datasets]), torch.cat([ds.Y for ds in datasets])
    finite = frame["y"].map(np.isfinite)
    assert X.shape == (finite.sum(), dim)
    assert ((X >= 0) & (X <= 1)).all()
    sign = 1 if goal == "max" else -1
    assert Y.max().item() == pytest.approx((sign * frame["y"][finite]).max())

    counts = [re.match("([0-9,]+) of", text) for text in caplog.messages]
    failures = [int(count[1].replace(",", "")) for count in counts if count]
    assert sum(failures) == (~finite).sum()
    assert len(failures) == (not finite.all())
    assert any("log=True" in text for text in caplog.messages) == (name in DIFFER_BY_FACTORS)
    expected = len(failures) + (name in DIFFER_BY_FACTORS) + (name == "oer_plates")  # fractions
    assert len(caplog.messages) == expected


@pytest.mark.parametrize("name", TABLES)
def test_every_table_survives_a_round_trip(name):
    frame, space, _ = load(name, max_rows=5_000)
    frame = frame.fillna(absent_elements(name, frame, space) or {})
    X = space.encode(frame)
    decoded = space.decode(X)
    torch.testing.assert_close(space.encode(decoded), X, rtol=0, atol=1e-12)
    for column in space.columns:
        active = decoded[column].notna().to_numpy()
        before, after = frame[column][active], decoded[column][active]
        if pd.api.types.is_numeric_dtype(after):
            np.testing.assert_allclose(after.astype(float), before, rtol=1e-9)
        else:
            assert before.tolist() == after.tolist()
        assert frame[column][~active].isna().all()  # all that is inactive was empty in the table


def test_no_table_is_left_out():
    found = {str(p.relative_to(FOLDER).with_suffix("")) for p in FOLDER.rglob("*.parquet")}
    assert found == set(TABLES)
