"""The constructor arguments that the models share: what they mean, their checks, their making.

Read it to see what every model takes, and how ``construct_inputs`` makes it of BoTorch's data sets.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model
from botorch.models.transforms.input import ChainedInputTransform, FilterFeatures, InputTransform
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from torch import Tensor, arange

from botorch_transfer.data import SourceData
from botorch_transfer.data.datasets import check_range, check_type
from botorch_transfer.prior import TransferPrior

logger = logging.getLogger(__name__)

PriorOrData = TransferPrior | Sequence[SourceData] | Mapping[str, SourceData]
"""A prior, or source data to pre-train it from: a sequence of tasks, or a mapping from names."""

# Finds a section of a docstring, as ``Args``, and its indented lines.
_SECTION = r"^{}:\n((?: {{4}}.*\n?)+)"


_NO_SOURCES = (
    "The source tasks are missing: give the old runs, or what was pre-trained from them, as third "
    "argument, prior. Without any, use SingleTaskGP."
)

MODELS: dict[str, type[ConstructedFromDatasets]] = {}
"""Every model class by its name, base classes included: a class joins when it is defined."""


def check_prior(prior: Any) -> None:
    """Refuses what cannot be the third argument, as the noise that BoTorch's models have there.

    Args:
        prior: The argument.

    Raises:
        TypeError: If it is a tensor, or ``None``.
    """
    if isinstance(prior, Tensor):
        raise TypeError("The third argument is the old runs; give train_Yvar by name.")
    if prior is None:
        raise TypeError(_NO_SOURCES)


def constructor_arguments(model_class: Any) -> list[str]:
    """Lists the arguments of a model's constructor, as Ax does: by ``getfullargspec``.

    Args:
        model_class: The class, or a function that returns a model.

    Returns:
        The names, without ``self``.
    """
    return [name for name in inspect.getfullargspec(model_class).args if name != "self"]


def _complete(doc: str, section: str, order: list[str], bases: Iterable[type]) -> str:
    """Fills a section of a docstring: own and bases' entries in the given order."""
    own = _entries(doc, section)
    entries: dict[str, str] = {}
    for base in bases:
        entries |= _entries(inspect.cleandoc(vars(base).get("__doc__") or ""), section)
    entries |= own
    names = dict.fromkeys([*(name for name in order if name in entries), *own])
    body = "".join(entries[name] for name in names)
    if section == "Args" and not own and body:
        return f"{doc.rstrip()}\n\n{section}:\n{body}"
    return re.sub(_SECTION.format(section), lambda _: f"{section}:\n{body}", doc, flags=re.M)


def _entries(doc: str, section: str) -> dict[str, str]:
    """Returns the entries of a docstring's section by name."""
    found = re.search(_SECTION.format(section), doc, re.M)
    entries = re.findall(r"^ {4}(\S+?):(.*\n?(?: {5}.*\n?)*)", found[1] if found else "", re.M)
    return {name: f"    {name}:{rest.rstrip()}\n" for name, rest in entries}


def without_task_feature(
    num_columns: int, task_feature: int | None, transform: InputTransform | None
) -> InputTransform | None:
    """Puts the removal of a task column in front of a transform.

    Args:
        num_columns: The number of columns of the model's inputs, the task column included.
        task_feature: The index of the task column; ``None`` if there is none.
        transform: The transform of the remaining columns.

    Returns:
        The combined transform.
    """
    if task_feature is None:
        return transform
    columns = arange(num_columns)
    drop = FilterFeatures(columns[columns != task_feature % num_columns])
    if transform is None:
        return drop
    return ChainedInputTransform(drop_task_feature=drop, prior=transform)


def split_target_and_sources(
    dataset: SupervisedDataset | MultiTaskDataset,
) -> tuple[SupervisedDataset, dict[str, SupervisedDataset]]:
    """Splits a multi-task data set, and strips the task column.

    Args:
        dataset: The target's data, or a ``MultiTaskDataset`` that also holds source tasks.

    Returns:
        The target's data set, and the source tasks' by name.
    """
    if not isinstance(dataset, MultiTaskDataset):
        return dataset, {}
    tasks = {name: dataset.get_dataset_without_task_feature(name) for name in dataset.datasets}
    return tasks.pop(dataset.target_outcome_name), tasks


