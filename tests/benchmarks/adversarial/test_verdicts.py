from __future__ import annotations

import pandas as pd

from benchmarks.adversarial.histories import synthetic_problem
from benchmarks.adversarial.verdicts import verdict_table, verdicts


def test_histories_are_named_from_ten_points():
    problems = [synthetic_problem("branin", history, 0) for history in ("inverted", "helpful")]
    rows = [
        {
            "problem": problem.name,
            "method": "guarded",
            "evaluation": row + 1,
            "x": problem.X[row].tolist(),
            "value": float(problem.Y[row]),
        }
        for problem in problems
        for row in range(12)
    ]
    found = verdicts(pd.DataFrame(rows), problems)
    assert len(found) == 2 * 11
    whole = found[found["kind"] == "all"].set_index("history")["verdict"]
    assert whole.to_dict() == {"inverted": "misleading", "helpful": "helpful"}
    table = verdict_table(found)
    assert "branin inverted" in table
    assert "100%" in table
