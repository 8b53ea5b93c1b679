"""The models that have to keep the contract, and what of it each documents to be smaller.

A model joins by one line in ``CASES``; the tests of ``test_contract_*.py`` then run on it. What
depends on a model's own formula runs on all of them, what depends on how a model is made of its
parts on the ``KINDS``. Rarer variants run on the ``REPRESENTATIVES``. What only BoTorch's code
does with a model runs on ``MINIMAL``, the base class, and on the ``INEXACT`` representatives,
whose predictions are not those of one exact GP.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import pytest
import torch
from botorch.exceptions.warnings import BadInitialCandidatesWarning
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms.input import InputTransform, Normalize
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.utils.types import DEFAULT
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.means import ConstantMean
from torch import Tensor
from torch.nn import Module

from botorch_transfer.average.base import AveragedGP
from botorch_transfer.data import Domain
from botorch_transfer.hierarchy.prior import SourceHierarchy
from botorch_transfer.model import TargetGP
from botorch_transfer.models import (
    BoostedHierarchicalGP,
    FullyBayesianHyperpriorGP,
    GuardedTransferGP,
    HyperpriorGP,
    IntrinsicCoregionalizationGP,
    JointHierarchicalGP,
    JointScaMLGP,
    LinearCoregionalizationGP,
    MeanHierarchicalGP,
    PopulationGP,
    PretrainedGP,
    RankWeightedGP,
    ScaMLGP,
    SequentialHierarchicalGP,
    TransferGP,
    TwoStageTransferGP,
    WeightedSourceGP,
)
from botorch_transfer.outcome_transforms import PooledStandardize
from botorch_transfer.pretraining import Hyperprior, PretrainedPrior, SourceGPs, SourcePopulation
from tests.families import ShiftedSines


@dataclass(frozen=True, eq=False)
class ModelCase:
    """One model class under the contract.

    Args:
        model_class: The class.
        pretrain: Makes the model's third argument of source data, quickly; takes an
            ``input_transform=`` too. Joint models take the source data themselves.
        options: Further arguments of the constructor.
        ordered: Whether the order of the source tasks matters.
        in_turn: Whether the order of the target's points matters.
        exact: Whether the predictive covariance is the exact GP's, so that BoTorch's leave-one-out
            formulas hold; otherwise the model has ``loo_posterior()``.
        interpolates: Whether the mean passes through precise observations. That of an ensemble does
            not, as long as its source models have weight.
        slack: How far from its optimum a fit may stop, in nats a point.
        representative: Whether the model stands for its kind where a test has many variants.
        sibling: Whether another case has the same code but for a formula that has tests of its own;
            it runs only the tests that depend on the formula.
        frozen: Whether a fit has nothing to do.
        hyperpriors: Whether its hyperparameters have hyperpriors.
        fit_only: Whether it joins only the tests of fitting, states, batches and few points,
            because without a fit it is another case's model.
        label: What tells two cases of one class apart.
        ensemble: Whether it is one of BoTorch's ensembles, which support fewer acquisitions, and
            none of the tests that are marked ``gaussian``.
        flat: Whether the prior without target points is the same everywhere.
        any_dim: Whether the target may have another number of inputs than the source tasks.
    """

    model_class: type[GPyTorchModel]
    pretrain: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    ordered: bool = False
    in_turn: bool = False
    exact: bool = True
    interpolates: bool = True
    slack: float = 1e-3
    representative: bool = False
    sibling: bool = False
    frozen: bool = False
    hyperpriors: bool = True
    fit_only: bool = False
    label: str = ""
    ensemble: bool = False
    flat: bool = False
    any_dim: bool = False

    @property
    def name(self) -> str:
        """The model's name."""
        return self.model_class.__name__ + self.label

    @property
    def takes_prior(self) -> bool:
        """Whether the third argument may be a prior; joint models take source data only."""
        return self.pretrain is not _source_data

    @cache  # noqa: B019  (cases live as long as the tests do)
    def prior(
        self,
        family: ShiftedSines = ShiftedSines(),  # noqa: B008
        input_transform: InputTransform | None = None,
    ) -> Any:
        """The third argument of the constructor, made of the family's source data."""
        return self.pretrain(family.sources(), input_transform=input_transform)

    @cache  # noqa: B019
    def raw_prior(self) -> Any:
        """The third argument, made of the same tasks with inputs between ``RAW_BOUNDS``."""
        sources = {name: (to_raw(X), Y) for name, (X, Y) in ShiftedSines().sources().items()}
        return self.pretrain(sources, input_transform=raw_transform())

    def build(self, train_X: Tensor, train_Y: Tensor, prior: Any = None, **kwargs: Any) -> Any:
        """Builds a model, by default with the default family's prior."""
        prior = self.prior() if prior is None else prior
        return self.model_class(train_X, train_Y, prior, **{**self.options, **kwargs})

    def target(self, n: int, **kwargs: Any) -> Any:
        """Builds a model of ``n`` points of the default family's target."""
        return self.build(*ShiftedSines().target(n), **kwargs)

    def rebuild(
        self, model: Any, train_X: Tensor, targets: Tensor, noise: Tensor | None = None
    ) -> Any:
        """Builds a model with another one's hyperparameters and transforms, on other data.

        Args:
            model: The model whose hyperparameters and transforms are taken.
            train_X: The inputs.
            targets: A ``batch_shape x n`` tensor of outcomes in the model's own units.
            noise: Known noise variances like ``targets``.

        Returns:
            The model; its posterior is in the model's own units, not the user's.
        """
        noise = None if noise is None else noise.unsqueeze(-1)
        twin = self.build(
            train_X,
            targets.unsqueeze(-1),
            _views(model.prior) if hasattr(model, "prior") else None,
            train_Yvar=noise,
            outcome_transform=None,
        )
        copy_hyperparameters(model, twin)
        if isinstance(model, AveragedGP):
            for theirs, other in zip(parts(model), parts(twin), strict=True):
                _keep_units(theirs, model, other)
        return twin


