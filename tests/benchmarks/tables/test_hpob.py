from __future__ import annotations

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


def test_refusals(folder):
    with pytest.raises(ValueError, match="no search space '1'"):
        read_hpob(folder, "1")
    with pytest.raises(FileNotFoundError, match=r"meta-augmented-dataset\.json is missing"):
        read_hpob(folder, "5971", ["augmented"])
    path = folder / "meta-test-dataset.json"
    path.write_text(json.dumps({"5971": {"31": evaluations(((0.0, 0.5), 0.7))}}))
    with pytest.raises(ValueError, match="'31' of '5971' is in two of the files"):
        read_hpob(folder, "5971")
    path.write_text(json.dumps({"5971": {"9": {"X": [[0.0, 0.5]], "y": [[0.1], [0.2]]}}}))
    with pytest.raises(ValueError, match=r"'9' of '5971' has inputs of the shape \(1, 2\) and 2"):
        read_hpob(folder, "5971")
    path.write_text(json.dumps({"5971": {"9": evaluations(((0.1, 0.2, 0.3), 0.7))}}))
    with pytest.raises(ValueError, match="different numbers of inputs"):
        read_hpob(folder, "5971")
