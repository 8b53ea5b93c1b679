import pickle
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from botorch.models.transforms.input import ChainedInputTransform, Normalize, Warp
from botorch.utils.datasets import SupervisedDataset
from hypothesis import given
from hypothesis import strategies as st

from botorch_transfer.memo import Memo, content_key
from botorch_transfer.pretraining import clear_memos

pytestmark = pytest.mark.usefixtures("nothing_remembered")

BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 2.0]])


@dataclass
class Point:
    x: float
    y: float


class WithContent:
    def __init__(self, content: Any, other: Any = None) -> None:
        self._content, self.other = content, other

    def content(self) -> list[Any]:
        return [self._content]


def dataset(**changes: Any) -> SupervisedDataset:
    arguments = {
        "X": torch.zeros(2, 1),
        "Y": torch.ones(2, 1),
        "Yvar": torch.ones(2, 1),
        "feature_names": ["x"],
        "outcome_names": ["y"],
    }
    return SupervisedDataset(**(arguments | changes))


def chain(bounds: torch.Tensor) -> ChainedInputTransform:
    return ChainedInputTransform(one=Normalize(2, bounds=bounds), two=Normalize(2, bounds=BOUNDS))


MAKERS = {
    "tensor": lambda: torch.arange(3.0),
    "double": lambda: torch.arange(3.0).double(),
    "reshaped": lambda: torch.arange(3.0).reshape(3, 1),
    "other tensor": lambda: torch.arange(3.0) + 1,
    "bool tensor": lambda: torch.tensor([False, True, True]),
    "array": lambda: np.arange(3.0),
    "integer array": lambda: np.arange(3),
    "none": lambda: None,
    "true": lambda: True,
    "one": lambda: 1,
    "float": lambda: 1.0,
    "other float": lambda: 1.0 + 1e-15,
    "string": lambda: "1",
    "bytes": lambda: b"1",
    "list": lambda: [1, 2, 3],
    "nested list": lambda: [1, [2, 3]],
    "other nested list": lambda: [[1, 2], 3],
    "tuple": lambda: (1, 2, 3),
    "set": lambda: {1, 2, 3},
    "empty": lambda: [],
    "mapping": lambda: {"a": 1, "b": 2},
    "other keys": lambda: {"a": 1, "c": 2},
    "other values": lambda: {"a": 1, "b": 3},
    "dataclass": lambda: Point(1.0, 2.0),
    "other dataclass": lambda: Point(2.0, 1.0),
    "content": lambda: WithContent(1, other=object()),
    "other content": lambda: WithContent(2),
    "dataset": dataset,
    "X": lambda: dataset(X=torch.ones(2, 1)),
    "Y": lambda: dataset(Y=torch.zeros(2, 1)),
    "Yvar": lambda: dataset(Yvar=2 * torch.ones(2, 1)),
    "no Yvar": lambda: dataset(Yvar=None),
    "feature names": lambda: dataset(feature_names=["z"]),
    "outcome names": lambda: dataset(outcome_names=["z"]),
    "transform": lambda: Normalize(2, bounds=BOUNDS),
    "other bounds": lambda: Normalize(2, bounds=2 * BOUNDS),
    "reversed transform": lambda: Normalize(2, bounds=BOUNDS, reverse=True),
    "indices": lambda: Normalize(3, indices=[0, 1], bounds=BOUNDS),
    "other indices": lambda: Normalize(3, indices=[0, 2], bounds=BOUNDS),
    "not on training inputs": lambda: Normalize(2, bounds=BOUNDS, transform_on_train=False),
    "chain": lambda: chain(BOUNDS),
    "other chain": lambda: chain(2 * BOUNDS),
    "module": lambda: torch.nn.Linear(1, 1).requires_grad_(False),
}


@pytest.mark.parametrize("name", MAKERS)
def test_equal_content_gives_an_equal_key(name: str) -> None:
    torch.manual_seed(0)
    first = content_key(MAKERS[name]())
    torch.manual_seed(0)
    assert content_key(MAKERS[name]()) == first
    assert content_key("before", MAKERS[name]()) != first


def test_different_content_gives_different_keys() -> None:
    keys = {name: content_key(make()) for name, make in MAKERS.items()}
    assert len(set(keys.values())) == len(keys)


