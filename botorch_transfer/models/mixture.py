"""Two predictions made one: the normal distribution with the moments of their mixture."""

from __future__ import annotations

from gpytorch.distributions import MultivariateNormal
from gpytorch.settings import skip_posterior_variances
from linear_operator import to_linear_operator
from torch import Tensor


def mixed(
    left: MultivariateNormal, right: MultivariateNormal, weight: Tensor
) -> MultivariateNormal:
    """The normal distribution with the moments of a mixture of two.

    Args:
        left: The first one.
        right: The second one.
        weight: A ``batch_shape`` tensor: the first one's weight.

    Returns:
        A distribution whose covariance also counts how far the two means are apart.
    """
    share = weight.unsqueeze(-1)
    mean = share * left.mean + (1 - share) * right.mean
    if skip_posterior_variances.on():
        return MultivariateNormal(mean, left.lazy_covariance_matrix)
    apart = left.mean - right.mean
    share = share.unsqueeze(-1)
    covariance = share * left.covariance_matrix + (1 - share) * right.covariance_matrix
    between = share * (1 - share) * apart.unsqueeze(-1) * apart.unsqueeze(-2)
    return MultivariateNormal(mean, to_linear_operator(covariance + between))


def mixed_moments(
    left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], weight: Tensor
) -> tuple[Tensor, Tensor]:
    """The moments of a mixture of two normal distributions, point by point.

    Args:
        left: Means and variances of the first one.
        right: Means and variances of the second one.
        weight: The first one's weight, a tensor that broadcasts.

    Returns:
        Means and variances.

    Example:
        >>> zero, one = torch.zeros(1), torch.ones(1)
        >>> mixed_moments((zero, one), (2 * one, 3 * one), torch.tensor(0.5))
        (tensor([1.]), tensor([3.]))
    """
    mean = weight * left[0] + (1 - weight) * right[0]
    variance = weight * left[1] + (1 - weight) * right[1]
    return mean, variance + weight * (1 - weight) * (left[0] - right[0]).square()
