"""Acquisition functions for transfer models in Ax.

Ax creates a :class:`TransferAcquisition`, which selects the acquisition function. Before the first
outcome, this is :class:`PriorUpperConfidenceBound`. After the first outcome, it is
:func:`noisy_improvement` for one objective without constraints, and Ax's default acquisition
function in all other cases. After the first failure, the log probability of success is added to the
acquisition value. :class:`AvoidingAcquisition` keeps suggestions away from failed, abandoned and
pending points.

:class:`TransferAcquisition` overrides ``_instantiate_acquisition`` and ``optimize`` of Ax's
``Acquisition``. :class:`TransferAcquisition` reads Ax's private attributes ``_model``,
``_objective_weights``, ``_outcome_constraints`` and ``_learned_objective_preference_model``.

.. [Gonzalez2016batch]
    J. González, Z. Dai, P. Hennig and N. Lawrence. Batch Bayesian Optimization via Local
    Penalization. AISTATS 2016.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ax.adapter.transforms.one_hot import OH_PARAM_INFIX
from ax.core.search_space import SearchSpaceDigest
from ax.generators.torch.botorch_modular.acquisition import Acquisition, determine_optimizer
from ax.generators.utils import mk_discrete_choices
from botorch.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multioutput_acquisition import MultiOutputAcquisitionFunction
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor
from torch.nn.functional import one_hot

from botorch_transfer.acquisition import PriorUpperConfidenceBound, noisy_improvement
from botorch_transfer.feasibility import FeasibilityModel, FeasibleAcquisition


class AvoidingAcquisition(AcquisitionFunction):
    r"""Acquisition function with local penalization around points to avoid.

    Use it to keep suggestions away from failed and pending points. Without the penalty, a model
    with a clear optimum would suggest the same point until an outcome contradicts the model. Within
    ``radius`` of a point to avoid, the penalty lowers the acquisition value. At the point itself,
    the penalized value is the *floor*. Outside the radius, the value is unchanged. This is a hard
    form of local penalization [Gonzalez2016batch]_.

    .. code-block:: text

        t(x, a) = min(1, ‖x - a‖² / radius²)
        floor + (acquisition(x) - floor) · product over points a of t(x, a) (2 - t(x, a))

    The floor is the minimum of the acquisition over the points of ``reference``. The floor is
    updated when pending points change, because pending points may lower the acquisition everywhere.
    Distances along a parameter are measured in widths of the parameter's range. Two different
    categories of a parameter have distance 1, with or without one-hot encoding. One-hot inputs are
    rounded to categories, because Ax also rounds suggestions. Without rounding, a suggestion
    between two categories could be far from all points to avoid, and Ax could then round the
    suggestion to one of these points. Pending points, including points of the same batch, are
    avoided, too.

    Args:
        acquisition: The acquisition function to penalize.
        bounds: A ``2 x d`` tensor, the bounds of the search space.
        X_avoid: A ``p x d`` tensor of inputs to avoid. Inactive parameters are NaN.
        radius: The penalty acts within this distance of each point to avoid.
        reference: An ``r x d`` tensor of inputs that cover the search space. The floor is computed
            from these inputs.
        categorical: The indices of inputs whose values are unordered categories.
        one_hot_blocks: For each one-hot encoded parameter, the indices of its inputs.

    Example:
        >>> from botorch.acquisition import PosteriorMean
        >>> X = torch.rand(6, 2, dtype=torch.double)
        >>> mean = PosteriorMean(SingleTaskGP(X, X.sum(-1, keepdim=True)))
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
        >>> avoiding = AvoidingAcquisition(mean, bounds, X[:1], radius=0.1, reference=X)
        >>> bool(avoiding(X[:1].unsqueeze(-2)) == mean(X.unsqueeze(-2)).min())
        True
    """

    def __init__(
        self,
        acquisition: AcquisitionFunction,
        bounds: Tensor,
        X_avoid: Tensor,
        radius: float,
        reference: Tensor,
        categorical: Sequence[int] = (),
        one_hot_blocks: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__(acquisition.model)
        self.acquisition, self.X_avoid = acquisition, X_avoid
        self.radius, self.reference = radius, reference
        self.categorical, self.one_hot = list(categorical), list(map(list, one_hot_blocks))
        widths = bounds[1] - bounds[0]
        self.widths = torch.where(widths > 0, widths, 1.0)
        for block in self.one_hot:  # two categories differ in two one-hot inputs
            self.widths[block] = math.sqrt(2)
        # Analytic acquisition functions have no ``X_pending``.
        self.X_pending: Any = getattr(acquisition, "X_pending", None)
        self._update_floor()

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Sets the pending inputs, and recomputes the penalized value at points to avoid.

        Args:
            X_pending: A ``p x d`` tensor of pending inputs; ``None`` if no input is pending.
        """
        self.acquisition.set_X_pending(X_pending)
        self.X_pending = X_pending
        self._update_floor()

    @torch.no_grad()
    def _update_floor(self) -> None:
        self.floor = self.acquisition(self.reference.unsqueeze(-2)).min()

    def forward(self, X: Tensor) -> Tensor:
        """Evaluates the penalized acquisition function.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.

        Returns:
            A ``batch_shape`` tensor of values. For ``q > 1``, each of the ``q`` inputs is evaluated
            alone, and the largest of the ``q`` values is returned.
        """
        if X.shape[-2] > 1:  # only for the final batch of mixed and discrete optimizers
            return self(X.unsqueeze(-2)).amax(dim=-1)
        avoid = self.X_avoid.to(X)
        if self.X_pending is not None:
            avoid = torch.cat([avoid, self.X_pending.to(X)])
        X = _round_one_hot(X, self.one_hot)
        parts = ((X.unsqueeze(-2) - avoid.nan_to_num()) / self.widths.to(X)).square()
        parts = parts * ~avoid.isnan()
        parts[..., self.categorical] = (parts[..., self.categorical] > 0).to(X)
        near = (parts.sum(dim=-1) / self.radius**2).clamp(max=1.0)
        factors = (near * (2 - near)).flatten(start_dim=-2)
        return self.floor + (self.acquisition(X) - self.floor) * factors.prod(dim=-1)


