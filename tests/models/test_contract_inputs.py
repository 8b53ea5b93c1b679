"""The contract of every model, 8: data sets, transforms, and what is refused."""

import inspect
import warnings
from functools import partial, partialmethod

import pytest
import torch
from botorch.acquisition.objective import ExpectationPosteriorTransform
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import (
    AppendFeatures,
    InputPerturbation,
    InputStandardize,
    Normalize,
    Warp,
)
from botorch.models.transforms.outcome import (
    Bilog,
    ChainedOutcomeTransform,
    Log,
    Power,
    Standardize,
)
from botorch.posteriors import TransformedPosterior
from botorch.sampling import IIDNormalSampler
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood, MultitaskGaussianLikelihood

from botorch_transfer.arguments import constructor_arguments
from botorch_transfer.models import PretrainedGP
from botorch_transfer.pretraining import PretrainedPrior
from tests.families import ShiftedSines
from tests.models.contract import (
    MINIMAL,
    RAW_BOUNDS,
    assert_same_posterior,
    on_every_model,
    parts,
    priors_of,
    raw_transform,
    to_raw,
    variants,
    where,
)

FAMILY = ShiftedSines()
TEST_X = FAMILY.inputs(5, seed=71)
FEATURES = ["x0", "x1"]


def dataset(X, Y, name, Yvar=None, features=FEATURES):
    return SupervisedDataset(X, Y, Yvar=Yvar, feature_names=features, outcome_names=[name])


@pytest.fixture
def short_training(monkeypatch):
    monkeypatch.setattr(PretrainedPrior, "fit", partialmethod(PretrainedPrior.fit, steps=20))


# ------------------------------------------------------------------------------------ the signature


@on_every_model
def test_no_argument_is_keyword_only(case):
    specification = inspect.getfullargspec(case.model_class)
    assert specification.kwonlyargs == []
    assert specification.varkw is None
    assert specification.args[1:3] == ["train_X", "train_Y"]
    assert specification.args[3] == "prior"
    for name in ("train_Yvar", "likelihood", "outcome_transform", "input_transform"):
        assert name in specification.args


@on_every_model
def test_every_argument_is_documented(case):
    documentation = inspect.getdoc(case.model_class)
    for name in inspect.getfullargspec(case.model_class).args[1:]:
        assert f"{name}:" in documentation, name


@on_every_model
@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("likelihood", "gaussian", r"'gaussian': give a Likelihood, such as Gaussian"),
        ("likelihood", MultitaskGaussianLikelihood(2), "for several outcomes: give Gaussian"),
        ("covar_module", ScaleKernel(RBFKernel(ard_num_dims=5)), "for 5 inputs: give ard_num_dims"),
        ("covar_modules", [RBFKernel(ard_num_dims=5)], "for 5 inputs: give ard_num_dims"),
        ("covar_module", "rbf", r"'rbf': give a Kernel, such as RBFKernel\(\)"),
        ("covar_modules", "rbf", "'rbf': give a list of kernels"),
        ("covar_module", MaternKernel, "<class .*MaternKernel'>: give a Kernel"),
        ("outcome_transform", "log", r"'log': give an OutcomeTransform, such as Log\(\)"),
        ("outcome_transform", Log, r"<class .*Log'>: give an OutcomeTransform, such as Log\(\)"),
        ("input_transform", "normalize", r"'normalize': give an InputTransform, such as"),
    ],
)
def test_modules_of_a_wrong_type_are_refused(case, name, value, remedy):
    if name in constructor_arguments(case.model_class):
        with pytest.raises((TypeError, InputDataError), match=f"^{name}? is {remedy}"):
            case.model_class(*FAMILY.target(3), FAMILY.sources(), **{name: value})


# --------------------------------------------------------------------------------- construct_inputs


@variants(
    "n, known_noise",
    everywhere=[(4, True)],
    representatives=[(0, False), (0, True)],
    siblings=[(4, True)],
)
def test_from_a_supervised_dataset(case, n, known_noise):
    X, Y = FAMILY.target(n)
    noise = torch.full_like(Y, 0.2) if known_noise else None
    given = case.model_class.construct_inputs(dataset(X, Y, "target", noise), prior=case.prior())
    model = case.model_class(**given, **case.options)
    expected = case.build(X, Y, train_Yvar=noise).posterior(TEST_X)
    assert_same_posterior(model.posterior(TEST_X), expected, rtol=1e-12)