#: A search space that is not the unit cube.
RAW_BOUNDS = ShiftedSines().tensor([[-5.0, 100.0], [5.0, 300.0]])


def to_raw(X: Tensor) -> Tensor:
    """Brings inputs from the unit cube between ``RAW_BOUNDS``."""
    lower, upper = RAW_BOUNDS
    return lower + (upper - lower) * X


def raw_transform(bounds: Tensor = RAW_BOUNDS) -> Normalize:
    """The frozen transform of raw inputs."""
    return Normalize(2, bounds=bounds)


def copy_hyperparameters(model: Module, twin: Module) -> None:
    """Gives a model another one's hyperparameters, spread over the batches it may have more.

    One of them may know its noise, and the other infer it.
    """
    values = dict(model.named_parameters())
    names = {name for name, _ in twin.named_parameters()}
    assert all("noise" in name for name in names.symmetric_difference(values))
    for name in names.intersection(values):
        with torch.no_grad():
            parameter = twin.get_parameter(name)
            parameter.copy_(values[name].expand_as(parameter))


def load_member(model: Any, single: Any, index: int) -> Any:
    """Gives a single model the hyperparameters of one member of a batch."""
    values = dict(model.named_parameters())
    for name, parameter in single.named_parameters():
        parameter.data.copy_(values[name][index].reshape_as(parameter))
    return single


def priors_of(prior: Any) -> dict[str, Any]:
    """The priors, by name, in a model's third argument, which may be those of its members."""
    return dict(prior) if isinstance(prior, Mapping) else {"": prior}


def _views(prior: Any) -> Any:
    """A view of a prior, or of each of several."""
    if isinstance(prior, Mapping):
        return {name: each.view() for name, each in prior.items()}
    return prior.view()


def _keep_units(theirs: Any, model: Any, other: Any) -> None:
    """Gives a twin's member, with data in the model's units, the units of the model's member."""
    if getattr(theirs, "outcome_transform", None) is getattr(model, "outcome_transform", None):
        return
    probe = theirs.train_targets.new_tensor([[0.0], [1.0]])
    if hasattr(model, "outcome_transform"):
        probe, _ = model.outcome_transform.untransform(probe)
    zero, one = own_units(theirs, probe).unbind(dim=-2)
    scale = one - zero
    if isinstance(other.likelihood, FixedNoiseGaussianLikelihood):
        noise = other.likelihood.noise_covar
        noise.noise = noise.noise * scale.square()
    other.set_train_data(targets=zero + scale * other.train_targets)
    transform = Standardize(1).eval()
    transform.means, transform.stdvs = (-zero / scale).unsqueeze(-1), (1 / scale).unsqueeze(-1)
    transform._stdvs_sq, transform._is_trained = transform.stdvs.square(), torch.tensor(True)
    other.outcome_transform = transform


def own_units(model: Any, Y: Tensor) -> Tensor:
    """Brings ``... x n x 1`` outcomes into the model's own units, its transform kept as it is."""
    transform: OutcomeTransform | None = getattr(model, "outcome_transform", None)
    return Y if transform is None else transform.eval()(Y)[0]


def outcome_scale(model: Any) -> Tensor | float:
    """The factor between the user's units and the model's own."""
    transform = getattr(model, "outcome_transform", None)
    return 1.0 if transform is None else transform.stdvs


