import re

import numpy as np
import pandas as pd
import pytest
from botorch.exceptions.errors import InputDataError

import botorch_transfer
from botorch_transfer.search_space import (
    CategoricalParameter,
    FloatParameter,
    SearchSpace,
    guess_space,
)
from botorch_transfer.search_space.cells import (
    check_same_units,
    decimal_points,
    read_table,
    with_numbers,
)
from botorch_transfer.suggestion.command import _history


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs.csv"


def test_numbers_with_a_unit(caplog):
    cells = ["10.0 min", "90min", None, "5"]
    runs = pd.DataFrame({"time": cells, "T": ["110 °C", "20 °C"] * 2, "x": 1.0})
    runs["yield"] = ["0.1 %", "3.5%", "failed", None]
    with caplog.at_level("INFO"):
        read = with_numbers(runs, ["time", "T", "yield", "absent"])
    assert read["time"].tolist()[:2] == [10.0, 90.0]
    assert read["time"].isna().tolist() == [False, False, True, False]
    assert read["T"].tolist() == [110, 20] * 2
    assert read["yield"].tolist()[:3] == [0.1, 3.5, "failed"]
    assert caplog.messages == ["Read as numbers: 'time' in min, 'T' in °C, 'yield' in %"]
    assert with_numbers(read, ["time", "T", "yield"]).equals(read)
    assert runs["time"].tolist()[:2] == cells[:2]  # the user's table is left alone


def test_usual_units_are_converted_to_the_first_one(caplog):
    cells = {"T": ["80 °C", "353.15 K", None, "176°F"], "time": ["90 min", "2 h", "60 s", "5"]}
    runs = pd.DataFrame({**cells, "mass": ["1 mg", "0.002 g", "3 μg", "4 mg"]}, index=[7, 7, 8, 9])
    for whole in (False, True):
        caplog.clear()
        with caplog.at_level("INFO"):
            read = with_numbers(runs, runs.columns, whole)
        assert read["T"].tolist() == [80, 80, pytest.approx(np.nan, nan_ok=True), 80]
        assert read["time"].tolist() == [90, 120, 1, 5]
        assert read["mass"].tolist() == [1, 2, 0.003, 4]
        assert "'T' in °C and (converted) K and (converted) °F" in caplog.text


def test_several_units_are_refused(caplog):
    runs = pd.DataFrame({"load": ["10 mol%", "2 eq"]}, index=[2, 3])
    told = "The column 'load' has numbers in several units ('mol%' in row 2, 'eq' in row 3): "
    with pytest.raises(InputDataError, match=re.escape(told + "convert the numbers to one unit.")):
        with_numbers(runs, ["load"])
    assert with_numbers(runs, ["load"], whole=True).equals(runs)
    assert caplog.messages == [told + "convert the numbers to one unit, or the column stays text"]
    words = pd.DataFrame({"base": ["DBU", "MTBD"], "well": ["A1", "B2"], "size": ["3x2", "1"]})
    assert with_numbers(words, words.columns, whole=True).equals(words)
    labels = pd.DataFrame({"compound": ["1a", "1b", "1c", "1d"]})
    assert with_numbers(labels, labels.columns, whole=True).equals(labels)
    assert len(caplog.messages) == 1


def test_files_of_spreadsheets(path):
    path.write_text("solvent;time;note;yield\nTHF;1,5 min;a, b;80\n;;;\n None;2;;failed\n")
    frame = read_table(path)
    assert frame.index.tolist() == [2, 4]
    assert frame["solvent"].tolist() == ["THF", "None"]
    assert frame["time"].tolist() == ["1.5 min", "2"]
    assert frame["note"].tolist()[0] == "a, b"
    path.write_text("a\tb\n1,5\t2,0\n-1e-3\t3\n", encoding="utf-8-sig")
    assert read_table(path).to_numpy().tolist() == [[1.5, 2.0], [-0.001, 3.0]]
    path.write_text("layers;x\n64,64;1\n")
    frame = botorch_transfer.read_table(str(path), choices=["layers"])
    assert frame["layers"].tolist() == ["64,64"]
    path.write_text("load;x\n0,5 eq;1\n5 mol%;2\n")
    for choices in ((), ["load"]):  # as guessed and as read with the guessed space
        assert read_table(path, choices)["load"].tolist() == ["0.5 eq", "5 mol%"]