def _round_one_hot(X: Tensor, blocks: Sequence[Sequence[int]]) -> Tensor:
    """Rounds one-hot encoded parameters: sets the largest input to 1, and the other inputs to 0.

    Args:
        X: A ``... x d`` tensor of inputs.
        blocks: The indices of the inputs of each one-hot encoded parameter.

    Returns:
        The rounded inputs. Only inputs that are not one-hot encoded keep their gradients.
    """
    for block in blocks:
        chosen = one_hot(X[..., block].argmax(dim=-1), len(block)).to(X)
        X = X.index_copy(-1, torch.tensor(block, device=X.device), chosen)
    return X


class TransferAcquisition(Acquisition):
    """Ax's ``Acquisition`` with three changes for transfer models.

    1. Before the first outcome, candidates maximize the upper confidence bound of the transferred
       prior.
    2. For one objective without constraints, candidates maximize the analytic noisy expected
       improvement. For a ``TransferGP``, the improvement is averaged over the member models. In a
       batch, each candidate has to improve on the earlier candidates, too.
    3. Candidates avoid regions where failures are likely. They also avoid failed, abandoned and
       pending points.

    Ax creates an object of this class, with options from :class:`TransferAdapter`. The options
    ``"failed"``, ``"succeeded"``, ``"abandoned"`` and ``"pending"`` are lists of inputs of earlier
    trials. Inactive parameters are NaN.
    """

    def _instantiate_acquisition(self) -> None:
        model, weights = self._model, self._objective_weights
        reference = self._spread_out()
        acquisition: AcquisitionFunction | None = None
        if self.X_observed is None:
            limits = self._outcome_constraints
            acquisition = PriorUpperConfidenceBound(model, weights, limits, X_reference=reference)
        elif self._is_plain_improvement():
            acquisition = noisy_improvement(model, weights, self.X_observed, X_reference=reference)
        if acquisition is None:
            super()._instantiate_acquisition()
            return
        acquisition.set_X_pending(self.X_pending)
        self.acqf = acquisition
        self.models_used = [self.surrogate.model_name_by_metric]
        self.acq_function_sequence = None

    def _is_plain_improvement(self) -> bool:
        return (
            self.botorch_acqf_classes_with_options == [(qLogNoisyExpectedImprovement, {})]
            and self._outcome_constraints is None
            and self._learned_objective_preference_model is None
            and len(self._objective_weights) == 1
        )

    def optimize(  # type: ignore[override]
        self, n: int, search_space_digest: SearchSpaceDigest, **kwargs: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Generates candidates that avoid failed, abandoned and pending points.

        The arguments and results are the same as in Ax's ``Acquisition.optimize``.
        """
        usual, pending, space = self.acqf, self.X_pending, search_space_digest
        fixed, options = kwargs.get("fixed_features"), dict(kwargs.get("optimizer_options") or {})
        optimizer = determine_optimizer(space, self.acqf, mk_discrete_choices(space, fixed))
        follows_gradient = optimizer in ("optimize_acqf", "optimize_acqf_mixed")
        if kwargs.get("inequality_constraints") and follows_gradient:
            # A short burn-in of the polytope sampler is enough in few dimensions. Optimize restarts
            # one by one, because SLSQP optimizes a batch of restarts as one problem, which the
            # restart with the largest gradient dominates.
            options["options"] = {"n_burnin": 1000, "batch_limit": 1, **options.get("options", {})}
        failed, succeeded, abandoned, waiting = (
            self._tensor(self.options.get(kind, [])).view(-1, len(space.bounds))
            for kind in ("failed", "succeeded", "abandoned", "pending")
        )
        avoid = torch.cat([failed, abandoned, waiting])
        sampled = isinstance(usual, MultiOutputAcquisitionFunction | OneShotAcquisitionFunction)
        if not sampled and (n > 1 or len(avoid) > 0):
            if len(failed):
                self.acqf = self._feasible(succeeded, failed)
            self.acqf = self._avoiding(avoid, fixed)
            # In discrete spaces, Ax never suggests a point of ``X_pending``.
            self.X_pending = avoid if pending is None else torch.cat([avoid, pending])
        try:
            return super().optimize(n, space, **{**kwargs, "optimizer_options": options})
        finally:
            self.acqf, self.X_pending = usual, pending

    def _feasible(self, succeeded: Tensor, failed: Tensor) -> FeasibleAcquisition:
        space, bounds = self.search_space_digest, self._tensor(self.search_space_digest.bounds).T
        # The feasibility model needs values, so set inactive parameters to the middle of the range.
        good, bad = (X.where(~X.isnan(), bounds.mean(dim=0)) for X in (succeeded, failed))
        categorical = space.categorical_features
        feasibility = FeasibilityModel(good, bad, bounds=bounds, categorical=categorical)
        return FeasibleAcquisition(self.acqf, feasibility)

    def _avoiding(self, avoid: Tensor, fixed: dict[int, float] | None) -> AvoidingAcquisition:
        space = self.search_space_digest
        # A larger radius before the first outcome spreads out the first suggestions.
        dim = max(len(space.bounds) - len(fixed or {}), 1)
        radius = math.sqrt(dim) * (0.05 if self.X_observed is None else 0.02)
        if len({*space.ordinal_features, *space.categorical_features}) == len(space.bounds):
            # In discrete spaces, the radius must be smaller than the distance of two choices.
            gaps = [np.diff(np.sort(values)) for values in space.discrete_choices.values()]
            shortest = [gap.min() / gap.sum() for gap in gaps if len(gap)]  # as shares of the range
            radius = min(radius, 0.9 * float(min(shortest, default=1.0)))
        return AvoidingAcquisition(
            self.acqf,
            self._tensor(space.bounds).T,
            avoid,
            radius,
            self._spread_out(fixed),
            space.categorical_features,
            _one_hot_blocks(space.feature_names),
        )

    def _spread_out(self, fixed: dict[int, float] | None = None) -> Tensor:
        """Draws 64 Sobol points that cover the search space, and rounds them to valid choices."""
        space = self.search_space_digest
        X = draw_sobol_samples(self._tensor(space.bounds).T, n=64, q=1, seed=0).squeeze(-2)
        for index, values in space.discrete_choices.items():
            choices = self._tensor(values)
            X[:, index] = choices[(X[:, index, None] - choices).abs().argmin(dim=-1)]
        # Round, because predictions between two categories are meaningless.
        X = _round_one_hot(X, _one_hot_blocks(space.feature_names))
        for index, value in {**space.target_values, **(fixed or {})}.items():
            X[:, index] = value
        return X

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)


def _one_hot_blocks(names: Sequence[str]) -> list[list[int]]:
    """Returns one list for each one-hot encoded parameter: the column indices of its inputs."""
    origins = [name.rpartition(OH_PARAM_INFIX)[0] for name in names]  # empty without one-hot
    choices = filter(None, dict.fromkeys(origins))
    return [[index for index, origin in enumerate(origins) if origin == c] for c in choices]
