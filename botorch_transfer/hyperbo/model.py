"""The target model of HyperBO, FSBO and ABLR: a pre-trained GP.

By default, mean, kernel and noise stay fixed. With ``finetune=True``, a fit changes their
parameters, with a penalty on the distance from the pre-trained values.

.. [Wang2024hyperbo]
    Z. Wang, G. E. Dahl, K. Swersky, C. Lee, Z. Nado, J. Gilmer, J. Snoek and Z. Ghahramani.
    Pre-trained Gaussian Processes for Bayesian Optimization. JMLR 25, 2024. arXiv:2109.08215.
"""

from __future__ import annotations

import logging

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.likelihoods import Likelihood
from linear_operator import to_linear_operator
from torch import Tensor

from botorch_transfer._botorch import DefaultType
from botorch_transfer.arguments import PriorOrData
from botorch_transfer.gp.hyperpriors import Hyperparameter
from botorch_transfer.gp.likelihood import AddedNoiseLikelihood
from botorch_transfer.hyperbo.features import FeatureNetwork
from botorch_transfer.hyperbo.prior import PretrainedPrior
from botorch_transfer.modular import ModularTransferGP, resolve_prior

logger = logging.getLogger(__name__)

# On two public tables, with 20 target points, fine-tuning with these values improved predictions.
# Values three times larger were worse. Without a penalty, the noise variance collapses.
#: Prior standard deviation of a network weight's change in fine-tuning.
WEIGHT_STD = 0.1

#: Prior standard deviation of the change of any other raw parameter (before softplus) in
#: fine-tuning.
HYPERPARAMETER_STD = 0.3


