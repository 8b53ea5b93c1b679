"""Whatever comes in, no NaN, wrong shape or raw error goes out.

    python -m benchmarks.fuzz

Hypothesis draws tables, search spaces, source data, damaged files of priors, and histories with a
target. Each either works, and then what comes out is finite and has its shape, or is refused by an
`InputDataError`, a `ValueError`, a `TypeError`, or another error of BoTorch's own. The first
example that does neither is printed as small as Hypothesis can make it.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from botorch.exceptions.errors import BotorchError
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from torch import Tensor

import botorch_transfer as bt
from botorch_transfer.data import as_datasets

REFUSALS = (ValueError, TypeError, BotorchError)

TEXT = st.sampled_from(["a", "b", "c", "lr", "task", "y", "", " ", "nan", "1", "1e3", "ü"])
NUMBERS = st.one_of(
    st.integers(-3, 5),
    st.floats(-2.0, 3.0),
    st.sampled_from([0.0, -0.0, 1e-300, 1e300, -1e300, 1e-12, 1e12, 2**63, -(2**70)]),
    st.floats(),
)
CELLS = st.one_of(
    NUMBERS, NUMBERS, TEXT, st.none(), st.booleans(), st.just(pd.NA), st.just([1]), st.just(1j)
)
DTYPES = st.sampled_from([*[None] * 12, "category", "string", "Float64", "float32", "object"])


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """One parameter in the form of `SearchSpace.from_dict`, right or nearly so."""
    kind = draw(st.sampled_from(["float", "int", "ordinal", "categorical", "simplex", "other"]))
    spec: dict[str, Any] = {"type": kind}
    if kind in ("float", "int", "other"):
        bounds = st.integers(-2, 9) if kind == "int" else NUMBERS
        spec |= {"low": draw(bounds), "high": draw(bounds)}
        if draw(st.booleans()):
            spec["low"], spec["high"] = 1, 8
        if draw(st.integers(0, 2)) == 0:
            spec["log"] = draw(st.sampled_from([True, False, "1-x", "x"]))
    elif kind == "simplex":
        if draw(st.booleans()):
            spec["step"] = draw(NUMBERS)
    else:
        spec["choices" if kind == "categorical" else "values"] = draw(
            st.lists(st.one_of(NUMBERS, TEXT), max_size=4)
        )
    if draw(st.integers(0, 5)) == 0:
        spec["active_if"] = {draw(TEXT): draw(st.lists(CELLS, max_size=2))}
    return spec


def spaces() -> st.SearchStrategy[dict[str, Any]]:
    """One to three parameters."""
    return st.dictionaries(TEXT, specs(), min_size=1, max_size=3)


SOUND = bt.SearchSpace.from_dict(
    {
        "lr": {"type": "float", "low": 1e-3, "high": 1.0, "log": True},
        "n": {"type": "int", "low": 1, "high": 8},
        "c": {"type": "categorical", "choices": ["a", "b"]},
    }
)


@st.composite
def tables(draw: st.DrawFn, names: Sequence[str]) -> pd.DataFrame:
    """A table whose columns are mostly those wanted, in types that a file may give."""
    n = draw(st.integers(0, 5))
    columns = {}
    for name in names:
        if draw(st.integers(0, 29)) == 0:
            continue
        good: Any = {
            "lr": st.floats(1e-3, 1.0),
            "n": st.integers(1, 8),
            "c": st.sampled_from("ab"),
            "task": st.sampled_from("xy"),
        }.get(name, st.floats(-5, 5))
        cells = good if draw(st.integers(0, 15)) else CELLS
        values = draw(st.lists(cells, min_size=n, max_size=n))
        try:
            columns[name] = pd.Series(values, dtype=draw(DTYPES))
        except Exception:  # pandas' own: these values have no such type
            columns[name] = pd.Series(values, dtype=object)
    frame = pd.DataFrame(columns)
    if n and draw(st.integers(0, 9)) == 0:
        frame = pd.concat([frame, frame.iloc[:, :1]], axis=1)
    if draw(st.integers(0, 9)) == 0:
        frame.index = pd.Index([0] * len(frame))
    return frame


def check_dataset(dataset: Any, dim: int) -> None:
    """Refuses data that are not `n x dim` and `n x 1`, or not finite."""
    X, Y = dataset.X, dataset.Y
    assert X.shape == (len(Y), dim), X.shape
    assert Y.shape == (len(X), 1), Y.shape
    assert bool(X.isfinite().all()), X
    assert bool(Y.isfinite().all()), Y
    if dataset.Yvar is not None:
        assert bool((dataset.Yvar.isfinite() & (dataset.Yvar > 0)).all()), dataset.Yvar


@given(data=st.data())
def read_tables(data: st.DataObject) -> None:
    """Reads and encodes a table."""
    space = SOUND
    if data.draw(st.integers(0, 3)) == 0:
        space = bt.SearchSpace.from_dict(data.draw(spaces()))
    frame = data.draw(tables([*space.columns, "task", "y", "sem"]))
    options: dict[str, Any] = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "goal": st.sampled_from(["max", "min", "best"]),
                "failed": st.sampled_from(["drop", "worst"]),
                "noise": st.just("sem"),
                "missing": st.dictionaries(TEXT, CELLS, max_size=2),
                "rename": st.dictionaries(TEXT, TEXT, max_size=2),
                "changed": st.booleans(),
            },
        )
    )
    encode = space.encode if data.draw(st.booleans()) else space.place
    try:
        X = encode(frame)
    except REFUSALS:
        pass
    else:
        assert X.shape == (len(frame), space.dim), X.shape
        assert encode == space.place or bool(X.isfinite().all()), X
    found = bt.from_dataframe(frame, space, "y", "task", **options)
    assert found, "no task, and no error"
    for dataset in found.values():
        check_dataset(dataset, space.dim)


@given(spec=spaces(), points=st.lists(NUMBERS, min_size=1, max_size=6), n=st.integers(0, 4))
def make_spaces(spec: dict[str, Any], points: list[float], n: int) -> None:
    """Makes a search space, draws from it, and goes there and back."""
    try:
        space = bt.SearchSpace.from_dict(spec)
    except REFUSALS:
        COUNT["refused"] += 1
        return
    assert space.bounds.shape == (2, space.dim)
    assert bool(space.bounds.isfinite().all())
    frame = space.sample(n, 0)
    X = space.encode(frame)
    assert X.shape == (n, space.dim), X.shape
    assert bool(((X >= 0) & (X <= 1)).all()), X
    torch.testing.assert_close(space.encode(space.decode(X)), X)
    assert bt.SearchSpace.from_dict(space.to_dict()).dim == space.dim
    at = torch.tensor([(points * space.dim)[: space.dim]], dtype=torch.double)
    inside = at.nan_to_num(0.5).clamp(0, 1)
    rounded = space.round(inside)
    assert rounded.shape == at.shape
    try:
        assert len(space.decode(at)) == 1
    except ValueError:  # out of the unit cube
        assert not torch.equal(inside, at)


@st.composite
def tensors(draw: st.DrawFn, n: int, columns: int, sound: bool = False) -> Tensor:
    """A tensor that is mostly as it should be; if sound, only its values may be odd."""
    shape: tuple[int, ...] = (n, columns)
    dtype, exponents = torch.double, [0, 0, 0, 0, -12, 12, -300]
    if not sound:
        shape = draw(st.sampled_from([shape] * 60 + [(n,), (n + 1, columns), (1, n, columns)]))
        dtype = draw(st.sampled_from([dtype] * 40 + [torch.float, torch.long, torch.bool]))
        exponents.append(200)
    values = torch.rand(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    values = values.double() * 10.0 ** draw(st.sampled_from(exponents))
    kind = draw(st.integers(0, 23))
    if kind == 0 and values.numel():
        values.view(-1)[0] = draw(NUMBERS.map(float))
    if kind == 1:
        values = torch.ones_like(values)
    if kind == 2 and len(values):
        values = values[:1].expand(values.shape).clone()
    return values.to(dtype)


@st.composite
def histories(draw: st.DrawFn, dim: int, sound: bool = False) -> Any:
    """One to three tasks of one to six points."""
    tasks = []
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(1, 6))
        tensors_of_task = [draw(tensors(n, dim, sound)), draw(tensors(n, 1, sound))]
        if draw(st.integers(0, 4)) == 0:
            tensors_of_task.append(draw(tensors(n, 1, sound)))
        tasks.append(tuple(tensors_of_task))
    return tasks if draw(st.booleans()) else {str(i): task for i, task in enumerate(tasks)}


@given(dim=st.integers(1, 3), data=st.data())
def read_tensors(dim: int, data: st.DataObject) -> None:
    """Checks source data."""
    for dataset in as_datasets(data.draw(histories(dim))):
        check_dataset(dataset, dataset.X.shape[-1])


def saved_prior(folder: Path) -> tuple[bytes, Path]:
    """A small prior's file."""
    X = torch.linspace(0, 1, 5, dtype=torch.double).unsqueeze(-1)
    path = folder / "prior.safetensors"
    bt.SourceGPs.fit({"a": (X, X.sin()), "b": (X, X.cos())}, num_restarts=0).save(path)
    return path.read_bytes(), path


