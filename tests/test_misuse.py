"""What users get wrong: each kind of misuse gets one sentence that says what to do, or works."""

import matplotlib
import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError

import botorch_transfer as bt
from botorch_transfer.plotting import plot_calibration, plot_slice, plot_weights
from botorch_transfer.search_space import guess_space

matplotlib.use("Agg")

GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(12, 2, dtype=torch.double, generator=GENERATOR)
Y = X.sum(dim=-1, keepdim=True)
HISTORY = {"a": (X, Y), "b": (X, X[:, :1].sin())}
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double()
SPACE = bt.SearchSpace([bt.FloatParameter("lr", 1e-4, 1.0, log=True), bt.FloatParameter("m", 0, 1)])
RUNS = pd.DataFrame(
    {
        "task": list("aabb"),
        "lr": [0.1, 0.2, 0.3, 0.4],
        "m": [0.1, 0.2, 0.3, 0.9],
        "y": [1.0, 2.0, 3.0, 4.0],
    }
)


@pytest.fixture(scope="module")
def prior():
    return bt.SourceGPs.fit(HISTORY, num_restarts=0)


@pytest.fixture(scope="module")
def model(prior):
    return bt.ScaMLGP(X[:4], Y[:4], prior)


def read(frame=RUNS, space=SPACE, outcome="y", task="task", **options):
    return bt.from_dataframe(frame, space, outcome, task, **options)


def twice(name):
    return pd.concat([RUNS, RUNS[[name]]], axis=1)


def refuses(function, error, message):
    """One sentence or two on one line, which end in a full stop and say what to do."""
    with pytest.raises(error, match=message) as caught:
        function()
    text = str(caught.value)
    assert ":" in text, "it says what is wrong, and then what to do"
    assert text.endswith(".")
    assert "\n" not in text


TABLES = {
    "columns": (lambda: read(RUNS.to_dict("list")), InputDataError, "is a dict: make a pandas"),
    "records": (lambda: read(RUNS.to_dict("records")), InputDataError, "is a list: make a pandas"),
    "no table": (lambda: read(None), InputDataError, "is a NoneType: make a pandas"),
    "space as a dict": (lambda: read(space={"lr": (0, 1)}), TypeError, "make a SearchSpace"),
    "space as a list": (
        lambda: read(space=list(SPACE.parameters)),
        TypeError,
        "make a SearchSpace",
    ),
    "swapped": (lambda: read(SPACE, RUNS), TypeError, "space is a DataFrame: make a SearchSpace"),
    "parameter twice": (
        lambda: read(twice("lr")),
        InputDataError,
        "several columns 'lr': keep one",
    ),
    "outcome twice": (lambda: read(twice("y")), InputDataError, "several columns 'y': keep one"),
    "task twice": (lambda: read(twice("task")), InputDataError, "several columns 'task': keep one"),
    "two outcomes": (lambda: read(outcome=["y"]), TypeError, r"outcome is \['y'\]: give the name"),
    "no task": (lambda: read(task=None), TypeError, "task is None: give the name"),
    "outcome as task": (lambda: read(task="y"), InputDataError, "'y' is both what outcome="),
    "outcome as parameter": (lambda: read(outcome="lr"), InputDataError, "is both a parameter and"),
    "noise as parameter": (lambda: read(noise="m"), InputDataError, "is both a parameter and"),
    "missing as a list": (lambda: read(missing=["lr"]), TypeError, "missing is .*: give a dict"),
    "rename as a list": (lambda: read(rename=["lr"]), TypeError, "rename is .*: give a dict"),
    "a renamed column": (
        lambda: read(RUNS.rename(columns={"lr": "learning_rate"})),
        InputDataError,
        "if they are the same, say rename={'learning_rate': 'lr'}",
    ),
    "complex outcomes": (
        lambda: read(RUNS.assign(y=[1 + 1j] * 4)),
        InputDataError,
        "type complex128: convert it",
    ),
    "dates as outcomes": (
        lambda: read(RUNS.assign(y=pd.Timestamp("2020-01-01"))),
        InputDataError,
        "type datetime64.*: convert it",
    ),
    "durations as outcomes": (
        lambda: read(RUNS.assign(y=pd.Timedelta("1s"))),
        InputDataError,
        "type timedelta64.*: convert it",
    ),
    "lists as values": (
        lambda: read(RUNS.assign(lr=[[1], [2], [3], [4]])),
        InputDataError,
        "not a number: correct the cell",
    ),
    "no rows": (lambda: read(RUNS[:0]), InputDataError, "No run has a finite outcome"),
    "no values": (lambda: read(RUNS.assign(lr=None)), InputDataError, "has no values of parameter"),
    "no noise column": (
        lambda: read(noise="sem"),
        InputDataError,
        "name an existing one by noise=",
    ),
    "noise of nearly zero": (
        lambda: read(RUNS.assign(sem=1e-200), noise="sem"),
        InputDataError,
        "'sem' has 1e-200 in row 0, which is no standard error in double precision: correct it",
    ),
    "astronomic noise": (
        lambda: read(RUNS.assign(sem=1e200), noise="sem"),
        InputDataError,
        r"'sem' has 1e\+200 in row 0, which is no standard error in double precision: correct it",
    ),
    "guess: no table": (lambda: guess_space(None), InputDataError, "NoneType: make a pandas"),
    "guess: a dict": (lambda: guess_space({"a": [1]}), InputDataError, "dict: make a pandas"),
    "guess: twice": (lambda: guess_space(twice("lr")), InputDataError, "several columns 'lr'"),
    "table as data": (lambda: bt.SourceGPs.fit(RUNS), InputDataError, "make source data of it by"),
}