@pytest.mark.usefixtures("short_training")
def test_raw_source_data(case):
    sources = FAMILY.sources()
    X, Y = FAMILY.target(3)
    arguments = case.model_class.construct_inputs(dataset(X, Y, "target"), prior=sources)
    model = case.model_class(**arguments, **case.options)
    direct = case.model_class(X, Y, sources, **case.options)
    assert_same_posterior(model.posterior(TEST_X), direct.posterior(TEST_X), rtol=1e-12)


def multi_task(with_task_column, target="target"):
    """Sources and target in one data set, the target neither first nor last."""
    sources = FAMILY.sources()
    tasks = [("task 0", sources["task 0"]), ("target", FAMILY.target(4))]
    tasks += [(name, sources[name]) for name in ("task 1", "task 2")]
    datasets = []
    for number, (name, (X, Y)) in enumerate(tasks):
        features = FEATURES
        if with_task_column:
            X = torch.cat([X[:, :1], torch.full_like(Y, float(number)), X[:, 1:]], dim=-1)
            features = ["x0", "task", "x1"]
        datasets.append(dataset(X, Y, name, features=features))
    column = 1 if with_task_column else None
    return MultiTaskDataset(datasets, target_outcome_name=target, task_feature_index=column)


@variants("with_task_column", everywhere=[True], representatives=[False])
def test_from_a_multi_task_dataset(case, with_task_column):
    arguments = case.model_class.construct_inputs(multi_task(with_task_column))
    X, Y = FAMILY.target(4)
    assert torch.equal(arguments["train_X"], X)
    assert torch.equal(arguments["train_Y"], Y)
    assert arguments.get("task_feature") is None
    model = case.model_class(**arguments, **case.options)
    direct = case.model_class(X, Y, FAMILY.sources(), **case.options)
    assert_same_posterior(model.posterior(TEST_X), direct.posterior(TEST_X), rtol=1e-12)


def test_target_outcome_name_says_which_task_is_the_target(representative):
    arguments = representative.model_class.construct_inputs(multi_task(True, target="task 1"))
    X, Y = FAMILY.sources()["task 1"]
    assert torch.equal(arguments["train_X"], X)
    assert torch.equal(arguments["train_Y"], Y)


def test_prior_goes_before_the_sources_inside(representative):
    prior = representative.prior()
    arguments = representative.model_class.construct_inputs(multi_task(True), prior=prior)
    assert arguments["prior"] is prior


def test_known_noise_in_a_multi_task_dataset(representative):
    plain = multi_task(True)
    datasets = [
        dataset(task.X, task.Y, name, torch.full_like(task.Y, 0.3), features=["x0", "task", "x1"])
        for name, task in plain.datasets.items()
    ]
    joint = MultiTaskDataset(datasets, "target", task_feature_index=1)
    arguments = representative.model_class.construct_inputs(joint)
    assert torch.equal(arguments["train_Yvar"], torch.full_like(arguments["train_Y"], 0.3))
    representative.model_class(**arguments, **representative.options).posterior(TEST_X)


def test_categorical_features_are_accepted(representative):
    data = dataset(*FAMILY.target(3), "target")
    arguments = representative.model_class.construct_inputs(
        data, categorical_features=[1], prior=representative.prior()
    )
    representative.model_class(**arguments, **representative.options).posterior(TEST_X)


def test_no_sources_are_refused(representative):
    X, Y = FAMILY.target(3)
    with pytest.raises(InputDataError, match="source"):
        representative.model_class.construct_inputs(dataset(X, Y, "target"))


# ----------------------------------------------------------------------------- transforms of inputs


@variants(
    "n, said_twice", everywhere=[(4, False)], representatives=[(0, False), (0, True), (4, True)]
)
def test_raw_inputs(case, n, said_twice):
    X, Y = FAMILY.target(n)
    joint = not case.takes_prior
    options = {"input_transform": raw_transform()} if said_twice or joint else {}
    model = case.build(to_raw(X), Y, case.raw_prior(), **options)
    expected = case.build(X, Y).posterior(TEST_X)
    assert_same_posterior(model.posterior(to_raw(TEST_X)), expected, rtol=1e-5, atol=1e-6)
    model.train()
    assert_same_posterior(model.posterior(to_raw(TEST_X)), expected, rtol=1e-5, atol=1e-6)


