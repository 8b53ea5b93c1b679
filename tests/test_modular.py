from copy import deepcopy

import pytest
import torch
from botorch.models.transforms.input import Normalize
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.kernels import AdditiveKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean

from botorch_transfer import JointScaMLGP, MeanHierarchicalGP, ScaMLGP, SequentialHierarchicalGP
from botorch_transfer.gp.combine import TaskWeights, WeightedSumKernel, WeightedSumMean
from botorch_transfer.modular import ModularTransferGP, SourcePosteriorGP, resolve_prior
from botorch_transfer.pretraining import PretrainedPrior, SourceGPs, SourceHierarchy, clear_memos
from tests.families import OFFSET, ShiftedSines
from tests.gp.drawn_functions import assert_moments

FAMILY = ShiftedSines()
QUICK = {"num_restarts": 0, "max_iter": 2}


def test_a_prior_is_viewed_and_never_the_same_object() -> None:
    prior = SourceGPs.fit(FAMILY.sources(), **QUICK)
    view = resolve_prior(SourceGPs, prior)
    assert view is not prior
    assert view.gps.alpha is prior.gps.alpha


def test_source_data_are_pretrained_once() -> None:
    first = resolve_prior(SourceGPs, FAMILY.sources(), **QUICK)
    second = resolve_prior(SourceGPs, FAMILY.sources(), **QUICK)
    assert first.gps.alpha is second.gps.alpha
    transform = Normalize(2, bounds=torch.tensor([[0.0, 0.0], [2.0, 2.0]]).double())
    other = resolve_prior(SourceGPs, FAMILY.sources(), transform, **QUICK)
    assert other.input_transform is not None
    assert other.gps.alpha is not first.gps.alpha


def test_another_kind_of_prior_is_refused() -> None:
    prior = SourceHierarchy.fit(FAMILY.sources((4, 3)), "mean", **QUICK)
    with pytest.raises(TypeError, match=r"SourceHierarchy, but this model needs a SourceGPs"):
        resolve_prior(SourceGPs, prior)


def test_mean_and_kernel_are_those_given_in_the_priors_units() -> None:
    prior = resolve_prior(SourceGPs, FAMILY.sources(), **QUICK)
    mean, kernel = ConstantMean(), ScaleKernel(RBFKernel())
    model = ModularTransferGP(*FAMILY.target(0), prior, mean, kernel)
    assert model.prior is prior
    assert model.mean_module is mean
    # The target is without any data: the transform knows the scale from the sources.
    outcomes = prior.outcomes()
    posterior = model.posterior(FAMILY.inputs(3))
    torch.testing.assert_close(posterior.mean, outcomes.mean().expand(3, 1))
    variance = kernel.outputscale.detach() * outcomes.var()
    torch.testing.assert_close(posterior.variance, variance.expand(3, 1))
    assert abs(posterior.mean[0].item() - OFFSET) < 10
    raw = ModularTransferGP(
        *FAMILY.target(0), prior, ConstantMean(), ScaleKernel(RBFKernel()), outcome_transform=None
    )
    assert torch.equal(raw.posterior(FAMILY.inputs(3)).mean, torch.zeros(3, 1).double())


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    ("prior_class", "options"),
    [(SourceGPs, QUICK), (SourceHierarchy, QUICK), (PretrainedPrior, {"steps": 2})],
)
def test_pretraining_where_gradients_are_off(prior_class, options, without) -> None:
    clear_memos()
    with without():
        sources = {name: (X.clone(), Y.clone()) for name, (X, Y) in FAMILY.sources().items()}
        resolve_prior(prior_class, sources, **options)
    X = FAMILY.inputs(3, seed=7).requires_grad_()
    prior = resolve_prior(prior_class, FAMILY.sources(), **options)
    (gradient,) = torch.autograd.grad(prior.mean(X).sum(), X)
    assert gradient.abs().sum() > 0


