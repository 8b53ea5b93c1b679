"""Rules of the package's structure: classes are abstract or final, and imports go one way."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import botorch_transfer

ROOT = Path(botorch_transfer.__file__).parent
BELOW_DATA = {"memo", "_botorch", "outcome_transforms", "input_transforms"}
METHODS = {"sources", "hierarchy", "population", "joint", "hyperbo", "hyperprior"}
USING = {"acquisition", "plotting", "suggestion", "ax", "optuna"}
ABOVE = {"average", *USING}
SHARED = {"arguments", "model", "modular", "report"}
NOT_BELOW = {
    **{key: {"data", "gp", "prior", *SHARED, *METHODS, *ABOVE} for key in BELOW_DATA},
    "search_space": {"data", "gp", "prior", *SHARED, *METHODS, *ABOVE},
    "data": {"gp", "saving", "prior", *SHARED, *METHODS, *ABOVE},
    "gp": {"saving", "prior", *SHARED, *METHODS, *ABOVE},
    "saving": {"prior", *SHARED, *METHODS, *ABOVE},
    "prior": {*SHARED, *METHODS, *ABOVE},
    "arguments": {"model", "modular", "report", *METHODS, *ABOVE},
    "model": {"modular", "report", *METHODS, *ABOVE},
    "report": {"modular", *METHODS, *ABOVE},
    "modular": {*METHODS, *ABOVE},
    **dict.fromkeys(METHODS, ABOVE),
    "average": USING,
    "acquisition": USING - {"acquisition"},
    "feasibility": {"gp", "saving", "prior", *SHARED, *METHODS, *ABOVE},
    "suggestion": {"ax", "optuna"},
    "plotting": {"suggestion", "ax", "optuna"},
    "ax_experiments": {"old_studies", *USING},
    "old_studies": USING,
    "ax": {"suggestion", "optuna"},
    "optuna": {"ax"},
}
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
    for name, tree in files().items():
        room = name.split("/")[0]
        imported = set(imports(tree))
        assert not imported & NOT_BELOW.get(room, set()), name
        if room in METHODS:
            assert imported & METHODS <= {room}, name


def test_the_makefile_names_files_that_exist():
    root = ROOT.parent
    text = (root / "Makefile").read_text(encoding="utf-8")
    paths = re.findall(r"\btests/[\w/*.]+", text)
    assert len(paths) > 3
    for path in paths:
        assert list(root.glob(path)), path