@dataclass(frozen=True)
class Damage:
    """Loads a prior's file with some bytes changed, left out or put in."""

    content: bytes
    path: Path

    def __call__(self) -> None:
        """Runs all examples."""

        @given(
            start=st.one_of(st.integers(0, 1200), st.integers(0, len(self.content))),
            length=st.integers(0, 12),
            put=st.one_of(st.binary(max_size=12), st.sampled_from([b'"', b"0", b"null", b"{}"])),
        )
        def load(start: int, length: int, put: bytes) -> None:
            damaged = self.content[:start] + put + self.content[start + length :]
            self.path.write_bytes(damaged)
            prior = bt.SourceGPs.load(self.path)
            assert prior.mean(torch.rand(3, 1).double()).isfinite().all()

        run_examples(load)


MODELS: tuple[Callable[..., Any], ...] = (
    bt.ScaMLGP,
    bt.ScaMLGP,
    bt.MeanHierarchicalGP,
    bt.SequentialHierarchicalGP,
    bt.RankWeightedGP,
    bt.TwoStageTransferGP,
    bt.PopulationGP,
    bt.GuardedTransferGP,
    bt.TransferGP,
)


@given(dim=st.integers(1, 3), n=st.integers(0, 4), q=st.integers(1, 3), data=st.data())
def predict(dim: int, n: int, q: int, data: st.DataObject) -> None:
    """Builds a model and predicts."""
    sound, model_class = data.draw(st.booleans()), data.draw(st.sampled_from(MODELS))
    sources = data.draw(histories(dim, sound))
    train = [data.draw(tensors(n, dim, sound)), data.draw(tensors(n, 1, sound))]
    if data.draw(st.integers(0, 4)) == 0:
        train.append(data.draw(tensors(n, 1, sound)))
    test = data.draw(tensors(q, dim))
    model = model_class(*train[:2], sources, *train[2:])
    with torch.no_grad():
        posterior = model.posterior(test)
        mean, variance = posterior.mean, posterior.variance
    if test.dim() == 1:  # GPyTorch takes it for one column
        test = test.unsqueeze(-1)
    assert mean.shape == (*test.shape[:-1], 1), mean.shape
    assert variance.shape == mean.shape
    assert bool(mean.isfinite().all()), mean
    assert bool((variance.isfinite() & (variance >= 0)).all()), variance


