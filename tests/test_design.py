"""Rules of the package's structure: classes are abstract or final, and imports go one way."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import botorch_transfer

ROOT = Path(botorch_transfer.__file__).parent
METHODS = {"sources", "hierarchy", "population", "hyperbo", "hyperprior"}
#: The rooms of the package. A room imports only from rooms in preceding groups.
ROOMS = (
    {"_botorch", "input_transforms", "memo", "progress", "search_space", "test_functions"},
    {"datasets", "outcome_transforms"},
    {"data"},
    {"gp", "feasibility"},
    {"saving"},
    {"curves", "prior"},
    {"arguments", "ax_experiments"},
    {"model", "old_studies"},
    {"joint", "plotting", "report"},
    {"modular"},
    METHODS,
    {"average", "kernels", "pretraining"},
    {"acquisition", "models"},
    {"ax", "suggestion"},
    {"optuna", "__init__", "__main__"},
)
#: Concrete classes that have subclasses; no further ones.
CONCRETE_BASES = {
    "ConditionedHierarchy",
    "DerivedNoise",
    "HartmannFamily",
    "LogDensityLogNormalPrior",
    "MAPOptions",
    "TaskFamily",
}

#: Files that ask objects of other packages, or of any of several kinds, for an attribute.
HASATTR = {"average/base", "model", "plotting"}


@cache
def files() -> dict[str, ast.Module]:
    """The package's files, by their names."""
    return {
        path.relative_to(ROOT).with_suffix("").as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
    }


def classes() -> dict[str, ast.ClassDef]:
    nodes = (node for tree in files().values() for node in ast.walk(tree))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def is_base(node: ast.ClassDef) -> bool:
    """Whether a class has an abstract method of its own, or says that it is a base class."""
    decorators = [
        ast.unparse(decorator)
        for part in node.body
        if isinstance(part, ast.FunctionDef)
        for decorator in part.decorator_list
    ]
    doc = ast.get_docstring(node) or ""
    return "abstractmethod" in decorators or doc.startswith(("Base class", "Mixin"))


def imports(tree: ast.Module) -> Iterator[str]:
    """The rooms that a file imports when it runs, not for types only."""
    nodes = list(ast.walk(tree))
    for_types = {
        part
        for node in nodes
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for part in node.body
    }
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node not in for_types:
            package, *rest = (node.module or "").split(".")
            if package == "botorch_transfer":
                yield from rest[:1] or (alias.name for alias in node.names)


def test_every_class_is_abstract_or_final() -> None:
    known = classes()
    bases = {ast.unparse(base).split("[")[0] for node in known.values() for base in node.bases}
    subclassed = {name for name in bases & known.keys() if not is_base(known[name])}
    assert subclassed <= CONCRETE_BASES


def test_own_types_are_not_asked_for_attributes() -> None:
    asking = {
        name
        for name, tree in files().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "hasattr"
    }
    assert asking <= HASATTR


def test_imports_go_one_way() -> None:
    group = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
    assert {name.split("/")[0] for name in files()} == group.keys()
    for name, tree in files().items():
        room = name.split("/")[0]
        later = {other for other in imports(tree) if group.get(other, -1) >= group[room]} - {room}
        assert not later, name


def test_the_makefile_names_files_that_exist():
    root = ROOT.parent
    text = (root / "Makefile").read_text(encoding="utf-8")
    paths = re.findall(r"\btests/[\w/*.]+", text)
    assert len(paths) > 3
    for path in paths:
        assert list(root.glob(path)), path
