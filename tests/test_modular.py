from __future__ import annotations

import pytest
import torch
from botorch.models.transforms.input import Normalize
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean

from botorch_transfer import MeanHierarchicalGP, ScaMLGP, SequentialHierarchicalGP
from botorch_transfer.modular import ModularTransferGP, resolve_prior
from botorch_transfer.pretraining import (
    PretrainedPrior,
    SourceGPs,
    SourceHierarchy,
    clear_memos,
)
from tests.families import OFFSET, ShiftedSines

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
    with pytest.raises(TypeError, match=r"Expected a SourceGPs or source data.*SourceHierarchy"):
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
    model.posterior(FAMILY.inputs(5, 1, seed=1).requires_grad_())
    assert evaluated == [5]
