import pandas as pd
import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_transfer.data import as_datasets, check_joint_size, task_names


def tensors(n=4, d=2, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=generator, dtype=dtype)
    return X, X.sum(-1, keepdim=True)


def dataset(outcome="y", features=("a", "b"), **kwargs):
    X, Y = tensors(**kwargs)
    return SupervisedDataset(X, Y, feature_names=list(features), outcome_names=[outcome])


def test_tensors_become_datasets_that_share_memory():
    X, Y = tensors()
    Yvar = torch.full_like(Y, 0.01)
    plain, noisy = as_datasets([(X, Y), (X, Y, Yvar)])
    assert plain.X is X
    assert plain.Y is Y
    assert plain.Yvar is None
    assert noisy.Yvar is Yvar
    assert plain.feature_names == ["x0", "x1"]


def test_a_mapping_names_its_datasets():
    sources = {"monday": dataset("y"), "tuesday": tensors(seed=1)}
    datasets = as_datasets(sources)
    assert [ds.outcome_names for ds in datasets] == [["monday"], ["tuesday"]]
    assert datasets[0].X is sources["monday"].X
    assert datasets[0].feature_names == ["a", "b"]
    assert sources["monday"].outcome_names == ["y"]  # the argument isn't changed
    assert MultiTaskDataset(datasets, "tuesday").datasets.keys() == sources.keys()


def test_the_parts_of_a_multi_task_dataset_are_a_mapping():
    joint = MultiTaskDataset([dataset("a"), dataset("b")], target_outcome_name="b")
    assert task_names(as_datasets(joint.datasets)) == ["a", "b"]
    with pytest.raises(InputDataError, match=r"'b' is a MultiTaskDataset: .* For a Multi"):
        as_datasets([joint])


def test_odd_tasks_are_legal():
    X, Y = tensors()
    odd = [(X, torch.ones_like(Y)), (X[:1], Y[:1]), (X[[0, 0, 0]], Y[:3])]
    assert [len(ds.Y) for ds in as_datasets(odd)] == [4, 1, 3]


def test_names_come_from_keys_then_outcomes_then_positions():
    assert task_names({"a": tensors(), 7: tensors()}) == ["a", "7"]
    assert task_names([dataset("a"), dataset("b")]) == ["a", "b"]
    assert task_names([tensors(), dataset("b")]) == ["source task 0", "b"]
    assert task_names([dataset("y"), dataset("y")]) == ["source task 0", "source task 1"]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(["y", "a", "source task 0", None]), min_size=1, max_size=5))
def test_names_differ_and_survive_validation(outcomes):
    sources = [dataset(name, ("x0", "x1")) if name else tensors() for name in outcomes]
    names = task_names(sources)
    assert len(set(names)) == len(names)
    assert task_names(as_datasets(sources)) == names
    assert task_names(as_datasets(dict(zip(names, sources, strict=True)))) == names


