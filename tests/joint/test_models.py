"""What each joint model is: its kernel, and the models and formulas that it equals."""

from copy import deepcopy

import pytest
import torch
from botorch.models import MultiTaskGP, SingleTaskGP
from gpytorch.kernels import IndexKernel, RBFKernel, ScaleKernel
from gpytorch.means import ZeroMean
from torch.testing import assert_close

from botorch_transfer import (
    IntrinsicCoregionalizationGP,
    JointHierarchicalGP,
    JointScaMLGP,
    LinearCoregionalizationGP,
    ScaMLGP,
    SequentialHierarchicalGP,
    SourceHierarchy,
    WeightedSourceGP,
)
from botorch_transfer.gp.conditioned import ConditionedGPs
from botorch_transfer.gp.hyperpriors import TYPICAL_RESIDUAL
from botorch_transfer.gp.tasks import TaskUnits
from botorch_transfer.pretraining import SourceGPs
from botorch_transfer.prior import Observations
from tests.fits import fit_model
from tests.joint.joint_models import FAMILY, TEST_X


@pytest.mark.parametrize("rank", [1, 2, 3, None])
@pytest.mark.parametrize("model_class", [LinearCoregionalizationGP, IntrinsicCoregionalizationGP])
def test_rank(model_class, rank):
    model = model_class(*FAMILY.target(3), FAMILY.sources((5, 4)), rank=rank)
    expected = 3 if rank is None else rank
    assert (torch.linalg.matrix_rank(model.task_covariances) == expected).all()


@pytest.mark.parametrize("model_class", [LinearCoregionalizationGP, IntrinsicCoregionalizationGP])
@pytest.mark.parametrize("rank", [0, 4])
def test_impossible_ranks_are_refused(model_class, rank):
    with pytest.raises(ValueError, match=rf"rank={rank} is out of range for 3 .* from 1 to 3"):
        model_class(*FAMILY.target(3), FAMILY.sources((5, 4)), rank=rank)


def test_shapes_of_task_covariances():
    data = (*FAMILY.target(3), FAMILY.sources((5, 4)))
    assert LinearCoregionalizationGP(*data).task_covariances.shape == (3, 3, 3)
    assert IntrinsicCoregionalizationGP(*data).task_covariances.shape == (3, 3)
    X, Y = FAMILY.target(3)
    batch = IntrinsicCoregionalizationGP(X.expand(2, 3, 2), Y.expand(2, 3, 1), data[2])
    assert batch.task_covariances.shape == (2, 3, 3)


def test_kernels_start_apart():
    """Kernels that start equal would have equal gradients, and stay equal."""
    model = LinearCoregionalizationGP(*FAMILY.target(6), FAMILY.sources((8,)))
    starts = torch.cat([kernel.lengthscale for kernel in model.covar_modules])
    assert_close(starts[:, 0], torch.tensor([0.25, 1.0], dtype=torch.double))
    first, second = fit_model(model, num_restarts=0).task_covariances
    assert not torch.allclose(first, second, rtol=0.05)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # GPyTorch's index kernel
def test_intrinsic_model_is_botorchs_seen_through_the_target():
    """At equal hyperparameters, on the same standardized data."""
    (source_X, source_Y), (X, Y) = FAMILY.sources((9,))["task 0"], FAMILY.target(4)
    model = IntrinsicCoregionalizationGP(X, Y, [(source_X, source_Y)])
    model.likelihood.noise = 1e-3
    tasks = torch.cat([torch.zeros(9, 1), torch.ones(4, 1)]).double()
    train_Y = torch.cat([model.conditional.points.Y, model.train_targets]).unsqueeze(-1)
    data_kernel = RBFKernel(ard_num_dims=2, active_dims=[0, 1]).double()
    data_kernel.lengthscale = model.covar_modules[0].lengthscale.detach()
    theirs = MultiTaskGP(
        torch.cat([torch.cat([source_X, X]), tasks], dim=-1),
        train_Y,
        task_feature=-1,
        train_Yvar=torch.full_like(train_Y, 1e-3),
        covar_module=data_kernel,
        mean_module=ZeroMean(),
        output_tasks=[1],
        outcome_transform=None,
    )
    task_kernel = IndexKernel(num_tasks=2, rank=2, active_dims=[2]).double()
    with torch.no_grad():
        task_kernel.covar_factor.copy_(model.conditional.kernel.raw_factors[0])
        task_kernel.var = torch.full((2,), 1e-12)
    theirs.covar_module = data_kernel * task_kernel
    posterior = theirs.eval().posterior(TEST_X)
    scale, shift = model.outcome_transform.stdvs, model.outcome_transform.means
    ours = model.posterior(TEST_X)
    assert_close(ours.mean, posterior.mean * scale + shift, rtol=1e-6, atol=1e-6)
    assert_close(ours.variance, posterior.variance * scale**2, rtol=1e-6, atol=1e-6)


