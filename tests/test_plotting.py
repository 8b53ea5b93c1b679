import numpy as np
import pandas as pd
import pytest
import torch
from botorch.cross_validation import loo_cv
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import ChainedOutcomeTransform
from botorch.posteriors.gpytorch import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.means import ConstantMean

from botorch_transfer import (
    CategoricalParameter,
    FloatParameter,
    FullyBayesianHyperpriorGP,
    GuardedTransferGP,
    IntegerParameter,
    MeanHierarchicalGP,
    PopulationGP,
    RankWeightedGP,
    ScaMLGP,
    SearchSpace,
    SourceGPs,
    TransferGP,
    TwoStageTransferGP,
    plotting,
)
from botorch_transfer.curves import CurvePrior
from botorch_transfer.modular import SourcePosteriorGP
from botorch_transfer.plotting import BLUE, plot_calibration, plot_curves, plot_slice, plot_weights
from tests.families import ShiftedSines
from tests.members import hyperprior

plt = pytest.importorskip("matplotlib.pyplot")
colors = pytest.importorskip("matplotlib.colors")

FAMILY = ShiftedSines()


@pytest.fixture(autouse=True)
def _no_window():
    plt.switch_backend("agg")
    yield
    plt.close("all")


def _model(*batch: int) -> ScaMLGP:
    X = torch.linspace(0, 1, 8, dtype=torch.double).unsqueeze(-1)
    history = {name: (X, (X * factor).sin()) for name, factor in (("low", 1.0), ("high", 9.0))}
    train_X = torch.rand(*batch, 2, 1, dtype=torch.double)
    model = ScaMLGP(train_X, train_X.sin(), history)
    if not batch:
        model.task_weights.weights = torch.tensor([0.2, 0.7])
    return model


def test_bars_are_the_weights_largest_on_top():
    ax = plot_weights(_model())
    assert [label.get_text() for label in ax.get_yticklabels()] == ["low", "high"]
    assert [bar.get_width() for bar in ax.patches] == pytest.approx([0.2, 0.7])
    _, ax = plt.subplots()
    assert plot_weights(_model(), ax=ax, max_tasks=1) is ax
    assert [label.get_text() for label in ax.get_yticklabels()] == ["high"]


def test_refuses_a_batch():
    with pytest.raises(ValueError, match="batch of models"):
        plot_weights(_model(3))


def _two_inputs(model_class=ScaMLGP, n=6, **options):
    X, Y = FAMILY.target(n)
    return model_class(X, Y, FAMILY.sources(), **options)


UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def test_weights_in_an_average_are_its_members():
    for model_class in (TransferGP, GuardedTransferGP):
        model = _two_inputs(model_class)
        ax = plot_weights(model)
        weighted = model.transfer if model_class is GuardedTransferGP else model.members["scaml"]
        widths = [bar.get_width() for bar in ax.patches]
        assert widths == pytest.approx(sorted(weighted.weights.tolist()))


class ConstantMeanGP(SourcePosteriorGP):
    """A model on source GPs whose mean does not come from them."""

    prior_class = SourceGPs

    def _mean_and_kernel(self, prior, residual, batch_shape):
        return ConstantMean(batch_shape=batch_shape), residual


def test_models_without_weights_are_refused():
    for model_class, options in (
        (PopulationGP, {}),
        (MeanHierarchicalGP, {}),
        (ConstantMeanGP, {}),
        (TransferGP, {"members": {"population": PopulationGP}}),
    ):
        with pytest.raises(ValueError, match=f"{model_class.__name__} has no weights of source"):
            plot_weights(_two_inputs(model_class, **options))