@where(lambda case: case.takes_prior)  # joint models transform their sources, too
def test_transform_of_a_model_whose_prior_lives_in_the_cube(case):
    X, Y = FAMILY.target(4)
    model = case.build(to_raw(X), Y, input_transform=raw_transform())
    expected = case.build(X, Y).posterior(TEST_X)
    assert_same_posterior(model.posterior(to_raw(TEST_X)), expected)


@pytest.mark.parametrize("transform", [Normalize(2), InputStandardize(2)], ids=["N", "S"])
@where(lambda case: case.takes_prior and case.representative)
def test_a_learning_transform_is_refused_with_a_prior_that_has_none(case, transform):
    X, Y = FAMILY.target(4)
    with pytest.raises(ValueError, match=r"learn its coefficients.*bounds"):
        case.build(X, Y, input_transform=transform)


@variants("n", everywhere=[4], inexact=[0])
def test_bounds_are_learned_from_the_source_data(case, n):
    X, Y = FAMILY.target(n)
    sources = {name: (to_raw(X), Y) for name, (X, Y) in FAMILY.sources().items()}
    inputs = torch.cat([X for X, _ in sources.values()])
    bounds = torch.stack([inputs.amin(dim=0), inputs.amax(dim=0)])
    learned, known = (
        case.build(
            to_raw(X),
            Y,
            case.pretrain(sources, input_transform=transform),
            input_transform=transform,
        )
        for transform in (Normalize(2), Normalize(2, bounds=bounds))
    )
    assert_same_posterior(learned.posterior(to_raw(TEST_X)), known.posterior(to_raw(TEST_X)))
    torch.testing.assert_close(learned.input_transform.bounds, bounds)
    assert not learned.input_transform.learn_coefficients  # points outside stay outside


# A one-to-many transform is for predictions: neither sources nor target have other points by it.
@variants("n", everywhere=[4], inexact=[0])
def test_perturbed_inputs(case, n):
    X, Y = FAMILY.target(n)
    perturbations = 0.1 * FAMILY.inputs(3, seed=5)
    transform = InputPerturbation(perturbations)
    prior = case.pretrain(FAMILY.sources(), input_transform=transform)
    model, plain = case.build(X, Y, prior, input_transform=transform), case.build(X, Y)
    inputs = (TEST_X.unsqueeze(-2) + perturbations).flatten(end_dim=-2)
    assert_same_posterior(model.posterior(TEST_X), plain.posterior(inputs))
    assert model.train().train_inputs[0].shape[-2] == n
    risk = ExpectationPosteriorTransform(n_w=3)
    expectation = model.posterior(TEST_X, posterior_transform=risk).mean
    assert expectation.shape == plain.posterior(TEST_X).mean.shape


@pytest.mark.gaussian
def test_appended_features(representative):
    """The second input is one of the environment: sources and target have observed values of it."""
    X, Y = FAMILY.target(4)
    environment = FAMILY.inputs(3, seed=5)[:, :1]
    model = representative.build(X, Y, input_transform=AppendFeatures(environment))
    inputs = torch.cat([TEST_X[:, None, :1].expand(5, 3, 1), environment.expand(5, 3, 1)], dim=-1)
    expected = representative.build(X, Y).posterior(inputs.flatten(end_dim=-2))
    assert_same_posterior(model.posterior(TEST_X[:, :1]), expected)
    fantasies = model.fantasize(TEST_X[:2], IIDNormalSampler(torch.Size([2]), seed=0))
    assert fantasies.posterior(TEST_X[:, :1]).mean.shape == (2, 15, 1)


def test_a_transform_with_parameters_is_refused(representative):
    X, Y = FAMILY.target(4)
    warp = Warp(2, indices=[0, 1], bounds=RAW_BOUNDS)
    with pytest.raises(ValueError, match="parameters to fit"):
        representative.build(X, Y, input_transform=warp)