X, Y = tensors()
BAD_TASKS = {
    "empty": ((X[:0], Y[:0]), "'bad' has no points: leave out"),
    "nan in X": (
        (X.where(X[2, 0] != X, torch.nan), Y),
        "'bad': X has .*NaN.* in row 2",
    ),
    "inf in Y": (
        (X, Y.where(Y[1] != Y, torch.inf)),
        "'bad': Y has .*NaN.* in row 1: cor",
    ),
    "nan in Yvar": ((X, Y, Y * torch.nan), "'bad': Yvar has a value that is NaN, .* in row 0"),
    "Y is n": ((X, Y[:, 0]), r"Y of task 'bad' .* \(4,\), .* 4 points: give a 4 x 1"),
    "Y is n x 2": ((X, X), r"Y of task 'bad' has the shape \(4, 2\)"),
    "Y is too short": ((X, Y[:3]), r"'bad' has the shape \(3, 1\), .* 4 points"),
    "Yvar is n": ((X, Y, Y[:, 0]), r"Yvar of task 'bad' has the shape \(4,\)"),
    "X is n": ((X[:, 0], Y), r"'bad' has shape \(4,\), but must be n x d"),
    "X is b x n x d": ((X[None], Y[None]), r"'bad' has shape \(1, 4, 2\)"),
    "no inputs": ((X[:, :0], Y), r"'bad' has shape \(4, 0\)"),
    "zero Yvar": ((X, Y, Y * 0), "'bad': Yvar has a value that is not positive"),
    "negative Yvar": ((X, Y, -Y), "'bad': Yvar has a value that is not positive: replace it"),
    "integer X": ((X.long(), Y), r"'bad': X has the type torch.int64: convert it by .double"),
    "integer Y": ((X, Y.long()), "'bad': Y has the type torch.int64"),
    "half precision": ((X.half(), Y.half()), "'bad': X has the type torch.float16"),
    "numpy": ((X.numpy(), Y), "'bad': X is a ndarray: pass a torch.Tensor"),
    "X only": ((X,), r"'bad' is a tuple: pass \(X, Y\), \(X, Y, Yvar\) or"),
    "nothing": (None, r"pass \(X, Y\)"),
    "astronomic": (
        (X, 1e200 * Y),
        r"Y has a value that is .*1e\+100 in row 0: .*another unit",
    ),
    "a table": (pd.DataFrame(), "'bad' is a DataFrame: pass "),
    "other d": (tensors(d=3), "'bad' has 3 inputs, but task 'good' has 2: give all tasks"),
    "other dtype": (tensors(dtype=torch.float32), "'bad': X is torch.float32 on cpu, but X"),
    "mixed dtype": ((X, Y.float()), "'bad': Y is torch.float32 on cpu, but .* convert one"),
}


@pytest.mark.parametrize("kind", BAD_TASKS)
def test_bad_tasks_are_refused_by_name(kind):
    bad, message = BAD_TASKS[kind]
    with pytest.raises(InputDataError, match=message):
        as_datasets({"good": (X, Y), "bad": bad})


def test_unvalidated_datasets_are_validated():
    broken = SupervisedDataset(
        X, Y[:2], feature_names=["a", "b"], outcome_names=["y"], validate_init=False
    )
    with pytest.raises(InputDataError, match=r"Y of task 'y' has the shape \(2, 1\)"):
        as_datasets([broken])


def test_tasks_on_two_devices_are_refused():
    elsewhere = SupervisedDataset(
        X.to("meta"), Y.to("meta"), feature_names=["a", "b"], outcome_names=["b"]
    )
    with pytest.raises(InputDataError, match=r"'b': X is torch.float64 on meta, but X of task 'a'"):
        as_datasets([dataset("a"), elsewhere])


def test_reordered_inputs_are_refused():
    with pytest.raises(InputDataError, match="'q' has the inputs of task 'p' in another order"):
        as_datasets([dataset("p", ("a", "b")), dataset("q", ("b", "a"))])
    assert len(as_datasets([dataset("p", ("a", "b")), dataset("q", ("c", "d"))])) == 2


@pytest.mark.parametrize("nothing", [[], {}, ()])
def test_no_tasks_are_refused(nothing):
    with pytest.raises(InputDataError, match="There are no source tasks: pass at least one"):
        as_datasets(nothing)


@pytest.mark.parametrize("one", [(X, Y), X, dataset()])
def test_one_task_instead_of_a_sequence_is_refused(one):
    with pytest.raises(InputDataError, match="are one task: put the task into a list"):
        as_datasets(one)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (None, "give a list or a mapping of tasks"),
        (7, "are a int: give a list or a mapping of tasks"),
        ("sources.safetensors", "are a str: .* load the prior by its class"),
        (pd.DataFrame({"x": [1.0]}), "are a DataFrame: .* Convert a table by from_dataframe"),
        ({1: tensors(), "1": tensors()}, "are the same text: rename one task"),
    ],
)
def test_what_is_no_collection_of_tasks_is_refused(sources, message):
    with pytest.raises(InputDataError, match=message):
        as_datasets(sources)


def test_too_many_points_for_a_joint_model_are_refused():
    check_joint_size(10_000, torch.float64)
    with pytest.raises(InputDataError, match=r"20,000 .* 29.8 GiB .* 8.0 GiB.: use a modular"):
        check_joint_size(20_000, torch.float64)
    check_joint_size(14_000, torch.float32)
    check_joint_size(20_000, torch.float64, max_bytes=2**35)