def test_an_empty_cell_is_a_choice_where_many_are(caplog):
    runs = pd.DataFrame({"additive": ["LiCl", None, "KF", None] * 5, "loss": 0.1})
    with caplog.at_level("INFO"):
        parameter = guess_space(runs, ["loss"]).parameters[0]
    assert parameter == CategoricalParameter("additive", ("KF", "LiCl", "none"))
    told = "'additive' is empty in 10 of 20 rows: these cells count as the choice 'none'"
    assert told in caplog.messages
    X = SearchSpace([parameter]).encode(runs)
    assert X[:2].tolist() == [[0, 1, 0], [0, 0, 1]]
    few = pd.DataFrame({"additive": ["LiCl", "KF"] * 30 + [None], "loss": 0.1})
    assert guess_space(few, ["loss"]).parameters[0].values == ("KF", "LiCl")


@pytest.mark.parametrize(
    ("text", "row", "cells"),
    [("a,b\n1,2\n3,4,5\n", 3, 3), ("a,b\n1\n3,4\n", 2, 1), ("a;b\n1;2\n\n3;4;x\n", 4, 3)],
)
def test_rows_of_different_lengths_are_refused(path, text, row, cells):
    path.write_text(text)
    with pytest.raises(ValueError, match=f"has {cells} cells in row {row}, but 2 column names"):
        read_table(path)


def test_column_names_in_another_order_within_the_table_are_refused(path):
    path.write_text("a,b\n1,2\nb,a\n3,4\n")
    with pytest.raises(ValueError, match="repeats the column names in row 3 in another order"):
        read_table(path)


def test_empty_cells_behind_the_last_column_shift_nothing(path):
    path.write_text('a,b,note\n1,2,"x, y",\n\n3,4,,\n,,\n')
    frame = read_table(path)
    assert frame[["a", "b"]].to_numpy().tolist() == [[1, 2], [3, 4]]
    assert frame.index.tolist() == [2, 4]
    assert frame["note"].iloc[0] == "x, y"


@pytest.mark.parametrize(
    ("text", "columns", "first"),
    [
        ('"Yield, %";"Time, h"\n80;1,5\n', ["Yield, %", "Time, h"], 2),
        ("\n\nx;k\n0,1;a\n", ["x", "k"], 4),
        ("sep=;\na;b\n1;2\n", ["a", "b"], 3),
        ("a;b\na;b\n1;2\na;b\n", ["a", "b"], 3),
        ("a | b\n--|--\n1,5 | 2\n", ["a", "b"], 3),
        ("b;1;2,5\na;1;3,5\nb;2;2,5\n", ["b", "1", "2,5"], 2),
    ],
)
def test_the_separator_is_found(path, text, columns, first, caplog):
    path.write_text(text)
    frame = read_table(path)
    assert list(frame.columns) == columns
    assert frame.index[0] == first
    told = ["no column names (its first row is b, 1, 2,5): add" in text for text in caplog.messages]
    assert told == [True] * (columns[0] == "b")


def test_choices_that_look_like_numbers_stay(path):
    path.write_text("layers;loss\n64,32;1\nnone;2\n")
    assert read_table(path, ["layers"])["layers"].tolist() == ["64,32", "none"]
    path.write_text("k,x\nNA,1\nNone,2\n")
    assert read_table(path)["k"].tolist() == ["NA", "None"]
    path.write_text("x,x\n1,2\n")
    with pytest.raises(ValueError, match="has two columns 'x': rename one column"):
        read_table(path)


def test_json_files_and_web_pages_are_refused(tmp_path):
    frame, path = pd.DataFrame({"x": [1, 2]}), tmp_path / "old.csv"
    options = ({}, {"orient": "records"}, {"orient": "records", "lines": True})
    for text in (*(frame.to_json(**each) for each in options), "<!DOCTYPE html>\n<td>1,2</td>\n"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"old.csv is a JSON file or web page, not a table"):
            read_table(path)
    path.write_text("[Cu] (mM),y\n1,2\n")
    assert read_table(path)["[Cu] (mM)"].tolist() == [1]


def test_missing_columns_of_a_workbook_name_its_sheets(tmp_path, caplog):
    pytest.importorskip("openpyxl")
    path, runs = tmp_path / "old.xlsx", pd.DataFrame({"x": [1, 2], "y": [3, 4]})
    with pd.ExcelWriter(path) as book:
        pd.DataFrame({"Author": ["A"], "Date": ["may"]}).to_excel(book, sheet_name="Info")
        runs.to_excel(book, sheet_name="Runs")
    runs[["y"]].to_csv(csv := tmp_path / "old.csv")
    frame, space = read_table(path), SearchSpace([FloatParameter("x", 0.0, 5.0)])
    sheets = r"table of .*old.xlsx is its first sheet, 'Info'. Other sheets are 'Runs': move the"
    for read in (
        lambda: botorch_transfer.from_dataframe(frame, space, "y", "day", goal="max"),
        lambda: guess_space(frame, outcome="y"),
        lambda: space.encode(frame),
        lambda: space.encode(_history([csv, path], ())),
    ):
        with pytest.raises(InputDataError, match=sheets):
            read()
    runs.to_excel(path)
    with pytest.raises(InputDataError, match=r"take the parameter out of the search space.$"):
        space.encode(read_table(path).drop(columns="x"))
    for first, told in ((runs, "the sheets ['b'] have the same"), (runs[:0], "has no rows")):
        with pd.ExcelWriter(path) as book:
            first.to_excel(book, sheet_name="a")
            runs.to_excel(book, sheet_name="b")
        read_table(path)
        assert told in caplog.messages[-1]
    assert len(caplog.messages) == 2


