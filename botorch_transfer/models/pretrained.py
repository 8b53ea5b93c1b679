"""What holds a model to its pre-trained values while the target's likelihood moves them.

HyperBO's target model, and with it that of FSBO and ABLR: a GP that was trained beforehand.

.. [Wang2024hyperbo]
    Z. Wang, G. E. Dahl, K. Swersky, C. Lee, Z. Nado, J. Gilmer, J. Snoek and Z. Ghahramani.
    Pre-trained Gaussian Processes for Bayesian Optimization. JMLR 25, 2024. arXiv:2109.08215.
"""

from __future__ import annotations

from typing import Any, Self, cast

import torch
from botorch.cross_validation import efficient_loo_cv
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.mlls import AddedLossTerm, ExactMarginalLogLikelihood
from linear_operator import to_linear_operator
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from torch.nn import Module

from botorch_transfer.hyperpriors.spec import UnseenNoiseLikelihood
from botorch_transfer.kernels.features import FeatureNetwork
from botorch_transfer.models.inputs import PriorOrData
from botorch_transfer.models.modular import ModularTransferGP, resolve_prior
from botorch_transfer.pretraining.pretrained.parts import GPParts
from botorch_transfer.pretraining.pretrained.prior import PretrainedPrior

# Given 20 points of targets of two public tables, these widths predicted better than no training at
# all. Three times either one was worse, no penalty by far: the noise falls to nothing.
WEIGHT_DEVIATION = 0.1
"""How far a network's weights are expected to move, a standard deviation."""

HYPERPARAMETER_DEVIATION = 0.3
"""How far all other parameters are; positive ones before their softplus, so a third or so."""


class PullToPretrained(AddedLossTerm):
    """The log density of parameters around their pre-trained values, up to a constant.

    A network has more weights than a target has points: by the likelihood alone, they would
    reproduce the points and leave no variance.

    Args:
        pairs: The parameters and what they started from.
        deviations: The standard deviation of each pair.
    """

    def __init__(self, pairs: list[tuple[Tensor, Tensor]], deviations: list[float]) -> None:
        self._pairs = pairs
        self._deviations = deviations

    def loss(self, *params: Any) -> Tensor:
        """Evaluates it for each member of a batch."""
        terms = []
        for (parameter, anchor), deviation in zip(self._pairs, self._deviations, strict=True):
            squares = ((parameter - anchor) / deviation).square()
            own = tuple(range(squares.dim() - anchor.dim(), squares.dim()))
            terms.append(-0.5 * (squares.sum(dim=own) if own else squares))
        return torch.stack(terms).sum(dim=0)


def deviations(module: Module, names: list[str]) -> list[float]:
    """Says how far each of a module's parameters is expected to move.

    Args:
        module: The module.
        names: The parameters' names.

    Returns:
        A standard deviation each.
    """
    networks = tuple(
        f"{name}."
        for name, part in module.named_modules(remove_duplicate=False)
        if isinstance(part, FeatureNetwork)
    )
    return [
        WEIGHT_DEVIATION if name.startswith(networks) else HYPERPARAMETER_DEVIATION
        for name in names
    ]


_PULL = "pull_to_pretrained"


