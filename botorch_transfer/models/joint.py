"""The likelihood of the source data alone, by which joint models are fitted before the first point.

Without target data ``log p(y_t | y_s)`` is zero, and ``log p(y_s)``, the model's added loss term,
is all that there is.

Joint models: one GP over source and target tasks, of which only the target is shown.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.mlls import AddedLossTerm, ExactMarginalLogLikelihood
from linear_operator import to_linear_operator
from torch import Tensor
from torch.nn import Parameter

from botorch_transfer.data import MAX_JOINT_BYTES, check_joint_size, task_names
from botorch_transfer.hyperpriors import RESIDUAL_HYPERPARAMETERS, SOURCE_HYPERPARAMETERS
from botorch_transfer.hyperpriors.spec import residual_kernel
from botorch_transfer.kernels.coregionalization import CoregionalizationKernel
from botorch_transfer.kernels.source_conditional import (
    SourceConditional,
    SourceConditionalKernel,
    SourceConditionalMean,
)
from botorch_transfer.kernels.source_points import SourceNoise, SourcePoints
from botorch_transfer.models.target import LogLikelihoodTerm, TargetGP
from botorch_transfer.outcome_transforms import PooledStandardize
from botorch_transfer.pretraining.input_transforms import frozen_input_transform
from botorch_transfer.pretraining.tasks import PaddedTasks, outcome_scales


class SourceMarginalLogLikelihood(ExactMarginalLogLikelihood):
    """``log p(y_s)`` and the hyperpriors of a joint model without target points."""

    def forward(
        self, function_dist: MultivariateNormal, target: Tensor, *params: Any, **kwargs: Any
    ) -> Tensor:
        """Evaluates it.

        Args:
            function_dist: The model's output, with the added loss term; it is of no points.
            target: Ignored.
            *params: Ignored.
            **kwargs: Ignored.

        Returns:
            A ``batch_shape`` tensor, by source point, as GPyTorch's is by target point.
        """
        nothing = function_dist.mean.sum(dim=-1)
        total: Tensor = self._add_other_terms(nothing, params)
        return total / sum(self.model.conditional.points.sizes)


@contextmanager
def target_frozen(mll: SourceMarginalLogLikelihood) -> Iterator[None]:
    """Lets a fit change only the data kernels that source tasks have a part in, and their noise.

    What the target alone has would follow its hyperpriors to their modes, as a residual of nothing.
    What relates tasks, weights or a coregionalization matrix, is about the target as well: source
    data would take WSGP's weights to zero, and leave the target's row of a matrix behind.

    Args:
        mll: The likelihood that is maximized meanwhile.
    """
    fitted = set(_determined(mll))
    frozen = [p for p in mll.model.parameters() if p.requires_grad and p not in fitted]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def _determined(mll: SourceMarginalLogLikelihood) -> list[Parameter]:
    """The parameters of data kernels and source noise that ``log p(y_s)`` depends on."""
    conditional = mll.model.conditional
    candidates = [
        parameter
        for module in (conditional.kernel.data_kernels, conditional.noise)
        for parameter in module.parameters()
        if parameter.requires_grad
    ]
    if not candidates:
        return []
    mll.train()
    with torch.enable_grad():
        mll.model(*mll.model.train_inputs)
        (term,) = mll.model.added_loss_terms()
        gradients = torch.autograd.grad(term.loss().sum(), candidates, allow_unused=True)
    return [p for p, gradient in zip(candidates, gradients, strict=True) if gradient is not None]


MAX_RESTARTS = 2
"""The default number of further starts of a fit, where memory allows it: each repeats the model."""


class JointTransferGP(TargetGP):
    r"""The target's part of an exact GP over source and target tasks.

    The joint GP's kernel is a coregionalization kernel over inputs and tasks. This model shows the
    target only: its data are the target's, its mean and kernel are those of the joint GP given the
    source data, and its marginal log likelihood has ``log p(y_s)`` as an added loss term, so that a
    fit maximizes the joint likelihood ``log p(y_t | y_s) + log p(y_s)`` in the hyperparameters of
    all tasks; without target points ``log p(y_s)`` in those of the sources. Subclasses choose the
    kernel.

    Each source task's outcomes are standardized by their own mean and deviation.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        source_data: The source tasks, validated by ``as_datasets``.
        kernel: The kernel over inputs and tasks, sources first and target last.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances.
        likelihood: A likelihood; by default Gaussian with ``train_Yvar`` or an inferred noise.
        outcome_transform: The transform of the target's outcomes; by default a standardization by
            the outcomes of all sources and the target together, ``None`` if they are standardized
            already.
        input_transform: A frozen transform of all tasks' inputs.
        task_feature: The index of a column of ``train_X`` that only says which task a row is of. It
            is ignored, here and in the inputs of ``posterior``.
        max_bytes: The memory that the joint model may take.

    Raises:
        InputDataError: If data are unfit, or too large for a joint model.
        ValueError: If the input transform is not frozen.
    """

    source_argument = "source_data"
    max_fit_iterations = 200  # along the flat ridges of free matrices, a fit would not end
    covar_module: SourceConditionalKernel

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        source_data: Sequence[SupervisedDataset],
        kernel: CoregionalizationKernel,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        task_feature: int | None = None,
        max_bytes: float = MAX_JOINT_BYTES,
    ) -> None:
        sizes = [len(dataset.X) for dataset in source_data]
        self.num_restarts = _affordable_restarts(
            sizes, kernel.sources_are_independent, train_X, max_bytes
        )
        input_transform = frozen_input_transform(input_transform)
        batch_shape = train_X.shape[:-2]
        if isinstance(outcome_transform, _DefaultType):
            outcomes = torch.cat([dataset.Y for dataset in source_data])
            outcome_transform = PooledStandardize(outcomes, batch_shape=batch_shape)
        points = _standardized_points(source_data, input_transform)
        known = [dataset.Yvar is not None for dataset in source_data]
        noise = SourceNoise(known, SOURCE_HYPERPARAMETERS.noise, batch_shape)
        conditional = SourceConditional(kernel, points, noise)
        super().__init__(
            train_X,
            train_Y,
            dim=source_data[0].X.shape[-1],
            mean_module=SourceConditionalMean(conditional),
            covar_module=SourceConditionalKernel(conditional),
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            task_feature=task_feature,
        )
        self._set_source_term(None)

    @property
    def conditional(self) -> SourceConditional:
        """The joint GP's target task, given the source data."""
        return self.covar_module.conditional

    @property
    def covar_modules(self) -> list[Kernel]:
        """The data kernels ``k_ν``, one a task and the target's last, or one that all share."""
        return [cast(Kernel, kernel) for kernel in self.conditional.kernel.data_kernels]

    @property
    def source_noise(self) -> Tensor:
        """The inferred noise variances of the sources that have no known ones."""
        return self.conditional.noise.noise

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Evaluates the target's prior, given the source data.

        Args:
            x: A ``batch_shape x n x d`` tensor of inputs.

        Returns:
            The prior. In training mode ``log p(y_s)`` becomes the added loss term.
        """
        if not self.training:
            return super().forward(x)
        x = self.transform_inputs(x)
        with self.conditional.factorized() as factor:
            self._set_source_term(LogLikelihoodTerm(factor.log_likelihood))
            mean = self.conditional.mean(x)
            # An operator, because a tensor would be factorized at once, without the noise.
            covariance = to_linear_operator(self.conditional.covariance(x))
        return MultivariateNormal(mean, covariance)

    def train(self, mode: bool = True) -> Self:
        """Sets training or evaluation mode; the added loss term ends with training.

        Args:
            mode: Whether to train.

        Returns:
            The model.
        """
        if not mode:
            self._set_source_term(None)
        return super().train(mode)

    def _set_source_term(self, term: AddedLossTerm | None) -> None:
        cast(Any, self)._added_loss_terms[_SOURCE_TERM] = term

    def custom_fit(
        self,
        mll: ExactMarginalLogLikelihood,
        num_restarts: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> ExactMarginalLogLikelihood:
        """Fits the hyperparameters of all tasks; ``fit_gpytorch_mll`` calls this.

        Args:
            mll: The marginal log likelihood of this model.
            num_restarts: The number of starts drawn from the hyperpriors, besides the present
                values; by default two, or fewer if their joint models would not fit into
                ``max_bytes`` together.
            *args: See :meth:`TargetGP.custom_fit`.
            **kwargs: See :meth:`TargetGP.custom_fit`.

        Returns:
            The marginal log likelihood in evaluation mode. Without target points the fit is to the
            source data, and what relates the target to them stays as it is.
        """
        num_restarts = self.num_restarts if num_restarts is None else num_restarts
        if self.num_target_points > 0:
            return super().custom_fit(mll, num_restarts, *args, **kwargs)
        of_sources = SourceMarginalLogLikelihood(mll.likelihood, self)
        with target_frozen(of_sources):
            super().custom_fit(of_sources, num_restarts, *args, **kwargs)
        return mll.eval()

    @property
    def _has_data_to_fit(self) -> bool:
        return True


_SOURCE_TERM = "source_log_likelihood"


def task_kernels(
    covar_modules: Sequence[Kernel] | None, num_sources: int, dim: int, batch_shape: torch.Size
) -> list[Kernel]:
    """Checks the user's kernels, or builds the default ones.

    Args:
        covar_modules: One kernel a task, target last; ``None`` for the defaults.
        num_sources: The number of source tasks.
        dim: The number of inputs.
        batch_shape: The batch shape of the target model.

    Returns:
        One kernel a task. The default is a scaled RBF kernel with a lengthscale for each input,
        hyperpriors those of ScaML-GP's source tasks and of its target's residual.

    Raises:
        ValueError: If there are too few or too many.
    """
    if covar_modules is not None:
        if len(covar_modules) != num_sources + 1:
            raise ValueError(
                f"There are {len(covar_modules)} covar_modules for {num_sources} source tasks and "
                f"the target: give {num_sources + 1}, the target's last."
            )
        return list(covar_modules)
    sources = [
        residual_kernel(dim, batch_shape, SOURCE_HYPERPARAMETERS) for _ in range(num_sources)
    ]
    return [*sources, residual_kernel(dim, batch_shape, RESIDUAL_HYPERPARAMETERS)]


def _standardized_points(
    source_data: Sequence[SupervisedDataset], transform: InputTransform | None
) -> SourcePoints:
    tasks = PaddedTasks.from_datasets(source_data, transform)
    tasks = tasks.standardize(*outcome_scales(tasks, "per_task"))
    sizes = tasks.num_points.tolist()
    mask = tasks.mask
    return SourcePoints(
        tasks.X[mask], tasks.Y[mask], tasks.Yvar[mask], sizes, task_names(source_data)
    )


def _affordable_restarts(
    sizes: Sequence[int], independent: bool, train_X: Tensor, max_bytes: float
) -> int:
    """Refuses source data that are too large, and finds how many starts fit into memory."""
    num_points = sum(sizes) + train_X.shape[-2]
    # A dense matrix that takes the memory of the block diagonal one.
    dense = math.isqrt(sum(size**2 for size in sizes)) + train_X.shape[-2]
    size = dense if independent else num_points
    if not _fits(size, train_X.dtype, max_bytes):
        check_joint_size(num_points, train_X.dtype, max_bytes)
    batches = train_X.shape[:-2].numel()
    starts = [
        n
        for n in range(MAX_RESTARTS + 1)
        if _fits(size, train_X.dtype, max_bytes / (n + 1) / batches)
    ]
    return max(starts, default=0)


def _fits(num_points: int, dtype: torch.dtype, max_bytes: float) -> bool:
    try:
        check_joint_size(num_points, dtype, max_bytes)
    except InputDataError:
        return False
    return True
