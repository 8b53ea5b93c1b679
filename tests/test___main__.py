"""The command line, as a new user would type it."""

import io
import json
import logging
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from botorch_transfer import SearchSpace, suggest
from botorch_transfer.__main__ import _parser, main
from botorch_transfer.datasets import load_tuning_history
from botorch_transfer.pretraining import SourceGPs, clear_memos
from botorch_transfer.suggestion.command import _pairs
from tests.suggestion.brief_search import brief_search

COMMAND = ["suggest", "space.json", "old.csv"]
LOSS = ["--outcome", "log_loss"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with a table of old runs and a search space; searches are brief."""
    monkeypatch.chdir(tmp_path)
    old = load_tuning_history("svm").drop(columns=["space", "fit_seconds"])
    old = old[old["task"].isin(["digits_3_vs_8", "breast_cancer", "diabetes_top_quarter"])]
    old.groupby("task").head(25).to_csv("old.csv", index=False)
    spec = {"C": {"type": "float", "low": 0.01, "high": 1000, "log": True}}
    spec["gamma"] = {"type": "float", "low": 1e-5, "high": 10, "log": True}
    (tmp_path / "space.json").write_text(json.dumps(spec))
    with brief_search():
        yield tmp_path


def test_from_a_table_to_suggestions(folder, capsys, caplog):
    assert main(["space", "old.csv", "--outcome", "log_loss", "accuracy"]) == 0
    (folder / "guessed.json").write_text(capsys.readouterr().out)
    assert SearchSpace.from_json("guessed.json").columns == ["C", "gamma"]
    assert main(["suggest", "guessed.json", "old.csv", "-n", "3", *LOSS, "--model", "ScaMLGP"]) == 0
    found = capsys.readouterr()
    assert not [message for message in caplog.messages if "count as good" in message]
    assert len(found.out.splitlines()) == 4


def test_a_message_is_said_once(capsys, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    old = pd.read_csv("old.csv").assign(C="1 mL")
    old.loc[::9, ["log_loss", "accuracy"]] = None
    old.to_csv("old.csv", index=False)
    outcomes = ["--candidates", "old.csv", "--outcome", "log_loss", "accuracy"]
    assert main([*COMMAND, *outcomes]) == 2
    assert "The name 'accuracy' suggests that large values" in capsys.readouterr().err
    assert main([*COMMAND, *outcomes, "--goal", "min", "max", "--model", "sorted"]) == 0
    said = capsys.readouterr().err.splitlines()
    assert "Read as numbers: 'C' in mL" in said
    assert len(said) == len(set(said))


def test_a_reader_that_leaves_early_is_no_error(monkeypatch):
    class Left(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Left())
    assert main(["space", "old.csv", *LOSS]) == 0


def test_a_table_without_tasks_has_a_space(folder, capsys):
    pd.read_csv("old.csv").drop(columns="task").to_csv("old.csv", index=False)
    assert main(["space", "old.csv", *LOSS, "--leave-out", "accuracy"]) == 0
    printed = capsys.readouterr()
    assert list(json.loads(printed.out)) == ["C", "gamma"]
    told = "There is no column 'task': if another column has task names, give --task.\n"
    assert printed.err == told
    assert main(["space", "old.csv", *LOSS, "--task", "day"]) == 2
    assert "The table has no column 'day': use one of" in capsys.readouterr().err


def test_a_further_call_finds_what_the_first_one_learned(folder, capsys, monkeypatch):
    command = [*COMMAND, *LOSS, "--cache", "kept", "--model", "ScaMLGP"]
    clear_memos()  # of earlier tests, which kept nothing in this folder
    assert main(command) == 0
    first = capsys.readouterr().out
    clear_memos()

    def refuse(*args, **kwargs):
        raise AssertionError("pre-trained again")

    monkeypatch.setattr(SourceGPs, "_pretrain", refuse)
    assert main(command) == 0
    assert capsys.readouterr().out == first


def test_an_interruption_is_one_sentence(capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("botorch_transfer.suggestion.command.suggest_rows", interrupt)
    assert main([*COMMAND, *LOSS]) == 130
    message = "python -m botorch_transfer suggest: Interrupted. The cache keeps finished tasks.\n"
    assert capsys.readouterr().err.endswith(message)


def test_appended_rows_are_pending(capsys):
    model = ["--model", "ScaMLGP"]
    assert main([*COMMAND, "runs.csv", "-n", "2", "--append", *LOSS, *model]) == 0
    runs = pd.read_csv("runs.csv")
    assert list(runs.columns) == ["C", "gamma", "log_loss"]
    assert runs["log_loss"].isna().all()
    space, old = SearchSpace.from_json("space.json"), pd.read_csv("old.csv")
    expected = suggest(space, old, runs, *LOSS[1:], model="ScaMLGP")
    assert main([*COMMAND, "runs.csv", "--append", *LOSS, *model]) == 0
    runs = pd.read_csv("runs.csv")
    assert len(runs) == 3
    assert runs["C"][2] == float(f"{expected['C'][0]:.6g}")
    assert "The rows are added to runs.csv." in capsys.readouterr().out


def test_appending_leaves_what_the_table_says(folder):
    told = b'sep=,\r\nid,C, gamma,log_loss,note,,\r\n007,1e0,1.50e-2,0.30,"a, b",,\r\n,,,,,,'
    (folder / "kept.csv").write_bytes(told)
    (folder / "kept.csv").chmod(0o640)
    (folder / "runs.csv").symlink_to(folder / "kept.csv")
    assert main([*COMMAND, "runs.csv", "--append", *LOSS, "--model", "ScaMLGP"]) == 0
    start, end = (folder / "kept.csv").read_bytes().split(told)
    assert not start
    assert re.fullmatch(rb"\r\n,[\d.]+,[\de.-]+,,,,\r\n", end)
    assert (folder / "runs.csv").is_symlink()
    assert (folder / "kept.csv").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    "rows", ["1.125;0.5;.3\n1.25;0.25;.2\n", "1.125;1.125;\n", "1,125\t0,5\t0,3\n1\t1\t0,2\n"]
)
def test_appended_numbers_have_the_decimal_mark_of_the_file(folder, rows):
    (folder / "runs.csv").write_text("C;gamma;log_loss\n".replace(";", rows[5]) + rows)
    fixed = ["--fixed", "C=2.375", "gamma=0.75", "--model", "ScaMLGP"]
    assert main([*COMMAND, "runs.csv", "--append", *LOSS, *fixed]) == 0
    written = (folder / "runs.csv").read_text().splitlines()[-1]
    assert written == f"2.375{rows[5]}0.75{rows[5]}".replace(".", rows[1])


def test_appended_cells_are_written_as_those_above(folder):
    (folder / "runs.csv").write_text("task;C;gamma;log_loss\nnew;1,5 mL;0,1;0,30\n;2 mL;1;0,2\n")
    rule = [*LOSS, "--fixed", "C=2.5 mL", "gamma=1"]
    assert main([*COMMAND, "runs.csv", "--append", *rule, "--model", "ScaMLGP"]) == 0
    assert (folder / "runs.csv").read_text().splitlines()[-1] == "new;2,5 mL;1,0;"
    (folder / "runs.csv").write_text("task,C,gamma\na,1 mL,1\nb,2 g,1\n")
    space = {"C": {"type": "categorical", "choices": ["1 mL", "2 g"]}}
    (folder / "space.json").write_text(json.dumps(space))
    first = ["suggest", "space.json", "--runs", "runs.csv", *LOSS, "--fixed", "C=2 g", "--repeats"]
    assert main([*first, "--append"]) == 0
    assert (folder / "runs.csv").read_text().splitlines()[-1] == ",2 g,,"


def test_an_empty_file_is_a_table_to_start(folder):
    (folder / "runs.csv").touch()
    assert main([*COMMAND, "runs.csv", "--append", *LOSS, "--model", "ScaMLGP"]) == 0
    assert len(pd.read_csv("runs.csv")) == 1


def test_nothing_is_appended_after_an_error(folder, capsys):
    (folder / "runs.csv").write_text("C,gamma,log_loss\n1.0,99.0,0.3\n")
    assert main([*COMMAND, "runs.csv", "--append", *LOSS]) == 2
    assert "In the runs: Parameter 'gamma' is 99.0 in row 2" in capsys.readouterr().err
    assert len((folder / "runs.csv").read_text().splitlines()) == 2


def test_a_report_is_one_page(folder):
    pytest.importorskip("plotly")
    (folder / "runs.csv").write_text("C,gamma,log_loss\n1.0,0.1,0.3\n1,1,inf\n2,0.1,\n")
    fixed = ["--fixed", "C=1", "gamma=0.1", "--repeats"]
    options = [*LOSS, "--model", "ScaMLGP", *fixed, "--outcome-range", "0", "2"]
    assert main([*COMMAND, "runs.csv", "--report", "out.html", *options]) == 0
    page = (folder / "out.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert '["1", "done"' in page
    assert '["2", "failed"' in page
    assert '["3", "pending"' in page
    assert '"runs": "runs.csv", "fixed": "C=1, gamma=0.1", "outcome_range": "0, 2"' in page
    assert '"seed": "0"' in page


def test_nothing_is_appended_where_the_report_cannot_be_written(folder, capsys, monkeypatch):
    monkeypatch.setattr("botorch_transfer.suggestion.page.suggestion_page", lambda *_: "page")
    arguments = [*COMMAND, "runs.csv", "--append", "--report", "nowhere/page.html", *LOSS]
    assert main([*arguments, "--model", "ScaMLGP"]) == 2
    assert "nowhere does not exist: create" in capsys.readouterr().err
    assert not (folder / "runs.csv").exists()


def test_only_an_empty_cell_is_empty_in_text(folder, capsys):
    choices, losses = ["None", "sqrt"] * 6, [0.1, 0.9] * 6
    old = pd.DataFrame({"features": choices, "bag": [True, False] * 6, "loss": losses})
    old.assign(task="a", depth=range(1, 13)).to_csv("old.csv", index=False)
    assert main(["space", "old.csv"]) == 0
    guessed = json.loads(capsys.readouterr().out)
    assert guessed["features"]["choices"] == ["None", "sqrt"]
    (folder / "space.json").write_text(json.dumps(guessed))
    for _ in range(2):
        assert main([*COMMAND, "runs.csv", "--append", "--model", "ScaMLGP"]) == 0
    assert set((folder / "runs.csv").read_text().replace(",", " ").split()) & set(choices)


def test_tables_as_spreadsheets_save_them(folder, capsys):
    runs = Path("runs.csv")
    runs.write_text("C,gamma,log_loss\n1.0,0.01,0.5\n,,\n 2.0,0.02 ,\n")
    assert main([*COMMAND, "runs.csv", *LOSS, "--model", "ScaMLGP"]) == 0
    runs.write_text("C,gamma,log_loss\n1.0,0.01,0.5\n,,\n2.0,0.02,1.2.3\n")
    assert main([*COMMAND, "runs.csv", *LOSS]) == 2
    assert "In the runs: The column 'log_loss' has '1.2.3' in row 4" in capsys.readouterr().err
    runs.write_text("C,gamma,log_loss\n1.0,0.01,0.5,\n2.0,0.02,0.4,9\n")
    assert main([*COMMAND, "runs.csv", *LOSS]) == 2
    assert "runs.csv has 4 cells in row 3, but 3 column names" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_tables_in_other_encodings(folder, encoding):
    for name in ("old.csv", "space.json"):
        text = Path(name).read_text(encoding="utf-8")
        Path(name).write_text(text.replace("gamma", "größe"), encoding=encoding)
    runs = Path("runs.csv")
    runs.write_text("C,größe,log_loss\n1.0,0.01,0.5\n", encoding=encoding)
    options = ["runs.csv", *LOSS, "--model", "ScaMLGP", "--append"]
    assert main([*COMMAND, *options]) == 0
    assert "C,größe,log_loss\n1.0,0.01,0.5\n" in runs.read_text(encoding=encoding)


def test_several_files_of_old_runs(folder, capsys):
    old = pd.read_csv("old.csv")
    half = len(old) // 2
    old[:half].to_csv("a.csv", index=False)
    old[half:].to_csv("b.csv", index=False)
    rows = []
    for files in (["old.csv"], ["a.csv", "b.csv"]):
        command = ["suggest", "space.json", "--history", *files, *LOSS, "--model", "ScaMLGP"]
        assert main(command) == 0
        rows.append(capsys.readouterr().out)
    assert rows[0] == rows[1]
    old[half:].assign(log_loss="1.2.3").to_csv("b.csv", index=False)
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "In the history: The column 'log_loss' has '1.2.3' in row 2 of b.csv" in error


def test_appending_keeps_every_cell(folder):
    runs = Path("runs.csv")
    runs.write_text('C,gamma\n1.0,0.01,\n"2.0",0.02\n')
    assert main([*COMMAND, "runs.csv", *LOSS, "--append", "--model", "ScaMLGP"]) == 0
    lines = runs.read_text().splitlines()
    assert lines[:3] == ["C,gamma,log_loss", "1.0,0.01,", "2.0,0.02,"]
    assert len(lines) == 4
    runs.write_text("C,gamma,log_loss,C\n1.0,0.01,0.5,2\n")
    assert main([*COMMAND, "runs.csv", *LOSS, "--append"]) == 2
    assert runs.read_text().count("\n") == 2


def test_a_space_is_written_to_a_file(folder, capsys):
    cells = {"task": [*"aaaabbbbccccdddd"], "T": [40, 60, 90, 110] * 3 + [313, 333, 363, 383]}
    pd.DataFrame({**cells, "log_loss": 0.1}).to_csv("old.csv", index=False)
    assert main(["space", "old.csv", *LOSS, "--output", "guess.json"]) == 0
    assert SearchSpace.from_json("guess.json").columns == ["T"]
    assert "unit: 'T' of task 'd' differs from most tasks, but" in capsys.readouterr().err


def test_predictions_are_written_to_a_file(folder):
    pd.read_csv("old.csv")[["C", "gamma"]].head(3).to_csv("rows.csv", index=False)
    command = ["predict", *COMMAND[1:], *LOSS, "--model", "ScaMLGP", "--rows", "rows.csv"]
    assert main([*command, "--output", "found.csv"]) == 0
    assert pd.read_csv("found.csv")["predicted_mean"].notna().sum() == 3


def test_help_imports_nothing_heavy():
    code = "import sys, botorch_transfer.__main__ as m; m._parser(); print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_log(folder, capsys):
    arguments = [*COMMAND, *LOSS, "--model", "ScaMLGP"]
    outputs = []
    for option in (["--log"], ["--log", "log_loss"], []):
        assert main([*arguments, *option]) == 0
        outputs.append(capsys.readouterr().out.splitlines()[:2])
    assert outputs[0] == outputs[1] != outputs[2]


def test_the_module_is_the_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["botorch_transfer", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("botorch_transfer", run_name="__main__")
    assert "print the next rows to try" in capsys.readouterr().out


def test_options(folder, capsys):
    old = pd.read_csv("old.csv").rename(columns={"gamma": "width"}).assign(sem=0.01)
    old["size"] = old["C"]
    old.to_csv("old.csv", index=False)
    spec = json.loads((folder / "space.json").read_text())
    spec["decay"] = {"type": "float", "low": 0, "high": 1}
    (folder / "space.json").write_text(json.dumps(spec))
    options = ["--rename", "width=gamma", "--constraint", "size <= 5", "--noise", "log_loss=sem"]
    options += ["--model", "ScaMLGP"]
    assert main([*COMMAND, *LOSS, *options, "--missing", "decay=0.25", "--seed", "3"]) == 0
    header, row = capsys.readouterr().out.splitlines()
    found = dict(zip(header.split(), row.split(), strict=False))
    assert float(found["C"]) <= 6
    assert "predicted_mean_size" in found
    assert float(found["decay"]) == pytest.approx(0.25, abs=0.1)
    outcomes = ["--outcome", "log_loss", "accuracy", "--goal", "min", "max"]
    several = [*COMMAND, *outcomes, *options[:2], "--missing", "decay", "--model", "ScaMLGP"]
    assert main(several) == 0


TABLES = ["--history", "old.csv", "--candidates", "stock.csv"]
NO_PARAMETER = "A constraint uses 'cost', a column of the candidates that is not a parameter: "


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["suggest", *LOSS], "There is no search space: give a JSON file with one"),
        (["suggest", "none.json", "old.csv"], "There is no file none.json."),
        (["suggest", "old.csv", "old.csv"], "old.csv is not a JSON file of a search space"),
        (["suggest", "list.json", "old.csv"], "The search space is a list"),
        (["suggest", "twice.json", "old.csv"], "space has more than one entry 'low': use"),
        (["suggest", "space.json", "none.csv"], "There is no file none.csv."),
        (["suggest", "space.json", "empty.csv"], "empty.csv is empty"),
        (["suggest", "space.json", ".", *LOSS], "is a folder: name a file in it"),
        (["suggest", "space.json", "--history", "old.csv", "old.csv", *LOSS], "is named twice"),
        ([*COMMAND[:2], "--history", "old.csv", "other.csv"], "has the column 'C', and another"),
        ([*COMMAND, "--outcome", "logloss"], "'log_loss'): choose an existing column for --out"),
        ([*COMMAND, "new.csv"], "No file new.csv: correct the path, or use --append"),
        ([*COMMAND, "old.csv"], "old.csv is given as old runs and as this study's runs"),
        ([*COMMAND, "runs.csv", "--runs", "runs.csv", *LOSS], "The third file and --runs both"),
        ([*COMMAND, "--append"], "--append adds rows to the file"),
        ([*COMMAND, *LOSS, "--run", "name"], "--run is for learning curves"),
        ([*COMMAND, *LOSS, "--constraint", "size <"], "'size <' is not a linear comparison of"),
        ([*COMMAND, *LOSS, "--constraint", "C", "+", "gamma"], "--constraint has 'C': put"),
        ([*COMMAND, *LOSS, "--constraint", "sise <= 5"], "column for --constraint."),
        ([*COMMAND, *LOSS, *TABLES[2:], "--constraint", "cost<=10"], NO_PARAMETER),
        (["suggest", *TABLES, *LOSS, "--constraint", "cost<=10"], NO_PARAMETER),
        ([*COMMAND, *LOSS, "--rename", "gamma"], "--rename has 'gamma': write it as old=new"),
        ([*COMMAND, *LOSS, "--fixed", "C", "2"], "--fixed has 'C': write it as name=value"),
        ([*COMMAND, *LOSS, "--fixed", "C=2", "C=3"], "--fixed names 'C' twice"),
        ([*COMMAND, *LOSS, "--fixed", "C=-2"], "In the fixed values: Parameter 'C' is -2, out"),
        ([*COMMAND, *LOSS, "--status", "state"], "'state': choose an existing column for --status"),
        ([*COMMAND, *LOSS, "--step", "epoch"], "'epoch': choose an existing column for --step."),
        (["space", "old.csv", *LOSS, "--step", "epoch"], "The table has no column 'epoch'"),
        ([*COMMAND, *LOSS, "--step", "C"], "is both a parameter and the column of --step"),
        ([*COMMAND, *LOSS, "--same-in-batch", "T"], "--same-in-batch names 'T', which is not a"),
        ([*COMMAND, *LOSS, "--cost", "price"], "--cost is 'price', but --candidates has no such"),
        ([*COMMAND, *LOSS, "--log", "los"], "--log names 'los', not an outcome: correct"),
        ([*COMMAND, *LOSS, "--outcome-range", "1", "0"], "--outcome-range of 'log_loss' is"),
        ([*COMMAND, *LOSS, "--task", "tasks"], "choose an existing column for --task, or"),
        (["space", "old.csv"], "The table has no column 'loss': use one of task"),
        (["space", "old.csv", *LOSS, "-o", "nowhere/s.json"], "nowhere does not exist: create"),
        ([*COMMAND, *LOSS, "--report", "./old.csv"], "The output file old.csv is also an"),
        ([*COMMAND, *LOSS, "--report", "space.json"], "The output file space.json is also an"),
        (["predict", *COMMAND[1:], *LOSS, "--rows", "old.csv", "-o", "old.csv"], "is also an"),
        ([*COMMAND, *LOSS, "--report", "p.csv"], "p.csv must end in .html: name it p.html."),
        ([*COMMAND, *LOSS, "--report", "p.pdf"], "p.pdf must end in .html: name it p.html."),
        ([*COMMAND, "no/r.csv", *LOSS, "--append"], "No file no/r.csv: correct"),
        (["space", "old.csv", *LOSS, "-o", "s.html"], "s.html must end in .json: name it s.json."),
    ],
)
def test_errors_are_one_sentence(folder, capsys, arguments, message):
    old = pd.read_csv("old.csv")
    old.rename(columns={"C": "c"}).to_csv("other.csv", index=False)
    old[["C", "gamma"]].head(9).assign(cost=range(9)).to_csv("stock.csv", index=False)
    Path("runs.csv").write_text("C,gamma,log_loss\n1.0,0.01,0.5\n")
    Path("empty.csv").write_text("")
    Path("list.json").write_text("[1]")
    Path("twice.json").write_text('{"C": {"type": "float", "low": 0, "high": 1, "low": 0.1}}')
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert printed.err.endswith(".\n")
    assert printed.out == ""


@pytest.mark.parametrize("option", ["--goal max", "--log", "--fixed C=2", "--history a", "--nope"])
def test_wrong_options_end_the_program_with_2(option, capsys):
    name, *_ = words = option.split()
    with pytest.raises(SystemExit) as caught:
        main(["suggest", *words, *COMMAND[1:]])
    assert caught.value.code == 2
    told = rf"{name}(: the option has taken the file space.json: put files first)?; --help lists"
    assert re.search(told, capsys.readouterr().err)


def test_a_repeated_option_adds_its_values():
    pairs = ["--rename", "a=b", "c=d", "--rename", "e=f", "--noise", "g", "--noise", "h=i"]
    options = _parser().parse_args(["suggest", "space.json", *pairs])
    assert (options.rename, options.noise) == (["a=b", "c=d", "e=f"], ["g", "h=i"])
    assert _parser().parse_args(["suggest", "space.json"]).rename == []


# --------------------------------------------------------- candidates, fixed values, no history


def test_candidates_without_a_space(folder, capsys):
    old = pd.read_csv("old.csv")
    pool = old[["C", "gamma"]].drop_duplicates().head(20).assign(label=[f"n{i}" for i in range(20)])
    pool.to_csv("pool.csv", index=False)
    tables = ["--history", "old.csv", "--runs", "runs.csv", "--candidates", "pool.csv"]
    arguments = ["suggest", *tables, *LOSS, "--model", "ScaMLGP", "-n", "2", "--append"]
    for _ in range(2):
        assert main(arguments) == 0
    runs = pd.read_csv("runs.csv")
    assert list(runs.columns) == ["C", "gamma", "label", "log_loss"]
    assert runs["label"].isin(pool["label"]).all()
    assert runs["label"].is_unique
    assert main([*arguments, "-n", "20"]) == 2
    assert "omit --fixed or --same-in-batch, or give --repeats." in capsys.readouterr().err


def test_fixed_values_and_constraints(capsys):
    arguments = [*COMMAND, "runs.csv", "--append", *LOSS, "--model", "ScaMLGP"]
    assert main([*arguments, "--fixed", "C=2", "--fixed", "gamma=0.5"]) == 0
    assert pd.read_csv("runs.csv")[["C", "gamma"]].to_numpy().tolist() == [[2.0, 0.5]]
    assert main([*arguments, "--fixed", "C=2", "--fixed", "width=1"]) == 2
    assert "fixed names 'width', which is not a parameter" in capsys.readouterr().err
    assert main([*arguments, "--constraint", "C + gamma <= 1"]) == 2
    assert "constraint on 'C' is not linear" in capsys.readouterr().err


def test_constraints_hold_in_the_table_of_runs(folder):
    """A backtick is a substitution in shells: other quotation marks around names are read."""
    unit = {"type": "float", "low": 0, "high": 1}
    spec = {"lambda": unit, "b": unit, "base": {"type": "categorical", "choices": ["NaH", "KOH"]}}
    (folder / "own.json").write_text(json.dumps(spec))
    rules = ["'lambda' + b / 3 <= 0.3", "not (base == 'NaH' and b > 0.1)"]
    command = ["suggest", "own.json", "--runs", "own.csv", "--append", "-n", "4"]
    assert main([*command, *LOSS, "--constraint", *rules]) == 0
    runs = pd.read_csv("own.csv")
    assert runs.eval("`lambda` + b / 3 <= 0.3", engine="python").all()
    assert not ((runs["base"] == "NaH") & (runs["b"] > 0.1)).any()


def test_a_first_campaign_and_predictions(capsys):
    first = ["suggest", "space.json", "--runs", "first.csv", *LOSS]
    assert main([*first, "-n", "4", "--append"]) == 0
    runs = pd.read_csv("first.csv")
    assert runs["log_loss"].isna().all()
    runs.assign(log_loss=[0.5, 0.4, 0.3, 0.6]).to_csv("first.csv", index=False)
    capsys.readouterr()
    assert main(first) == 0
    assert "NaN" not in capsys.readouterr().out
    rows = ["--rows", "first.csv", "--outcome-range", "0", "1", "--model", "ScaMLGP"]
    assert main(["predict", "space.json", "old.csv", *rows, *LOSS]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[-3:] == ["predicted_5", "predicted_50", "predicted_95"]
    assert len(lines) == 4
    assert all(0 <= float(cell) <= 1 for line in lines for cell in line.split()[-3:])


@pytest.mark.parametrize("name", ["SingleTaskGP", "sorted"])
def test_models_that_are_none_of_this_package(name, capsys):
    assert main([*COMMAND, *LOSS, "--model", name]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_words_of_options():
    assert _pairs(["size=2", "word=x"], "--fixed") == {"size": "2", "word": "x"}
    assert _pairs(["sem"], "--noise", "loss") == {"loss": "sem"}
    assert _pairs(["sem"], "--missing") == {"sem": None}