SPACES = {
    "encode columns": (lambda: SPACE.encode({"lr": [0.1], "m": [0.2]}), InputDataError, "a dict"),
    "encode records": (lambda: SPACE.encode([{"lr": 0.1, "m": 0.2}]), InputDataError, "a list"),
    "encode one run": (lambda: SPACE.encode({"lr": 0.1, "m": 0.2}), InputDataError, "a dict: make"),
    "encode a row": (lambda: SPACE.encode(RUNS.iloc[0]), InputDataError, "a Series: make"),
    "encode nothing": (lambda: SPACE.encode(None), InputDataError, "a NoneType: make"),
    "encode tensors": (lambda: SPACE.encode(X), InputDataError, "a Tensor: make"),
    "encode twice": (lambda: SPACE.encode(twice("lr")), InputDataError, "several columns 'lr'"),
    "place a dict": (lambda: SPACE.place({"lr": 0.1, "m": 1}), InputDataError, "a dict: make"),
    "place twice": (lambda: SPACE.place(twice("m")), InputDataError, "several columns 'm'"),
    "encode outside": (
        lambda: SPACE.encode(RUNS.assign(m=2.0)),
        InputDataError,
        "outside of its r",
    ),
    "decode a list": (lambda: SPACE.decode([[0.1, 0.2]]), ValueError, "is list: decode takes"),
    "decode one point": (lambda: SPACE.decode(X[0]), ValueError, "decode takes an n x 2"),
    "decode a NaN": (
        lambda: SPACE.decode(X * torch.nan),
        ValueError,
        "outside of the unit cube: s",
    ),
    "sample -1": (lambda: SPACE.sample(-1, 0), ValueError, "n is -1: give a whole number"),
    "sample 2.5": (lambda: SPACE.sample(2.5, 0), ValueError, "n is 2.5: give a whole number"),
    "a name": (lambda: bt.SearchSpace("lr"), TypeError, "takes a list of parameters, not 'lr': pu"),
    "nothing": (lambda: bt.SearchSpace(None), TypeError, "takes a list of parameters, not None"),
    "tuples": (lambda: bt.SearchSpace([("lr", 0, 1)]), TypeError, "put FloatParameter"),
    "a dict": (lambda: bt.SearchSpace({"lr": 1}), TypeError, "use SearchSpace.from_dict"),
    "one parameter": (lambda: bt.SearchSpace(SPACE.parameters[0]), TypeError, "into a list"),
    "empty": (lambda: bt.SearchSpace([]), ValueError, "give at least one"),
    "from a list": (
        lambda: bt.SearchSpace.from_dict([1]),
        TypeError,
        "is a list: give a dictionary",
    ),
    "from nothing": (lambda: bt.SearchSpace.from_dict(None), TypeError, "a NoneType: give a dict"),
    "from a number": (lambda: bt.SearchSpace.from_dict({"a": 3}), ValueError, "use one of float"),
    "text as a bound": (
        lambda: bt.FloatParameter("a", "0", 1),
        ValueError,
        "'0' and the upper bound 1: give finite numbers",
    ),
    "no bound": (lambda: bt.FloatParameter("a", None, 1), ValueError, "bound None and"),
    "integer text": (
        lambda: bt.IntegerParameter("a", "1", 3),
        ValueError,
        "'1' and the upper bound 3: give finite numbers",
    ),
    "half an integer": (
        lambda: bt.IntegerParameter("a", 0.5, 3),
        ValueError,
        "needs whole numbers",
    ),
    "swapped bounds": (lambda: bt.FloatParameter("a", 1, 0), ValueError, "the lower one below"),
    "zero and log": (
        lambda: bt.FloatParameter("a", 0, 1, log=True),
        ValueError,
        "needs a positive",
    ),
    "unknown scale": (lambda: bt.FloatParameter("a", 0, 1, log="x"), ValueError, "use True, False"),
    "integer scale": (
        lambda: bt.IntegerParameter("a", 0, 1, log="1-x"),
        ValueError,
        "log='1-x': an integer parameter has True or False",
    ),
    "a bare parent": (
        lambda: bt.FloatParameter("a", 0, 1, active_if="b"),
        ValueError,
        "active_if 'b': give a dictionary",
    ),
    "text as choices": (lambda: bt.CategoricalParameter("a", "abc"), ValueError, "give a list of"),
    "a number as choices": (lambda: bt.CategoricalParameter("a", 3), ValueError, "give a list of"),
    "a number as levels": (
        lambda: bt.OrdinalParameter("a", 3),
        ValueError,
        "3 as its values",
    ),
    "repeated choices": (
        lambda: bt.CategoricalParameter("a", ["x", "x"]),
        ValueError,
        "list it once",
    ),
    "domain: a number": (lambda: bt.Domain(HISTORY, discrete_dims=3), TypeError, "list of indices"),
    "domain: a name": (
        lambda: bt.Domain(HISTORY, discrete_dims=["a"]),
        TypeError,
        "list of indices",
    ),
}

