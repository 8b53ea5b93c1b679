"""The hierarchical models where their source knows nothing: `python -m benchmarks.figures.alpine`.

This is Fig. 1 of [Tighineanu2022hierarchical]: a source with data on the left half only, a target
with four points on the right, both of the Alpine family `x sin(x + π) + c x`. What the models say
far from the target's points depends on whether they know how little the source does there.

[Tighineanu2022hierarchical]: P. Tighineanu et al. Transfer Learning with Gaussian Processes for
Bayesian Optimization. AISTATS 2022.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.markdown import markdown_table
from botorch_transfer.hierarchy.models import HierarchicalGP
from botorch_transfer.models import (
    BoostedHierarchicalGP,
    MeanHierarchicalGP,
    SequentialHierarchicalGP,
)
from botorch_transfer.plotting import BLACK, GREY, style_of
from botorch_transfer.test_functions import AlpineFamily

LOWER, UPPER = -10.0, 10.0
SOURCE_C, TARGET_C = 0.5, -0.5
TARGET_X = (1.0, 2.0, 3.0, 4.0)
WIDTH_95 = 1.96

REGIONS = {
    "source data (x < 0)": lambda x: x < 0,
    "target data (1 to 4)": lambda x: (x >= 1) & (x <= 4),
    "no data (x > 6)": lambda x: x > 6,
}


@dataclass(frozen=True)
class Prediction:
    """What one model says of its function, in the user's units.

    Args:
        mean: An `n` tensor.
        deviation: An `n` tensor of posterior standard deviations.
    """

    mean: Tensor
    deviation: Tensor

    def covers(self, truth: Tensor) -> Tensor:
        """Whether the central 95 % intervals hold the function's values, an `n` tensor."""
        return (truth - self.mean).abs() <= WIDTH_95 * self.deviation


def alpine(x: Tensor, c: float) -> Tensor:
    """The family of Fig. 1, `x sin(x + π) + c x`.

    Args:
        x: A tensor of inputs between -10 and 10.
        c: The task.

    Returns:
        A tensor of the same shape.
    """
    return AlpineFamily(c=c)(x.unsqueeze(-1))


