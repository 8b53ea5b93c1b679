import gzip
import json
import math

import pytest
import torch

from benchmarks.tables import read_pd1

TASKS = ("mnist,cnn,256", "imagenet,resnet50,512")
CONFIGURATIONS = ((1e-5, 0.1, 0.0, 0.01), (10.0, 2.0, 0.999, 0.99), (0.01, 1.05, 0.9, 0.5))


def record(task, configuration, error, status="done"):
    names = ("initial_value", "power", "momentum", "decay_steps_factor")
    rooms = ("lr", "lr", "opt", "lr")
    values = {
        f"hps.{room}_hparams.{name}": value
        for room, name, value in zip(rooms, names, configuration, strict=True)
    }
    about = {"study_group": task, "status": status, "trial_dir": f"{task}-{configuration}"}
    return {**about, **values, "best_valid/error_rate": error}


def lines(records):
    return "\n".join(json.dumps(entry) for entry in records) + "\n"


@pytest.fixture
def folder(tmp_path):
    matched = [
        record(task, configuration, 0.1 * (1 + i + 3 * j))
        for j, task in enumerate(TASKS)
        for i, configuration in enumerate(CONFIGURATIONS)
    ]
    matched[1] |= {"status": "diverged", "best_valid/error_rate": None}
    (tmp_path / "pd1_matched_phase0_results.jsonl").write_text(lines(matched))
    with gzip.open(tmp_path / "pd1_matched_phase1_results.jsonl.gz", "wt") as file:
        file.write(lines([record(TASKS[0], (0.1, 1.0, 0.5, 0.5), 0.0)]))
    outside = record(TASKS[0], (0.1, 1.0, 0.9999, 0.5), 0.01)
    unmatched = [record(TASKS[0], (0.2, 1.0, 0.5, 0.5), 0.02), outside]
    (tmp_path / "pd1_unmatched_phase0_results.jsonl").write_text(lines(unmatched))
    return tmp_path


def test_matched_runs_of_both_phases(folder):
    table = read_pd1(folder)
    assert list(table.tasks) == list(TASKS)
    X, Y = table.tasks[TASKS[0]]
    expected = [[0.0, 0.0, 0.0, 0.0], [0.5, 0.5, 1 / 3, 0.5]]
    torch.testing.assert_close(X[:2], torch.tensor(expected, dtype=torch.double))
    assert Y.flatten().tolist() == pytest.approx([-math.log(r + 1e-10) for r in (0.1, 0.3, 0.0)])
    assert table.frame["phase"].tolist() == [0] * 5 + [1]