def parts(model: Any) -> list[Any]:
    """The exact GPs of a model: the members of an average, or else the model itself."""
    return list(model.members.values()) if isinstance(model, AveragedGP) else [model]


def noise_in_users_units(model: Any) -> Tensor:
    """The observation noise; of an average its models', each by its share."""
    if not isinstance(model, AveragedGP):
        return model.likelihood.noise * outcome_scale(model) ** 2
    noise = [each.likelihood.noise * outcome_scale(each) ** 2 for each in parts(model)]
    shares = model.shares.unbind(dim=-1)
    return sum(share * each for share, each in zip(shares, noise, strict=True))


def in_users_units(model: Any, posterior: Any) -> Any:
    """Brings a posterior from the model's own units into the user's."""
    transform: OutcomeTransform | None = getattr(model, "outcome_transform", None)
    return posterior if transform is None else transform.untransform_posterior(posterior)


#: Arguments of a fit that leaves the starting values, for tests of what comes after it.
BRIEFLY: dict[str, Any] = {"num_restarts": 0, "optimizer_kwargs": {"options": {"maxiter": 10}}}


#: Arguments of ``optimize_acqf``, for tests that it runs through.
BUDGET: dict[str, Any] = {"num_restarts": 2, "raw_samples": 8, "options": {"maxiter": 2}}


def bounds(family: ShiftedSines = ShiftedSines()) -> Tensor:  # noqa: B008
    """The unit cube, as ``optimize_acqf`` takes it."""
    return family.tensor([[0.0] * family.dim, [1.0] * family.dim])


def assert_same_posterior(left: Any, right: Any, rtol: float = 1e-6, atol: float = 1e-8) -> None:
    """Compares means and joint covariances of two posteriors."""
    close = partial(torch.testing.assert_close, rtol=rtol)
    spread = float(right.variance.detach().max())
    close(left.mean, right.mean, atol=max(atol, atol * spread**0.5))
    left_covariance = left.distribution.covariance_matrix
    right_covariance = right.distribution.covariance_matrix
    close(left_covariance, right_covariance, atol=atol * max(spread, 1.0))


@contextmanager
def flat_acquisitions(case: ModelCase, num_points: int) -> Iterator[None]:
    """Allows an acquisition to be the same everywhere, where there is nothing to tell points apart.

    BoTorch says so, as it does with a ``SingleTaskGP``, and starts at random.
    """
    with warnings.catch_warnings():
        if case.flat and num_points == 0:
            warnings.simplefilter("ignore", BadInitialCandidatesWarning)
        yield


def _hierarchy(propagate: str) -> Callable[..., Any]:
    return partial(SourceHierarchy.fit, propagate=propagate, num_restarts=0)


def _hyperprior(sources: Any, input_transform: InputTransform | None = None) -> Hyperprior:
    """The hyperprior of one domain.

    Said to be noisy: random features are as exact as the prior is wide, and that of the family's
    smooth functions is a hundred times wider than what a few precise points leave over.
    """
    spread = torch.cat([Y for _, Y in sources.values()]).var()
    noisy = {name: (X, Y, 0.1 * spread.expand_as(Y)) for name, (X, Y) in sources.items()}
    domain = Domain(noisy, input_transform=input_transform)
    return Hyperprior.fit([domain], kind="universal", num_restarts=0)


def _members_priors(sources: Any, input_transform: InputTransform | None = None) -> dict[str, Any]:
    """The priors of an average's members."""
    return {
        "population": SourcePopulation.fit(sources, input_transform=input_transform),
        "scaml": SourceGPs.fit(sources, num_restarts=0, input_transform=input_transform),
    }


def _source_data(sources: Any, input_transform: InputTransform | None = None) -> Any:
    """Joint models take the source data, and their transform themselves."""
    return sources


def _pretrained(sources: Any, input_transform: InputTransform | None = None) -> PretrainedPrior:
    prior = PretrainedPrior.hyperbo(2, hidden=(8, 8))
    return prior.fit(sources, steps=40, input_transform=input_transform)


