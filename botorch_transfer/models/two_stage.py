r"""SGPT / TST-R: an ensemble of source means and the target's own GP, weighted by a kernel.

Read it for the weights, which depend on how well each source's mean ranks the target's points. The
mixture itself is in ``ensemble``.

.. [Wistuba2016sgpt]
    M. Wistuba, N. Schilling and L. Schmidt-Thieme. Two-Stage Transfer Surrogate Model for Automatic
    Hyperparameter Optimization. ECML PKDD 2016.
"""

from __future__ import annotations

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from botorch_transfer._botorch import DefaultType
from botorch_transfer.models.ensemble import EnsembleGP, misranked_pairs
from botorch_transfer.models.inputs import PriorOrData


class TwoStageTransferGP(EnsembleGP):
    r"""SGPT / TST-R [Wistuba2016sgpt]_: the target's own GP with a mean that the sources share.

    With the source posteriors' means ``μ_m`` and the posterior ``(μ_t, Σ_t)`` of a GP that knows
    the target's data only,

    .. code-block:: text

        mean(x) = Σ_m w_m μ_m(x) + w_t μ_t(x)        covariance(x, x') = Σ_t(x, x')

    Weights are proportional to an Epanechnikov kernel, ``¾ (1 - (r_m / ρ)²)`` for ``r_m < ρ`` and
    else zero, of the share ``r_m`` of pairs of target points that a source's mean misranks; the
    target's own counts ¾, as a source without a misranked pair does. Use it for many sources of
    which few resemble the target; its uncertainty is the plain GP's, so it explores as much.

    Weights are computed when the model is built and again by each fit, and frozen in between:
    conditioning, fantasies and leave-one-out predictions keep them. With fewer than two target
    points there is no pair to misrank, and all weights are equal, ``1 / (M + 1)``. With two there
    is one pair: the sources that rank it right share the mean with the target's own.

    BoTorch's analytic noisy expected improvement rebuilds an exact GP from mean and kernel, and so
    sees the target's own only: take ``qLogNoisyExpectedImprovement``.

    Args:
        covar_module: The kernel of the target's own GP; by default a scaled RBF kernel with a
            lengthscale for each input.
        bandwidth: The bandwidth ``ρ``: the share of misranked pairs from which a source has no
            weight.

    Raises:
        ValueError: If the input transform is not frozen, or not the prior's, or ``bandwidth`` is
            not positive.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"v1": (X, X.sum(-1, keepdim=True)), "v2": (X, X.prod(-1, keepdim=True))}
        >>> model = TwoStageTransferGP(X[:4], X[:4, :1], history)
        >>> model.posterior(X).mean.shape
        torch.Size([20, 1])
    """

    has_source_covariance = False

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: PriorOrData,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        bandwidth: float = 0.1,
    ) -> None:
        if not bandwidth > 0:
            raise ValueError(f"bandwidth must be positive, not {bandwidth}.")
        self.bandwidth = bandwidth
        super().__init__(
            train_X,
            train_Y,
            prior,
            train_Yvar,
            likelihood,
            covar_module,
            outcome_transform,
            input_transform,
            task_feature,
        )

    def _shares(self, X: Tensor, Y: Tensor) -> Tensor:
        misranked = misranked_pairs(self.prior.gps.mean(X).unsqueeze(-2), Y).squeeze(-1)
        num_pairs = (Y.unsqueeze(-1) != Y.unsqueeze(-2)).sum(dim=(-2, -1)).to(Y) / 2
        share = misranked / num_pairs.clamp_min(1.0).unsqueeze(-1)
        share = torch.cat([share, torch.zeros_like(share[..., :1])], dim=-1)
        return epanechnikov(share / self.bandwidth)


def epanechnikov(distance: Tensor) -> Tensor:
    """Evaluates the Epanechnikov kernel.

    Args:
        distance: A tensor of non-negative distances, in bandwidths.

    Returns:
        A tensor like it, ``¾`` at distance zero and zero from one on.

    Example:
        >>> epanechnikov(torch.tensor([0.0, 0.5, 2.0]))
        tensor([0.7500, 0.5625, 0.0000])
    """
    return 0.75 * (1 - distance.square()).clamp_min(0.0)
