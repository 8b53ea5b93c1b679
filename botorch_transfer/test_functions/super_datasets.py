r"""The synthetic super-datasets of HyperBO+ and MPHD: domains whose hyperprior is known.

Every domain draws its dimension and the hyperparameters of its GP from a hyperprior, and its tasks
from that GP [Fan2022hyperboplus]_ (Appendix C), [Fan2024mphd]_ (Appendix E).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpytorch.priors import GammaPrior, NormalPrior
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_transfer.data import Domain
from botorch_transfer.gp.stationary import squared_distance, stationary_function
from botorch_transfer.hyperprior.fit import HyperparameterDraws
from botorch_transfer.hyperprior.prior import Hyperprior


@dataclass(frozen=True, eq=False)
class SuperDataset:
    """Domains, and the hyperparameters that each was drawn with.

    Args:
        domains: The domains.
        truth: The hyperparameters of each, one draw of a hyperprior a domain.

    Example:
        >>> drawn = SMALL_SUPER_DATASET.draw(num_domains=2, num_tasks=1, num_points=5)
        >>> len(drawn.domains), drawn.truth[0].lengthscale.shape[-1] == drawn.domains[0].dim
        (2, True)
    """

    domains: list[Domain]
    truth: list[HyperparameterDraws]


@dataclass(frozen=True)
class SuperDatasetFamily:
    """A known hyperprior over search spaces, to draw super-datasets from.

    Args:
        kernel: The stationary kernel's name.
        dims: The smallest and the largest number of inputs, all equally probable.
        constant: Mean and standard deviation of the constant means.
        lengthscale_gamma: Shape and rate of the lengthscales in a domain of ``d`` inputs.
        outputscale: Shape and rate of the signal variances.
        noise: Shape and rate of the noise variances.
        num_domains: The papers' number of domains.
        num_tasks: Their number of tasks in each.
        num_points: Their number of points of each task.

    Example:
        >>> drawn = SMALL_SUPER_DATASET.draw(num_domains=3, num_tasks=2, num_points=10, seed=0)
        >>> [domain.dim for domain in drawn.domains]
        [...]
    """

    kernel: str
    dims: tuple[int, int]
    constant: tuple[float, float]
    lengthscale_gamma: Callable[[int], tuple[float, float]]
    outputscale: tuple[float, float]
    noise: tuple[float, float]
    num_domains: int = 20
    num_tasks: int = 10
    num_points: int = 300

    def hyperprior(self, dim: int) -> Hyperprior:
        """The true hyperprior of a domain.

        Args:
            dim: The domain's number of inputs.

        Returns:
            The hyperprior, in raw units.
        """
        return Hyperprior.specified(
            constant=NormalPrior(*self.constant),
            lengthscale=GammaPrior(*self.lengthscale_gamma(dim)),
            outputscale=GammaPrior(*self.outputscale),
            noise=GammaPrior(*self.noise),
            kernel=self.kernel,
        )

    def draw(
        self,
        num_domains: int | None = None,
        num_tasks: int | None = None,
        num_points: int | None = None,
        seed: int = 0,
    ) -> SuperDataset:
        """Draws a super-dataset.

        Args:
            num_domains: The number of domains; the paper's if omitted, and so below.
            num_tasks: The number of tasks of each domain.
            num_points: The number of points of each task, uniform in the unit cube.
            seed: The seed; the first domains, and their first tasks, are the same however many
                there are of them.

        Returns:
            The domains in double precision, called "domain 0", "domain 1" and so on.

        Raises:
            InputDataError: If there would be no tasks, or tasks without points.
        """
        num_points = self.num_points if num_points is None else num_points
        domains, truth = [], []
        for number in range(self.num_domains if num_domains is None else num_domains):
            generator = torch.Generator().manual_seed(1_000_003 * seed + number)
            dim = int(torch.randint(self.dims[0], self.dims[1] + 1, (1,), generator=generator))
            domain_seed = int(torch.randint(2**62, (1,), generator=generator))
            hyperparameters = self.hyperprior(dim).sample(1, dim, seed=domain_seed)
            tasks = [
                self._draw_task(hyperparameters, num_points, generator)
                for _ in range(self.num_tasks if num_tasks is None else num_tasks)
            ]
            domains.append(Domain(tasks, name=f"domain {number}"))
            truth.append(hyperparameters)
        return SuperDataset(domains, truth)

    def _draw_task(
        self, hyperparameters: HyperparameterDraws, num_points: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        dim = hyperparameters.lengthscale.shape[-1]
        X = torch.rand(num_points, dim, generator=generator, dtype=torch.double)
        normal = torch.randn(num_points, 1, generator=generator, dtype=torch.double)
        scaled = X / hyperparameters.lengthscale
        squared, log_scale = squared_distance(scaled, scaled), hyperparameters.outputscale.log()
        covariance = stationary_function(self.kernel).value(squared, log_scale)
        covariance.diagonal().add_(hyperparameters.noise)
        return X, hyperparameters.constant + psd_safe_cholesky(covariance) @ normal


def _small_gamma(dim: int) -> tuple[float, float]:
    return 10.0, 30.0


def _large_gamma(dim: int) -> tuple[float, float]:
    return 0.07692 * dim + 0.8462, -0.3539 * dim + 5.7077


SMALL_SUPER_DATASET = SuperDatasetFamily(
    kernel="matern32",
    dims=(2, 5),
    constant=(1.0, 1.0),
    lengthscale_gamma=_small_gamma,
    outputscale=(1.0, 1.0),
    noise=(10.0, 1e5),
)
"""Super-dataset (S): lengthscales have one Gamma distribution, whatever the dimension."""

LARGE_SUPER_DATASET = SuperDatasetFamily(
    kernel="matern52",
    dims=(2, 14),
    constant=(0.5, 0.2),
    lengthscale_gamma=_large_gamma,
    outputscale=(15.0, 100.0),
    noise=(1.0, 1e4),
    num_tasks=20,
    num_points=3000,
)
"""Super-dataset (L): lengthscales grow with the number of dimensions."""
