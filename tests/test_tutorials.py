"""Every tutorial runs from top to bottom: shortly, or in full by ``make tutorials``."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ax")
pytest.importorskip("ipykernel")

from botorch_transfer.ax.strategy import OPTIMIZER_OPTIONS
from tests.brief import brief_optimization
from tests.suggestion.brief_search import briefest_search

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
optuna = pytest.importorskip("optuna")
plt = pytest.importorskip("matplotlib.pyplot")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))
MAX_BYTES = 2 * 2**20
IN_FULL = bool(os.environ.get("TUTORIALS_IN_FULL"))
MAX_SECONDS = 600  # for one cell, on a busy machine
BRIEF_OPTIMIZER = {"num_restarts": 2, "raw_samples": 32}
RESET = "get_ipython().run_line_magic('reset', '-f')"


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nbclient.NotebookClient]:
    """One kernel for all of them, in full."""
    folder = tmp_path_factory.mktemp("tutorials")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        patch.setenv("PYTHONPATH", str(ROOT))
        client = nbclient.NotebookClient(
            nbformat.v4.new_notebook(),
            timeout=MAX_SECONDS,
            resources={"metadata": {"path": str(folder)}},
        )
        client.create_kernel_manager()
        client.start_new_kernel()
        client.start_new_kernel_client()
        yield client
        client._cleanup_kernel()


@pytest.fixture
def in_full(kernel: nbclient.NotebookClient) -> Callable[[Path, list[Any]], None]:
    """Runs cells in the kernel."""

    def run(path: Path, cells: list[Any]) -> None:
        kernel.nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(RESET), *cells])
        kernel.reset_execution_trackers()
        for number, cell in enumerate(kernel.nb.cells):
            kernel.execute_cell(cell, number)

    return run


@pytest.fixture
def briefly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Path, list[Any]], None]]:
    """Runs cells in this process, and leaves it as it was: a kernel's imports take longer."""

    def run(path: Path, cells: list[Any]) -> None:
        names: dict[str, Any] = {"__name__": "notebook"}
        for cell in cells:
            exec(compile(cell.source, path.name, "exec"), names)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMOKE_TEST", "1")
    for name, value in BRIEF_OPTIMIZER.items():
        monkeypatch.setitem(OPTIMIZER_OPTIONS, name, value)
    verbosity = optuna.logging.get_verbosity()
    plt.switch_backend("agg")
    with warnings.catch_warnings(), plt.rc_context(), briefest_search(), brief_optimization():
        yield run
    plt.close("all")
    logging.disable(logging.NOTSET)
    optuna.logging.set_verbosity(verbosity)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorial_runs(path: Path, request: pytest.FixtureRequest):
    cells = nbformat.read(path, as_version=4).cells
    run = request.getfixturevalue("in_full" if IN_FULL else "briefly")
    run(path, [cell for cell in cells if cell.cell_type == "code"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorial_is_saved_as_run(path: Path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs
    assert not [output for output in outputs if output.output_type == "error"]
    assert not [output for output in outputs if output.get("name") == "stderr"]


def test_there_are_tutorials():
    assert NOTEBOOKS


def test_tutorials_are_small():
    assert sum(path.stat().st_size for path in NOTEBOOKS) < MAX_BYTES
