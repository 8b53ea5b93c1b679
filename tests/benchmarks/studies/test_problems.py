from dataclasses import replace

import pytest
import torch

from benchmarks.studies.problems import subsample_history
from tests.benchmarks.studies.toy import NOTHING, history, table


def test_table_gives_each_row_once():
    problem = table(n=3)
    seen, _ = NOTHING
    for _ in range(9):
        x = problem.nearest(torch.tensor([0.5, 0.5], dtype=torch.double), seen)
        assert not (seen == x).all(dim=-1).any()
        assert problem.evaluate(x) == pytest.approx(-float((x - 0.4).square().sum()))
        seen = torch.cat([seen, x.unsqueeze(0)])
    with pytest.raises(ValueError, match="All 9 rows of 'grid' have been evaluated"):
        problem.nearest(x, seen)


def test_history_is_subsampled_without_replacement_and_by_seed():
    full = history(n=8)
    small, again, other = (subsample_history(full, 5, seed) for seed in (0, 0, 1))
    assert list(small) == list(full)
    for name, task in small.items():
        rows = [full[name][0].tolist().index(x) for x in task.X.tolist()]
        assert rows == sorted(set(rows))
        assert len(rows) == 5
        assert torch.equal(task.Y, full[name][1][rows])
    assert torch.equal(small["source 0"].X, again["source 0"].X)
    assert not torch.equal(small["source 0"].X, other["source 0"].X)


@pytest.mark.parametrize(
    "change",
    [{"num_sources": 1}, {"matching": True}, {"elsewhere": 3.0}, {"name": "x"}, {"history": {}}],
    ids=str,
)
def test_keys_of_tables_follow_what_their_runs_depend_on(change):
    assert replace(table(), **change).key() != table().key() == table().key()