class MinimalGP(TargetGP):
    """The base class around a constant mean and an RBF kernel: as little as a model can be."""

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: Mapping[str, tuple[Tensor, Tensor]],
        train_Yvar: Tensor | None = None,
        outcome_transform: Any = DEFAULT,
        input_transform: InputTransform | None = None,
    ) -> None:
        batch_shape = train_X.shape[:-2]
        if outcome_transform is DEFAULT:
            outcomes = torch.cat([Y for _, Y in prior.values()])
            outcome_transform = PooledStandardize(outcomes, batch_shape=batch_shape)
        base_kernel = RBFKernel(ard_num_dims=2, batch_shape=batch_shape)
        super().__init__(
            train_X,
            train_Y,
            dim=2,
            mean_module=ConstantMean(batch_shape=batch_shape),
            covar_module=ScaleKernel(base_kernel, batch_shape=batch_shape),
            train_Yvar=train_Yvar,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        self.to(train_X)


MINIMAL = ModelCase(MinimalGP, _source_data, flat=True)
CASES = [
    # A member of TransferGP, which represents it.
    ModelCase(ScaMLGP, partial(SourceGPs.fit, num_restarts=0)),
    ModelCase(SequentialHierarchicalGP, _hierarchy("covariance"), ordered=True),
    ModelCase(MeanHierarchicalGP, _hierarchy("mean"), ordered=True, sibling=True),
    ModelCase(
        BoostedHierarchicalGP, _hierarchy("mean"), ordered=True, exact=False, representative=True
    ),
    # Free matrices have long flat ridges, along which a fit stops after a number of iterations.
    ModelCase(LinearCoregionalizationGP, _source_data, slack=1e-2, sibling=True),
    ModelCase(IntrinsicCoregionalizationGP, _source_data, slack=1e-2, sibling=True),
    ModelCase(WeightedSourceGP, _source_data, sibling=True),
    ModelCase(JointHierarchicalGP, _source_data, ordered=True, representative=True),
    ModelCase(JointScaMLGP, _source_data, sibling=True),
    ModelCase(HyperpriorGP, _hyperprior, flat=True, any_dim=True, sibling=True),
    ModelCase(PretrainedGP, _pretrained, frozen=True, hyperpriors=False),
    ModelCase(
        PretrainedGP,
        _pretrained,
        {"finetune": True},
        hyperpriors=False,
        fit_only=True,
        sibling=True,
        label="-finetuned",
    ),
    # A Matérn kernel's heavy-tailed spectrum needs more random features than the tests draw.
    ModelCase(
        PopulationGP, partial(SourcePopulation.fit, kernel="rbf"), frozen=True, hyperpriors=False
    ),
    ModelCase(
        FullyBayesianHyperpriorGP,
        _hyperprior,
        {"num_samples": 256, "num_members": 8},
        flat=True,
        any_dim=True,
        ensemble=True,
    ),
    ModelCase(
        RankWeightedGP, partial(SourceGPs.fit, num_restarts=0), exact=False, interpolates=False
    ),
    ModelCase(
        TwoStageTransferGP,
        partial(SourceGPs.fit, num_restarts=0),
        exact=False,
        interpolates=False,
        sibling=True,
    ),
    ModelCase(GuardedTransferGP, partial(SourceGPs.fit, num_restarts=0), exact=False, sibling=True),
    ModelCase(TransferGP, _members_priors, in_turn=True, exact=False, representative=True),
]
KINDS = [case for case in CASES if not case.sibling]
REPRESENTATIVES = [case for case in CASES if case.representative]
INEXACT = [case for case in REPRESENTATIVES if not case.exact]


def where(condition: Callable[[ModelCase], bool]) -> pytest.MarkDecorator:
    """Parametrizes a test by the cases that fulfil a condition."""
    return pytest.mark.parametrize(
        "case", [case for case in CASES if condition(case)], ids=lambda case: case.name
    )


#: Parametrizes a test by all cases, siblings too.
on_every_model = where(lambda case: True)


#: Parametrizes a test by the cases that differ in more than a formula.
on_every_kind_of_fit = where(lambda case: not case.sibling or case.fit_only)


def variants(
    names: str,
    everywhere: Sequence[Any] = (),
    representatives: Sequence[Any] = (),
    siblings: Sequence[Any] = (),
    inexact: Sequence[Any] = (),
) -> pytest.MarkDecorator:
    """Parametrizes a test by a case and by variants, of which not every case has all.

    Args:
        names: The variants' argument names, separated by commas.
        everywhere: The variants that every model but siblings runs.
        representatives: Those that only one model of each kind runs.
        siblings: Those that siblings run.
        inexact: Those that only representatives with predictions of their own run.

    Returns:
        The mark of the test, whose further argument is ``case``.
    """
    single = "," not in names
    parameters = []
    for values, cases in (
        (everywhere, KINDS),
        (representatives, REPRESENTATIVES),
        (siblings, [case for case in CASES if case.sibling]),
        (inexact, INEXACT),
    ):
        for value in values:
            row = (value,) if single else value
            label = "-".join(getattr(part, "__name__", str(part)) for part in row)
            parameters += [pytest.param(case, *row, id=f"{case.name}-{label}") for case in cases]
    return pytest.mark.parametrize(f"case, {names}", parameters)
