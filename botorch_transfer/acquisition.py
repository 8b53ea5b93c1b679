"""Acquisition functions for transfer models.

:class:`PriorUpperConfidenceBound` needs no outcome: the transferred prior alone can suggest the
first points. :func:`noisy_improvement` stays accurate if the prior is so certain that Monte Carlo
estimates fail. :class:`AveragedImprovement` averages the expected improvements of several models.

.. [Desautels2014parallelizing]
    T. Desautels, A. Krause and J. Burdick. Parallelizing Exploration-Exploitation Tradeoffs in
    Gaussian Process Bandit Optimization. JMLR 2014.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.utils import prune_inferior_points
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model, ModelList
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.transforms import is_ensemble, t_batch_mode_transform
from torch import Tensor
from torch.nn import ModuleList
from torch.special import log_ndtr

from botorch_transfer._botorch import log_ei_helper
from botorch_transfer.average.transfer import TransferGP, member_shares
from botorch_transfer.model import TargetGP, predicted_moments

#: Default ``β`` of :class:`PriorUpperConfidenceBound` with pending inputs.
PENDING_BETA = 1.0


class PriorUpperConfidenceBound(AcquisitionFunction):
    r"""Upper confidence bound of objectives, plus the log probability of feasibility.

    Use it to suggest the first trials from the transferred prior alone, before the target has an
    outcome. The value is

    .. code-block:: text

        (mean over objectives of (μ + √β σ) / scale) + (sum over constraints of log P(feasible))

    Pending trials shrink σ as if their outcomes were equal to their predicted means
    [Desautels2014parallelizing]_. For an ensemble, μ and σ are the moments of the mixture.

    Args:
        model: A model of ``m`` outcomes. For several outcomes, a ``ModelList`` with one model for
            each outcome.
        objective_weights: A ``k x m`` tensor with the weights of the outcomes in each of ``k``
            maximized objectives. It may be omitted for a single outcome.
        outcome_constraints: ``(A, b)`` for constraints ``A f(x) <= b``.
        X_pending: A ``p x d`` tensor of pending inputs.
        beta: ``β`` in ``μ + √β σ``. Without pending inputs, the default is zero: the first trial
            has the best predicted mean. With pending inputs, the default is one: further trials
            spread out.
        X_reference: An ``n x d`` tensor of inputs that cover the search space. The ``scale`` of an
            objective is its standard deviation over these inputs, so that objectives and
            constraints are comparable. If omitted, scales are one.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> none = torch.empty(0, 2, dtype=torch.double)
        >>> model = ScaMLGP(none, none[:, :1], {"monday": (X, X.sum(-1, keepdim=True))})
        >>> PriorUpperConfidenceBound(model)(X.unsqueeze(-2)).shape
        torch.Size([20])
    """

    def __init__(
        self,
        model: Model,
        objective_weights: Tensor | None = None,
        outcome_constraints: tuple[Tensor, Tensor] | None = None,
        X_pending: Tensor | None = None,
        beta: float | None = None,
        X_reference: Tensor | None = None,
    ) -> None:
        super().__init__(model)
        objective_weights = torch.ones(1, 1) if objective_weights is None else objective_weights
        _check_weights(objective_weights, model)
        self.models: list[Any] = list(model.models) if isinstance(model, ModelList) else [model]
        self.objective_weights = objective_weights
        self.outcome_constraints = outcome_constraints
        self.beta = beta
        self.set_X_pending(None)
        self.scale: Tensor | float = 1.0 if X_reference is None else self._spread(X_reference)
        self.set_X_pending(X_pending)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Sets the pending points.

        Args:
            X_pending: A ``p x d`` tensor of inputs. An empty tensor is the same as ``None``.
        """
        nothing = X_pending is None or len(X_pending) == 0
        super().set_X_pending(None if nothing else X_pending)

    @torch.no_grad()
    def _spread(self, X: Tensor) -> Tensor:
        """Computes the standard deviation of each objective over the inputs ``X``.

        The square of this standard deviation is the variance of the predicted means plus the mean
        of the predicted variances.
        """
        mean, variance = self._moments(X.unsqueeze(-2))
        weights = self.objective_weights.to(mean)
        of_means = (mean @ weights.T).var(dim=0, correction=0)
        return (of_means + (variance @ weights.square().T).mean(dim=0)).sqrt()

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Evaluates the acquisition function.

        Args:
            X: A ``batch_shape x 1 x d`` tensor of inputs.

        Returns:
            A ``batch_shape`` tensor of values.
        """
        mean, variance = self._moments(X)
        weights = self.objective_weights.to(mean)
        std = (variance @ weights.square().T).sqrt()
        beta = self.beta
        if beta is None:
            beta = 0.0 if self.X_pending is None else PENDING_BETA
        bounds = mean @ weights.T + math.sqrt(beta) * std
        value = (bounds / self.scale).mean(dim=-1)
        if self.outcome_constraints is None:
            return value
        A, b = (part.to(mean) for part in self.outcome_constraints)
        slack = b.squeeze(-1) - mean @ A.T
        return value + log_ndtr(slack / (variance @ A.square().T).sqrt()).sum(dim=-1)

    def _moments(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the predicted means and variances of all outcomes, each ``batch_shape x m``.

        Pending inputs reduce the variances.
        """
        if self.X_pending is None:
            found = [predicted_moments(model.posterior(X)) for model in self.models]
        else:
            found = [_given_pending(model, X, self.X_pending.to(X)) for model in self.models]
        mean, variance = (torch.cat(parts, dim=-1) for parts in zip(*found, strict=True))
        return mean, variance.clamp_min(1e-12)


