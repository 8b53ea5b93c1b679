import json

import pytest
import torch

from benchmarks.tables import read_hpob


def evaluations(*rows):
    return {"X": [list(x) for x, _ in rows], "y": [[y] for _, y in rows]}


@pytest.fixture
def folder(tmp_path):
    files = {
        "train": {
            "5971": {
                "31": evaluations(((0.0, 0.5), 0.7), ((1.0, 0.25), 0.9)),
                "37": evaluations(((0.1, 0.1), 0.4)),
            },
            "4796": {"3": evaluations(((0.2,), 0.1))},
        },
        "validation": {"5971": {"14": evaluations(((0.3, 0.3), 0.5))}},
        "test": {"5971": {"10101": evaluations(((0.0, 0.5), 0.8), ((0.0, 0.5), 0.6))}},
    }
    for split, content in files.items():
        (tmp_path / f"meta-{split}-dataset.json").write_text(json.dumps(content))
    return tmp_path


def test_a_search_space_over_all_files(folder):
    table = read_hpob(folder, "5971")
    assert list(table.tasks) == ["31", "37", "14", "10101"]
    X, Y = table.tasks["31"]
    assert X.tolist() == [[0.0, 0.5], [1.0, 0.25]]
    assert Y.tolist() == [[0.7], [0.9]]
    assert X.dtype == Y.dtype == torch.double
    assert table.frame["split"].tolist() == ["train"] * 3 + ["validation"] + ["test"] * 2
    assert table.problem("10101").X.shape == (1, 2)