@pytest.mark.parametrize(
    "model_class", [ScaMLGP, RankWeightedGP, TwoStageTransferGP, GuardedTransferGP, TransferGP]
)
def test_slice_shows_target_and_sources_in_the_users_units(model_class):
    model = _two_inputs(model_class)
    anchor = torch.tensor([0.3, 0.8], dtype=torch.double)
    ax = plot_slice(model, UNIT, dimension=1, anchor=anchor, max_tasks=2, num_points=5)
    *sources, target = ax.get_lines()
    assert len(sources) == 2
    points = anchor.repeat(5, 1)
    points[:, 1] = torch.linspace(0, 1, 5)
    with torch.no_grad():
        posterior = model.posterior(points)
    assert target.get_ydata() == pytest.approx(posterior.mean.squeeze(-1).numpy())
    low = ax.collections[-1].get_paths()[0].vertices[:, 1].min()
    high = ax.collections[-1].get_paths()[0].vertices[:, 1].max()
    half = 1.96 * posterior.variance.squeeze(-1).sqrt()
    assert low == pytest.approx(float((posterior.mean.squeeze(-1) - half).min()))
    assert high == pytest.approx(float((posterior.mean.squeeze(-1) + half).max()))
    name = sources[0].get_label()
    informed = model.members["scaml"] if model_class is TransferGP else model
    mean = informed.prior.mean(points)[informed.prior.task_names.index(name)]
    expected = informed.outcome_transform.untransform(mean.unsqueeze(-1))[0].squeeze(-1)
    assert sources[0].get_ydata() == pytest.approx(expected.numpy())
    styles = [(line.get_color(), line.get_linestyle()) for line in ax.get_lines()]
    assert len({color for color, _ in styles}) == len({line for _, line in styles}) == 3


def test_slice_of_a_single_input_shows_the_data():
    model = _model()
    ax = plot_slice(model, torch.tensor([[0.0], [1.0]], dtype=torch.double))
    data = ax.get_lines()[-1]
    assert data.get_label() == "target data"
    assert len(data.get_xdata()) == 2
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["high", "low", "target", "target data"]


@pytest.mark.parametrize("n", [0, 3])
def test_slice_goes_through_the_best_point(n):
    ax = plot_slice(_two_inputs(MeanHierarchicalGP, n), UNIT, dimension=-1)
    assert [line.get_label() for line in ax.get_lines()] == ["target"]
    assert ax.get_xlabel() == "input 1"


def test_slice_of_raw_inputs():
    bounds = torch.tensor([[-5.0, 100.0], [5.0, 300.0]], dtype=torch.double)
    transform = Normalize(2, bounds=bounds)
    X, Y = FAMILY.target(5)
    raw = {name: (transform.untransform(A), B) for name, (A, B) in FAMILY.sources().items()}
    model = ScaMLGP(transform.untransform(X), Y, raw, input_transform=transform)
    ax = plot_slice(model, bounds, dimension=1)
    expected = plot_slice(ScaMLGP(X, Y, FAMILY.sources()), UNIT, dimension=1)
    for line, twin in zip(ax.get_lines(), expected.get_lines(), strict=True):
        assert line.get_ydata() == pytest.approx(twin.get_ydata(), rel=1e-4)
    assert ax.get_lines()[-1].get_xdata()[[0, -1]].tolist() == [100.0, 300.0]


KIND = CategoricalParameter("kind", ("relu", "tanh", "none"))
DEPTH = IntegerParameter("depth", 1, 5)
SPACE = SearchSpace([FloatParameter("lr", 1e-4, 1.0, log=True), DEPTH, KIND])


def _of_space() -> ScaMLGP:
    X = SPACE.encode(SPACE.sample(12, seed=1))
    return ScaMLGP(X[:5], X[:5, :1], {"usual": (X, X.sum(-1, keepdim=True))})