def check_target(
    train_X: Tensor,
    train_Y: Tensor,
    train_Yvar: Tensor | None = None,
    task_feature: int | None = None,
) -> None:
    """Checks a target's data; none at all is legal.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of inputs.
        train_Y: A ``batch_shape x n x 1`` tensor of outcomes.
        train_Yvar: A ``batch_shape x n x 1`` tensor of noise variances.
        task_feature: The index of the task column, if there is one.

    Raises:
        InputDataError: If an argument is invalid; the message names the remedy.
        ValueError: If there is no such task column.
    """
    given = {"train_X": train_X, "train_Y": train_Y}
    if train_Yvar is not None:
        given["train_Yvar"] = train_Yvar
    for name, tensor in given.items():
        _check_tensor(name, tensor)
        if tensor.shape[:-1] != train_X.shape[:-1]:
            raise InputDataError(
                f"{name} has shape {tuple(tensor.shape)}, but with train_X of shape "
                f"{tuple(train_X.shape)} it must be {(*train_X.shape[:-1], 1)}."
            )
    if train_Y.shape[-1] != 1:
        raise InputDataError(
            f"Transfer models have one outcome, but train_Y has {train_Y.shape[-1]}: "
            "transfer_models(train_X, train_Y, sources) puts one model an outcome into a "
            "ModelListGP."
        )
    num_columns = train_X.shape[-1]
    if task_feature is not None and not -num_columns <= task_feature < num_columns:
        raise ValueError(
            f"task_feature={task_feature} must be the index of one of the {num_columns} columns."
        )


def check_options(model_class: Any, options: Iterable[str]) -> None:
    """Refuses options that a model's constructor does not have.

    Args:
        model_class: The class, or a function that returns a model.
        options: The options' names.

    Raises:
        ValueError: If there is no such option.
    """
    unknown = set(options) - set(constructor_arguments(model_class))
    if unknown:
        name = getattr(model_class, "__name__", repr(model_class))
        raise ValueError(f"{name} has no option {sorted(unknown)[0]!r}.")


def _check_tensor(name: str, tensor: Tensor) -> None:
    check_type(name, tensor)
    if tensor.dim() < 2:
        raise InputDataError(
            f"{name} has shape {tuple(tensor.shape)}: it needs a dimension of points and one of "
            "columns, as n x 1."
        )
    if not bool(tensor.isfinite().all()):
        raise InputDataError(f"{name} has NaN or infinite values: leave out failed evaluations.")
    check_range(name, tensor)


