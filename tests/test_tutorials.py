"""Every tutorial runs from top to bottom: shortly, or in full by ``make tutorials``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "tutorials").glob("*.ipynb"))
MAX_BYTES = 2 * 2**20
IN_FULL = bool(os.environ.get("TUTORIALS_IN_FULL"))
MAX_SECONDS = 600 if IN_FULL else 120  # for one cell, on a busy machine
RESET = "get_ipython().run_line_magic('reset', '-f')"
# BoTorch compiles a faster qLogEHVI in every new environment: a minute for nothing in a short run,
# whose searches need not be good either.
BRIEF = """import sys
from botorch.acquisition.multi_objective import logei
from botorch_transfer.ax.strategy import OPTIMIZER_OPTIONS
from tests.brief import brief_optimization
from tests.suggestion.brief_search import brief_search
logei._load_attempted = True
OPTIMIZER_OPTIONS.update(num_restarts=2, raw_samples=32)
sys.brief = brief_search(), brief_optimization()
for brief in sys.brief:
    brief.__enter__()"""


def run(kernel: nbclient.NotebookClient, cells: list[Any]) -> None:
    """Runs cells one after another."""
    kernel.nb = nbformat.v4.new_notebook(cells=cells)
    kernel.reset_execution_trackers()
    for number, cell in enumerate(cells):
        if cell.cell_type == "code":
            kernel.execute_cell(cell, number)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[nbclient.NotebookClient]:
    """One kernel for all of them: importing PyTorch anew would take longer than the notebooks."""
    folder = tmp_path_factory.mktemp("tutorials")
    with pytest.MonkeyPatch.context() as patch:
        if not IN_FULL:
            patch.setenv("SMOKE_TEST", "1")
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
        if not IN_FULL:
            run(client, [nbformat.v4.new_code_cell(BRIEF)])
        yield client
        client._cleanup_kernel()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_tutorial_runs(path: Path, kernel: nbclient.NotebookClient):
    notebook = nbformat.read(path, as_version=4)
    run(kernel, [nbformat.v4.new_code_cell(RESET), *notebook.cells])


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