def test_slice_in_the_users_parameters():
    model = _of_space()
    anchor = SPACE.sample(1, seed=2)
    ax = plot_slice(model, SPACE, "lr", anchor, num_points=3, goal="min", outcome_name="loss")
    assert (ax.get_xlabel(), ax.get_xscale(), ax.get_ylabel()) == ("lr", "log", "loss")
    line = next(line for line in ax.get_lines() if line.get_label() == "target")
    assert line.get_xdata() == pytest.approx([1e-4, 1e-2, 1.0])
    rows = pd.concat([anchor] * 3).assign(lr=line.get_xdata())
    with torch.no_grad():
        mean = model.posterior(SPACE.encode(rows)).mean.squeeze(-1)
    assert line.get_ydata() == pytest.approx(-mean.numpy())
    depth = plot_slice(model, SPACE, "depth")
    assert depth.get_lines()[0].get_xdata() == pytest.approx([1, 2, 3, 4, 5])
    kind = plot_slice(model, SPACE, 3)  # a column of the choice
    assert kind.get_xlabel() == "kind"
    assert [label.get_text() for label in kind.get_xticklabels()] == ["relu", "tanh", "none"]


def test_data_of_a_single_parameter_are_at_its_values():
    space = SearchSpace([SPACE.parameters[0]])
    runs = pd.DataFrame({"lr": [1e-3, 1e-2, 0.5]})
    X = space.encode(runs)
    ax = plot_slice(ScaMLGP(X, X, {"a": (X, X)}), space, "lr")
    data = next(line for line in ax.get_lines() if line.get_label() == "target data")
    assert data.get_xdata() == pytest.approx(runs["lr"].to_numpy(), rel=1e-2)


@pytest.mark.parametrize("level", [0.0, 5e3])
def test_a_task_of_three_rows_does_not_swamp_the_slice(monkeypatch, level):
    def wild(model, points, max_tasks):
        posterior = model.posterior(points)
        mvn = MultivariateNormal(posterior.mean.squeeze(-1) + level, 1e6 * torch.eye(len(points)))
        yield "three rows", GPyTorchPosterior(mvn)

    monkeypatch.setattr(plotting, "_source_slices", wild)
    ax = plot_slice(_of_space(), SPACE, "lr", num_points=5)
    odd, target = (np.ptp(c.get_paths()[0].vertices[:, 1]) for c in ax.collections)
    low, high = ax.get_ylim()
    assert target < high - low < 2.3 * target < odd


def test_slices_that_there_are_not():
    model = _of_space()
    with pytest.raises(ValueError, match="no parameter 'rate': use one of lr, depth, kind"):
        plot_slice(model, SPACE, "rate")
    with pytest.raises(ValueError, match="goal is 'low'"):
        plot_slice(model, SPACE, "lr", goal="low")


def test_the_target_is_blue_and_no_source_is():
    model = _two_inputs(RankWeightedGP)
    ax = plot_slice(model, UNIT, outcome_name="yield")
    *sources, target = ax.get_lines()
    assert target.get_color() == BLUE
    assert target.get_color() not in [line.get_color() for line in sources]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("input 0", "yield")
    bar = plot_weights(model).patches[0]
    assert bar.get_facecolor() == colors.to_rgba(BLUE)


@pytest.mark.parametrize(
    ("bounds", "options", "message"),
    [
        (UNIT, {"dimension": 2}, "There is no parameter 2: use one of input 0, input 1"),
        (UNIT, {"dimension": 1.5}, "use one of input 0"),
        (UNIT, {"anchor": torch.zeros(3)}, "one value for each of 2 inputs"),
        (None, {}, "must be a SearchSpace or a 2 x d"),
        (UNIT[0], {}, "or a 2 x d tensor"),
    ],
)
def test_slices_of_other_inputs_are_refused(bounds, options, message):
    with pytest.raises(ValueError, match=message):
        plot_slice(_two_inputs(), bounds, **options)