def source_task(num_points: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draws the source data, uniform on the left half.

    Args:
        num_points: Their number `n`.
        seed: The seed.

    Returns:
        `n x 1` inputs and outcomes.
    """
    generator = torch.Generator().manual_seed(seed)
    X = LOWER * torch.rand(num_points, 1, generator=generator, dtype=torch.double)
    return X, alpine(X, SOURCE_C)


def target_task() -> tuple[Tensor, Tensor]:
    """The target's four points."""
    X = torch.tensor(TARGET_X, dtype=torch.double).unsqueeze(-1)
    return X, alpine(X, TARGET_C)


def predict(x: Tensor, seed: int = 0) -> dict[str, Prediction]:
    """Fits the models and evaluates them.

    Args:
        x: An `n` tensor of inputs.
        seed: The seed of the source data.

    Returns:
        The predictions of the source model, MHGP, BHGP and SHGP.
    """
    bounds = torch.tensor([[LOWER], [UPPER]], dtype=torch.double)
    source, transform = {"source": source_task(seed=seed)}, Normalize(1, bounds=bounds)
    predictions = {}
    for name, model_class in (
        ("MHGP", MeanHierarchicalGP),
        ("BHGP", BoostedHierarchicalGP),
        ("SHGP", SequentialHierarchicalGP),
    ):
        model = model_class(*target_task(), source, input_transform=transform, hyperpriors="paper")
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        with torch.no_grad():
            posterior = model.posterior(x.unsqueeze(-1))
        predictions[name] = Prediction(posterior.mean[:, 0], posterior.variance[:, 0].sqrt())
    return {"source": _of_source(model, x), **predictions}


def _of_source(model: HierarchicalGP, x: Tensor) -> Prediction:
    """The source's posterior, brought into the user's units."""
    prior, X = model.prior, x.unsqueeze(-1)
    mean = prior.mean(X) * prior.outcome_std + prior.outcome_mean
    return Prediction(mean, prior.variance(X).sqrt() * prior.outcome_std)


def figure_table(x: Tensor, predictions: Mapping[str, Prediction]) -> str:
    """Lays out how unsure the models are, and how often they are right, where who has data.

    Args:
        x: An `n` tensor of inputs.
        predictions: What :func:`predict` gave at them.

    Returns:
        A markdown table.
    """
    header = ["model", *(f"{what}: deviation, covered" for what in REGIONS)]
    rows = []
    for name, prediction in predictions.items():
        covered = prediction.covers(alpine(x, SOURCE_C if name == "source" else TARGET_C))
        regions = [inside(x) for inside in REGIONS.values()]
        cells = [
            f"{float(prediction.deviation[inside].mean()):.2f}, "
            f"{float(covered[inside].double().mean()):.0%}"
            for inside in regions
        ]
        rows.append([name, *cells])
    return markdown_table(header, rows)


def draw(x: Tensor, predictions: Mapping[str, Prediction], path: Path, seed: int = 0) -> None:
    """Draws the picture: the source, MHGP and BHGP, SHGP.

    Args:
        x: An `n` tensor of inputs.
        predictions: What :func:`predict` gave at them.
        path: Where to save the picture; its folder is made.
        seed: The seed of the source data.
    """
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    panels = figure.subplots(1, 3, sharex=True, sharey=True)
    _draw_source(panels[0], x, predictions["source"], seed)
    _draw_target(panels[1], x, "MHGP and BHGP: one mean")
    _draw_prediction(
        panels[1], x, predictions["BHGP"], "BHGP, 95 %", style_of("BHGP").color, mean=False
    )
    _draw_prediction(panels[1], x, predictions["MHGP"], "MHGP, 95 %", style_of("MHGP").color)
    _draw_target(panels[2], x, "SHGP")
    _draw_prediction(panels[2], x, predictions["SHGP"], "SHGP, 95 %", style_of("SHGP").color)
    for panel in panels:
        panel.axvline(0, color="#BBBBBB", linewidth=0.8, zorder=0)
        panel.set(xlabel="x", xlim=(LOWER, UPPER), ylim=(-32, 32))
        panel.legend(loc="upper left", fontsize=8, framealpha=0.9)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("outcome")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _draw_source(panel: Axes, x: Tensor, prediction: Prediction, seed: int) -> None:
    panel.set_title("Source: data on the left only", fontsize=10)
    panel.plot(x, alpine(x, SOURCE_C), color=BLACK, linestyle=":", label="source function")
    _draw_prediction(panel, x, prediction, "source GP, 95 %", GREY)
    panel.plot(*source_task(seed=seed), "x", color=BLACK, markersize=5, label="source data")


def _draw_target(panel: Axes, x: Tensor, title: str) -> None:
    panel.set_title(title, fontsize=10)
    panel.plot(x, alpine(x, TARGET_C), color=BLACK, linestyle=":", label="target function")
    panel.plot(*target_task(), "o", color=BLACK, markersize=5, label="target data", zorder=5)


def _draw_prediction(
    panel: Axes, x: Tensor, prediction: Prediction, label: str, color: str, mean: bool = True
) -> None:
    half = WIDTH_95 * prediction.deviation
    low, high = prediction.mean - half, prediction.mean + half
    panel.fill_between(x, low, high, color=color, alpha=0.25, linewidth=0, label=label)
    # Edges tell overlapping bands apart without their colours.
    for edge in (low, high):
        panel.plot(x, edge, color=color, linewidth=0.8, linestyle="-" if mean else "--")
    if mean:
        panel.plot(x, prediction.mean, color=color, linewidth=1.8)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture")
    parser.add_argument("--seed", type=int, default=0, help="seed of the source data")
    options = parser.parse_args(arguments)
    x = torch.linspace(LOWER, UPPER, 401, dtype=torch.double)
    predictions = predict(x, options.seed)
    draw(x, predictions, options.out / "alpine.png", options.seed)
    print(figure_table(x, predictions))
    print(f"\nDeviations are means over x. The picture is in {options.out / 'alpine.png'}.")


if __name__ == "__main__":
    main()
