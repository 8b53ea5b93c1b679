import pytest
import torch
from botorch.models import MixedSingleTaskGP, ModelListGP, SingleTaskGP
from botorch.models.robust_relevance_pursuit_model import RobustRelevancePursuitSingleTaskGP
from botorch.models.transforms.input import Log10, Normalize
from botorch.models.transforms.outcome import Log, Standardize
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.means import ConstantMean, LinearMean, ZeroMean
from torch import Tensor

from botorch_transfer.pretraining import SourceGPs
from tests.gp.padded import points

LOWER, WIDTH = torch.tensor([-3.0, 10.0]).double(), torch.tensor([5.0, 0.3]).double()
BOUNDS = torch.stack([LOWER, LOWER + WIDTH])


def raw_points(*shape: int, seed: int = 1) -> Tensor:
    """Inputs between the bounds."""
    return LOWER + WIDTH * points(*shape, 2, seed=seed)


def kernel_of(kind: float | None, ard: bool, scaled: bool):
    """A kernel with hyperparameters far from their defaults; ``kind`` is a smoothness."""
    dims = 2 if ard else None
    kernel = RBFKernel(ard_num_dims=dims) if kind is None else MaternKernel(kind, ard_num_dims=dims)
    kernel.lengthscale = torch.tensor([[0.4, 0.9]]) if ard else 0.6
    if scaled:
        kernel = ScaleKernel(kernel)
        kernel.outputscale = 2.5
    return kernel


def build(
    n: int = 8,
    seed: int = 1,
    kind: float | None = None,
    ard: bool = True,
    scaled: bool = True,
    constant: float | None = 0.4,
    known_noise: bool = False,
    standardize: bool = True,
    normalize: str | None = "bounds",
    **changes,
) -> SingleTaskGP:
    """A model of data in units far from standardized."""
    X = raw_points(n, seed=seed)
    Y = 50 + 10 * torch.sin(3 * (X - LOWER) / WIDTH).sum(dim=-1, keepdim=True)
    mean = ZeroMean() if constant is None else ConstantMean()
    if constant is not None:
        mean.initialize(constant=constant)
    transform = None if normalize is None else Normalize(2, bounds=BOUNDS)
    if normalize == "learned":
        transform = Normalize(2)
    model = SingleTaskGP(
        X,
        Y,
        0.1 + points(n, 1) if known_noise else None,
        **{
            "covar_module": kernel_of(kind, ard, scaled),
            "mean_module": mean,
            "outcome_transform": Standardize(m=1) if standardize else None,
            "input_transform": transform,
            **changes,
        },
    ).double()
    if not known_noise and "likelihood" not in changes:
        model.likelihood.noise = 0.01
    return model


def check(sources: SourceGPs, models: list[SingleTaskGP]) -> None:
    """Compares posteriors in the user's units."""
    X = raw_points(5, seed=7)
    mean, covariance = sources.mean(X), sources.covariance(X)
    for index, model in enumerate(models):
        posterior = model.posterior(X)
        scale = sources.outcome_std[index]
        ours = sources.outcome_mean[index] + scale * mean[index]
        torch.testing.assert_close(ours, posterior.mean.squeeze(-1), atol=1e-8, rtol=1e-8)
        ours, expected = scale**2 * covariance[index], posterior.distribution.covariance_matrix
        # GPyTorch's distances between coincident points are not exactly zero.
        tolerance = 1e-7 if sources.gps.kernel == "matern12" else 1e-8
        torch.testing.assert_close(ours, expected, atol=float(tolerance * scale**2), rtol=0)


pytestmark = pytest.mark.filterwarnings("ignore:Data ", "ignore:The model inputs are of type")


@pytest.mark.parametrize(
    ("kind", "ard", "scaled"),
    [(None, True, True), (0.5, False, True), (1.5, True, False), (2.5, False, False)],
)
def test_kernels(kind: float | None, ard: bool, scaled: bool) -> None:
    models = [build(n, seed=n, kind=kind, ard=ard, scaled=scaled) for n in (8, 1, 5)]
    check(SourceGPs.from_models(models), models)


@pytest.mark.parametrize(
    ("constant", "known_noise", "standardize", "normalize"),
    [
        (None, True, True, "bounds"),
        (0.0, False, False, "learned"),
        (-2.0, True, False, None),
        (-2.0, False, True, "learned"),
        (None, False, False, "bounds"),
        (-2.0, True, True, None),
    ],
)
def test_means_noise_and_transforms(
    constant: float | None, known_noise: bool, standardize: bool, normalize: str | None
) -> None:
    kwargs = {"constant": constant, "known_noise": known_noise}
    kwargs |= {"standardize": standardize, "normalize": normalize}
    models = [build(n, seed=n, **kwargs) for n in (8, 5)]
    sources = SourceGPs.from_models(models)
    check(sources, models)
    assert sources.outcome_scale == ("per_task" if standardize else "raw")
    Y = torch.cat([model.train_targets for model in models])
    if not standardize:
        torch.testing.assert_close(sources.outcomes(), Y)


def test_models_may_differ_in_what_is_folded_in() -> None:
    models = [build(normalize=None), build(known_noise=True), build(constant=None, ard=False)]
    models.append(build(scaled=False, normalize="learned"))
    check(SourceGPs.from_models(models), models)


