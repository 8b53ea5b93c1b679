"""Compares the posteriors of source GPs with a batched `SingleTaskGP` of the same data."""

import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.timing.measure import Row, Sizes, medians, readable
from benchmarks.timing.tasks import random_tasks
from benchmarks.timing.twin import set_hyperparameters, twin_of_source_gp
from botorch_transfer import SourceGPs

SPEEDUP = 30.0
AGREEMENT = 1e-6

Moments = tuple[Tensor, Tensor]


def compare(sizes: Sizes) -> list[Row]:
    """Compares mean and variance of all tasks at many single points, as acquisitions do."""
    tasks = random_tasks(sizes.num_tasks, sizes.num_points, sizes.dim)
    sources = SourceGPs.fit(tasks, num_restarts=0)
    twin = batched_twin(sources)
    X = torch.rand(sizes.num_queries, 1, sizes.dim, dtype=torch.double)

    def ours(_: int) -> Moments:
        mean, variance = sources.moments(X)
        return mean.squeeze(-1), variance.squeeze(-1)

    def theirs(_: int) -> Moments:
        posterior = twin.posterior(X.unsqueeze(-3).expand(-1, sizes.num_tasks, -1, -1))
        return posterior.mean[..., 0, 0], posterior.variance[..., 0, 0]

    with torch.no_grad():
        times, moments = medians({"BoTorch": theirs, "ours": ours}, sizes.repeats, sizes.clock)
    pairs = zip(moments["ours"], moments["BoTorch"], strict=True)
    difference = max(float((mine - other).abs().max()) for mine, other in pairs)
    speedup = times["BoTorch"] / times["ours"]
    return [
        Row(
            what=(
                f"mean and variance of {sizes.num_tasks} sources × {sizes.num_points} points at "
                f"{sizes.num_queries} × 1"
            ),
            target=f"≥ {SPEEDUP:g} × faster, same within {AGREEMENT:g}",
            reached=f"{speedup:.0f} ×, {difference:.1g}",
            met=speedup >= SPEEDUP and difference <= AGREEMENT,
            detail=f"{readable(times['ours'])}; BoTorch {readable(times['BoTorch'])}",
        )
    ]


def batched_twin(sources: SourceGPs) -> SingleTaskGP:
    """Builds one `SingleTaskGP` with a batch dimension over tasks of equal size.

    Args:
        sources: The source GPs.

    Returns:
        The model in evaluation mode, with the data and hyperparameters of the source GPs.
    """
    gps, data = sources.gps, sources.observed
    Y, noise = (part.reshape(gps.mask.shape) for part in (data.Y, data.noise))
    model = twin_of_source_gp(gps.points, Y.unsqueeze(-1))
    set_hyperparameters(model, gps.lengthscale, gps.outputscale, noise[:, 0])
    return model.eval()
