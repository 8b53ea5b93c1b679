from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys, torch
from botorch_transfer.pretraining.parallel import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
def evaluate():
    return [torch.ones(2**19, dtype=torch.double) for _ in range(10)]  # 40 MiB, 10,240 pages

evaluate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    evaluate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how: str) -> int:
    # With settings of its own, as dask makes them, the allocator does not adapt.
    environment = {name: value for name, value in os.environ.items() if "MALLOC" not in name}
    command = [sys.executable, "-c", PROGRAM, how]
    run = subprocess.run(command, capture_output=True, check=True, env=environment)
    return int(run.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is glibc's allocator")
def test_pages_are_paid_for_once_and_not_each_time() -> None:
    assert page_faults("keep") < page_faults("do not") / 10