def test_input_transform_of_the_prior() -> None:
    models = [build(normalize=None), build(normalize="learned"), build()]
    transform = Normalize(2, bounds=BOUNDS)
    sources = SourceGPs.from_models(models, transform)
    check(sources, models)
    assert isinstance(sources.input_transform, Normalize)
    assert ((sources.gps.points >= 0) & (sources.gps.points <= 1)).all()
    torch.testing.assert_close(sources.gps.lengthscale[2], torch.tensor([0.4, 0.9]).double())


def test_default_mean_and_kernel_of_botorch() -> None:
    X = points(6, 2)
    model = SingleTaskGP(X, X.sum(dim=-1, keepdim=True))
    sources = SourceGPs.from_models({"monday": model})
    assert sources.task_names == ("monday",)
    assert sources.gps.kernel == "rbf"
    posterior = model.posterior(points(4, 2, seed=2))
    ours = sources.outcome_mean + sources.outcome_std * sources.mean(points(4, 2, seed=2))[0]
    torch.testing.assert_close(ours, posterior.mean.squeeze(-1), atol=1e-8, rtol=0)


@pytest.mark.parametrize("training", [True, False])
def test_models_stay_as_they_are(training: bool) -> None:
    model = build(normalize="learned").train(training)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs = model.train_inputs[0].clone()
    sources = SourceGPs.from_models([model])
    assert model.training is model.input_transform.training is training
    assert torch.equal(model.train_inputs[0], inputs)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name])
    check(sources, [model])


def test_changing_a_model_later_does_not_change_the_prior() -> None:
    model = build()
    sources = SourceGPs.from_models([model])
    before = sources.mean(raw_points(3))
    model.mean_module.constant.data.fill_(9.0)
    model.train_targets.fill_(0.0)
    assert torch.equal(sources.mean(raw_points(3)), before)


def test_nothing_was_fitted_here() -> None:
    assert SourceGPs.from_models([build(), build()]).log_posterior.isnan().all()


def test_names() -> None:
    assert SourceGPs.from_models([build(), build()]).task_names == ("model 0", "model 1")
    named = SourceGPs.from_models({"a": build(), 7: build()})
    assert named.task_names == ("a", "7")


def test_single_precision() -> None:
    model = build().float()
    model.train_inputs = tuple(X.float() for X in model.train_inputs)
    model.train_targets = model.train_targets.float()
    sources = SourceGPs.from_models([model.float()])
    assert sources.mean(raw_points(3).float()).dtype is torch.float32


BAD_MODELS = {
    "is not a SingleTaskGP": lambda: ModelListGP(build()),
    "is not a SingleTaskGP with one outcome and no batch dimensions: only": lambda: SingleTaskGP(
        points(4, 2), points(4, 2)
    ),
    "is not a SingleTaskGP with one outcome": lambda: SingleTaskGP(
        points(3, 4, 2), points(3, 4, 1)
    ),
    "has a LinearKernel: only RBF and Matérn kernels on all inputs, with or": lambda: build(
        covar_module=LinearKernel()
    ),
    "has a AdditiveKernel: only RBF": lambda: MixedSingleTaskGP(
        points(4, 2), points(4, 1), cat_dims=[1]
    ),
    "has a RBFKernel: only RBF and Matérn kernels on all inputs": lambda: build(
        covar_module=RBFKernel(active_dims=(0,))
    ),
    "has a ScaleKernel: only RBF": lambda: build(
        covar_module=ScaleKernel(ScaleKernel(RBFKernel()))
    ),
    "has a LinearMean: only zero and constant means are supported": lambda: build(
        mean_module=LinearMean(2), constant=None
    ),
    "has a SparseOutlierGaussianLikelihood: only Gaussian noise, known or inferred, is": lambda: (
        RobustRelevancePursuitSingleTaskGP(points(4, 2), points(4, 1))
    ),
    "has a Log: only the outcome transform Standardize is supported": lambda: build(
        outcome_transform=Log()
    ),
    "has a Log10: only the input transform Normalize is supported": lambda: SingleTaskGP(
        1 + points(4, 2), points(4, 1), input_transform=Log10(indices=[0])
    ),
}


@pytest.mark.parametrize("message", BAD_MODELS)
def test_models_that_cannot_be_taken_over(message: str) -> None:
    with pytest.raises(ValueError, match=f"'bad' {message}"):
        SourceGPs.from_models({"good": build(), "bad": BAD_MODELS[message]()})


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: build(kind=0.5), "kernel: it is matern12 for 'b', but rbf for 'a'"),
        (lambda: build(standardize=False), "Standardize: it is False for 'b', but"),
        (lambda: SingleTaskGP(points(4, 3), points(4, 1)), "inputs: it is 3 for 'b'"),
        (lambda: build().float(), "dtype: it is torch.float32 for 'b', but torch.float64 for 'a'"),
    ],
)
def test_models_that_disagree(other, message: str) -> None:
    with pytest.raises(ValueError, match=f"The models must have the same .*{message}"):
        SourceGPs.from_models({"a": build(), "b": other()})


def test_no_models() -> None:
    with pytest.raises(ValueError, match="a mapping of at least one model"):
        SourceGPs.from_models([])


def test_model_that_is_not_in_a_list() -> None:
    with pytest.raises(ValueError, match="models= must be a list or a mapping"):
        SourceGPs.from_models(build())


def test_other_input_transform_for_the_prior() -> None:
    message = "The prior's input transform is a Log10: only Normalize is supported"
    with pytest.raises(ValueError, match=message):
        SourceGPs.from_models([build()], Log10(indices=[0]))
    with pytest.raises(ValueError, match="Normalize would learn its coefficients"):
        SourceGPs.from_models([build()], Normalize(2))
