"""Ax's acquisition: the prior's own at first, and away from points that are pending or failed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from ax.adapter.transforms.one_hot import OH_PARAM_INFIX
from ax.core.search_space import SearchSpaceDigest
from ax.generators.torch.botorch_modular.acquisition import Acquisition, determine_optimizer
from ax.generators.utils import mk_discrete_choices
from botorch.acquisition.acquisition import OneShotAcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.acquisition.multioutput_acquisition import MultiOutputAcquisitionFunction
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor
from torch.nn.functional import one_hot

from botorch_transfer.ax.acquisition import PriorUpperConfidenceBound
from botorch_transfer.ax.avoidance import AvoidingAcquisition, failure_radii
from botorch_transfer.ax.improvement import noisy_improvement


class TransferAcquisition(Acquisition):
    """Ax's acquisition, with three differences.

    As long as there is no outcome to compare, it is the transferred prior's. Then, for one
    candidate, one objective, and nothing pending or constrained, noisy expected improvement is
    analytic. And points that failed, or are pending, are kept away from.

    Args of ``options``: ``"failed"`` and ``"pending"``, lists of such inputs, NaN where a value
        does not matter.
    """

    def _instantiate_acquisition(self) -> None:
        acquisition: Any = None
        if self.X_observed is None:
            acquisition = PriorUpperConfidenceBound(
                self._model,
                self._objective_weights,
                self._outcome_constraints,
                self.X_pending,
                X_reference=self._spread_out(self.search_space_digest, None),
            )
        elif self._is_plain_improvement():
            acquisition = noisy_improvement(self._model, self._objective_weights, self.X_observed)
        if acquisition is None:
            super()._instantiate_acquisition()
            return
        self.acqf = acquisition
        self.models_used = [self.surrogate.model_name_by_metric]
        self.acq_function_sequence = None

    def _is_plain_improvement(self) -> bool:
        return (
            self.botorch_acqf_classes_with_options == [(qLogNoisyExpectedImprovement, {})]
            and self.n == 1
            and self.X_pending is None
            and self._outcome_constraints is None
            and self._learned_objective_preference_model is None
            and len(self._objective_weights) == 1
        )

    def optimize(  # type: ignore[override]
        self,
        n: int,
        search_space_digest: SearchSpaceDigest,
        *,
        inequality_constraints: Any = None,
        fixed_features: dict[int, float] | None = None,
        optimizer_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Generates candidates, away from points that failed or are pending; see Ax's."""
        usual, pending = self.acqf, self.X_pending
        options = dict(optimizer_options or {})
        if inequality_constraints and self._optimizer_of(search_space_digest, fixed_features) in (
            "optimize_acqf",
            "optimize_acqf_mixed",
        ):
            # Random walks in a polytope of few dimensions forget soon where they began. And
            # restarts that are one problem to SLSQP end where the steepest throws them.
            options["options"] = {"n_burnin": 1000, "batch_limit": 1, **options.get("options", {})}
        avoid = failed, waiting = self._inputs("failed"), self._inputs("pending")
        sampled = isinstance(usual, MultiOutputAcquisitionFunction | OneShotAcquisitionFunction)
        if not sampled and (n > 1 or any(len(X) > 0 for X in avoid)):
            # Where constraints hold, all may be worse than what is typical elsewhere; and of few
            # categories what is typical may be those that failed.
            constrained = inequality_constraints or kwargs.get("equality_constraints")
            categories = _one_hot_blocks(search_space_digest.feature_names)
            hierarchical = any(bool(X.isnan().any()) for X in avoid)
            share = 0.0 if constrained or categories or hierarchical else 0.9
            self.acqf = self._avoiding(search_space_digest, failed, waiting, fixed_features, share)
            # Wholly discrete spaces leave these out altogether.
            self.X_pending = torch.cat([*avoid, *([] if pending is None else [pending])])
        try:
            return super().optimize(
                n,
                search_space_digest,
                inequality_constraints=inequality_constraints,
                fixed_features=fixed_features,
                optimizer_options=options,
                **kwargs,
            )
        finally:
            self.acqf, self.X_pending = usual, pending

    def _optimizer_of(
        self, space: SearchSpaceDigest, fixed_features: dict[int, float] | None
    ) -> str:
        """The name of BoTorch's function that Ax will call."""
        choices = mk_discrete_choices(space, fixed_features)
        return determine_optimizer(space, self.acqf, choices)

    def _avoiding(
        self,
        space: SearchSpaceDigest,
        failed: Tensor,
        pending: Tensor,
        fixed_features: dict[int, float] | None,
        share: float,
    ) -> AvoidingAcquisition:
        bounds = self._tensor(space.bounds).T
        # Without outcomes, one neighbourhood is tried once; with some, one may come close.
        dim = max(len(space.bounds) - len(fixed_features or {}), 1)
        shares = (0.05, 0.05) if self.X_observed is None else (0.01, 0.001)
        failed_radius, pending_radius = (math.sqrt(dim) * share for share in shares)
        radii = failure_radii(failed, bounds, failed_radius)
        radii = torch.cat([radii, radii.new_full(pending.shape[:1], pending_radius)])
        if _is_discrete(space):  # only the points themselves
            step = 0.9 * min(_smallest_step(values) for values in space.discrete_choices.values())
            radii, pending_radius = radii.clamp(max=step), min(pending_radius, step)
        with torch.no_grad():
            floor = self.acqf(self._spread_out(space, fixed_features).unsqueeze(-2)).quantile(share)
        return AvoidingAcquisition(
            self.acqf,
            bounds,
            torch.cat([failed, pending]),
            radii,
            pending_radius,
            space.categorical_features,
            floor,
            _one_hot_blocks(space.feature_names),
        )

    def _inputs(self, kind: str) -> Tensor:
        inputs = self._tensor(self.options.get(kind, []))
        return inputs.view(-1, len(self.search_space_digest.bounds))

    def _spread_out(
        self, space: SearchSpaceDigest, fixed_features: dict[int, float] | None
    ) -> Tensor:
        """Inputs all over the search space."""
        bounds = self._tensor(space.bounds).T
        X = draw_sobol_samples(bounds, n=64, q=1, seed=0).squeeze(-2)
        for index, values in space.discrete_choices.items():
            choices = self._tensor(values)
            X[:, index] = choices[(X[:, index, None] - choices).abs().argmin(dim=-1)]
        for block in _one_hot_blocks(space.feature_names):
            # Between categories a model may say what holds of none.
            X[:, block] = one_hot(X[:, block].argmax(dim=-1), len(block)).to(X)
        for index, value in {**space.target_values, **(fixed_features or {})}.items():
            X[:, index] = value
        return X

    def _tensor(self, values: Any) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)


def _is_discrete(space: SearchSpaceDigest) -> bool:
    discrete = {*space.ordinal_features, *space.categorical_features}
    return len(discrete) == len(space.bounds)


def _one_hot_blocks(names: Sequence[str]) -> list[list[int]]:
    """The columns of each choice that Ax encodes by several."""
    blocks: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        choice, infix, _ = name.rpartition(OH_PARAM_INFIX)
        if infix:
            blocks.setdefault(choice, []).append(index)
    return list(blocks.values())


def _smallest_step(values: Sequence[float]) -> float:
    """Between neighbours, in units of the whole width."""
    ordered = sorted(values)
    steps = [b - a for a, b in pairwise(ordered)]
    return min(steps) / (ordered[-1] - ordered[0]) if steps else 1.0
