"""Joint models: one GP over source and target tasks, of which only the target is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.mlls import AddedLossTerm, ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer.data import MAX_JOINT_BYTES, check_joint_size, task_names
from botorch_transfer.hyperpriors import RESIDUAL_HYPERPARAMETERS, SOURCE_HYPERPARAMETERS
from botorch_transfer.kernels.coregionalization import CoregionalizationKernel
from botorch_transfer.kernels.residual import residual_kernel
from botorch_transfer.kernels.source_conditional import SourceConditional, SourceConditionalKernel
from botorch_transfer.kernels.source_points import SourceNoise, SourcePoints
from botorch_transfer.means.source_conditional import SourceConditionalMean
from botorch_transfer.models.target import TargetGP
from botorch_transfer.outcome_transforms import PooledStandardize
from botorch_transfer.pretraining.input_transforms import frozen_input_transform
from botorch_transfer.pretraining.outcome_scale import outcome_scales
from botorch_transfer.pretraining.padding import PaddedTasks

NUM_RESTARTS = 2
"""The number of further starts of a fit, where memory allows; each repeats the joint model."""


class JointTransferGP(TargetGP):
    r"""The target's part of an exact GP over source and target tasks.

    The joint GP's kernel is a coregionalization kernel over inputs and tasks. This model shows the
    target only: its data are the target's, its mean and kernel are those of the joint GP given the
    source data, and its marginal log likelihood has ``log p(y_s)`` as an added loss term, so that a
    fit maximizes the joint likelihood ``log p(y_t | y_s) + log p(y_s)`` in the hyperparameters of
    all tasks. Subclasses choose the kernel.

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
        independent = kernel.sources_are_independent
        self._needed_size = _largest_matrix(sizes, train_X.shape[-2], independent)
        if 
        input_transform = frozen_input_transform(input_transform)
        batch_shape = train_X.shape[:-2]
        if isinstance(outcome_transform, _DefaultType):
            outcomes = torch.cat([dataset.Y for dataset in source_data])
            outcome_transform = PooledStandardize(outcomes, batch_shape=batch_shape)
        points, noise = _prepare(source_data, input_transform, batch_shape)
        conditional = SourceConditional(kernel, points, noise)
        super().__init__(
            train_X,
            train_Y,
            dim=points.X.shape[-1],
            mean_module=SourceConditionalMean(conditional),
            covar_module=SourceConditionalKernel(conditional),
            train_Yvar=train_Yvar,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            task_feature=task_feature,
        )
        self.conditional = conditional
        self.register_added_loss_term("source_log_likelihood")
