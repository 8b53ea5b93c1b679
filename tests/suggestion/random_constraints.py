"""Random mixed spaces with random linear constraints: does each suggested row satisfy them?

    python -m tests.suggestion.random_constraints 1000

prints how many rows of how many problems do not, and the seeds of these problems. Two
numbers are the first seed and the one to stop before.
"""

import sys
from contextlib import suppress

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models import SingleTaskGP
from tqdm import tqdm

from botorch_transfer.search_space import (
    CategoricalParameter,
    FloatParameter,
    IntegerParameter,
    OrdinalParameter,
    SearchSpace,
)
from botorch_transfer.suggestion.constraints import read_constraint
from botorch_transfer.suggestion.region import Region
from botorch_transfer.suggestion.search import ExhaustedSpaceError, maximize, spread_out


class _Nearness(AcquisitionFunction):
    """Largest at a random point, which the constraints may exclude."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__(SingleTaskGP(x.unsqueeze(0), x[None, :1]))
        self.x = x

    def forward(self, X: torch.Tensor) -> torch.Tensor:
        """Minus the squared distance; a ``batch_shape`` tensor of ``batch_shape x 1 x d``."""
        return -(X - self.x).square().sum(dim=(-2, -1))


def random_problem(seed: int) -> tuple[SearchSpace, list[str]]:
    """A mixed space with up to three constraints that one random configuration satisfies.

    Args:
        seed: The seed of the problem.

    Returns:
        The space and the constraints.
    """
    rng = np.random.default_rng(seed)
    makers = [
        lambda name: FloatParameter(name, float(rng.uniform(-5, 0)), float(rng.uniform(1, 9))),
        lambda name: IntegerParameter(name, int(rng.integers(-5, 1)), int(rng.integers(2, 60))),
        lambda name: OrdinalParameter(name, tuple(np.cumsum(rng.integers(1, 9, 5)).tolist())),
    ]
    numbers = [makers[rng.integers(3)](f"x{i}") for i in range(rng.integers(2, 6))]
    numbers[0] = FloatParameter("x0", 0.0, 1.0)
    parameters = [*numbers, CategoricalParameter("c", ("u", "v"))]
    if rng.random() < 0.5:
        step = (None, 0.1)[int(rng.integers(2))]
        parameters += [FloatParameter(name, 0.0, 1.0, step=step) for name in "pqr"]
    space = SearchSpace(parameters)
    columns = [name for name in space.columns if name != "c"]
    known = space.sample(1, seed).iloc[0]
    texts = []
    for number in range(rng.integers(1, 4)):
        chosen = rng.choice(columns, size=min(len(columns), 3), replace=False).tolist()
        weights = rng.integers(1, 4, len(chosen)) * rng.choice([-1, 1], len(chosen))
        if number == 0 and rng.random() < 0.5:
            chosen, weights = ["x0", *chosen[:2]], np.array([1, *weights[:2]])
            sign, slack = "==", 0.0
        else:
            sign, slack = "<=", rng.uniform(0, 0.2)
        value = sum(w * known[c] for w, c in zip(weights, chosen, strict=True)) + slack
        terms = " + ".join(f"{w} * {c}" for w, c in zip(weights.tolist(), chosen, strict=True))
        texts.append(f"{terms} {sign} {float(value)!r}")
    return space, texts


def num_infeasible(seed: int, num_rows: int = 2) -> int:
    """Searches rows of a random problem, and draws as many of a first design.

    Args:
        seed: The seed of the problem.
        num_rows: How many to search.

    Returns:
        How many rows are not valid, or violate a constraint.
    """
    space, texts = random_problem(seed)
    constraints = [part for text in texts for part in read_constraint(text, space)]
    region = Region(space, constraints=constraints)
    x = torch.rand(space.dim, generator=torch.Generator().manual_seed(seed)).double()
    rows = torch.empty(0, space.dim, dtype=torch.double)
    with suppress(ExhaustedSpaceError):  # of some problems few rows are left
        for number in range(num_rows):
            found = maximize(_Nearness(x), region, rows, rows[:0], False, seed)
            rows = torch.cat([rows, found[None]])
            rows = torch.cat([rows, spread_out(region, number, rows, seed)[None]])
    frame = region.decode(rows)
    holds = np.all([part.holds(frame) for part in constraints], axis=0)
    return int((~holds | (space.round(rows) - rows).abs().amax(dim=-1).gt(1e-9).numpy()).sum())


if __name__ == "__main__":
    counts = {seed: num_infeasible(seed) for seed in tqdm(range(*map(int, sys.argv[1:])))}
    bad = [seed for seed, count in counts.items() if count]
    print(f"{sum(counts.values())} infeasible rows in {len(counts)} problems {bad}")