def _given_pending(model: Any, X: Tensor, X_pending: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a model's predicted means and reduced variances at ``X``.

    The variances are reduced as if the outcomes at ``X_pending`` were known. The means do not
    depend on ``X_pending``.

    Args:
        model: A model of one outcome.
        X: A ``batch_shape x 1 x d`` tensor of inputs.
        X_pending: A ``p x d`` tensor of pending inputs.
    """
    inputs = torch.cat([X, X_pending.expand(*X.shape[:-2], *X_pending.shape)], dim=-2)
    mvn = model.posterior(inputs).distribution
    mean, covariance = mvn.mean, mvn.covariance_matrix
    inner, cross = covariance[..., 1:, 1:], covariance[..., 1:, :1]
    scale = inner.diagonal(dim1=-2, dim2=-1).mean(dim=-1)[..., None, None]
    factor = torch.linalg.cholesky_ex(inner + 1e-4 * scale * torch.eye(len(X_pending)).to(X)).L
    reduction = torch.linalg.solve_triangular(factor, cross, upper=False).square().sum(dim=-2)
    mean, variance = mean[..., :1], covariance[..., 0, :1] - reduction
    if is_ensemble(model):  # moments of the mixture
        variance = variance.mean(dim=-2) + mean.var(dim=-2, correction=0)
        mean = mean.mean(dim=-2)
    return mean, variance


#: Number of candidates in one joint posterior, on a CPU and on other devices. Larger numbers need
#: fewer calls, but compute more covariances among candidates, which are not used.
TOGETHER, TOGETHER_ON_DEVICE = 64, 2048


class NoiselessFantasies:
    """Posteriors at candidates, given sampled noiseless outcomes at fixed inputs ``X``.

    Use this class for a noisy expected improvement that does not sample the candidate's outcome.
    BoTorch's ``LogNoisyExpectedImprovement`` supports ``SingleTaskGP`` only. This class conditions
    the joint posterior of any model with a Gaussian posterior. Exact GPs with stationary kernels
    use the fast path of :meth:`TargetGP.frozen`. On this path, later changes of the model have no
    effect. For all other models, this class calls ``posterior``.

    Args:
        model: The model.
        X: An ``n x d`` tensor of inputs. If ``n`` is zero, there is one fantasy, the model itself.
        posterior_transform: Transform to a weighted sum of the outcomes plus an offset, if the
            model has several outcomes.
        num_fantasies: Number of fantasies. A fantasy is the model, conditioned on one sample of
            outcomes at ``X``.
        seed: The seed of the sampled outcomes, which are quasi-random draws from the model's
            posterior at ``X``.

    Example:
        >>> X = torch.rand(4, 2, dtype=torch.double)
        >>> model = SingleTaskGP(X, X.sum(-1, keepdim=True))
        >>> means, variance = NoiselessFantasies(model, X).moments(X)
        >>> means.shape, variance.shape
        (torch.Size([4, 32]), torch.Size([4]))
    """

    @torch.no_grad()
    def __init__(
        self,
        model: Model,
        X: Tensor,
        posterior_transform: ScalarizedPosteriorTransform | None = None,
        num_fantasies: int = 32,
        seed: int = 0,
    ) -> None:
        self._model, self._X, self._transform, n = model, X, posterior_transform, len(X)
        weights, offset = torch.ones(1), 0.0
        if posterior_transform is not None:
            weights, offset = cast(Tensor, posterior_transform.weights), posterior_transform.offset
        is_gp = isinstance(model, TargetGP) and weights.numel() == 1
        self._frozen = cast(TargetGP, model).frozen(X, float(weights), offset) if is_gp else None
        self.whitening, self.best = X.new_zeros(n, n), X.new_full((1,), -math.inf)
        if n == 0:
            return
        posterior: Any = model.posterior(X, posterior_transform=posterior_transform)
        sampler = SobolQMCNormalSampler(torch.Size([num_fantasies]), seed=seed)
        self.outcomes = sampler(posterior).squeeze(-1)
        self.best = self.outcomes.amax(dim=-1)
        mvn, eye = posterior.distribution, torch.eye(n).to(X)
        jitter = 1e-6 * mvn.covariance_matrix.diagonal().mean() * eye
        root = torch.linalg.cholesky_ex(mvn.covariance_matrix + jitter).L
        self.whitening = torch.linalg.solve_triangular(root, eye, upper=False).mT
        self.weights = self.whitening @ (self.whitening.mT @ (self.outcomes - mvn.mean).T)

    def joint(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluates the model's posterior at ``P x d`` inputs, without using the sampled outcomes.

        Returns:
            Two ``P`` tensors, the means and the variances; and a ``P x n`` tensor, the covariances
            between the ``P`` inputs and the fixed inputs ``X``.
        """
        if self._frozen is not None:
            return self._frozen(x)
        size, parts = TOGETHER if x.device.type == "cpu" else TOGETHER_ON_DEVICE, []
        for some in x.split(size):
            # In one joint posterior, candidates share the model's computations at the fixed inputs.
            inputs, p = torch.cat([some, self._X]), len(some)
            posterior: Any = self._model.posterior(inputs, posterior_transform=self._transform)
            mvn = posterior.distribution
            covariance = mvn.covariance_matrix
            parts.append((mvn.mean[:p], covariance.diagonal()[:p], covariance[:p, p:]))
        mean, variance, covariance = map(torch.cat, zip(*parts, strict=True))
        return mean, variance, covariance

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluates the posteriors of all fantasies at ``P x d`` inputs.

        Returns:
            The ``P x num_fantasies`` means of all fantasies, and the ``P`` variances, which are the
            same for all fantasies.
        """
        mean, variance, covariance = self.joint(x)
        if len(self.whitening) == 0:
            return mean.unsqueeze(-1), variance
        means = mean.unsqueeze(-1) + covariance @ self.weights
        return means, variance - (covariance @ self.whitening).square().sum(dim=-1)


def _check_weights(objective_weights: Tensor, model: Model) -> None:
    if objective_weights.shape[1:] != (model.num_outputs,):
        raise ValueError(
            f"The model has {model.num_outputs} outcomes: give objective_weights= with one row for "
            "each objective and one column for each outcome."
        )


def noisy_improvement(
    model: Model,
    objective_weights: Tensor,
    X_observed: Tensor,
    seed: int = 0,
    X_reference: Tensor | None = None,
) -> AcquisitionFunction | None:
    """Builds the analytic log noisy expected improvement over the observed inputs.

    Use it for models with sharp priors, which predict small variances.
    ``qLogNoisyExpectedImprovement`` samples the outcome of a candidate. Under a sharp prior, a
    single sample that lies four standard deviations from the mean can dominate the estimate for a
    candidate far from the optimum. This function computes the expectation at a candidate exactly,
    and samples only the noiseless outcomes at the observed inputs.

    Args:
        model: The model.
        objective_weights: A ``1 x m`` tensor of weights. The weighted sum of the model's outcomes
            is maximized.
        X_observed: An ``n x d`` tensor of inputs.
        seed: The seed of samples.
        X_reference: An ``r x d`` tensor of inputs that cover the search space. If given, the result
            for a ``TransferGP`` is an :class:`AveragedImprovement` of the model's members. Each
            member's improvement is divided by its own maximum over the reference and observed
            inputs.

    Returns:
        The acquisition function of single inputs, which supports ``X_pending``; ``None`` if the
        posterior of the model or of a member is not Gaussian.

    Example:
        >>> X = torch.rand(4, 2, dtype=torch.double)
        >>> model = SingleTaskGP(X, X.sum(-1, keepdim=True))
        >>> improvement = noisy_improvement(model, torch.ones(1, 1, dtype=torch.double), X)
        >>> improvement(torch.rand(5, 1, 2, dtype=torch.double)).shape
        torch.Size([5])
    """
    _check_weights(objective_weights, model)
    if X_reference is not None and isinstance(model, TransferGP):
        given, shares = (objective_weights, X_observed, seed), model.improvement_shares.detach()
        each: Any = [noisy_improvement(member, *given) for member in model.members.values()]
        if None in each:
            return None
        if bool(objective_weights[0, 0] < 0):  # minimized: shares depend on negated outcomes
            shares = member_shares(-model.train_targets, shares.shape[-1])
        points = torch.cat([X_reference.to(X_observed), X_observed])
        return AveragedImprovement(each, shares, points, model)
    with torch.no_grad():
        posterior = model.posterior(X_observed)
    if type(posterior) is not GPyTorchPosterior:
        return None
    transform = ScalarizedPosteriorTransform(objective_weights[0].to(X_observed))
    return _Improvement(model, -math.inf, X_observed, transform, seed)


class _Improvement(LogExpectedImprovement):
    """Log expected improvement over the maximum of ``best_f`` and sampled outcomes.

    The outcomes are sampled at the baseline and pending inputs. For each sample, the value to
    improve on is the maximum of ``best_f`` and these outcomes.

    Args:
        model: The model.
        best_f: The value to improve on; minus infinity to improve on the sampled outcomes only.
        X_baseline: An ``n x d`` tensor of inputs; ``n`` may be zero. The improvement is averaged
            over samples of the outcomes at the baseline and pending inputs.
        posterior_transform: A transform to a single outcome, if the model has several outcomes.
        seed: The seed of the sampled outcomes.
    """

    best_f: Tensor

    def __init__(
        self,
        model: Model,
        best_f: float | Tensor,
        X_baseline: Tensor,
        posterior_transform: ScalarizedPosteriorTransform | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, best_f=best_f, posterior_transform=posterior_transform)
        self._baseline, self._seed = X_baseline, seed
        self.set_X_pending(None)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        AcquisitionFunction.set_X_pending(self, X_pending)
        X, transform = self._baseline, cast(Any, self.posterior_transform)
        if X_pending is not None:
            X = torch.cat([X, X_pending])
        if len(self._baseline):
            sampler = SobolQMCNormalSampler(torch.Size([512]), seed=self._seed)
            X = prune_inferior_points(self.model, X, posterior_transform=transform, sampler=sampler)
        self.fantasies = NoiselessFantasies(self.model, X, transform, seed=self._seed)
        self.best = torch.maximum(self.fantasies.best, self.best_f.to(self.fantasies.best))

    def forward(self, X: Tensor) -> Tensor:
        if X.shape[-2] != 1:
            raise UnsupportedError(
                f"X has {X.shape[-2]} candidates, but this acquisition function evaluates one "
                "candidate at a time: pass sequential=True to optimize_acqf."
            )
        (value,) = log_improvements([self], X)
        return value


#: Lower bound of the variance in an improvement.
MIN_VARIANCE = 1e-12


class _LogImprovements(torch.autograd.Function):
    """Log expected improvement, with a closed-form gradient that needs few CUDA kernels."""

    @staticmethod
    def forward(ctx: Any, gap: Tensor, variance: Tensor) -> Tensor:
        sigma = variance.clamp_min(MIN_VARIANCE).sqrt()
        result = log_ei_helper(gap / sigma) + sigma.log()
        ctx.save_for_backward(gap, variance, result)
        return result

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        # With u = gap / σ, the derivatives of the improvement are Φ(u) with respect to the gap, and
        # φ(u) with respect to σ.
        gap, variance, result = ctx.saved_tensors
        sigma = variance.clamp_min(MIN_VARIANCE).sqrt()
        u = gap / sigma
        # If u is very negative, differences of logarithms have rounding errors above one. In this
        # case, use the gradients of the asymptotic improvement σ φ(u) / u².
        is_far = u < -(torch.finfo(u.dtype).eps ** (-1 / 3))
        in_gap = torch.where(is_far, -u / sigma, (log_ndtr(u) - result).exp())
        density = -0.5 * u.square() - 0.5 * math.log(2 * math.pi)
        in_sigma = torch.where(is_far, u.square() / sigma, (density - result).exp())
        in_variance = torch.where(variance > MIN_VARIANCE, 0.5 * in_sigma / sigma, 0.0)
        return grad_outputs[0] * in_gap, grad_outputs[0] * in_variance


def log_improvements(each: Sequence[_Improvement], X: Tensor) -> Tensor:
    """Evaluates the log expected improvements of several models at once.

    The improvement of each model is averaged over the fantasies of this model.

    Args:
        each: The ``K`` acquisition functions, with the same number of fantasies.
        X: A ``batch_shape x 1 x d`` tensor of inputs.

    Returns:
        A ``K x batch_shape`` tensor.
    """
    X = X.unsqueeze(0) if X.dim() == 2 else X
    x = X.reshape(-1, X.shape[-1])
    moments = zip(*(improvement.fantasies.moments(x) for improvement in each), strict=True)
    mean, variance = map(torch.stack, moments)
    best = torch.stack([improvement.best.to(x) for improvement in each])
    variance = variance.unsqueeze(-1).expand_as(mean)
    values: Any = _LogImprovements.apply(mean - best.unsqueeze(-2), variance)
    values = values.logsumexp(dim=-1) - math.log(values.shape[-1])
    return values.reshape(len(each), *X.shape[:-2])


#: If the logarithm of a term is below the largest logarithm by more than this value, the average
#: ignores the gradient of this term.
NEGLIGIBLE = 200.0


#: Outside the range of the sources' inputs, improvements are reduced. The reduction grows with the
#: distance of the transformed inputs from the range, until the distance is ``BEYOND``.
BEYOND = 0.05


class AveragedImprovement(AcquisitionFunction):
    r"""Logarithm of a weighted average of improvements, each divided by its own maximum.

    Use it to search with several models of the same target. Their expected improvements may differ
    by orders of magnitude, because a confident model expects almost no improvement. The best
    candidate of a plain average would then depend on a single model. With improvements ``α_k`` and
    shares ``p_k``, the value is

    .. code-block:: text

        log Σ_k p_k α_k(x) / max over reference points of α_k

    Beyond the range of the sources' inputs, improvements are large only because predictions are
    uncertain. There, each ``α_k`` is multiplied by a factor. The factor is one at the edge of the
    range, and falls with the distance from the range. The lowest factor is the smallest positive
    share divided by the largest share.

    Args:
        acquisitions: Logarithms of improvements, one for each model.
        shares: A tensor with one share for each acquisition. Acquisitions with a share of zero are
            left out.
        X_reference: An ``r x d`` tensor of inputs that cover the search space.
        model: The model whose sources determine the range of inputs. If omitted, improvements
            beyond the sources' inputs are not reduced.

    Raises:
        ValueError: If the number of shares differs from the number of acquisitions.

    Example:
        >>> X = torch.rand(30, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
        >>> model = TransferGP(X[:3], X[:3, :1], history)
        >>> members = model.members.values()
        >>> improvements = [LogExpectedImprovement(each, best_f=0.9) for each in members]
        >>> acquisition = AveragedImprovement(improvements, model.improvement_shares, X)
        >>> acquisition(X.unsqueeze(-2)).shape
        torch.Size([30])
    """

    _offsets: Tensor
    _discount: Tensor
    _range: Tensor | None

    @classmethod
    def from_model(
        cls, model: TransferGP, best_f: float | Tensor, X_reference: Tensor
    ) -> AveragedImprovement:
        """Builds the acquisition function from the expected improvements of a model's members.

        Args:
            model: The model.
            best_f: The largest outcome so far.
            X_reference: An ``r x d`` tensor of inputs that cover the search space.

        Returns:
            The acquisition function of single inputs. For several candidates, pass
            ``sequential=True`` to ``optimize_acqf``. The improvement of a candidate then takes the
            possible outcomes of the earlier candidates into account.

        Raises:
            ValueError: If the model is not a :class:`TransferGP`, or if ``best_f`` is not finite.
                Without outcomes, use :class:`PriorUpperConfidenceBound`.

        Example:
            >>> X = torch.rand(30, 2, dtype=torch.double)
            >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
            >>> model = TransferGP(X[:3], X[:3, :1], history)
            >>> AveragedImprovement.from_model(model, 0.9, X)(X.unsqueeze(-2)).shape
            torch.Size([30])
        """
        if not isinstance(model, TransferGP):
            raise ValueError(
                f"from_model averages over the members of a TransferGP, but the model is a "
                f"{type(model).__name__}: use LogExpectedImprovement."
            )
        best_f = torch.as_tensor(best_f).to(X_reference)
        if not bool(best_f.isfinite().all()):
            text = f"best_f is {best_f.tolist()}, which is not finite"
            raise ValueError(f"{text}: give a finite number, or use PriorUpperConfidenceBound.")
        members, none = model.members.values(), X_reference[:0]
        improvements = [_Improvement(each, best_f, none) for each in members]
        return cls(improvements, model.improvement_shares, X_reference, model)

    def __init__(
        self,
        acquisitions: Sequence[AcquisitionFunction],
        shares: Tensor,
        X_reference: Tensor,
        model: TransferGP | None = None,
    ) -> None:
        if shares.shape != (len(acquisitions),):
            raise ValueError(
                f"shares= has the shape {tuple(shares.shape)}, but acquisitions= has "
                f"{len(acquisitions)} functions: give one share for each function."
            )
        super().__init__(acquisitions[0].model)
        used = [index for index, share in enumerate(shares.tolist()) if share > 0]
        self.acquisitions = ModuleList(acquisitions[index] for index in used)
        self._transform = None if model is None else model.eval().transform_inputs
        self.register_buffer("_range", None if model is None else model.source_range())
        logs = shares.detach()[used].log()
        self.register_buffer("_discount", logs.min() - logs.max())
        points = X_reference.unsqueeze(-2)
        with torch.no_grad():
            added = self._of_place(points)
            largest = torch.stack([(each(points) + added).max() for each in self.acquisitions])
        self.register_buffer("_offsets", logs - largest)
        self.X_pending: Any = getattr(self.acquisitions[0], "X_pending", None)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Sets the pending points of all acquisitions.

        Acquisitions from :meth:`from_model` and :func:`noisy_improvement` support pending points.
        With BoTorch's own analytic acquisitions, this method raises an error. The maxima by which
        improvements are divided do not change.

        Args:
            X_pending: A ``p x d`` tensor of inputs.
        """
        for each in self.acquisitions:
            cast(AcquisitionFunction, each).set_X_pending(X_pending)
        super().set_X_pending(X_pending)

    def _of_place(self, X: Tensor) -> Tensor | float:
        """Computes the logarithm of the factor by which improvements at ``X`` are multiplied.

        The factor is one within the range of the sources' inputs, and smaller outside.
        """
        if self._range is None or self._transform is None:
            return 0.0
        X, (low, high) = self._transform(X), self._range
        distance = torch.maximum(low - X, X - high).amax(dim=(-2, -1))
        return self._discount * (distance / BEYOND).clamp(0.0, 1.0)

    def forward(self, X: Tensor) -> Tensor:
        """Evaluates the logarithm of the weighted average of improvements.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.

        Returns:
            A ``batch_shape`` tensor of values.
        """
        if X.shape[-2] == 1 and all(isinstance(each, _Improvement) for each in self.acquisitions):
            values = log_improvements(cast(Any, self.acquisitions), X).movedim(0, -1)
        else:
            values = torch.stack([each(X) for each in self.acquisitions], dim=-1)
        values = values + self._offsets
        counts = values > values.detach().amax(dim=-1, keepdim=True) - NEGLIGIBLE
        # Negligible terms get no gradient: subnormal gradients slow matrix products down tenfold.
        average = torch.where(counts, values, values.detach()).logsumexp(dim=-1)
        return average + self._of_place(X)
