r"""The default model: an average of transfer models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any, cast
from warnings import catch_warnings

import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import ModelListGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import ConstantMean
from gpytorch.priors import LogNormalPrior
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer._botorch import DefaultType
from botorch_transfer.arguments import PriorOrData, check_options
from botorch_transfer.average.base import PLAIN_MEMBER, AveragedGP, build_member
from botorch_transfer.data import task_names
from botorch_transfer.gp.hyperpriors import Hyperparameter
from botorch_transfer.model import TransferModel
from botorch_transfer.modular import SourcePosteriorGP
from botorch_transfer.outcome_transforms import (
    OutcomeMoments,
    PooledStandardize,
    chained,
    split_transform,
)
from botorch_transfer.population.model import PopulationGP
from botorch_transfer.prior import ConditionedPrior, TransferPrior
from botorch_transfer.sources.scaml import ScaMLGP

#: The transfer models that are averaged by default.
MEMBERS: Mapping[str, type[SourcePosteriorGP]] = {"population": PopulationGP, "scaml": ScaMLGP}

#: Number of evaluations after which all models have the same weight in the averaged improvement.
#: The count starts with the evaluation that brought the most recent improvement, see
#: :func:`member_shares`.
PATIENCE = 5


#: Ratio of the first model's share of the prediction to the share of any other transfer model.
LEADING = 0.25

#: The sources cover a side of the unit cube if the distance from the side to the nearest of ``N``
#: source points is at most ``max(0.05, UNTRIED / N)``.
UNTRIED = 3.0

#: The plain GP's noise variance, with BoTorch's hyperprior and lower bound.
PLAIN_NOISE = Hyperparameter(partial(LogNormalPrior, -4.0, 1.0), 0.01, 1e-4, 10.0)


def member_shares(Y: Tensor, num_members: int, patience: int = PATIENCE) -> Tensor:
    """Computes each model's share in an :class:`~.acquisition.AveragedImprovement`.

    A share is the model's weight divided by the sum of all weights. The first model leads: its
    weight is always one. After an improvement, each other model has the weight ``1 / patience``.
    Each evaluation without improvement adds ``1 / patience`` to this weight, up to one. So no share
    falls to zero, and the other models gain influence if the leading model finds no further
    improvement.

    Args:
        Y: A ``batch_shape x n`` tensor of outcomes, in the order of the evaluations.
        num_members: The number of models ``K``.
        patience: The number of evaluations after which all models have the same share. The count
            starts with the evaluation that brought the most recent improvement.

    Returns:
        A ``batch_shape x K`` tensor of shares that add up to one.

    Example:
        >>> member_shares(torch.tensor([0.0, 1.0, 0.5, 0.2]), num_members=3, patience=6)
        tensor([0.5000, 0.2500, 0.2500])
    """
    n = Y.shape[-1]
    since = Y.new_zeros(Y.shape[:-1]) if n == 0 else n - 1 - Y.argmax(dim=-1)
    others = ((1 + since) / patience).clamp_max(1.0).to(Y).unsqueeze(-1)
    counts = torch.cat([torch.ones_like(others), others.expand(*Y.shape[:-1], num_members - 1)], -1)
    return counts / counts.sum(dim=-1, keepdim=True)


class TransferGP(AveragedGP):
    r"""The default model, recommended for a first try: an average of transfer models.

    The prediction is the normal distribution with the moments of a mixture. With shares ``p_k`` and
    posteriors ``(μ_k, Σ_k)`` of the transfer models,

    .. code-block:: text

        mean = Σ_k p_k μ_k
        covariance = Σ_k p_k (Σ_k + (μ_k - mean)(μ_k - mean)ᵀ)

    Where the models disagree, the variance is large. The shares are constants. The first model
    leads the search but is often overconfident, so its share is only a quarter of the share that
    any other transfer model has. The plain GP has no share, because its variance with few points is
    many times larger than the variances of the transfer models. The observation noise is averaged
    with the same shares.

    The choice of the next evaluation uses a different average:
    :class:`~.acquisition.AveragedImprovement` averages the expected improvements of all models,
    including the plain GP. Each improvement is divided by its maximum over the search space, so
    that all models have equal influence. The shares of this average are ``improvement_shares``.
    Well outside the range of the sources' inputs, each improvement is also multiplied by the
    smallest share divided by the largest share. The constructor and each fit compute
    ``improvement_shares`` by :func:`member_shares`. ``improvement_shares`` depends on the number of
    evaluations since the last improvement, so the target's data must be in the order of the
    evaluations.

    Use the class for one or more source tasks. Each task may have a handful of points or several
    hundred. The average costs as much as all averaged models together. BoTorch's analytic noisy
    expected improvement takes exact GPs only: use ``qLogNoisyExpectedImprovement``.

    Args:
        prior: Source data, from which the models' priors are pre-trained; or one prior; or a
            mapping from the models' names to their priors,
            ``{"population": SourcePopulation, "scaml": SourceGPs}``. If you give one prior, only
            the plain GP and the transfer models that accept this prior are used.
        likelihood: A likelihood; by default Gaussian. Each model gets a copy.
        covar_module: The plain GP's kernel; by default the kernel of ``SingleTaskGP``. The kernel
            affects the choice of evaluations, but not predictions. To change a transfer model's
            residual kernel, give ``members`` with ``partial(ScaMLGP, covar_module=...)``.
        outcome_transform: By default each model uses its own transform, and the plain GP's outcomes
            are standardized. If you give a transform, all models use this transform. Pass ``None``
            if the outcomes are in the priors' units already. ``Log``, ``Bilog`` and ``Power`` are
            also applied to the source outcomes. In a ``ChainedOutcomeTransform``, they must precede
            all other transforms.
        members: The averaged models except the plain GP, by name. Each is a class of transfer
            models, or a function that takes the same arguments as such a class and returns a model.
            The first model leads the search, see :func:`member_shares`. By default
            :class:`PopulationGP` and :class:`ScaMLGP`.

    Raises:
        TypeError: If a model does not accept its prior from a mapping, or if no model accepts a
            single prior.
        ValueError: If there are no members, if a member predicts a mixture, if a member's own
            outcome transform does more than standardize, or if the names in ``prior`` differ from
            the members' names.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
        >>> train_X = torch.rand(4, 2, dtype=torch.double)
        >>> model = TransferGP(train_X, train_X.sum(-1, keepdim=True), history)
        >>> mll = fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.posterior(X).mean.shape
        torch.Size([30, 1])
    """

    #: The weight of each member's improvement, a ``batch_shape x K`` tensor.
    #:
    #: The weights assume that outcomes are maximized. If outcomes are minimized,
    #: :class:`~.acquisition.AveragedImprovement` uses :func:`member_shares` of the negative
    #: outcomes instead.
    improvement_shares: Parameter

    _shares: Tensor

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: PriorOrData | Mapping[str, TransferPrior],
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        members: Mapping[str, Callable[..., TransferModel]] | None = None,
    ) -> None:
        options = {
            "train_Yvar": train_Yvar,
            "likelihood": likelihood,
            "outcome_transform": outcome_transform,
            "input_transform": input_transform,
            "task_feature": task_feature,
        }
        built: dict[str, TransferModel] = {}
        classes_and_priors = _classes_and_priors(MEMBERS if members is None else members, prior)
        for name, (member, own) in classes_and_priors.items():
            # The first member has already warned about the same data.
            with catch_warnings(action="ignore" if built else None, category=InputDataWarning):
                built[name] = build_member(member, train_X, train_Y, own, **deepcopy(options))
        batch_shape = train_X.shape[:-2]
        if outcome_transform is not None and split_transform(outcome_transform)[1] is None:
            outcome_transform = _transform_of_plain(built, batch_shape)
        if covar_module is None:
            num_inputs = next(iter(built.values())).num_inputs
            covar_module = get_covar_module_with_dim_scaled_prior(num_inputs, batch_shape)
        super().__init__(
            train_X,
            train_Y,
            built,
            mean_module=ConstantMean(batch_shape=batch_shape),
            covar_module=covar_module,
            train_Yvar=train_Yvar,
            likelihood=deepcopy(likelihood),
            outcome_transform=outcome_transform,
            noise=PLAIN_NOISE,
        )
        counts = torch.ones(*batch_shape, len(built) + 1, dtype=torch.double)
        self.improvement_shares = Parameter(counts.clone(), requires_grad=False)
        counts[..., 0], counts[..., -1] = LEADING, 0.0  # the leading model is overconfident
        shares = counts / counts.sum(dim=-1, keepdim=True)
        self.register_buffer("_shares", shares, persistent=False)
        self.to(train_X)
        self.update_weights()

    @property
    def prior(self) -> dict[str, Any]:
        """The averaged models' priors by name; pass them as ``prior`` to reuse the pre-training."""
        return {
            name: getattr(member, "prior", None)
            for name, member in self.members.items()
            if name != PLAIN_MEMBER
        }

    @property
    def shares(self) -> Tensor:
        """The averaged models' weights in predictions, ``batch_shape x K``; zero for the plain GP.

        The weights are constants.
        """
        return self._shares

    @property
    def residual_covar_module(self) -> Kernel:
        """The plain GP's kernel, see ``covar_module``; each transfer model has its own kernel."""
        return cast(Kernel, self.plain.covar_module)

    def source_range(self) -> Tensor | None:
        """Returns the range of the sources' inputs.

        The search reduces the expected improvement of inputs outside this range.

        Returns:
            A ``2 x d`` tensor: the smallest and the largest value of each input in the source data,
            after the input transform. A bound is infinite if its distance from the unit cube's side
            is at most ``max(0.05, 3 / N)``, for ``N`` source points. The method returns ``None`` if
            all bounds are infinite, or if no member's prior has the range of the sources' inputs.
        """
        priors = (prior for prior in self.prior.values() if isinstance(prior, ConditionedPrior))
        if (prior := next(priors, None)) is None:
            return None
        tried = prior.input_range.to(self.train_targets)
        gap = max(UNTRIED / int(prior.num_points.sum()), 0.05)
        is_missed = torch.stack([tried[0] > gap, tried[1] < 1 - gap])
        if not bool(is_missed.any()):
            return None
        return torch.where(is_missed, tried, tried.new_tensor([[-torch.inf], [torch.inf]]))

    def _update_shares(self) -> None:
        """Recomputes ``improvement_shares`` from the target's outcomes."""
        shares = member_shares(self.train_targets, self.improvement_shares.shape[-1])
        self.improvement_shares.data = shares.to(self.improvement_shares)