# The search space of a model of any dimension may be another one, with a transform of its own.
@where(lambda case: case.takes_prior and not case.any_dim)
def test_a_conflicting_transform_is_refused(case):
    X, Y = FAMILY.target(4)
    other = raw_transform(2 * RAW_BOUNDS)
    with pytest.raises(ValueError, match="differs from the prior's input transform"):
        case.build(to_raw(X), Y, case.raw_prior(), input_transform=other)


def test_the_users_transform_object_stays_as_it_is(representative):
    transform = raw_transform().to(torch.double)
    before = {name: tensor.clone() for name, tensor in transform.state_dict().items()}
    training = transform.training
    X, Y = FAMILY.target(3)
    representative.build(to_raw(X), Y, input_transform=transform).posterior(to_raw(TEST_X))
    assert transform.training == training
    assert all(torch.equal(before[name], tensor) for name, tensor in transform.state_dict().items())


# ------------------------------------------------------------------------------------ a task column


@pytest.mark.parametrize("column", [0, -1])
def test_a_task_column_is_ignored(representative, column):
    X, Y = FAMILY.target(4)
    model = representative.build(with_column(X, column, 3.0), Y, task_feature=column)
    expected = representative.build(X, Y).posterior(TEST_X)
    assert_same_posterior(model.posterior(with_column(TEST_X, column, 3.0)), expected)
    assert_same_posterior(model.posterior(with_column(TEST_X, column, 0.0)), expected)
    batch = with_column(FAMILY.inputs(2, 3), column, 3.0)
    assert model.posterior(batch).mean.shape == (2, 3, 1)


def with_column(X, column, value):
    constant = torch.full_like(X[..., :1], value)
    return torch.cat([constant, X] if column == 0 else [X, constant], dim=-1)


# ----------------------------------------------------------------------------- the user's own parts


@pytest.mark.gaussian
@where(lambda case: case.takes_prior)  # joint models take covar_modules
def test_a_residual_kernel_of_the_users_own(case):
    kernel = MaternKernel(ard_num_dims=2).double()
    model = case.target(4, covar_module=kernel)
    assert model.residual_covar_module is kernel
    assert model.posterior(TEST_X).mean.isfinite().all()


@pytest.mark.gaussian
def test_a_likelihood_of_the_users_own(case):
    likelihood = GaussianLikelihood().to(TEST_X)
    likelihood.noise = 0.25
    model = case.target(4, likelihood=likelihood)
    for part in parts(model):  # the members of an average have copies
        torch.testing.assert_close(part.likelihood.noise, likelihood.noise)
    noisy = model.posterior(TEST_X, observation_noise=True)
    added = noisy.variance - model.posterior(TEST_X).variance
    torch.testing.assert_close(added, added[:1].expand_as(added))


# ------------------------------------------------------------------------------------- refused data


def test_several_outcomes_are_refused(representative):
    X, Y = FAMILY.target(3)
    with pytest.raises(InputDataError, match="use transfer_models"):
        representative.build(X, Y.repeat(1, 2))


@where(lambda case: not case.any_dim)
def test_another_number_of_inputs_is_refused(case):
    X, Y = FAMILY.target(3)
    with pytest.raises(InputDataError, match="train_X= has 1 inputs, but the source tasks have 2"):
        case.build(X[:, :1], Y)