class PretrainedGP(ModularTransferGP):
    r"""A GP whose mean, kernel and noise were pre-trained on source tasks [Wang2024hyperbo]_.

    Its hyperparameters are those of the :class:`PretrainedPrior`, and by default they stay so:
    fitting returns at once, and with few target points, or none, nothing can be overfitted. A step
    costs what a posterior costs, however many source tasks there were.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        prior: The :class:`PretrainedPrior`, or source data to pre-train one from by
            :meth:`PretrainedPrior.fit_once`, which takes a while: a sequence or mapping of
            ``SupervisedDataset`` or ``(X, Y)`` or ``(X, Y, Yvar)``. The same data are used once.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances; the pre-trained one
            if omitted.
        likelihood: A likelihood; by default Gaussian with the pre-trained noise.
        covar_module: A residual kernel, which is added to the pre-trained one and fitted to the
            target; none by default.
        outcome_transform: By default what brings outcomes into the prior's units: the
            standardization by all source outcomes, and by the target's together with them if source
            tasks were standardized one by one; ``None`` if they are in these units already.
        input_transform: A frozen transform of the inputs; by default the prior's.
        task_feature: The index of a column of ``train_X`` that only says which task a row is of. It
            is ignored, here and in the inputs of ``posterior``.
        finetune: Whether fitting goes on training mean, kernel and noise, network included, by the
            target's own likelihood, from the pre-trained values and held to them by a Gaussian
            penalty: the likelihood alone would let a network reproduce a few points and leave no
            variance.
        unbiased: Whether to multiply the posterior covariance, noise included, by
            ``N / (N - 1 - n)`` for ``N`` source tasks, which makes it an unbiased estimate where
            all tasks were fully observed at the same inputs (Theorem 5).

    Raises:
        InputDataError: If the data are unfit; the message says which.
        TypeError: If ``prior`` is a prior of another kind.
        ValueError: If the input transform is not frozen, or not the prior's, or if ``unbiased`` has
            no more than ``n + 1`` source tasks.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
        >>> prior = PretrainedPrior.hyperbo(d=2, hidden=(8,)).fit(history, steps=20)
        >>> model = PretrainedGP(X[:3], X[:3, :1], prior)
        >>> model.posterior(X).mean.shape
        torch.Size([20, 1])
    """

    prior: PretrainedPrior
    max_fit_iterations = 100

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        prior: PriorOrData,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Kernel | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        finetune: bool = False,
        unbiased: bool = False,
    ) -> None:
        pretrained = resolve_prior(PretrainedPrior, prior, input_transform)
        parts = pretrained.gp(train_X.shape[:-2], fit=finetune)
        kernel = parts.covar_module
        if covar_module is not None:
            # Not `+`, which would flatten kernels that are sums themselves.
            kernel = AdditiveKernel(covar_module, kernel)
        pretrained_noise = None if likelihood is not None else _likelihood(parts, train_Yvar)
        super().__init__(
            train_X,
            train_Y,
            prior=pretrained,
            mean_module=parts.mean_module,
            covar_module=kernel,
            train_Yvar=train_Yvar,
            likelihood=likelihood or pretrained_noise,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            task_feature=task_feature,
        )
        if pretrained_noise is not None:
            del self._is_custom_likelihood  # it is the default one
        self.finetune = finetune
        self.unbiased = unbiased
        self._has_residual = covar_module is not None
        if finetune:
            # Known noise, or a likelihood of the user's own, was not pre-trained.
            fit_noise = pretrained_noise is parts.likelihood
            self._fitted = [
                name
                for name, fit in pretrained.trainable.items()
                if fit and (fit_noise or not name.startswith("likelihood."))
            ]
            self._deviations = deviations(pretrained.parts, self._fitted)
        self._covariance_factor(self.num_target_points)

    @property
    def residual_covar_module(self) -> Kernel | None:
        """The residual kernel, if one was given."""
        return self.covar_module.kernels[0] if self._has_residual else None

    @property
    def pretrained_covar_module(self) -> Kernel:
        """The kernel that was pre-trained."""
        return self.covar_module.kernels[1] if self._has_residual else self.covar_module

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Evaluates the prior at transformed inputs; while fitting, the penalty with it."""
        if self.training and self.finetune and self._fitted:
            self._set_pull(self._pull())
        return super().forward(x)

    def _pull(self) -> PullToPretrained:
        """Compares the parameters with the prior's."""
        own = {
            "mean_module": self.mean_module,
            "covar_module": self.pretrained_covar_module,
            "likelihood": self.likelihood,
        }
        pairs = []
        for name in self._fitted:
            part, _, path = name.partition(".")
            pairs.append((own[part].get_parameter(path), self.prior.parts.get_buffer(name)))
        return PullToPretrained(pairs, self._deviations)

    def train(self, mode: bool = True) -> Self:
        """Sets training or evaluation mode; the penalty ends with training.

        Args:
            mode: Whether to train.

        Returns:
            The model.
        """
        if not mode:
            self._set_pull(None)
        return super().train(mode)

    def _set_pull(self, term: PullToPretrained | None) -> None:
        if self.__dict__.get("finetune", False):
            cast(Any, self)._added_loss_terms[_PULL] = term

    def _covariance_factor(self, num_points: int) -> float:
        """What the covariance given so many target points is to be multiplied by."""
        if not self.unbiased:
            return 1.0
        num_tasks = self.prior.num_tasks
        if num_tasks <= num_points + 1:
            raise ValueError(
                f"An unbiased covariance given {num_points} target points needs more than "
                f"{num_points + 1} source tasks, but the prior has {num_tasks}: leave out "
                "unbiased=True."
            )
        return num_tasks / (num_tasks - 1 - num_points)

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the posterior, its covariance multiplied if it is to be unbiased."""
        mvn = super().__call__(*args, **kwargs)
        if self.training or not self.unbiased:
            return mvn
        factor = self._covariance_factor(self.num_target_points)
        # Dense: what selects from a scaled lazy covariance, as noisy acquisitions do, goes astray.
        return MultivariateNormal(mvn.mean, to_linear_operator(mvn.covariance_matrix * factor))

    def _apply_noise(
        self, X: Tensor, mvn: MultivariateNormal, observation_noise: bool | Tensor = False
    ) -> MultivariateNormal:
        noisy = super()._apply_noise(X, mvn, observation_noise)
        if observation_noise is False or not self.unbiased:
            return noisy
        # Noise that the caller knows is what it is; the model's own is an estimate, too.
        if isinstance(observation_noise, Tensor):
            return noisy
        factor = self._covariance_factor(self.num_target_points)
        added = noisy.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1) - mvn.variance
        covariance = noisy.lazy_covariance_matrix.add_diagonal((factor - 1) * added)
        return MultivariateNormal(noisy.mean, covariance)

    def custom_fit(
        self,
        mll: ExactMarginalLogLikelihood,
        num_restarts: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> ExactMarginalLogLikelihood:
        """Fits what is not frozen; ``fit_gpytorch_mll`` calls this.

        Args:
            mll: The marginal log likelihood of this model.
            num_restarts: The number of starts drawn from hyperpriors, besides the present values;
                none by default, because only a residual kernel may have any.
            *args: As in :meth:`~.target.TargetGP.custom_fit`.
            **kwargs: As there.

        Returns:
            The marginal log likelihood in evaluation mode; at once, if there is nothing to fit.
        """
        if not any(True for _ in self.named_priors()):
            num_restarts = 0  # there is nothing to draw from
        return super().custom_fit(mll, num_restarts or 0, *args, **kwargs)

    def loo_posterior(self, observation_noise: bool = True) -> Posterior:
        """Predicts every target point from the others, hyperparameters as they are.

        It is BoTorch's ``loo_cv``, except that an unbiased covariance is that of one point less.

        Args:
            observation_noise: Whether the variances include the observation noise.

        Returns:
            A posterior of shape ``batch_shape x n x 1 x 1`` in the user's units, one batch a point.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> prior = PretrainedPrior.stationary(2).fit([(X, X[:, :1])] * 9, steps=5)
            >>> PretrainedGP(X[:3], X[:3, :1], prior, unbiased=True).loo_posterior().mean.shape
            torch.Size([3, 1, 1])
        """
        loo: Any = efficient_loo_cv(self, observation_noise, untransform=False).posterior
        variance = loo.variance[..., 0] * self._covariance_factor(self.num_target_points - 1)
        mvn = MultivariateNormal(loo.mean.squeeze(-1), DiagLinearOperator(variance))
        posterior = GPyTorchPosterior(mvn)
        transform: Any = getattr(self, "outcome_transform", None)
        if transform is None:
            return posterior
        (X,) = self.train_inputs
        return transform.untransform_posterior(posterior, X=X.unsqueeze(-2))


def _likelihood(parts: GPParts, train_Yvar: Tensor | None) -> Likelihood | None:
    """The default likelihood: that of known noise is BoTorch's own, where there is a point."""
    if train_Yvar is None:
        return parts.likelihood
    if train_Yvar.shape[-2] > 0:
        return None
    return UnseenNoiseLikelihood(train_Yvar.squeeze(-1), float(parts.noise.detach().flatten()[0]))