def _classes_and_priors(
    members: Mapping[str, Callable[..., TransferModel]], prior: Any
) -> dict[str, tuple[Callable[..., TransferModel], Any]]:
    """Returns the class and the prior of each model to average, by name.

    If ``prior`` is source data, each class is paired with the source data. If ``prior`` is a single
    prior, only the classes that accept this prior are returned.
    """
    if not members:
        raise ValueError("There are no members: pass at least one model as members=.")
    if isinstance(prior, TransferPrior):
        # A member may be a function, which has no `prior_class`.
        kinds = {name: getattr(member, "prior_class", None) for name, member in members.items()}
        taking = [name for name, kind in kinds.items() if isinstance(prior, kind or ())]
        if not taking:
            raise TypeError(
                f"None of the members ({', '.join(members)}) accepts a {type(prior).__name__} as "
                "prior=: give source data, or a mapping from the members' names to their priors."
            )
        members = {name: members[name] for name in taking}
    own = isinstance(prior, Mapping) and any(isinstance(p, TransferPrior) for p in prior.values())
    if own and set(prior) != set(members):
        raise ValueError(
            f"prior= has priors for {', '.join(map(str, prior))}, but the members are "
            f"{', '.join(members)}: give one prior for each member."
        )
    return {name: (member, prior[name] if own else prior) for name, member in members.items()}