class ConstructedFromDatasets(Model):
    """Mixin of models whose third argument is their source tasks, constructed as BoTorch's are.

    Put it in front of a class of BoTorch.

    The arguments below mean the same in every model that does not say otherwise. The docstring of a
    subclass has in ``Args:`` and ``Raises:`` what is its own. It is completed by the arguments of
    its constructor that are documented here, so that ``help`` and the API reference show all of
    them in order.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, to be maximized.
        prior: The prior, or source data to pre-train it from: a sequence or mapping of
            ``SupervisedDataset``, ``(X, Y)`` or ``(X, Y, Yvar)``. Fits are cached: equal data are
            not refitted.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances; inferred if omitted.
        likelihood: A likelihood; by default Gaussian, with ``train_Yvar`` or an inferred noise.
        covar_module: The kernel of the difference between target and sources; by default a scaled
            RBF kernel with a lengthscale for each input.
        covar_modules: One kernel a task, the target's last; by default scaled RBF kernels with a
            lengthscale for each input, the sources' with the hyperpriors of ScaML-GP.
        outcome_transform: The transform to the prior's units; by default the standardization by
            all source and target outcomes together. ``None`` if the outcomes are in these units
            already. ``Log``, ``Bilog`` and ``Power``, alone or first in a chain, apply to source
            data, too.
        input_transform: A frozen transform of the inputs, for instance
            ``Normalize(d, bounds=...)``; by default the one that the prior was pre-trained with.
        task_feature: The index of a column of ``train_X`` that holds the task. The model ignores
            this column, here and in the inputs of ``posterior``.
        hyperparameters: The hyperpriors of the default residual kernel, noise and, in ScaML-GP,
            weights. ``"cautious"`` ones keep the model honest with a few points, see
            :func:`~.gp.hyperpriors.cautious_hyperparameters`; ``"paper"`` gives ScaML-GP's
            (Appendix C.5), whose residual vanishes with one or two points.
        max_bytes: The memory that the joint model may take.
        max_points: The number of source points to use; ``None`` for all. The largest tasks give
            theirs first; what is left of a task is evenly spaced from its worst outcome to its
            best.
        outcome_scale: How the outcomes of the source tasks are scaled, whatever the target's
            transform. ``"per_task"``: each task by its own mean and standard deviation, and by
            default the target by all source and target outcomes together. ``"pooled"``: all tasks,
            and by default the target, by the source outcomes together. ``"raw"``: neither sources
            nor target, for outcomes that are standardized already.

    Raises:
        InputDataError: If the data are invalid; the message names the remedy.
        TypeError: If ``prior`` is a prior of another kind.
    """

    label: ClassVar[str]
    """The method's name in the papers, for pictures; the class's name if it gives none."""

    prior_class: ClassVar[type[TransferPrior] | None] = None
    """The class of priors that the model takes; ``None`` if it takes another third argument."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        MODELS[cls.__name__] = cls
        if "label" not in vars(cls):
            cls.label = cls.__name__
        if cls.__doc__:  # there is none under ``python -OO``
            names = constructor_arguments(cls)
            errors = ["InputDataError", *(["TypeError"] if "prior" in names else [])]
            bases = [b for b in cls.__mro__[:0:-1] if issubclass(b, ConstructedFromDatasets)]
            doc = _complete(inspect.cleandoc(cls.__doc__), "Args", names, bases)
            cls.__doc__ = _complete(doc, "Raises", errors, bases[:1])

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Checks the target's data, and that there are sources, before anything is pre-trained."""
        signature = inspect.getfullargspec(cls.__init__)
        names = signature.args[1:]
        needed = names[: len(names) - len(signature.defaults or ())]
        given = dict(zip(names, args, strict=False)) | kwargs
        # Copies are made without arguments.
        if given and "prior" in needed and "prior" not in given:
            raise TypeError(_NO_SOURCES)
        if {"train_X", "train_Y"} <= given.keys():
            of_target = ("train_X", "train_Y", "train_Yvar", "task_feature")
            check_target(**{name: given[name] for name in of_target if name in given})
        return super().__new__(cls)

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset | MultiTaskDataset,
        prior: PriorOrData | None = None,
        categorical_features: list[int] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Makes constructor arguments of data sets.

        Args:
            training_data: The target's data, or a ``MultiTaskDataset`` that holds the sources too.
            prior: The prior, or source data; overrides the sources in ``training_data``.
            categorical_features: Indices of inputs that are categories coded as numbers. Kernels
                take them for ordered numbers, which is exact for two categories; encode more of
                them one-hot, as ``SearchSpace`` does.
            **options: Further arguments of the constructor, handed through.

        Returns:
            ``train_X``, ``train_Y``, the source tasks, maybe ``train_Yvar``, and the options; a
            task column is stripped.

        Raises:
            InputDataError: If there are no source tasks.
            ValueError: If the constructor has no such option.

        Example:
            >>> inputs = ScaMLGP.construct_inputs(dataset, prior=sources)
            >>> model = ScaMLGP(**inputs)
        """
        check_options(cls, options)
        target, inside = split_target_and_sources(training_data)
        sources = prior
        if sources is None:
            if not inside:
                raise InputDataError(
                    f"{cls.__name__} needs source tasks: give them as prior, or a "
                    "MultiTaskDataset that has them."
                )
            sources = inside
        elif inside:
            logger.info("The given source tasks precede the tasks of the MultiTaskDataset.")
        if categorical_features:
            logger.info(f"{cls.__name__} takes {categorical_features=} for ordered numbers.")
        return {**super().construct_inputs(target), "prior": sources, **options}
