"""Which parameters matter: shares of a model's variation over the search space.

Sobol's total indices of predicted means. A parameter's index is the share of the variance over the
space that is left when all other parameters are known, so that joint effects count for each of the
parameters that take part in them, and indices may add up to more than one.
"""

from __future__ import annotations

from typing import Any

import torch
from botorch.models.model import Model
from botorch.utils.sampling import draw_sobol_samples
from numpy.typing import NDArray
from pandas import DataFrame
from torch import Tensor

from botorch_transfer.model import TransferModel
from botorch_transfer.search_space import SearchSpace
from botorch_transfer.suggestion.outcomes import moments

NUM_POINTS = 256
"""Points of each of the two samples, a power of two."""

NEW, OLD = "this study", "old tasks"


@torch.no_grad()
def parameter_importance(model: Model, space: SearchSpace, seed: int = 0) -> DataFrame:
    """Computes how much each parameter matters to a model's predictions, and to its old tasks.

    Args:
        model: A fitted model of one outcome on encoded rows of the space.
        space: The search space.
        seed: The seed of the points.

    Returns:
        A table with the parameters as index, the most important first, and total Sobol indices
        between 0 and 1: ``this study`` of what the model predicts, and ``old tasks`` of what each
        old task predicts, on the average over them; NaN for a model without a posterior of each.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> space = SearchSpace([FloatParameter("a", 0, 1), FloatParameter("b", 0, 1)])
        >>> list(parameter_importance(SingleTaskGP(X, X[:, :1]), space).index)
        ['a', 'b']
    """
    drawn = draw_sobol_samples(space.bounds.repeat(1, 2), NUM_POINTS, 1, seed=seed).squeeze(-2)
    A, B = (space.round(half) for half in drawn.split(space.dim, dim=-1))
    mixed = []
    for parameter in space.parameters:
        columns = space.feature_indices[parameter.name]
        changed = A.clone()
        changed[:, columns] = B[:, columns]
        mixed.append(space.round(changed))  # a choice may switch other parameters on and off
    X = torch.cat([A, B, *mixed])

    def indices(values: Tensor) -> NDArray[Any]:
        """Mean total indices over functions, given by an ``s x (p + 2) n`` tensor of values."""
        f = values.double().unflatten(-1, (-1, NUM_POINTS))
        variance = f[:, :2].flatten(start_dim=1).var(dim=-1, correction=0)
        left = (f[:, :1] - f[:, 2:]).square().mean(dim=-1) / 2  # by Jansen's formula
        varying = left[variance > 1e-24] / variance[variance > 1e-24].unsqueeze(-1)
        return varying.clamp(0.0, 1.0).sum(dim=0).numpy() / max(len(varying), 1)

    table = DataFrame(index=[parameter.name for parameter in space.parameters])
    table[NEW] = indices(moments(model, X)[0].unsqueeze(0))
    informed = model.member_on_sources if isinstance(model, TransferModel) else None
    prior: Any = None if informed is None else informed.prior
    table[OLD] = float("nan") if prior is None else indices(prior.moments(X)[0])
    return table.sort_values(NEW, ascending=False, kind="stable")