class PretrainedGP(ModularTransferGP):
    r"""A GP whose mean, kernel and noise were pre-trained on source tasks [Wang2024hyperbo]_.

    The hyperparameters come from the :class:`PretrainedPrior`, and by default they do not change:
    fitting returns at once, so the model cannot overfit few target points. The cost does not depend
    on the number of source tasks.

    Args:
        prior: The :class:`PretrainedPrior`, or source data: a sequence or mapping of
            ``SupervisedDataset`` or ``(X, Y)`` or ``(X, Y, Yvar)``. From source data,
            :meth:`PretrainedPrior.fit_once` pre-trains a prior, which takes a while. Priors are
            cached, so equal data need no second pre-training.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances. If omitted, the
            pre-trained noise variance is used.
        likelihood: A likelihood; by default Gaussian with the pre-trained noise.
        covar_module: A residual kernel, which is added to the pre-trained kernel and fitted to the
            target; none by default.
        outcome_transform: The transform to the prior's units. The default depends on the prior's
            ``outcome_scale``. For ``"pooled"``, it is a standardization by the mean and standard
            deviation of all source outcomes. For ``"per_task"``, it is a standardization by the
            mean and standard deviation of all source and target outcomes together. For ``"raw"``,
            there is no transform. Pass ``None`` if the outcomes are in the prior's units already.
            ``Log``, ``Bilog`` and ``Power`` are also applied to the source outcomes. In a
            ``ChainedOutcomeTransform``, they must precede all other transforms.
        input_transform: A frozen transform of the inputs; by default the prior's transform.
        finetune: Whether a fit changes mean, network, kernel and noise to maximize the target's
            marginal likelihood. Such a fit starts at the pre-trained values, and a Gaussian penalty
            keeps the parameters close to these values. Without the penalty, a network would overfit
            and the predicted variances would vanish.
        unbiased: Whether to multiply the posterior covariance, noise included, by
            ``N / (N - 1 - n)`` for ``N`` source tasks and ``n`` target points. If all tasks were
            observed at the same inputs, the covariance is then an unbiased estimate (Theorem 5).

    Raises:
        ValueError: If the input transform is not frozen or differs from the prior's transform, or
            if ``unbiased`` is set and there are at most ``n + 1`` source tasks.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
        >>> prior = PretrainedPrior.hyperbo(d=2, hidden=(8,)).fit(history, steps=20)
        >>> model = PretrainedGP(X[:3], X[:3, :1], prior)
        >>> model.posterior(X).mean.shape
        torch.Size([20, 1])
    """

    prior_class = PretrainedPrior
    prior: PretrainedPrior
    num_restarts = 0
    max_fit_iterations = 100

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
        finetune: bool = False,
        unbiased: bool = False,
    ) -> None:
        pretrained = resolve_prior(PretrainedPrior, prior, input_transform, outcome_transform)
        if pretrained.num_tasks == 0:
            logger.warning("The PretrainedPrior is not fitted: call its fit() with old tasks")
        parts = pretrained.gp(train_X.shape[:-2], fit=finetune)
        kernel = parts.covar_module
        if covar_module is not None:
            # The operator `+` would flatten a pre-trained kernel that is itself a sum.
            kernel = AdditiveKernel(covar_module, kernel)
        if likelihood is None and train_Yvar is None:
            likelihood = parts.likelihood
        elif isinstance(likelihood, AddedNoiseLikelihood) and likelihood.is_default:
            likelihood = AddedNoiseLikelihood(likelihood.added, parts.likelihood)
        start = float(parts.noise.detach().flatten()[0])
        super().__init__(
            train_X,
            train_Y,
            prior=pretrained,
            mean_module=parts.mean_module,
            covar_module=kernel,
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            task_feature=task_feature,
            noise=Hyperparameter(None, start, lower=start / 2, upper=2 * start),
        )
        self.unbiased = unbiased
        self._residual_kernel = (covar_module,)
        fitted = [name for name, fit in pretrained.trainable.items() if fit and finetune]
        if likelihood is not parts.likelihood and not isinstance(likelihood, AddedNoiseLikelihood):
            # Known noise and the user's own likelihood were not pre-trained, so no penalty applies.
            fitted = [name for name in fitted if not name.startswith("likelihood.")]
        self._fitted = fitted
        self._covariance_factor(self.num_target_points)

    @property
    def pretrained_covar_module(self) -> Kernel:
        """The pre-trained kernel, without the residual kernel."""
        residual = self._residual_kernel[0]
        return self.covar_module if residual is None else self.covar_module.kernels[1]

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Evaluates the GP prior at transformed inputs.

        During a fit with ``finetune=True``, the method also adds the penalty to the loss.
        """
        if self.training and self._fitted:
            self._set_loss_term(self._log_penalty())
        return super().forward(x)

    def _log_penalty(self) -> Tensor:
        """Computes the log prior density of the parameters' changes since the pre-training.

        The density is not normalized. The result has a value for each model of the batch.
        """
        parts = self.prior.parts
        modules = parts.named_modules(remove_duplicate=False)
        networks = tuple(f"{name}." for name, part in modules if isinstance(part, FeatureNetwork))
        own = {**dict(self.named_children()), "covar_module": self.pretrained_covar_module}
        terms = []
        for name in self._fitted:
            part, _, path = name.partition(".")
            pretrained = parts.get_buffer(name)
            std = WEIGHT_STD if name.startswith(networks) else HYPERPARAMETER_STD
            squares = ((own[part].get_parameter(path) - pretrained) / std).square()
            batch_shape = squares.shape[: squares.dim() - pretrained.dim()]
            terms.append(-0.5 * squares.reshape(*batch_shape, -1).sum(dim=-1))
        return torch.stack(terms).sum(dim=0)

    def _covariance_factor(self, num_points: int) -> float:
        """Returns the factor by which the model multiplies its posterior covariance.

        If ``unbiased`` is set, the product is an unbiased estimate of the covariance for a target
        with ``num_points`` points. Otherwise the factor is one.
        """
        if not self.unbiased:
            return 1.0
        num_tasks = self.prior.num_tasks
        if num_tasks <= num_points + 1:
            raise ValueError(
                f"With {num_points} target points, an unbiased covariance needs more than "
                f"{num_points + 1} source tasks, but the prior has {num_tasks} source tasks: leave "
                "out unbiased=True."
            )
        return num_tasks / (num_tasks - 1 - num_points)

    def _predict(self, X: Tensor) -> MultivariateNormal:
        mvn = self.exact_gp(X)
        if not self.unbiased:
            return mvn
        factor = self._covariance_factor(self.num_target_points)
        # The covariance is dense, because noisy acquisition functions select wrong entries of a
        # scaled lazy covariance.
        return MultivariateNormal(mvn.mean, to_linear_operator(mvn.covariance_matrix * factor))

    def _apply_noise(
        self, X: Tensor, mvn: MultivariateNormal, observation_noise: bool | Tensor = False
    ) -> MultivariateNormal:
        noisy = super()._apply_noise(X, mvn, observation_noise)
        # The model's own noise variance is an estimate too, so it is scaled. Noise variances that
        # the caller gives are not scaled.
        if observation_noise is False or isinstance(observation_noise, Tensor) or not self.unbiased:
            return noisy
        factor = self._covariance_factor(self.num_target_points)
        added = noisy.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1) - mvn.variance
        covariance = noisy.lazy_covariance_matrix.add_diagonal((factor - 1) * added)
        return MultivariateNormal(noisy.mean, covariance)

    @property
    def _predicts_otherwise(self) -> bool:
        return self.unbiased

    def _leave_one_out(self) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance, noise = super()._leave_one_out()
        return mean, variance, noise * self._covariance_factor(self.num_target_points - 1)