@pytest.mark.parametrize("model_class", [ScaMLGP, GuardedTransferGP])
def test_calibration_shows_what_is_within_its_interval(model_class):
    X, Y = FAMILY.target(8)
    Y = Y.clone()
    Y[3] += 60.0  # no model expects this one
    model = model_class(X, Y, FAMILY.sources(), torch.full_like(Y, 0.5))
    ax = plot_calibration(model)
    own = getattr(model, "loo_posterior", None)
    loo = loo_cv(model).posterior if own is None else own()
    inside = (Y.flatten() - loo.mean.flatten()).abs() <= 1.96 * loo.variance.flatten().sqrt()
    assert not inside[3]
    hits, misses = (container.lines[0] for container in ax.containers)
    assert len(hits.get_xdata()) == int(inside.sum())
    assert hits.get_xdata() == pytest.approx(Y.flatten()[inside].numpy())
    assert misses.get_ydata() == pytest.approx(loo.mean.flatten()[~inside].detach().numpy())
    assert ax.get_title() == f"{int(inside.sum())} of 8 within 95 %"


def test_calibration_needs_points():
    model = _two_inputs(n=1)
    with pytest.raises(ValueError, match="two target points"):
        plot_calibration(model)
    with pytest.raises(TypeError, match="model is a SourceGPs: give a model such"):
        plot_calibration(model.prior)


def test_slice_of_outcomes_in_chained_units():
    """As Ax's models of saved priors have them."""
    X, Y = FAMILY.target(6)
    prior = SourceGPs.fit(FAMILY.sources(), num_restarts=0)
    lines = []
    for chained in (False, True):
        transform = prior.default_outcome_transform(torch.Size())
        if chained:
            transform = ChainedOutcomeTransform(prior=transform)
        ax = plot_slice(ScaMLGP(X, Y, prior, outcome_transform=transform), UNIT, num_points=5)
        lines.append([line.get_ydata().tolist() for line in ax.get_lines()])
    for plain, chain in zip(*lines, strict=True):
        assert chain == pytest.approx(plain)


def test_curves_are_drawn_with_the_predicted_end() -> None:
    rows = [("old", end + 1 / k, k) for end in (0.1, 0.5, 0.9) for k in range(1, 11)]
    old = pd.DataFrame(rows, columns=["task", "loss", "epoch"])
    prior = CurvePrior.fit(old, "loss", "epoch", "min")
    ax = plot_curves(prior, pd.DataFrame({"loss": [1.2, 0.7], "epoch": [1, 2]}), old)
    # three old curves, the new one, and the bar's marker and caps
    assert [len(line.get_xdata()) for line in ax.lines[:4]] == [10, 10, 10, 2]
    assert ax.containers[0].lines[0].get_xdata().item() == 10
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "loss")
    # Complete runs have no bars.
    ax = plot_curves(prior, old.drop(columns="task").head(10))
    assert len(ax.lines) == 1
    assert not ax.containers


@pytest.mark.filterwarnings("ignore:The effective sample size is only")
def test_an_ensemble_has_the_points_of_its_members():
    X, Y = FAMILY.target(4)
    model = FullyBayesianHyperpriorGP(X, Y, hyperprior(), num_samples=32, num_members=4)
    points = plotting._target_points(model)
    torch.testing.assert_close(points, (X, Y.squeeze(-1)))


def test_a_model_without_units_of_its_own():
    X = torch.linspace(0, 1, 8, dtype=torch.double).unsqueeze(-1)
    prior = SourceGPs.fit({"low": (X, X.sin())}, num_restarts=0)
    raw = ScaMLGP(X[:2], X[:2], prior, outcome_transform=None)
    ((name, posterior),) = plotting._source_slices(raw, X, 1)
    assert name == "low"
    torch.testing.assert_close(posterior.mean.squeeze(-1), prior.mean(X)[0])


def test_all_choices_of_a_parameter_are_on_its_line():
    space = SearchSpace([CategoricalParameter("kind", tuple("abcdef"))])
    line = plotting.parameter_line(space, space.parameters[0], num_points=3)
    assert line.ticks == list("abcdef")
    assert torch.equal(line.values, torch.eye(6, dtype=torch.double))
