"""Leave-one-out predictions of models whose predictive covariance is not their exact GP's."""

from __future__ import annotations

from typing import Any

from botorch.cross_validation import efficient_loo_cv
from botorch.models.gp_regression import SingleTaskGP
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.utils.context_managers import delattr_ctx
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator
from torch import Tensor


def observation_noise_variance(model: SingleTaskGP, X: Tensor) -> Tensor:
    """The observation noise variances of a model's points.

    Args:
        model: The model.
        X: A ``batch_shape x n x d`` tensor: its inputs.

    Returns:
        A ``batch_shape x n`` tensor in the model's own units.
    """
    return model.likelihood.noise_covar(shape=X.shape[:-1]).diagonal(dim1=-2, dim2=-1)


def exact_leave_one_out(model: SingleTaskGP) -> tuple[Tensor, Tensor]:
    """What the exact GP of a model predicts for each of its points without having seen it.

    Args:
        model: The model; it is in evaluation mode afterwards.

    Returns:
        Means and variances, noise left out, ``batch_shape x n`` tensors in the model's own units.
    """
    model.eval()
    loo: Any = efficient_loo_cv(model, observation_noise=False, untransform=False).posterior
    return loo.mean[..., 0, 0], loo.variance[..., 0, 0]


def leave_one_out_posterior(model: SingleTaskGP, mean: Tensor, variance: Tensor) -> Posterior:
    """Makes a posterior of leave-one-out predictions.

    Args:
        model: The model, in evaluation mode.
        mean: A ``batch_shape x n`` tensor in the model's own units.
        variance: A ``batch_shape x n`` tensor in the model's own units.

    Returns:
        A posterior of shape ``batch_shape x n x 1 x 1`` in the user's units, one batch a point.
    """
    transform: Any = getattr(model, "outcome_transform", None)
    if transform is None:
        return _one_batch_a_point(mean, variance)
    (X,) = model.train_inputs
    # A transform of a batch of models counts on their batch shape, points last.
    together = GPyTorchPosterior(MultivariateNormal(mean, DiagLinearOperator(variance)))
    posterior = transform.untransform_posterior(together, X=X)
    if isinstance(posterior, GPyTorchPosterior):
        return _one_batch_a_point(posterior.mean[..., 0], posterior.variance[..., 0])
    return transform.untransform_posterior(_one_batch_a_point(mean, variance), X=X.unsqueeze(-2))


def _one_batch_a_point(mean: Tensor, variance: Tensor) -> GPyTorchPosterior:
    covariance = DiagLinearOperator(variance.unsqueeze(-1))
    return GPyTorchPosterior(MultivariateNormal(mean.unsqueeze(-1), covariance))


def latent_leave_one_out(model: Any, exact: bool = False) -> tuple[Tensor, Tensor]:
    """What a model, exact GP or not, predicts for each of its points without having seen it.

    Args:
        model: The model; it is in evaluation mode afterwards.
        exact: Whether to read its exact GP even if it predicts otherwise.

    Returns:
        Means and variances, noise left out, ``batch_shape x n`` tensors in the model's own units.
    """
    if exact or not hasattr(model, "loo_posterior"):
        return exact_leave_one_out(model)
    with delattr_ctx(model.eval(), "outcome_transform"):
        posterior = model.loo_posterior(observation_noise=False)
    return posterior.mean[..., 0, 0], posterior.variance[..., 0, 0]