def test_excel_files(tmp_path, monkeypatch):
    pytest.importorskip("openpyxl")
    path, frame = tmp_path / "runs.xlsx", pd.DataFrame({"solvent": ["None", None], "y": [1.5, 2]})
    frame.to_excel(path, index=False)
    read = read_table(path, ["solvent"])
    assert read["y"].tolist() == [1.5, 2.0]
    assert read["solvent"].tolist()[0] == "None"
    assert read.index.tolist() == [2, 3]
    path.rename(tmp_path / "runs.csv")
    assert read_table(tmp_path / "runs.csv")["y"].tolist() == [1.5, 2.0]
    monkeypatch.setattr(pd, "read_excel", lambda *_, **__: (_ for _ in ()).throw(ImportError))
    with pytest.raises(ValueError, match=r"which needs openpyxl: install"):
        read_table(tmp_path / "runs.csv")
    path.write_text("a,b\n1,2\n")  # text with the ending of a spreadsheet
    assert read_table(path)["b"].tolist() == [2]


@pytest.mark.parametrize(
    ("path", "kind", "message"),
    [
        (None, TypeError, "The file name is a NoneType: give a text"),
        (pd.DataFrame(), TypeError, "The file name is a DataFrame: give a text"),
        ("old.xls", ValueError, r"old.xls is not a text file: save .* as text, or as .xlsx"),
        ("blank.csv", ValueError, "blank.csv has blanks between the cells: separate the cells by"),
        (".", IsADirectoryError, r"^\. is a folder: name a file in it\.$"),
        ("none.csv", FileNotFoundError, r"^There is no file none\.csv\.$"),
        ("a" * 999, OSError, r"^a+ cannot be opened \(.+\): check the file and"),
    ],
)
def test_what_is_no_file_of_text_is_one_sentence(path, kind, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.xls").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0\0")
    (tmp_path / "blank.csv").write_text("task T  yield\na    80    0.5\n")
    with pytest.raises(kind, match=message):
        read_table(path)


def test_a_word_behind_few_of_the_numbers_is_told(caplog):
    caplog.set_level("WARNING", logger="botorch_transfer")
    frame = pd.DataFrame({"y": [3, 4, "4O", 5], "T": ["1 bar", "2 bar", 3, 4]})
    frame = frame.assign(load=["10 %", "5 %", 0.1, 0], share=["10 %", "5 %", 7, 1])
    assert with_numbers(frame, frame.columns)["y"].tolist() == [3, 4, 4, 5]
    word, fraction = caplog.messages
    assert "'y' has '4O' in row 2, with text after the number, unlike most cells: check it." in word
    assert "'load' has 0.1 in row 2, maybe a fraction, unlike cells in %: write perc" in fraction


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1.350,5", "1.200", "900"], ["1350.5", "1200", "900"]),
        (["60,5 °C", ">70,25", "80"], ["60.5 °C", ">70.25", "80"]),
        (["1,350.5", "1,200", "0.5"], ["1350.5", "1200", "0.5"]),
        (["1,200,000", "3.5"], ["1200000", "3.5"]),
        (["1.200.000", "3,5 ± 0,1 %*"], ["1200000", "3.5 ± 0.1 %*"]),
        (["60,5", "70.5", "−6", "–3", "2e−3", "5–7"], ["60.5", "70.5", "-6", "-3", "2e-3", "5–7"]),
        (["1,200", "900"], ["1,200", "900"]),  # either mark may be the decimal mark
        (["1,200", "9.5"], ["1,200", "9.5"]),
        (["1,4-dioxane", "2,6-lutidine", "9.9.2020"], ["1,4-dioxane", "2,6-lutidine", "9.9.2020"]),
    ],
)
def test_the_numbers_of_a_column_show_their_decimal_mark(cells, expected):
    assert decimal_points(pd.DataFrame({"x": cells}), ["x"])["x"].tolist() == expected


