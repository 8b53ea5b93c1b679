"""What `make release-check` runs where nothing but the built package is installed.

With the argument `readme`, it runs the README's snippets, which need the extras `ax` and `optuna`.
"""

import re
import sys
import tempfile
from importlib.metadata import metadata, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import LogExpectedImprovement
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood

import botorch_transfer
from botorch_transfer import ScaMLGP, SourceGPs, from_dataframe
from botorch_transfer.datasets import load_tuning_history, tuning_search_space


def check_what_is_packed() -> None:
    """Version, licence, type marker and data are there, and it is the installed package."""
    package = files("botorch_transfer")
    assert "site-packages" in str(package), package
    assert version("botorch_transfer") == botorch_transfer.__version__
    assert metadata("botorch_transfer")["License-Expression"] == "MIT"
    for name in ("py.typed", "datasets/tuning_history.csv.gz", "datasets/README.md"):
        assert package.joinpath(name).is_file(), name


def check_without_extras() -> None:
    """Pictures without matplotlib are refused by one sentence, and nothing else needs it."""
    assert find_spec("matplotlib") is None
    from botorch_transfer import plotting

    message = ""
    try:
        plotting._axes(None, figsize=(1, 1))
    except ImportError as error:
        message = str(error)
    assert "botorch_transfer[plot]" in message


def check_a_step() -> None:
    """From old runs to a saved prior and a suggestion."""
    space = tuning_search_space("svm")
    runs = load_tuning_history("svm").groupby("task").head(15)
    history = from_dataframe(runs, space, outcome="log_loss", task="task", goal="min")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "svm.safetensors"
        SourceGPs.fit(history, num_restarts=0).save(path)
        sources = SourceGPs.load(path)
    train_X = space.encode(space.sample(3, seed=0))
    train_Y = torch.tensor([[-0.5], [-0.3], [-0.6]], dtype=torch.double)
    model = ScaMLGP(train_X, train_Y, sources)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    acquisition = LogExpectedImprovement(model, train_Y.max())
    candidate, _ = optimize_acqf(acquisition, space.bounds, 1, num_restarts=2, raw_samples=16)
    assert set(space.decode(candidate).columns) == {"C", "gamma"}


def run_readme() -> None:
    """The README's snippets run as they stand there."""
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, "README.md", "exec"), names)


if __name__ == "__main__":
    check_what_is_packed()
    if "readme" in sys.argv:
        run_readme()
    else:
        check_without_extras()
        check_a_step()
    print(f"botorch_transfer {botorch_transfer.__version__} works")