def test_residual_kernel_is_the_targets():
    model = JointHierarchicalGP(*FAMILY.target(4), FAMILY.sources((8, 5)))
    assert model.residual_covar_module is model.covar_modules[-1]
    outputscale = model.residual_covar_module.outputscale
    assert_close(outputscale, torch.full_like(outputscale, TYPICAL_RESIDUAL))


def test_levels_that_add_nothing_are_one_task():
    """With the first kernel only, all tasks are observations of one function."""
    kernels = [ScaleKernel(RBFKernel()).double() for _ in range(3)]
    for kernel, outputscale in zip(kernels, (2.0, 1e-12, 1e-12), strict=True):
        kernel.outputscale = outputscale
        kernel.base_kernel.lengthscale = 0.4
    model = JointHierarchicalGP(*FAMILY.target(0), FAMILY.sources((6, 5)), covar_modules=kernels)
    points = model.conditional.points
    K = kernels[0](points.X).to_dense() + model.conditional.noise.variances(points).diag()
    expected = kernels[0](TEST_X, points.X).to_dense() @ torch.linalg.solve(K, points.Y)
    assert_close(model.mean_module(TEST_X), expected, rtol=1e-5, atol=1e-5)


def level(joint, task):
    """One level of the hierarchy as a GP of its own, in the joint model's units."""
    points = joint.conditional.points
    X, Y = points.X.split(points.sizes)[task], points.Y.split(points.sizes)[task]
    model = SingleTaskGP(
        X,
        Y.unsqueeze(-1),
        torch.full_like(Y.unsqueeze(-1), float(joint.source_noise.detach()[task])),
        covar_module=deepcopy(joint.covar_modules[task]),
        mean_module=ZeroMean(),
        outcome_transform=None,
    )
    return model.double()


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("sizes", [(8,), (8, 5, 3, 6)])
def test_is_the_sequential_model(n, sizes):
    """Corollary 1: trained or not, SHGP and HGP are one model at equal hyperparameters."""
    X, Y = FAMILY.target(n)
    joint = JointHierarchicalGP(X, Y, FAMILY.sources(sizes))
    with torch.no_grad():
        for number, parameter in enumerate(joint.parameters()):
            parameter.add_(0.1 * (1 + number % 3))
    levels = [level(joint, task) for task in range(len(sizes))]
    stack = SourceHierarchy.from_models(levels, propagate="covariance")
    transform = joint.outcome_transform
    own_Y = (Y - transform.means) / transform.stdvs
    sequential = SequentialHierarchicalGP(X, own_Y, stack, outcome_transform=None)
    sequential.residual_covar_module.load_state_dict(joint.residual_covar_module.state_dict())
    sequential.likelihood.load_state_dict(joint.likelihood.state_dict())
    posterior, expected = (joint.posterior(TEST_X), sequential.posterior(TEST_X))
    mean = expected.mean * transform.stdvs + transform.means
    assert_close(posterior.mean, mean, rtol=1e-6, atol=1e-6)
    covariance = expected.distribution.covariance_matrix * transform.stdvs.square()
    assert_close(posterior.distribution.covariance_matrix, covariance, rtol=1e-6, atol=1e-6)


