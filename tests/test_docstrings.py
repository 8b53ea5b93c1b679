"""Every example in a docstring runs, and shows what it says."""

import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from enum import EnumType
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import Normalize
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import MaternKernel, RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

import botorch_transfer
from botorch_transfer import ScaMLGP, SourceGPs, pretraining
from botorch_transfer.gp.combine import TaskWeights
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS
from botorch_transfer.gp.stationary import stationary_function

FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

#: What examples need not import: PyTorch, GPyTorch, BoTorch, and the names of this package.
PREPARED = {
    "torch": torch,
    "fit_gpytorch_mll": fit_gpytorch_mll,
    "ExactMarginalLogLikelihood": ExactMarginalLogLikelihood,
    "MaternKernel": MaternKernel,
    "Normalize": Normalize,
    "RBFKernel": RBFKernel,
    "SingleTaskGP": SingleTaskGP,
    "ConditionedGPs": ConditionedGPs,
    "TaskWeights": TaskWeights,
    "stationary_function": stationary_function,
    "SOURCE_HYPERPARAMETERS": SOURCE_HYPERPARAMETERS,
    **{name: getattr(pretraining, name) for name in pretraining.__all__},
    **{name: getattr(botorch_transfer, name) for name in botorch_transfer.__all__},
}


@cache
def small_objects() -> dict[str, Any]:
    """Small objects that the examples of methods start from."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(6, 2, generator=generator, dtype=torch.double)
    Y = X.sum(dim=-1, keepdim=True)
    sources = SourceGPs.fit({"monday": (X, Y), "tuesday": (X, 2 * Y)}, num_restarts=0)
    dataset = SupervisedDataset(X, Y, feature_names=["a", "b"], outcome_names=["wednesday"])
    model = ScaMLGP(X[:3], Y[:3], sources)
    return {"sources": sources, "dataset": dataset, "model": model}


def modules(names: Iterable[str]) -> Iterator[tuple[str, ModuleType]]:
    """Imports modules; without Ax or Optuna, those that need them are left out."""
    absent = [extra for extra in ("ax", "optuna") if find_spec(extra) is None]
    for name in names:
        if not name.startswith(tuple(f"botorch_transfer.{extra}" for extra in absent)):
            yield name, importlib.import_module(name)


def find_examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    walk = pkgutil.walk_packages(botorch_transfer.__path__, "botorch_transfer.")
    for name, module in modules(info.name for info in walk):
        tests = finder.find(module, name, globs={**PREPARED, **vars(module)})
        yield from (test for test in tests if test.examples)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("example", list(find_examples()), ids=lambda example: example.name)
def test_example(example: doctest.DocTest, tmp_path: Path, monkeypatch) -> None:
    if "plotting" in example.name:
        pytest.importorskip("matplotlib").use("agg")
    monkeypatch.chdir(tmp_path)
    source = "".join(part.source for part in example.examples)
    used = {name: value for name, value in small_objects().items() if name in source}
    example.globs = {**deepcopy(used), **example.globs}
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=report.append)
    assert not failed, "".join(report)


def public_objects() -> Iterator[tuple[str, Any]]:
    """All classes and functions that a facade offers, each once."""
    seen: set[int] = set()
    found_modules = pkgutil.iter_modules(botorch_transfer.__path__, "botorch_transfer.")
    public = [info.name for info in found_modules if "._" not in info.name]
    names = ["botorch_transfer", *public]
    for name, module in modules(names):
        for public in getattr(module, "__all__", ()):
            found = getattr(module, public)
            if callable(found) and inspect.getdoc(found) and id(found) not in seen:
                seen.add(id(found))
                yield f"{name}.{public}", found


def test_arguments_are_documented() -> None:
    missing = []
    for name, found in public_objects():
        if isinstance(found, EnumType):
            continue  # values, not arguments
        own = [vars(base).get("__doc__") or "" for base in getattr(found, "__mro__", ())[:2]]
        documentation = "\n".join(own) or inspect.getdoc(found) or ""
        for parameter in inspect.signature(found).parameters.values():
            if isinstance(found, type) and parameter.kind is parameter.VAR_KEYWORD:
                continue
            pattern = rf"^\s*\\?\*{{0,2}}{parameter.name}:"
            if not re.search(pattern, documentation, re.MULTILINE):
                missing.append(f"{name}: {parameter.name}")
    assert missing == []


def test_everything_public_has_an_example() -> None:
    missing = [
        name
        for name, found in public_objects()
        if not (inspect.isabstract(found) or isinstance(found, EnumType))
        and "Example:" not in (inspect.getdoc(found) or "")
    ]
    assert missing == []
