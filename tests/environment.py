"""The surroundings of all tests, loaded by ``conftest.py`` in each process that runs some."""

import gc
import logging
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from botorch.acquisition.multi_objective import logei
from hypothesis import settings

from botorch_transfer.pretraining import clear_memos
from tests.devices import usable_accelerator

# Nothing is read from, or left in, the user's folder; the commands that tests start inherit it.
os.environ["BOTORCH_TRANSFER_CACHE"] = "off"

# BoTorch compiles a faster qLogEHVI in every new environment: a minute for nothing here.
logei._load_attempted = True

# For each kind of device that is absent, PyTorch notes where it was seeded: some milliseconds.
for absent in (torch.cuda, torch.xpu, torch.mtia):
    if not absent.is_available():
        absent.manual_seed_all = lambda seed: None

_broadcast_shapes = torch.broadcast_shapes


def _quickly_broadcast_shapes(*shapes: Any) -> torch.Size:
    try:
        return torch.Size(np.broadcast_shapes(*shapes))
    except (TypeError, ValueError):  # or PyTorch's error
        return _broadcast_shapes(*shapes)


# GPyTorch asks for nothing as often; PyTorch's own function takes ten times as long.
torch.broadcast_shapes = _quickly_broadcast_shapes

# A deadline measures the machine, not the program; 15 examples keep the suite within minutes.
settings.register_profile("botorch_transfer", deadline=None, derandomize=True, max_examples=15)
settings.load_profile("botorch_transfer")


# Imports and collection leave little garbage.
gc.disable()


def pytest_collection_finish() -> None:
    """Keeps the garbage collector from going through all modules and tests again and again.

    That takes a tenth of the time of all tests.
    """
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(autouse=True)
def _seeded_and_single_by_default() -> Iterator[None]:
    """Seeds every test, and checks that none relies on, or changes, the default dtype."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002  (SciPy and scikit-learn read the global state)
    assert torch.get_default_dtype() is torch.float32
    yield
    assert torch.get_default_dtype() is torch.float32


@pytest.fixture(autouse=True)
def _silent_loggers() -> Iterator[None]:
    """Undoes what the command sets in this process: that some rooms log more than warnings."""
    yield
    for name, logger in logging.root.manager.loggerDict.items():
        # Each change of a level clears the caches of all loggers.
        if name.startswith("botorch_transfer.") and getattr(logger, "level", logging.NOTSET):
            logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def device() -> Iterator[str]:
    """CUDA where there is a GPU, the simulated device otherwise."""
    with usable_accelerator() as name:
        yield name


@pytest.fixture
def nothing_remembered() -> Iterator[None]:
    """Lets a test pre-train for itself."""
    clear_memos()
    yield
    clear_memos()
