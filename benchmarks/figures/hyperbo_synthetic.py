"""Pre-training where the truth is known: `python -m benchmarks.figures.hyperbo_synthetic`.

Three demonstrations. On five points, posteriors of a pre-trained GP against those of the estimated
Gaussian itself (Fig. 4 and 5 of [Wang2024hyperbo]). On a line, a GP pre-trained on three functions
against one fitted to three points of the target (Fig. 6 and Table 2). And how the hyperparameters
of a GP are recovered from its draws as tasks become more.

[Wang2024hyperbo]: Z. Wang et al. Pre-trained Gaussian Processes for Bayesian Optimization. JMLR
2024.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.markdown import markdown_table
from botorch_transfer import PretrainedPrior
from botorch_transfer.gp.likelihood import nll
from botorch_transfer.gp.stationary import squared_distance, stationary_function
from botorch_transfer.hyperbo.features import FeatureMean, FeatureNetwork
from botorch_transfer.hyperbo.objectives import EmpiricalGaussian, ekl

DOMAIN = torch.arange(1.0, 6.0, dtype=torch.double).unsqueeze(-1)
JITTER = 1e-6
Gaussian = tuple[Tensor, Tensor]
"""A mean, `n`, and a covariance, `n x n`."""


def covariance(X: Tensor, lengthscale: float | Tensor, kernel: str, scale: float = 1.0) -> Tensor:
    """A stationary kernel's matrix."""
    scaled = X / lengthscale
    log_scale = torch.tensor(math.log(scale), dtype=X.dtype)
    return stationary_function(kernel).value(squared_distance(scaled, scaled), log_scale)


def draw(gaussian: Gaussian, num: int, generator: torch.Generator) -> Tensor:
    """Draws `num` functions: `num x n`."""
    mean, matrix = gaussian
    eye = torch.eye(len(mean), dtype=mean.dtype)
    root = torch.linalg.cholesky(matrix + 1e-9 * eye)
    return mean + torch.randn(num, len(mean), generator=generator, dtype=mean.dtype) @ root.mT


def condition(gaussian: Gaussian, y: Tensor, num: int) -> Gaussian:
    """Conditions on the first `num` points of a function; what is left is about the others."""
    mean, matrix = gaussian
    if num == 0:
        return gaussian
    eye = JITTER * torch.eye(num, dtype=mean.dtype)
    gain = torch.linalg.solve(matrix[:num, :num] + eye, matrix[:num, num:]).mT
    posterior_mean = mean[num:] + gain @ (y[:num] - mean[:num])
    return posterior_mean, matrix[num:, num:] - gain @ matrix[:num, num:]


def divergence(truth: Gaussian, other: Gaussian) -> float:
    """The mean divergence of the marginals, `KL(truth ‖ other)`, in nats."""
    (m, V), (n, W) = truth, other
    v, w = V.diagonal() + JITTER, W.diagonal().clamp_min(0) + JITTER
    return float((0.5 * (v / w + (m - n).square() / w - 1 + (w / v).log())).mean())


# ----------------------------------------------------------------------------- five points


def finite_domain(num_tasks: int, num_tests: int, seed: int = 0) -> dict[str, list[float]]:
    """Compares posteriors on five points (Fig. 4 and 5).

    Args:
        num_tasks: The number of training functions.
        num_tests: The number of test functions.
        seed: The seed of all of them.

    Returns:
        For each estimate the median divergence of the true posterior from its own, given 0 to 4
        observations.
    """
    generator = torch.Generator().manual_seed(seed)
    truth = torch.zeros(5, dtype=torch.double), covariance(DOMAIN, 1.0, "rbf")
    Y = draw(truth, num_tasks, generator)
    estimate = Y.mean(dim=0), torch.cov(Y.mT, correction=0)
    prior = PretrainedPrior.stationary(1, kernel="rbf", mean="zero", noise=1e-4)
    prior.fit([(DOMAIN, y.unsqueeze(-1)) for y in Y], "ekl", outcome_scale="raw")
    pretrained = prior.mean(DOMAIN), prior.covariance(DOMAIN)
    results: dict[str, list[float]] = {"MLE estimate": [], "unbiased": [], "pre-trained GP": []}
    tests = draw(truth, num_tests, generator)
    for t in range(5):
        found: dict[str, list[float]] = {name: [] for name in results}
        for y in tests:
            order = torch.randperm(5, generator=generator)
            expected, plain, ours = (
                condition((mean[order], matrix[order][:, order]), y[order], t)
                for mean, matrix in (truth, estimate, pretrained)
            )
            unbiased = plain[0], plain[1] * num_tasks / (num_tasks - 1 - t)
            for name, posterior in zip(found, (plain, unbiased, ours), strict=True):
                found[name].append(divergence(expected, posterior))
        for name, values in found.items():
            results[name].append(float(torch.tensor(values).median()))
    return results