@pytest.mark.parametrize("name", ["train_X", "train_Y", "train_Yvar"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_values_that_are_not_finite_are_refused(representative, name, value):
    X, Y = FAMILY.target(3)
    data = {"train_X": X, "train_Y": Y, "train_Yvar": torch.ones_like(Y)}
    data[name][1, 0] = value
    with pytest.raises(InputDataError, match=f"{name} has a value that is NaN, infinite"):
        representative.build(**data)


def test_negative_noise_is_refused(representative):
    X, Y = FAMILY.target(3)
    with pytest.raises(InputDataError, match="train_Yvar has negative values: give squared"):
        representative.build(X, Y, train_Yvar=torch.full_like(Y, -1.0))


@pytest.mark.filterwarnings("ignore:Very small noise values")
def test_no_noise_is_rounded_up_as_in_botorch(representative):
    X, Y = FAMILY.target(3)
    model = representative.build(X, Y, train_Yvar=torch.zeros_like(Y))
    assert (model.likelihood.noise > 0).all()
    if representative.interpolates:
        torch.testing.assert_close(model.posterior(X).mean, Y, atol=1e-2, rtol=0)


@where(lambda case: case is not MINIMAL)
def test_missing_sources_are_named(case):
    X, Y = FAMILY.target(3)
    for arguments in ((X, Y), (X, Y, None)):
        with pytest.raises(TypeError, match="source tasks are missing: give the old runs"):
            case.model_class(*arguments)


@on_every_model
def test_something_else_than_a_prior_is_refused(case):
    X, Y = FAMILY.target(3)
    with pytest.raises(TypeError, match="is a tensor: give old runs"):
        case.build(X, Y, torch.zeros_like(X))


# --------------------------------------------------------------------------- transforms of outcomes

LOGS = {
    "Log": (Log(), torch.log),
    "chain": (ChainedOutcomeTransform(power=Power(0.5), log=Log()), lambda Y: Y.log() / 2),
    "Bilog": (Bilog(), lambda Y: Y.sign() * Y.abs().log1p()),
    "Standardize": (ChainedOutcomeTransform(log=Log(), scale=Standardize(1)), torch.log),
}


def in_transformed_units(model):
    """The posterior before an element-wise transform is undone."""
    posterior = model.posterior(TEST_X)
    while isinstance(posterior, TransformedPosterior):
        posterior = posterior._posterior
    return posterior


def log_normal_mean(latent):
    return (latent.mean + latent.variance / 2).exp()


@pytest.mark.gaussian
@pytest.mark.usefixtures("short_training")
@variants(
    "name, n",
    everywhere=[("Log", 4)],
    representatives=[("chain", 4)],
    inexact=[("Log", 0), ("Bilog", 1), ("Standardize", 4)],
)
def test_elementwise_transforms_reach_the_history(case, name, n):
    transform, by_hand = LOGS[name]
    sources, (X, Y) = FAMILY.sources(), FAMILY.target(n)
    model = case.model_class(X, Y, sources, outcome_transform=transform, **case.options)
    own = {"outcome_transform": Standardize(1)} if name == "Standardize" else {}
    sources = {task: (X, by_hand(Y)) for task, (X, Y) in sources.items()}
    expected = case.model_class(X, by_hand(Y), sources, **own, **case.options)
    latent = expected.posterior(TEST_X)
    assert_same_posterior(in_transformed_units(model), latent)
    if n > 0:
        assert_same_posterior(in_transformed_units(model), latent)
        near = model.condition_on_observations(X[:1] / 2, Y[:1])
        far = expected.condition_on_observations(X[:1] / 2, by_hand(Y[:1]))
        assert_same_posterior(in_transformed_units(near), far.posterior(TEST_X))
    if name == "Log":
        torch.testing.assert_close(model.posterior(TEST_X).mean, log_normal_mean(latent))
    if name == "Log" and n > 0:
        left_out = log_normal_mean(expected.loo_posterior())
        torch.testing.assert_close(model.loo_posterior().mean, left_out)


@pytest.mark.gaussian
def test_left_out_points_of_a_batch_in_logarithms(representative):
    X = FAMILY.inputs(2, 3)
    build = partial(representative.model_class, prior=FAMILY.sources(), outcome_transform=Log())
    batch, single = build(X, FAMILY.value(X)), build(X[1], FAMILY.value(X[1]))
    torch.testing.assert_close(batch.loo_posterior().mean[1], single.loo_posterior().mean)


@where(lambda case: case.takes_prior and not case.sibling)
@pytest.mark.usefixtures("short_training")
def test_a_prior_keeps_the_transform_of_its_outcomes(case, tmp_path):
    X, Y = FAMILY.target(3)
    model = case.model_class(X, Y, FAMILY.sources(), outcome_transform=Log(), **case.options)
    loaded = {}
    for name, prior in priors_of(model.prior).items():
        prior.save(tmp_path / "prior.safetensors")
        loaded[name] = type(prior).load(tmp_path / "prior.safetensors")
    loaded = loaded.get("", loaded)
    for outcomes in ({"outcome_transform": Log()}, {}):
        again = case.build(X, Y, loaded, **outcomes)
        assert torch.equal(again.posterior(TEST_X).mean, model.posterior(TEST_X).mean)
    for other in (Standardize(1), Power(2.0)):
        with pytest.raises(ValueError, match="but the prior has the steps Log:"):
            case.build(X, Y, loaded, outcome_transform=other)
    with pytest.raises(ValueError, match=r"steps Log, but .* steps none: give the old runs"):
        case.build(X, Y, outcome_transform=Log())


@pytest.mark.usefixtures("short_training")
def test_outcomes_without_a_logarithm_are_named(case):
    sources, (X, Y) = FAMILY.sources(), FAMILY.target(3)
    build = partial(case.model_class, outcome_transform=Log(), **case.options)
    with pytest.raises(InputDataError, match="train_Y has the outcome -50, for which Log is not"):
        build(X, torch.full_like(Y, -50.0), sources)
    sources["task 1"] = (sources["task 1"][0], 0 * sources["task 1"][1])
    with pytest.raises(InputDataError, match="Task 'task 1' has the outcome 0, for which Log"):
        build(X, Y, sources)
    late = ChainedOutcomeTransform(scale=Standardize(1), log=Log())
    with pytest.raises(ValueError, match="Log, Bilog and Power must precede all other"):
        case.build(X, Y, outcome_transform=late)


@pytest.mark.gaussian
def test_known_noise_is_transformed_with_the_outcomes(representative):
    sources, (X, Y) = FAMILY.sources(), FAMILY.target(3)
    noisy = {name: (X, Y, 0.1 * Y) for name, (X, Y) in sources.items()}
    model = representative.model_class(X, Y, noisy, 0.1 * Y, outcome_transform=Log())
    by_hand = {name: (X, Y.log(), Yvar / Y.square()) for name, (X, Y, Yvar) in noisy.items()}
    expected = representative.model_class(X, Y.log(), by_hand, 0.1 / Y)
    assert_same_posterior(in_transformed_units(model), expected.posterior(TEST_X))
    with pytest.raises(NotImplementedError, match="Bilog does not yet support"):
        representative.model_class(X, Y, noisy, outcome_transform=Bilog())


# ------------------------------------------------------------------- what a model warns of


def warnings_of(build, *names):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build()
    texts = [str(each.message) for each in caught]
    return [text for text in texts if any(name in text for name in names)]


# A pre-training by gradients warns itself.
@where(lambda case: not (case.any_dim or case.sibling or case.model_class is PretrainedGP))
def test_inputs_outside_the_cube_are_named_once(case):
    sources, (X, Y) = FAMILY.sources(), FAMILY.target(3)
    inside, outside = partial(case.model_class, X, Y), partial(case.model_class, 2 * X + 1, Y)
    cube = Normalize(2, bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]).to(X))
    far = {**sources, "task 1": (5 * sources["task 1"][0], sources["task 1"][1])}
    for build, history, whose in (
        (inside, sources, []),
        (outside, sources, ["the target"]),
        (partial(case.model_class, 1.9 * X, Y, input_transform=cube), sources, []),
        (partial(outside, input_transform=cube), sources, ["the target"]),
        (inside, far, ["the source tasks"]),
        (outside, far, ["the source tasks", "the target"]),
    ):
        for _ in range(2):  # the second time nothing is pre-trained
            found = warnings_of(partial(build, history, **case.options), "unit cube")
            assert sorted(text.split(" are not")[0] for text in found) == [
                f"The inputs of {each}" for each in whose
            ]


@pytest.mark.usefixtures("short_training")
@where(lambda case: not (case.any_dim or case.sibling))
def test_a_target_in_another_unit_is_noticed_once(case):
    sources, (X, Y) = FAMILY.sources(), FAMILY.target(5)
    for factor, fits in ((100, "divided by 100"), (0.01, "times 100"), (1e7, ""), (1, None)):
        build = partial(case.model_class, X, factor * Y, sources, **case.options)
        found = warnings_of(build, "train_Y is far from")
        assert len(found) == (fits is not None)
        assert all(fits in text for text in found)
        assert not any("it fits" in text for text in found if not fits)
        for chosen in (Standardize(1), None):
            own = partial(build, outcome_transform=chosen)
            assert warnings_of(own, "train_Y is far from") == []
