"""``JointScaMLGP``: at equal hyperparameters it is ``ScaMLGP``."""

from __future__ import annotations

import pytest
import torch
from gpytorch.priors import GammaPrior

from botorch_transfer import JointScaMLGP, ScaMLGP
from botorch_transfer.kernels.conditioned import ConditionedGPs
from botorch_transfer.pretraining import SourceGPs
from tests.families import ShiftedSines

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(6, seed=31)


def source_gps(model: JointScaMLGP, history) -> SourceGPs:
    """The modular prior with the joint model's hyperparameters."""
    points, kernels = model.conditional.points, model.covar_modules[:-1]
    noise = model.conditional.noise.variances(points).detach()
    tasks = [tensor.split(points.sizes) for tensor in (points.X, points.Y, noise)]
    X, Y, variances = (torch.nn.utils.rnn.pad_sequence(task, batch_first=True) for task in tasks)
    sizes = torch.tensor(points.sizes).unsqueeze(-1)
    gps = ConditionedGPs(
        X,
        Y,
        torch.arange(X.shape[1]) < sizes,
        torch.cat([kernel.base_kernel.lengthscale for kernel in kernels]),
        torch.stack([kernel.outputscale for kernel in kernels]),
        variances,
    )
    moments = [(task[1].mean(), task[1].std()) for task in history.values()]
    mean, std = (torch.stack(values) for values in zip(*moments, strict=True))
    return SourceGPs(gps, mean, std, list(history))


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("sizes", [(8,), (8, 5, 3, 7)])
@pytest.mark.parametrize("known_noise", [False, True])
def test_equals_the_modular_model(n, sizes, known_noise):
    X, Y = FAMILY.target(n)
    Yvar = torch.full_like(Y, 0.3) if known_noise else None
    history = FAMILY.sources(sizes)
    joint = JointScaMLGP(X, Y, history, train_Yvar=Yvar)
    with torch.no_grad():
        for number, parameter in enumerate(joint.parameters()):
            parameter.add_(0.05 * (1 + number % 4))
    modular = ScaMLGP(X, Y, source_gps(joint, history), train_Yvar=Yvar)
    modular.task_weights.weights = joint.weights.detach()
    own, theirs = modular.residual_covar_module, joint.residual_covar_module
    own.load_state_dict(theirs.state_dict())
    modular.likelihood.load_state_dict(joint.likelihood.state_dict())
    posterior, expected = joint.posterior(TEST_X), modular.posterior(TEST_X)
    torch.testing.assert_close(posterior.mean, expected.mean, rtol=1e-6, atol=1e-6)
    covariance, reference = (p.distribution.covariance_matrix for p in (posterior, expected))
    torch.testing.assert_close(covariance, reference, rtol=1e-6, atol=1e-6)


def test_starts_are_those_of_the_modular_model():
    history = FAMILY.sources((6, 6))
    joint = JointScaMLGP(*FAMILY.target(3), history)
    modular = ScaMLGP(*FAMILY.target(3), SourceGPs.fit(history, num_restarts=0))
    assert torch.equal(joint.weights, modular.weights)
    for one, other in zip(
        joint.residual_covar_module.parameters(),
        modular.residual_covar_module.parameters(),
        strict=True,
    ):
        assert torch.equal(one, other)
    source = joint.covar_modules[0]
    torch.testing.assert_close(source.outputscale, torch.ones_like(source.outputscale))
    torch.testing.assert_close(
        source.base_kernel.lengthscale, torch.full((1, 2), 0.5, dtype=torch.double)
    )
    torch.testing.assert_close(joint.source_noise, torch.full((2,), 1e-3, dtype=torch.double))


def test_weights_have_their_hyperprior():
    model = JointScaMLGP(*FAMILY.target(3), FAMILY.sources((6, 6)))
    priors = {name: prior for name, _, prior, _, _ in model.named_priors()}
    (name,) = [name for name in priors if name.endswith("weights_prior")]
    assert isinstance(priors[name], GammaPrior)
    # Lengthscale and outputscale of three kernels, target's noise, sources' noise, weights.
    assert len(priors) == 3 * 2 + 3


@pytest.mark.parametrize("model_class", [JointScaMLGP, ScaMLGP])
def test_hyperpriors_count_once(model_class):
    """Mean and kernel share modules, which GPyTorch would count twice."""
    model = model_class(*FAMILY.target(3), FAMILY.sources((6, 6)))
    hyperparameters = [(id(module), prior) for _, module, prior, _, _ in model.named_priors()]
    assert len(set(hyperparameters)) == len(hyperparameters)
    fitted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(hyperparameters) == len(fitted)