DATA = {
    "nothing": (None, "give a list or a mapping of tasks"),
    "a path": ("prior.safetensors", "load a saved prior by its class"),
    "no tasks": ([], "pass at least one"),
    "one task": ((X, Y), "put it into a list"),
    "inputs only": ({"a": X}, r"pass a SupervisedDataset, \(X, Y\)"),
    "arrays": ({"a": (X.numpy(), Y.numpy())}, "pass a torch.Tensor"),
    "a task of None": ({"a": None}, r"pass a SupervisedDataset, \(X, Y\)"),
    "flat outcomes": ({"a": (X, Y[:, 0])}, "must be n x 1"),
    "two outcomes": ({"a": (X, X)}, "must be n x 1"),
    "other inputs": ({"a": (X, Y), "b": (X[:, :1], Y)}, "must share one input space"),
    "integers": ({"a": (X.long(), Y)}, "convert it by"),
    "NaN": ({"a": (X, Y * torch.nan)}, "drop failed runs"),
    "no points": ({"a": (X[:0], Y[:0])}, "leave it out"),
    "astronomic outcomes": ({"a": (X, 1e200 * Y)}, r"Y has a value beyond 1e\+100, .*another unit"),
}

TARGETS = {
    "nothing": (None, None, "train_X is a NoneType: pass a torch.Tensor; .*torch.empty"),
    "no outcomes": (X, None, "train_Y is a NoneType: pass a torch.Tensor"),
    "lists": (X.tolist(), Y.tolist(), "train_X is a list: pass a torch.Tensor"),
    "arrays": (X.numpy(), Y.numpy(), "train_X is a ndarray: pass a torch.Tensor"),
    "integers": (X.long(), Y, "train_X has the type torch.int64: convert it"),
    "one point": (X[0], Y[0], "needs a dimension of points"),
    "NaN": (X * torch.nan, Y, "leave out failed evaluations"),
    "astronomic outcomes": (X, 1e200 * Y, r"train_Y has a value beyond 1e\+100, .*another unit"),
}

