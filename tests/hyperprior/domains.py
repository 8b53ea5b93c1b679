"""Small domains of different dimension, drawn from known GPs."""

from collections.abc import Sequence

import torch
from gpytorch.kernels import MaternKernel

from botorch_transfer.data import Domain


@torch.no_grad()
def draw_domain(
    lengthscale: Sequence[float],
    sizes: Sequence[int] = (12, 8),
    constant: float = 1.0,
    outputscale: float = 2.0,
    noise: float = 1e-2,
    nu: float = 2.5,
    seed: int = 0,
    **options,
) -> Domain:
    """Draws the tasks of a domain from one GP."""
    generator = torch.Generator().manual_seed(seed)
    dim = len(lengthscale)
    kernel = MaternKernel(nu=nu, ard_num_dims=dim).double()
    kernel.lengthscale = torch.tensor(lengthscale)
    data = []
    for n in sizes:
        X = torch.rand(n, dim, generator=generator, dtype=torch.double)
        covariance = outputscale * kernel(X).to_dense() + noise * torch.eye(n).double()
        normal = torch.randn(n, 1, generator=generator, dtype=torch.double)
        data.append((X, constant + torch.linalg.cholesky(covariance) @ normal))
    return Domain(data, **options)


def draw_domains() -> list[Domain]:
    """Three domains, of one, two and three inputs."""
    return [
        draw_domain([0.3], name="one", seed=1),
        draw_domain([0.2, 0.8], name="two", seed=2, discrete_dims=[0]),
        draw_domain([0.4, 0.5, 1.0], name="three", seed=3, sizes=(9, 9, 6)),
    ]