# -------------------------------------------------------------------------- three functions


def smooth_mean(X: Tensor, seed: int) -> Tensor:
    """The true mean: linear in the features of a network with three hidden layers."""
    mean = FeatureMean(FeatureNetwork(1, hidden=(32, 32, 32), seed=seed))
    generator = torch.Generator().manual_seed(seed)
    mean.weight.data = 0.2 * torch.randn(32, generator=generator, dtype=torch.double)
    return mean(X).detach()


def three_functions(
    seed: int = 0, num_points: int = 200, steps: int = 3000
) -> tuple[dict[str, list[float]], dict[str, Gaussian], tuple[Tensor, Tensor, Tensor]]:
    """Compares GPs on a line (Fig. 6 and Table 2).

    Args:
        seed: The seed of the functions.
        num_points: The number of points of each of the three training functions.
        steps: The number of steps of Adam.

    Returns:
        For each GP its NLL and EKL on the training functions, its NLL of the whole test function,
        and that of the three observations; the GPs at the points, noise left out; and inputs, test
        function and the observations' rows.
    """
    generator = torch.Generator().manual_seed(seed)
    X = torch.linspace(0, 1, num_points, dtype=torch.double).unsqueeze(-1)
    noise = 1e-3
    truth = smooth_mean(X, seed), covariance(X, 0.15, "matern52", scale=0.1)
    drawn = draw(truth, 4, generator)
    drawn = drawn + noise**0.5 * torch.randn(drawn.shape, generator=generator, dtype=X.dtype)
    train, test = drawn[:3], drawn[3]
    rows = torch.randperm(num_points, generator=generator)[:3]

    kernel = ScaleKernel(RBFKernel())
    kernel.base_kernel.lengthscale = 0.1
    prior = PretrainedPrior(FeatureMean(FeatureNetwork(1, (32, 32, 32))), kernel, dim=1)
    prior.fit([(X, y.unsqueeze(-1)) for y in train], outcome_scale="raw", steps=steps)
    single = SingleTaskGP(
        X[rows],
        test[rows].unsqueeze(-1),
        likelihood=GaussianLikelihood(),  # BoTorch's own has a hyperprior
        covar_module=ScaleKernel(RBFKernel()),
        mean_module=ConstantMean(),
        outcome_transform=None,
    )
    single.mean_module.initialize(constant=test[rows].mean())
    single.covar_module.initialize(outputscale=test[rows].var())
    fit_gpytorch_mll(ExactMarginalLogLikelihood(single.likelihood, single))
    single.eval()
    with torch.no_grad():
        alone = single.mean_module(X).detach(), single.covar_module(X).to_dense()
        single_noise = float(single.likelihood.noise)
        pretrained = prior.mean(X), prior.covariance(X)
    gps: dict[str, Gaussian] = {"ground truth": truth, "pre-trained GP": pretrained}
    gps["single-task GP"] = alone
    noises = [noise, float(prior.noise), single_noise]
    empirical = EmpiricalGaussian.of([train.mT])
    table = {}
    for (name, (mean, matrix)), own_noise in zip(gps.items(), noises, strict=True):
        noisy = matrix + own_noise * torch.eye(num_points, dtype=X.dtype)
        observed = noisy[rows][:, rows]
        table[name] = [
            float(nll(mean.expand(3, -1), noisy.expand(3, -1, -1), train).mean()),
            float(ekl(mean[None], noisy[None], empirical)),
            float(nll(mean[None], noisy[None], test[None])),
            float(nll(mean[rows][None], observed[None], test[rows][None])),
        ]
    return table, gps, (X, test, rows)


# ---------------------------------------------------------------------------------- recovery


