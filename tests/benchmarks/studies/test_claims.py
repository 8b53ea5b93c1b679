import numpy as np
import pandas as pd
import pytest

from benchmarks.studies.claims import Claim, claims_list

NOISE = np.random.default_rng(0).normal(size=40)
AREAS = pd.DataFrame(
    {
        "good": 1.0 + 0.01 * NOISE,
        "same": 1.01 + 0.1 * NOISE[::-1],
        "bad": 2.0 + 0.01 * NOISE,
    }
)
REGRET = pd.DataFrame({1: AREAS.stack(), **dict.fromkeys((2, 3, 4, 5), 2.0 * AREAS.stack())})
REGRET.index = pd.MultiIndex.from_tuples(
    [("p", seed, name) for seed, name in REGRET.index], names=["problem", "seed", "method"]
)


@pytest.mark.parametrize(
    ("pairs", "margin", "verdict"),
    [
        ([("good", "bad")], 1.0, "holds"),
        ([("bad", "good")], 1.0, "does not hold"),
        ([("good", "same")], 1.0, "rather holds"),
        ([("same", "good")], 1.0, "rather not"),
        ([("same", "good")], 1.1, "holds"),
        ([("good", "bad"), ("good", "bad")], 1.0, "holds"),
        ([("good", "bad"), ("good", "same")], 1.0, "of 2: 1 holds, 1 rather holds"),
        ([("bad", "good"), ("good", "bad")], 1.0, "of 2: 1 holds, 1 does not hold"),
    ],
)
def test_verdicts(pairs, margin, verdict):
    found = Claim("", pairs, margin).verdict(AREAS)
    assert found is not None
    assert found[0] == verdict


@pytest.mark.parametrize(("cases", "verdict"), [(5, "rather holds"), (6, "holds")])
def test_few_cases_decide_nothing(cases, verdict):
    seeds_of_problems = pd.MultiIndex.from_product(
        [range(cases), range(2)], names=["problem", "seed"]
    )
    found = Claim("", [("good", "bad")]).verdict(AREAS[: 2 * cases].set_axis(seeds_of_problems))
    assert found is not None
    assert found[0] == verdict


def test_numbers_are_given():
    found = Claim("", [("good", "bad")]).verdict(AREAS)
    assert found is not None
    assert found[1].startswith("good / bad 0.50 [0.")


def test_methods_that_were_not_run_are_not_judged():
    claims = [Claim("good wins", [("good", "bad"), ("good", "absent")]), Claim("no", [("x", "y")])]
    text = claims_list(claims, REGRET)
    assert text.startswith("- good wins: **holds** (good / bad")
    assert "absent" not in text
    assert len(text.splitlines()) == 1


def test_early_claims_are_judged_by_the_first_quarter():
    regret = REGRET.copy()
    bad = regret.index.get_level_values("method") == "bad"
    regret.loc[bad, [3, 4, 5]] = 0.0  # bad at first, best in the end
    text = claims_list(
        [Claim(name, [("good", "bad")], early=name == "early") for name in ("early", "all")], regret
    )
    assert text.startswith("- early: **holds**")
    assert "- all: **does not hold**" in text