def _transform_of_plain(
    members: Mapping[str, TransferModel], batch_shape: torch.Size
) -> OutcomeTransform:
    """Builds the plain GP's outcome transform from the outcome transforms of the other members.

    The members' common element-wise transforms are followed by a standardization. If the target has
    too few outcomes, the missing mean or scale comes from the first member that standardizes.
    """
    parts = [split_transform(getattr(each, "outcome_transform", None)) for each in members.values()]
    steps, typical = parts[0][0], (torch.tensor(0.0), torch.tensor(1.0))
    for name, (own, scale) in zip(members, parts, strict=True):
        if own != steps or not isinstance(scale, Standardize | None):
            kind, *_ = own[0] if own else [type(scale).__name__]
            text = f"The member {name!r} has its own outcome transform {kind}"
            raise ValueError(f"{text}: give all models the same transform by outcome_transform=.")
    scales = [scale for _, scale in parts if isinstance(scale, Standardize)]
    if scales:  # otherwise, the priors are in raw units
        typical = scales[0].means.mean(), scales[0].stdvs.mean()
    return chained(steps, PooledStandardize(OutcomeMoments(0, *typical), batch_shape=batch_shape))


def transfer_models(
    train_X: Tensor,
    train_Y: Tensor,
    sources: Any,
    train_Yvar: Tensor | None = None,
    model_class: Callable[..., TransferModel] = TransferGP,
    **options: Any,
) -> ModelListGP:
    """Builds one transfer model for each outcome, whether an objective or a constraint.

    Use the result in BoTorch's multi-objective and constrained loops, like a ``ModelListGP`` of
    ``SingleTaskGP`` models. The model of an outcome learns from the same outcome of the source
    tasks. Pre-training is cached, so that the next step of a loop only builds new models.

    Args:
        train_X: An ``n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: An ``n x m`` tensor of target outcomes.
        sources: The source tasks, a sequence or a mapping from names: each a
            ``SupervisedDataset``, ``(X, Y)`` or ``(X, Y, Yvar)``. ``Y`` and ``Yvar`` are
            ``n_i x m`` tensors with a column for each outcome, in the order of the columns of
            ``train_Y``. Or give one history for each outcome: a sequence or mapping of ``m``
            histories in the same order. A history is a prior, or a mapping from task names to
            source data with only this outcome. ``from_dataframe(..., outcome=["err", "mem"])``
            returns such histories.
        train_Yvar: An ``n x m`` tensor of known noise variances; inferred if omitted.
        model_class: The class of the models.
        **options: Further arguments of each model, for instance ``input_transform``.

    Returns:
        The list of ``m`` models. Fit it with
        ``fit_gpytorch_mll(SumMarginalLogLikelihood(models.likelihood, models))``.

    Raises:
        InputDataError: If the number of outcomes of a source task differs from the target's, or if
            the data are invalid; the message names the task.
        ValueError: If ``model_class`` rejects any of ``options``.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"monday": (X, torch.cat([X.sum(-1, keepdim=True), X.sin()], dim=-1))}
        >>> train_X = torch.rand(3, 2, dtype=torch.double)
        >>> models = transfer_models(train_X, torch.rand(3, 3, dtype=torch.double), history)
        >>> models.posterior(X).mean.shape
        torch.Size([20, 3])
    """
    check_options(model_class, options)
    models = []
    for column, history in enumerate(_by_outcome(sources, train_Y.shape[-1])):
        which = slice(column, column + 1)
        noise = None if train_Yvar is None else train_Yvar[..., which]
        own = deepcopy(options)
        models.append(model_class(train_X, train_Y[..., which], history, train_Yvar=noise, **own))
    return ModelListGP(*cast(Any, models))


