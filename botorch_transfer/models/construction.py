"""From data sets, with source tasks beside them or inside, to what a model's constructor takes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from inspect import getfullargspec
from typing import Any, ClassVar

from botorch.exceptions.errors import InputDataError
from botorch.models.gp_regression import SingleTaskGP
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset

from botorch_transfer.data import SourceData
from botorch_transfer.models.inputs import split_target_and_sources
from botorch_transfer.pretraining.prior import TransferPrior

logger = logging.getLogger(__name__)

PriorOrData = TransferPrior | Sequence[SourceData] | Mapping[str, SourceData]


class ConstructedFromDatasets(SingleTaskGP):
    """A model whose third argument is its source tasks, constructed as BoTorch's models are."""

    source_argument: ClassVar[str]
    """The constructor's name for the source tasks."""

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset | MultiTaskDataset,
        prior: PriorOrData | None = None,
        source_data: Sequence[SourceData] | Mapping[str, SourceData] | None = None,
        categorical_features: list[int] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Makes constructor arguments of data sets.

        Args:
            training_data: The target's data, or a ``MultiTaskDataset`` that holds the sources too.
            prior: The prior, or source data; it goes before those inside ``training_data``.
            source_data: Source data, another word for a ``prior`` that is yet to be pre-trained.
            categorical_features: Indices of inputs that are categories coded as numbers. Kernels
                take them for ordered numbers, which is exact for two categories; encode more of
                them one-hot, as ``SearchSpace`` does.
            **options: Further arguments of the constructor, handed through.

        Returns:
            ``train_X``, ``train_Y``, the source tasks, maybe ``train_Yvar``, and the options; a
            task column is stripped.

        Raises:
            InputDataError: If there are no source tasks, or both ``prior`` and ``source_data``.
            ValueError: If the constructor has no such option.

        Example:
            >>> inputs = ScaMLGP.construct_inputs(dataset, prior=sources)
            >>> model = ScaMLGP(**inputs)
        """
        if prior is not None and source_data is not None:
            raise InputDataError("Give either a prior or source_data, not both.")
        unknown = set(options) - set(getfullargspec(cls).args)
        if unknown:
            raise ValueError(f"{cls.__name__} has no option {sorted(unknown)[0]!r}.")
        target, inside = split_target_and_sources(training_data)
        handed_over = source_data if prior is None else prior
        if handed_over is None and not inside:
            raise InputDataError(
                f"{cls.__name__} needs source tasks: give a prior or source_data, or a "
                "MultiTaskDataset that has them."
            )
        if handed_over is not None and inside:
            logger.info("The given source tasks go before those of the MultiTaskDataset.")
        if categorical_features:
            logger.info(
                "%s takes the categorical features %s for ordered numbers.",
                cls.__name__,
                categorical_features,
            )
        inputs = super().construct_inputs(target)
        sources = inside if handed_over is None else handed_over
        return {**inputs, cls.source_argument: sources, **options}