@pytest.mark.parametrize("model_class", [ScaMLGP, SequentialHierarchicalGP, MeanHierarchicalGP])
def test_a_prediction_compares_its_inputs_with_the_sources_once(model_class, monkeypatch) -> None:
    model = model_class(*FAMILY.target(4), FAMILY.sources())
    gps, evaluated = type(model.prior.gps), []
    model.posterior(FAMILY.inputs(3))  # remembers what is said of the target's points
    evaluate = gps.flat_cross

    def counted(self, flat):
        evaluated.append(len(flat))
        return evaluate(self, flat)

    monkeypatch.setattr(gps, "flat_cross", counted)
    X = FAMILY.inputs(5, 1, seed=1).requires_grad_()
    model.posterior(X)  # a frozen posterior expands the target's points by the sources' once
    evaluated.clear()
    model.posterior(X)
    # Frozen posteriors compare inputs with those of the sources themselves.
    assert evaluated == ([] if model_class is ScaMLGP else [5])


@pytest.mark.parametrize("model_class", [ScaMLGP, SequentialHierarchicalGP, JointScaMLGP])
def test_noise_as_the_third_argument_is_refused(model_class) -> None:
    X, Y = FAMILY.target(2)
    with pytest.raises(TypeError, match="prior= is a tensor: give old runs"):
        model_class(X, Y, torch.ones_like(Y))


def test_a_joint_model_takes_no_prior() -> None:
    prior = SourceGPs.fit(FAMILY.sources(), **QUICK)
    with pytest.raises(TypeError, match="is a SourceGPs: give the source data as prior="):
        JointScaMLGP(*FAMILY.target(2), prior)


class ResidualFirst(SourcePosteriorGP):
    """A model as the documentation describes it: a mean and a kernel, nothing else."""

    prior_class = SourceGPs

    def _mean_and_kernel(self, prior, residual, batch_shape):
        kernel = AdditiveKernel(WeightedSumKernel(prior.gps), residual)
        return WeightedSumMean(prior.gps), kernel


def test_a_model_remembers_its_residual_wherever_it_is() -> None:
    model = ResidualFirst(*FAMILY.target(4), FAMILY.sources((5, 5)))
    assert model.residual_covar_module is model.covar_module.kernels[1]
    assert deepcopy(model).residual_covar_module is not model.residual_covar_module
    torch.manual_seed(0)
    paths = draw_matheron_paths(model.eval(), torch.Size([1000]))
    X = FAMILY.inputs(4, seed=3)
    assert_moments(paths(X), model.posterior(X))


class EqualSourcesGP(SourcePosteriorGP):
    """The mean of all source posteriors, and a residual."""

    prior_class = SourceGPs

    def _mean_and_kernel(self, prior, residual, batch_shape):
        equal = TaskWeights(prior.num_tasks, batch_shape).requires_grad_(False)
        kernel = AdditiveKernel(residual, WeightedSumKernel(prior.gps, equal))
        return WeightedSumMean(prior.gps, equal), kernel


@pytest.mark.parametrize(("model_class", "weight"), [(EqualSourcesGP, 1 / 3), (ResidualFirst, 1.0)])
def test_the_report_counts_the_sources_of_a_new_model(model_class, weight) -> None:
    prior = SourceGPs.fit(FAMILY.sources(), **QUICK)
    model = model_class(*FAMILY.target(6), prior)
    assert model.weights.tolist() == pytest.approx([weight] * 3)
    assert (model.transfer_report().loc[list(prior.task_names), "prediction"] > 0).all()
    (X,) = model.eval().train_inputs
    parts = model.source_parts(X, prior.task_names)
    torch.testing.assert_close(parts.sum(dim=0), model.mean_module(X))


def test_shared_arguments_are_documented_in_a_class_that_has_none_of_its_own() -> None:
    assert "train_Yvar: A ``batch_shape" in (EqualSourcesGP.__doc__ or "")


def test_parts_of_a_hierarchy_are_of_no_single_source() -> None:
    prior = SourceHierarchy.fit(FAMILY.sources((4, 3)), "covariance", **QUICK)
    model = SequentialHierarchicalGP(*FAMILY.target(2), prior)
    assert not model.source_parts(FAMILY.inputs(3), prior.task_names).any()