def build(**kwargs):
    return WeightedSourceGP(*FAMILY.target(4), FAMILY.sources((8, 5)), **kwargs)


def test_normalization_is_a_rescaling_of_kernels():
    model, normalized = build(), build(normalize=True)
    for kernel, weight in zip(normalized.covar_modules[:-1], normalized.weights, strict=True):
        kernel.outputscale = kernel.outputscale.detach() * (1 + weight.detach())
    posterior, expected = (normalized.posterior(TEST_X), model.posterior(TEST_X))
    assert_close(posterior.mean, expected.mean)
    assert_close(posterior.variance, expected.variance)


def test_sources_without_weight_do_not_matter():
    model = build()
    model.conditional.kernel.task_weights.weights = torch.tensor([1e-6, 1e-6])
    prior = model.mean_module(TEST_X)
    assert prior.abs().max() < 1e-4
    residual = model.residual_covar_module(TEST_X).to_dense()
    assert_close(model.covar_module(TEST_X).to_dense(), residual, rtol=1e-3, atol=1e-4)


def test_a_source_of_noise_gets_less_weight():
    X, Y = FAMILY.target(12)
    history = FAMILY.sources((20,))
    noise = torch.randn(20, 1, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    history["noise"] = (FAMILY.inputs(20, seed=9), noise)
    model = fit_model(WeightedSourceGP(X, Y, history, normalize=True), num_restarts=0)
    helpful, useless = model.weights
    scales = [kernel.outputscale for kernel in model.covar_modules]
    assert helpful * scales[0] > 10 * useless * scales[1]


def source_gps(model: JointScaMLGP, history) -> SourceGPs:
    """The modular prior with the joint model's hyperparameters."""
    points, kernels = model.conditional.points, model.covar_modules[:-1]
    noise = model.conditional.noise.variances(points).detach()
    tasks = [tensor.split(points.sizes) for tensor in (points.X, points.Y, noise)]
    X, Y, variances = (torch.nn.utils.rnn.pad_sequence(task, batch_first=True) for task in tasks)
    sizes = torch.tensor(points.sizes).unsqueeze(-1)
    mask = torch.arange(X.shape[1]) < sizes
    gps = ConditionedGPs.from_data(
        X,
        Y,
        mask,
        torch.cat([kernel.base_kernel.lengthscale for kernel in kernels]),
        torch.stack([kernel.outputscale for kernel in kernels]),
        variances,
    )
    moments = [(task[1].mean(), task[1].std()) for task in history.values()]
    mean, std = (torch.stack(values) for values in zip(*moments, strict=True))
    data = Observations(X[mask], Y[mask], variances[mask], mask.nonzero()[:, 0])
    return SourceGPs(gps, TaskUnits(list(history), mean, std), data)


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
    assert_close(posterior.mean, expected.mean, rtol=1e-6, atol=1e-6)
    covariance, reference = (p.distribution.covariance_matrix for p in (posterior, expected))
    assert_close(covariance, reference, rtol=1e-6, atol=1e-6)


def test_starts_are_those_of_the_modular_model():
    history = FAMILY.sources((6, 6))
    joint = JointScaMLGP(*FAMILY.target(3), history, hyperparameters="paper")
    prior = SourceGPs.fit(history, num_restarts=0)
    modular = ScaMLGP(*FAMILY.target(3), prior, hyperparameters="paper")
    assert torch.equal(joint.weights, modular.weights)
    for one, other in zip(
        joint.residual_covar_module.parameters(),
        modular.residual_covar_module.parameters(),
        strict=True,
    ):
        assert torch.equal(one, other)
    source = joint.covar_modules[0]
    assert_close(source.outputscale, torch.ones_like(source.outputscale))
    assert_close(source.base_kernel.lengthscale, torch.full((1, 2), 0.5).double())
    assert_close(joint.source_noise, torch.full((2,), 1e-3, dtype=torch.double))
