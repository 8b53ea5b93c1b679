"""The private names of BoTorch that we import, and its private methods that we override."""

import ast
import inspect
from pathlib import Path

import pytest
from botorch.models import SingleTaskGP
from botorch.utils.types import DEFAULT

import botorch_transfer
from botorch_transfer import _botorch

ROOT = Path(botorch_transfer.__file__).parent

#: The arguments that we pass.
SIGNATURES = {
    "fit_fallback": ["mll", "closure", "optimizer", "closure_kwargs", "optimizer_kwargs"],
    "draw_kernel_feature_paths_fallback": [
        "num_inputs",
        "mean_module",
        "covar_module",
        "sample_shape",
        "num_features",
    ],
}

#: Private methods that we override, with their arguments.
OVERRIDDEN = {
    (SingleTaskGP, "_set_transformed_inputs"): [],
    (SingleTaskGP, "_revert_to_original_inputs"): [],
    (SingleTaskGP, "_restore_targets_and_noise"): ["Y", "Yvar", "strict"],
    (SingleTaskGP, "_apply_noise"): ["X", "mvn", "observation_noise"],
}


def arguments(function) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_functions_take_what_we_pass(name: str):
    missing = set(SIGNATURES[name]) - set(arguments(getattr(_botorch, name)))
    assert not missing, (
        f"BoTorch's function behind _botorch.{name} no longer takes {sorted(missing)}: read how it "
        "is called now, and change our calls."
    )


def test_the_type_of_default():
    assert isinstance(DEFAULT, _botorch.DefaultType), (
        "botorch.utils.types.DEFAULT is of another type now: models no longer see that an "
        "outcome_transform was left out."
    )


@pytest.mark.parametrize(("owner", "name"), OVERRIDDEN)
def test_methods_that_we_override_are_there(owner: type, name: str):
    method = getattr(owner, name, None)
    assert method is not None, f"{owner.__name__} has no {name} any more: nobody calls ours."
    found = [argument for argument in arguments(method) if argument != "kwargs"]
    expected = OVERRIDDEN[owner, name]
    assert found[: len(expected)] == expected, (
        f"{owner.__name__}.{name} takes {found} now, and ours {expected}."
    )


@pytest.mark.parametrize(
    "path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_other_file_imports_a_private_name(path: Path):
    if path.name == "_botorch.py":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        modules = [node.module] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            root, *parts = (module or "").split(".")
            if root in ("botorch", "gpytorch", "linear_operator"):
                names = parts + [alias.name for alias in node.names]
                private = [name for name in names if name.startswith("_")]
                assert not private, (
                    f"{path.name} imports {private} of {module}: import it in _botorch.py, and say "
                    "there why."
                )
