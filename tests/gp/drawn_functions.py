"""What the tests of drawn functions share."""

import torch


@torch.no_grad()
def assert_moments(draws, posterior, tolerance=0.1):
    """Compares the moments of draws with a posterior's, in its standard deviations.

    Args:
        draws: A ``num_draws x n`` tensor: functions at ``n`` points.
        posterior: The posterior there, of one outcome.
        tolerance: How far means may lie apart; for covariances it is twice that.
    """
    assert draws.shape[1:] == posterior.mean.shape[:-1]
    std = posterior.variance.squeeze(-1).sqrt()
    error = draws.mean(dim=0) - posterior.mean.squeeze(-1)
    assert (error / std).abs().max() < tolerance
    scale = std.unsqueeze(-1) * std
    error = torch.cov(draws.mT) - posterior.distribution.covariance_matrix
    assert (error / scale).abs().max() < 2 * tolerance
