"""The devices that tests run on.

Tests of devices run on the accelerator: CUDA where there is a GPU, the simulated device otherwise.
``make test-device`` runs the contract of all models there, too, by ``TEST_DEVICE=accelerator``.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import pytest
import torch
from torch import Tensor

from tests import simulated_device

HAS_GPU = torch.cuda.is_available()
_IS_TESTED = torch.__version__.startswith(f"{simulated_device.TESTED_VERSION}.")
if _IS_TESTED and not HAS_GPU:
    simulated_device.register()


def accelerator() -> str:
    """The device's name; skips the test where there is none."""
    if HAS_GPU:
        return "cuda"
    if not _IS_TESTED:
        pytest.skip(
            f"no GPU, and the simulated device is for PyTorch {simulated_device.TESTED_VERSION}, "
            f"not {torch.__version__}"
        )
    return simulated_device.NAME


@contextmanager
def usable_accelerator() -> Iterator[str]:
    """The device's name, for as long as it is needed."""
    name = accelerator()
    with nullcontext() if HAS_GPU else simulated_device.usable():
        yield name


#: Where the families of tasks draw their data.
DEVICE = "cpu"

_session = ExitStack()
if os.environ.get("TEST_DEVICE") == "accelerator":
    DEVICE = _session.enter_context(usable_accelerator())


#: The tests of the contract that fail on an accelerator, each with the reason.
FAILING = {
    "test_optimal_samples_for_entropy_search": (
        "BoTorch's optimize_posterior_samples draws its candidates on the CPU"
    )
}


def waits(run: Callable[[], object]) -> Counter[str]:
    """Counts how often the CPU waits for the accelerator, or copies from or to it.

    Args:
        run: What is counted.

    Returns:
        The number by reason; CUDA does not tell reasons.
    """
    if accelerator() == simulated_device.NAME:
        simulated_device.waits.clear()
        run()
        return Counter(simulated_device.waits)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")  # the first call of the switch warns, too
        torch.cuda.set_sync_debug_mode("warn")
        try:
            run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    synchronizing = ["synchronizing CUDA operation" in str(warning.message) for warning in told]
    return Counter({"synchronization": sum(synchronizing)})


def launches(run: Callable[[], object]) -> int:
    """Counts the kernels that are launched; an operation of the simulated device counts as one.

    Args:
        run: What is counted.

    Returns:
        The number.
    """
    if accelerator() == simulated_device.NAME:
        simulated_device.launches.clear()
        run()
        return simulated_device.launches.total()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        run()
    return sum(e.count for e in found.key_averages() if "LaunchKernel" in e.key)


def random_state(device: str) -> Tensor:
    """The state of the device's default generator."""
    return torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