def test_layout_of_a_tensor_is_no_content() -> None:
    tensor = torch.rand(3, 4)
    assert content_key(tensor.mT.contiguous().mT) == content_key(tensor)
    assert content_key(tensor.requires_grad_()) == content_key(tensor.detach())


def test_mode_of_a_module_is_no_content() -> None:
    transform = Normalize(2, bounds=BOUNDS)
    assert content_key(transform.eval()) == content_key(Normalize(2, bounds=BOUNDS).train())


WARP = Warp(d=1, indices=[0], bounds=torch.tensor([[0.0], [1.0]]))  # it holds functions


@pytest.mark.parametrize("unknown", [object(), lambda x: x, [object()], {"a": len}, WARP])
def test_what_has_no_content_is_equal_to_nothing(unknown: Any) -> None:
    assert content_key(unknown) != content_key(unknown)


@given(st.lists(st.text("ab\0")), st.lists(st.text("ab\0")))
def test_parts_do_not_run_together(first: list[str], second: list[str]) -> None:
    assert (content_key(*first) == content_key(*second)) is (first == second)


def test_memo_keeps_what_was_used_last() -> None:
    memo = Memo(size=2)
    memo["a"], memo["b"] = 1, 2
    assert memo["a"] == 1
    memo["c"] = 3
    assert "b" not in memo
    assert (memo["a"], memo["c"]) == (1, 3)
    memo["a"] = 4
    memo["d"] = 5
    assert "c" not in memo
    assert memo["a"] == 4


def test_recall_computes_once() -> None:
    memo, calls = Memo(size=2), []
    for _ in range(3):
        assert memo.recall("key", lambda: calls.append(1) or "result") == "result"
    assert len(calls) == 1


def test_recall_keeps_none_and_not_what_failed() -> None:
    memo = Memo(size=2)
    with pytest.raises(ZeroDivisionError):
        memo.recall("key", lambda: 1 / 0)
    assert memo.recall("key", lambda: None) is None
    assert "key" in memo


def test_clear_memos() -> None:
    memos = [Memo(size=2), Memo(size=3)]
    for memo in memos:
        memo["key"] = 1
    clear_memos()
    assert not any("key" in memo for memo in memos)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_what_is_remembered_serves_gradients(without) -> None:
    memo = Memo(size=1)
    x = torch.ones((), requires_grad=True)

    def compute() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.autograd.grad(x.square(), x)[0], torch.ones(())

    with without():
        memo.recall("key", compute)
        assert not torch.is_grad_enabled()
    gradient, buffer = memo.recall("key", compute)
    assert gradient == 2
    (x * buffer).backward()


def test_results_of_jobs_are_kept():
    calls, finished = [], Memo(size=9)

    def double(value):
        calls.append(value)
        return 2 * value

    for jobs in ([(3,), (1,)], [(1,), (2,), (3,)]):
        found = dict(finished.run("double", double, jobs, 1))
        assert [found[at] for at in range(len(jobs))] == [2 * value for (value,) in jobs]
    assert calls == [3, 1, 2]
    assert list(finished.run("another", double, [(3,)], 1)) == [(0, 6)]
    assert calls[-1] == 3


def test_more_jobs_than_are_remembered():
    jobs = [(value, 2) for value in (1, 2, 3, 1, 2)]
    found = dict(Memo(size=1).run("power", pow, jobs, 1))
    assert [found[at] for at in range(len(jobs))] == [1, 4, 9, 1, 4]


def test_errors_go_through():
    with pytest.raises(ZeroDivisionError):
        list(Memo(size=1).run("divide", divmod, [(1, 0)], 1))


def test_what_threads_finished_outlives_an_error():
    calls, other_is_kept = [], threading.Event()

    def work(value, fails):
        calls.append(value)
        if not value:
            return value
        assert other_is_kept.wait(60)
        return 1 / (not fails)

    class Watching(Memo):
        def __setitem__(self, key, result):
            super().__setitem__(key, result)
            other_is_kept.set()

    finished = Watching(size=9)
    with pytest.raises(ZeroDivisionError):
        # The one that fails comes first, so the other's result is never handed over.
        list(finished.run("work", work, [(1, True), (0, True)], 2, "threading"))
    calls.clear()
    assert list(finished.run("work", work, [(0, True)], 2, "threading")) == [(0, 0)]
    assert calls == []


def test_another_process_begins_with_nothing():
    memo = Memo(size=3)
    memo["key"] = 1
    assert "key" not in pickle.loads(pickle.dumps(memo))