def _by_outcome(sources: Any, m: int) -> list[Any]:
    """Returns the source tasks of each of the ``m`` outcomes.

    Splits tasks with several outcomes. Returns the given histories if there is one history for each
    outcome already.
    """
    given = list(sources.values() if isinstance(sources, Mapping) else sources)
    if all(isinstance(each, Mapping | TransferPrior) for each in given):
        if len(given) != m:
            raise InputDataError(
                f"There are histories of {len(given)} outcomes, but train_Y has {m} outcomes: give "
                "one history for each outcome, in the order of train_Y."
            )
        return given
    histories: list[dict[str, Any]] = [{} for _ in range(m)]
    for name, task in zip(task_names(sources), given, strict=True):
        parts = (task.X, task.Y, task.Yvar) if isinstance(task, SupervisedDataset) else task
        X, *outcomes = (part for part in parts if part is not None)
        for outcome in outcomes:
            if outcome.shape[-1] != m:
                raise InputDataError(
                    f"Task {name!r} has {outcome.shape[-1]} outcomes, but train_Y has {m} "
                    "outcomes: give one column for each outcome, in the order of train_Y."
                )
        for column, history in enumerate(histories):
            history[name] = (X, *(outcome[..., column : column + 1] for outcome in outcomes))
    return histories
