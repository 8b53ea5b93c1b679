"""Joint models for the tests, by their names in the paper."""

import torch

from botorch_transfer import (
    IntrinsicCoregionalizationGP,
    JointHierarchicalGP,
    JointScaMLGP,
    LinearCoregionalizationGP,
    WeightedSourceGP,
)
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(6, seed=31)
SIZES = {1: (7,), 2: (7, 4), 5: (7, 4, 1, 9, 6)}
MODELS = {
    "MTGP": (LinearCoregionalizationGP, {}),
    "MTGP, rank 1": (LinearCoregionalizationGP, {"rank": 1}),
    "MTKGP": (IntrinsicCoregionalizationGP, {}),
    "WSGP": (WeightedSourceGP, {}),
    "WSGP, normalized": (WeightedSourceGP, {"normalize": True}),
    "HGP": (JointHierarchicalGP, {}),
    "ScaML": (JointScaMLGP, {}),
}
#: Sources that are factorized together, and independent ones: for what no more depends on.
BLOCKS = ("HGP", "ScaML")


def sources(num_tasks, noise="inferred"):
    """Source data; ``noise`` is known for none, all, or every other task."""
    tasks = list(FAMILY.sources(SIZES[num_tasks]).items())
    known = {"inferred": (), "known": range(num_tasks), "mixed": range(0, num_tasks, 2)}[noise]
    return {
        name: (X, Y, 0.5 + torch.rand_like(Y)) if number in known else (X, Y)
        for number, (name, (X, Y)) in enumerate(tasks)
    }


def scattered(model, seed=0):
    """Gives a model other hyperparameters than its starts, all of them different."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.add_(0.2 * noise.abs())
    return model.train().eval()


def model_of(name, X, Y, history, **kwargs):
    model_class, options = MODELS[name]
    return model_class(X, Y, history, **options, **kwargs)


def build(name, num_tasks=2, n=4, noise="inferred", **kwargs):
    X, Y = FAMILY.target(n)
    Yvar = None if noise == "inferred" else torch.full_like(Y, 0.3)
    return scattered(model_of(name, X, Y, sources(num_tasks, noise), train_Yvar=Yvar, **kwargs))
