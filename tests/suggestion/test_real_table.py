"""From a table as a laboratory saves it to suggestions, by the command alone."""

import json

import numpy as np
import pandas as pd

from botorch_transfer.__main__ import main
from tests.suggestion.brief_search import brief_search

LIGANDS = {
    "PPh₃": ("603-35-0", "c1ccc(P(c2ccccc2)c2ccccc2)cc1"),
    "tBu-XPhos": ("564483-19-8", "CC(C)c1cc(C(C)C)c(-c2ccccc2P(C(C)(C)C)C(C)(C)C)c(C(C)C)c1"),
    "α-BrettPhos": ("1070663-78-3", "COc1ccc(OC)c(P(C2CCCCC2)C2CCCCC2)c1"),
    "AdBrettPhos": ("1160861-59-5", "COc1ccc(OC)c(P(C2CCCCC2))c1"),
}
BASES = ["P₂Et", "BTMG", "MTBD"]
ADDITIVES = ["5-phenylisoxazole", "ethyl isoxazole", "méthyl oxazole", None]


def reactions(n: int) -> pd.DataFrame:
    """Couplings of four aryl halides; numbers with units, empty additives, copies and notes."""
    rng = np.random.default_rng(0)
    halides = ["chloroanisole", "bromoanisole", "iodoanisole", "bromopyridine"]
    runs = pd.DataFrame({"plate": 1 + np.arange(n) // 96, "row": rng.integers(1, 33, n)})
    runs["date"] = [f"{1 + day % 28}.03.2023" for day in range(n)]
    runs["Aryl halide"] = rng.choice(halides, n)
    runs["halide mass"] = runs["Aryl halide"].map(lambda name: 100.0 + halides.index(name))
    runs["ligand"] = rng.choice(list(LIGANDS), n)
    runs["ligand CAS"] = runs["ligand"].map(lambda name: LIGANDS[name][0])
    runs["ligand SMILES"] = runs["ligand"].map(lambda name: LIGANDS[name][1])
    runs["base"], runs["additive"] = rng.choice(BASES, n), rng.choice(np.array(ADDITIVES), n)
    runs["temperature"], runs["time"] = rng.uniform(40, 100, n).round(1), rng.uniform(5, 60, n)
    good = (runs["ligand"] == "tBu-XPhos") * 30.0 + (runs["base"] == "MTBD") * 20
    runs["yield"] = (good + runs["temperature"] / 4 + rng.normal(0, 3, n)).clip(0).round(2)
    runs["atmosphere"] = "N₂"
    for name, unit in (("temperature", "°C"), ("time", "min"), ("yield", "%")):
        cells = runs[name].round(1).astype(str).str.replace(".", ",")
        runs[name] = cells + " " + unit
    return runs


def test_a_table_of_a_laboratory(tmp_path, monkeypatch, capsys, caplog):
    monkeypatch.chdir(tmp_path)
    reactions(120).to_csv("old.csv", index=False, sep=";", encoding="utf-8-sig")
    columns = ["--task", "Aryl halide", "--outcome", "yield"]
    assert main(["space", "old.csv", *columns]) == 0
    printed = capsys.readouterr().out
    assert "méthyl oxazole" in json.loads(printed)["additive"]["choices"]
    space = json.loads(printed)
    assert list(space) == ["ligand", "base", "temperature", "time", "additive"]
    assert space["additive"]["choices"][-1] == "none"
    assert caplog.messages[0] == "Read as numbers: 'temperature' in °C, 'time' in min"
    assert "'ligand CAS' has other names for the values of 'ligand'" in caplog.text
    assert "'halide mass' has one value in each task" in caplog.text
    space["temperature"] |= {"low": 40, "high": 100, "step": 0.5}
    (tmp_path / "space.json").write_text(json.dumps(space, ensure_ascii=False), encoding="utf-8")
    command = ["suggest", "space.json", "old.csv", "runs.csv", *columns, "--goal", "max"]
    with brief_search():
        for number in range(2):
            assert main([*command, "--append", "--model", "ScaMLGP"]) == 0
            # The table is one that the spreadsheet of the old runs reads.
            assert (tmp_path / "runs.csv").read_text(encoding="utf-8").startswith("\ufeffligand;")
            # The outcome is typed in with its unit, and the temperature was not quite met.
            runs = pd.read_csv("runs.csv", sep=";", dtype=str, keep_default_na=False)
            cell, *unit = runs["temperature"].iloc[-1].split()
            assert float(cell.replace(",", ".")) % 0.5 == 0
            assert unit == ["°C"] * number  # as in the cell above
            assert len(runs["time"].iloc[-1]) <= 8
            runs.loc[number, "yield"] = f"{60 + number} %"
            runs.loc[number, "temperature"] = "101 °C"
            runs.to_csv("runs.csv", index=False, sep=";", encoding="utf-8-sig")
    assert runs["ligand"].tolist() == ["tBu-XPhos"] * 2
    assert "1 of the runs lie slightly outside of the search space" in caplog.text