COUNT = {"examples": 0, "refused": 0, "number": 0, "seed": 0}


def run_examples(test: Any, strict: bool = False) -> None:
    """Runs a test on as many examples as wanted; allowed errors are refusals, or fail if strict."""
    inner = test.hypothesis.inner_test

    def allowed(*args: Any, **kwargs: Any) -> None:
        COUNT["examples"] += 1
        try:
            inner(*args, **kwargs)
        except REFUSALS as error:
            if strict:
                raise AssertionError(f"refused: {error}") from error
            COUNT["refused"] += 1

    test.hypothesis.inner_test = allowed
    wanted = settings(
        max_examples=COUNT["number"],
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    seed(COUNT["seed"])(wanted(test))()


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the fuzzing; see the module.

    Args:
        arguments: Those of the command line.

    Raises:
        SystemExit: If an example failed.
    """
    parser = argparse.ArgumentParser(description="Fuzz what users hand in.")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the 10,000 examples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", help="some of the parts")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    random.seed(options.seed)
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        content, path = saved_prior(Path(folder))
        parts: dict[str, tuple[int, Callable[[], None]]] = {
            "tables": (4000, lambda: run_examples(read_tables)),
            "spaces": (2000, lambda: run_examples(make_spaces, strict=True)),
            "tensors": (1000, lambda: run_examples(read_tensors)),
            "files": (1000, Damage(content, path)),
            "models": (2000, lambda: run_examples(predict)),
        }
        for name, (number, run) in parts.items():
            if options.only and name not in options.only:
                continue
            COUNT.update(examples=0, refused=0, seed=options.seed)
            COUNT["number"] = max(1, round(options.scale * number))
            start = time.process_time()
            try:
                run()
            except Exception as error:
                failed.append(name)
                print(f"{name}: {type(error).__name__}: {error}")
                print("\n".join(getattr(error, "__notes__", [])))
            seconds = time.process_time() - start
            print(
                f"{name}: {COUNT['examples']} examples, {COUNT['refused']} refused, "
                f"{seconds:.0f} core-seconds",
                flush=True,
            )
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
