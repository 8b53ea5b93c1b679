"""Pre-trained models for the tests."""

from functools import cache

import torch

from botorch_transfer.models import PretrainedGP
from botorch_transfer.pretraining import PretrainedPrior
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(5, seed=31)
NUM_TASKS = 12
PRESETS = ("hyperbo", "fsbo", "ablr", "stationary")


@cache
@torch.enable_grad()  # some tests that ask for one need no gradients themselves
def prior(preset="hyperbo", num_tasks=NUM_TASKS):
    options = {} if preset == "stationary" else {"hidden": (6, 4)}
    sizes = [7 + index % 3 for index in range(num_tasks)]
    sources = {
        name: (X, FAMILY.value(X, 0.05 * index))
        for index, (name, (X, _)) in enumerate(FAMILY.sources(sizes).items())
    }
    return getattr(PretrainedPrior, preset)(2, **options).fit(sources, steps=150)


def build(n, preset="hyperbo", **options):
    return PretrainedGP(*FAMILY.target(n), prior(preset), **options)