@pytest.mark.parametrize(
    ("text", "numbers", "said"),
    [
        ("x;y\n1.200;37,5\n1.350;9,1\n", [1200, 1350], "whose point separates thousands: write"),
        ("x;y\n1.200;37\n1.350;9\n", [1.2, 1.35], "whose point counts as a decimal point: write"),
        ("x;y\n1.200;37.5\n1.350;9.1\n", [1.2, 1.35], None),
        ("x,y\n1.234,20.150\n1.350,10.500\n", [1.234, 1.35], None),
        ("x;y\n1,200;37\n1,350;9\n", [1.2, 1.35], "whose comma is a decimal mark: write"),
        ("x;y\n1,234;1\n1,5;2\n", [1.234, 1.5], None),
        ("x;y\n1.234;1\n1.5;2\n", [1.234, 1.5], None),
    ],
)
def test_thousands_in_files(path, caplog, text, numbers, said):
    path.write_text(text)
    assert read_table(path)["x"].tolist() == numbers
    assert [said is not None and said in text for text in caplog.messages] == [True] * bool(said)


@pytest.mark.parametrize(
    "cell",
    [
        *("2. Mai", "02-May", "5.Feb", "12. Mrz", "05.02.", "2024/05/02", pd.Timestamp(2024, 5, 2)),
        *("#WERT!", "#DIV/0!", "3,137"),
    ],
)
def test_dates_and_unclear_cells_are_no_numbers(cell, caplog):
    runs = pd.DataFrame({"x": pd.Series([1.0, 3.0] * 10 + [cell], dtype=object)})
    remarks = {"#": "it is an error of Excel", "3": "maybe with a separator of thousands"}
    remark = remarks.get(str(cell)[0], "it looks like a date")
    with pytest.raises(InputDataError, match=rf"\({remark}\) in row 20, not a number"):
        SearchSpace([FloatParameter("x", 0, 9)]).encode(with_numbers(runs, ["x"]))
    guess_space(runs)
    assert "in row 20, which is not a number: correct the cell, or empty it" in caplog.text
    assert caplog.records[0].levelname == "WARNING"


def test_durations_are_no_numbers(caplog):
    runs = pd.DataFrame({"x": pd.to_timedelta([1, 2, 3], unit="h"), "t": ["0:30", "1:15", "2:00"]})
    space = SearchSpace([FloatParameter("x", 0, 9)])
    with pytest.raises(InputDataError, match="looks like a duration: write a number, such as min"):
        space.encode(runs)
    assert guess_space(runs.assign(y=[1, 2, 4])).columns == ["y"]
    assert "'x' holds durations: convert the durations to numbers, such as minutes" in caplog.text
    assert "'t' holds durations" in caplog.text


@pytest.mark.parametrize(
    ("name", "bare", "marked", "warns"),
    [
        *(("x", [50, 150], ["90 °C", "110 °C"], False), ("x", [85, 110], ["80 C"], False)),
        *(("x", [50, 150], ["353 K"], True), ("T [K]", [50, 150], ["353 K"], False)),
        *(("x", [50, 150], ["140 °F"], True), ("x", [0.1, 0.5], ["250 mg"], True)),
        *(("minutes", [1, 60], ["2 h"], True), ("minutes", [1, 60], ["2 min"], False)),
        *(("yield", [1, 60], ["2 g"], True), ("yield", [60, 90], ["2 %"], False)),
        *(("x", [10, 60], ["2 h"], True), ("mass", [1, 60], ["2 g"], False)),
    ],
)
def test_a_unit_in_one_table_only(name, bare, marked, warns, caplog):
    tables = {"history": pd.DataFrame({name: bare}), "runs": pd.DataFrame({name: marked})}
    check_same_units(tables, [name], are_outcomes=name in ("yield", "mass"))
    assert ["the same unit in all tables" in text for text in caplog.messages] == [True] * warns


@pytest.mark.parametrize("title", ["Results\n", "Lab,X,,\n,,,\n", "# Lab X, 2024\n"])
def test_titles_above_the_column_names_are_refused(path, title):
    for separator in (",", ";"):
        path.write_text((title + "task,x,y,z\na,1,2,3\n").replace(",", separator))
        with pytest.raises(ValueError, match=r"delete (the )?rows above the .*names"):
            read_table(path)


def test_words_behind_outcomes_are_no_units():
    old = pd.DataFrame({"y": ["12 failed", "5 mg"]})
    check_same_units({"history": old, "runs": pd.DataFrame({"y": ["7 mg"]})}, ["y"], True)
    message = "'y' has the unit 'mg' in the history, but 'g' in the runs: convert all numbers"
    with pytest.raises(InputDataError, match=message):
        check_same_units({"history": old, "runs": pd.DataFrame({"y": ["7 g"]})}, ["y"], True)