MODELS = [
    bt.ScaMLGP,
    bt.RankWeightedGP,
    bt.MeanHierarchicalGP,
    bt.PopulationGP,
    bt.PretrainedGP,
    bt.HyperpriorGP,
    bt.JointScaMLGP,
    bt.LinearCoregionalizationGP,
    bt.GuardedTransferGP,
    bt.TransferGP,
]


@pytest.mark.parametrize("case", TABLES.values(), ids=TABLES)
def test_tables(case):
    refuses(*case)


@pytest.mark.parametrize("case", SPACES.values(), ids=SPACES)
def test_search_spaces(case):
    refuses(*case)


@pytest.mark.parametrize(("sources", "message"), DATA.values(), ids=DATA)
def test_source_data(sources, message):
    refuses(lambda: bt.SourceGPs.fit(sources), InputDataError, message)


@pytest.mark.parametrize(("train_X", "train_Y", "message"), TARGETS.values(), ids=TARGETS)
def test_targets(prior, train_X, train_Y, message):
    refuses(lambda: bt.ScaMLGP(train_X, train_Y, prior), InputDataError, message)


@pytest.mark.parametrize("model_class", MODELS)
def test_no_model_takes_none_for_no_evaluations(model_class, prior):
    sources = prior if model_class is bt.ScaMLGP else HISTORY
    refuses(lambda: model_class(None, None, sources), InputDataError, "train_X is a NoneType")


PICTURES = {
    "dimension by name": (
        lambda model: plot_slice(model, BOUNDS, dimension="lr"),
        ValueError,
        "no parameter 'lr': use one of input 0, input 1",
    ),
    "dimension 1.5": (
        lambda model: plot_slice(model, BOUNDS, 1.5),
        ValueError,
        "use one of input 0",
    ),
    "dimension 2": (
        lambda model: plot_slice(model, BOUNDS, 2),
        ValueError,
        "no input 2: use one of input 0",
    ),
    "no bounds": (
        lambda model: plot_slice(model, None),
        ValueError,
        "NoneType: give a search space, or a 2 x d",
    ),
    "one bound": (lambda model: plot_slice(model, BOUNDS[0]), ValueError, "or a 2 x d tensor"),
    "anchor": (
        lambda model: plot_slice(model, BOUNDS, anchor=torch.zeros(3)),
        ValueError,
        "one value an input, 2 in all",
    ),
    "a prior": (lambda model: plot_calibration(model.prior), TypeError, "SourceGPs: plot a model"),
    "MHGP": (
        lambda model: plot_weights(bt.MeanHierarchicalGP(X[:4], Y[:4], HISTORY)),
        ValueError,
        "no weights of source tasks: draw what it makes of them by plot_slice",
    ),
}


@pytest.mark.parametrize(("draw", "error", "message"), PICTURES.values(), ids=PICTURES)
def test_pictures(model, draw, error, message):
    refuses(lambda: draw(model), error, message)


def test_what_works(prior):
    assert plot_weights(bt.GuardedTransferGP(X[:4], Y[:4], prior)).get_xlabel()
    assert plot_slice(bt.MeanHierarchicalGP(X[:4], Y[:4], HISTORY), BOUNDS).get_xlabel()
    notes = RUNS[[]].assign(note="")
    assert read(pd.concat([RUNS, notes, notes], axis=1)).keys() == {"a", "b"}


def test_files(prior, tmp_path):
    path = tmp_path / "prior.safetensors"
    prior.save(path)
    refuses(lambda: bt.PretrainedPrior.load(path), ValueError, "load it by SourceGPs.load")
    refuses(lambda: prior.save(tmp_path / "none" / "x"), FileNotFoundError, "make it first")
    path.write_bytes(b"damaged")
    refuses(lambda: bt.SourceGPs.load(path), ValueError, "save the prior again")
    refuses(lambda: prior.append({"a": (X, Y)}), InputDataError, "give the new one another name")