def recovery(num_tasks: int, num_points: int = 40, seed: int = 0) -> list[float]:
    """Pre-trains on draws of a known GP, and measures how far the result is off.

    Args:
        num_tasks: The number of draws.
        num_points: The number of points of each, at random.
        seed: The seed of the draws.

    Returns:
        The error of the mean, the root mean square relative error of the lengthscales, and the
        relative error of the noise variance.
    """
    generator = torch.Generator().manual_seed(seed)
    lengthscale = torch.tensor([0.2, 0.5], dtype=torch.double)
    noise, mean, tasks = 0.05, 1.0, []
    for _ in range(num_tasks):
        X = torch.rand(num_points, 2, generator=generator, dtype=torch.double)
        eye = torch.eye(num_points, dtype=torch.double)
        matrix = covariance(X, lengthscale, "matern52") + noise * eye
        tasks.append((X, draw((mean * X.new_ones(num_points), matrix), 1, generator).mT))
    prior = PretrainedPrior.stationary(2).fit(tasks, outcome_scale="raw", optimizer="lbfgs")
    parts = prior.parts
    found = parts.covar_module.base_kernel.lengthscale.squeeze(0)
    off = (found / lengthscale).log().square().mean().sqrt()
    return [
        abs(float(parts.mean_module.constant) - mean),
        float(off.exp() - 1),
        abs(float(prior.noise) / noise - 1),
    ]


# ------------------------------------------------------------------------------------- output


def draw_line(axes: Axes, gp: Gaussian, data: tuple[Tensor, Tensor, Tensor], title: str) -> None:
    """Draws a GP's prior in bands of 95 and 99 %, and the test function."""
    (mean, matrix), (X, test, rows) = gp, data
    x, deviation = X.squeeze(-1).numpy(), matrix.diagonal().sqrt().numpy()
    for width, alpha in ((2.576, 0.15), (1.96, 0.25)):
        lower, upper = mean.numpy() - width * deviation, mean.numpy() + width * deviation
        axes.fill_between(x, lower, upper, color="#0072B2", alpha=alpha, linewidth=0)
    axes.plot(x, mean.numpy(), color="#0072B2", label="prior mean")
    axes.plot(x, test.numpy(), color="black", linestyle="--", label="test function")
    axes.plot(X[rows].squeeze(-1).numpy(), test[rows].numpy(), "o", color="black")
    axes.set_title(title)
    axes.set_xlabel("x")


def number(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=200, help="test functions on five points")
    parser.add_argument("--steps", type=int, default=3000, help="steps of Adam")
    parser.add_argument("--tasks", type=int, nargs="+", default=[4, 16, 64, 256])
    parser.add_argument("--seeds", type=int, default=5, help="of medians")
    parser.add_argument("--out", type=Path, default=Path("out/hyperbo_synthetic.png"))
    options = parser.parse_args(arguments)

    rows = [
        [f"{name}, {num_tasks} functions", *map(number, values)]
        for num_tasks in (10, 50)
        for name, values in finite_domain(num_tasks, options.tests).items()
    ]
    print("Five points: median divergence of the true posterior, in nats\n")
    print(markdown_table(["", *(f"{t} observed" for t in range(5))], rows))

    runs = [three_functions(seed, steps=options.steps) for seed in range(options.seeds)]
    _, gps, data = runs[0]
    rows = []
    for name in gps:
        values = torch.tensor([table[name] for table, _, _ in runs]).median(dim=0).values
        rows.append([name, *map(number, values.tolist())])
    header = ["", "NLL", "EKL", "NLL of the test function", "NLL of 3 observations"]
    print("\nThree functions (Table 2): medians\n")
    print(markdown_table(header, rows))

    rows = []
    for num_tasks in options.tasks:
        errors = torch.tensor([recovery(num_tasks, seed=seed) for seed in range(options.seeds)])
        rows.append([str(num_tasks), *map(number, errors.median(dim=0).values.tolist())])
    print("\nRecovery: median errors, relative ones for lengthscales and noise\n")
    print(markdown_table(["tasks", "mean", "lengthscales", "noise variance"], rows))

    figure = Figure(figsize=(12, 3.5), layout="constrained")
    for axes, (name, gp) in zip(figure.subplots(1, 3, sharey=True), gps.items(), strict=True):
        draw_line(axes, gp, data, name)
    figure.axes[0].legend()
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=150)
    print(f"\n{options.out}")


if __name__ == "__main__":
    main()
