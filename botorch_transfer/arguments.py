"""Constructor arguments that the models share: their documentation, their checks, and a mixin.

Read this to see which arguments every model takes, and how ``construct_inputs`` makes them from
BoTorch's data sets.
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
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.datasets import MultiTaskDataset, SupervisedDataset
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood, MultitaskGaussianLikelihood
from torch import Tensor, arange
from torch.nn import ModuleList

from botorch_transfer._botorch import DefaultType
from botorch_transfer.data import SourceData
from botorch_transfer.data.datasets import check_range, check_type
from botorch_transfer.input_transforms import warn_of_data
from botorch_transfer.outcome_transforms import EXTREME
from botorch_transfer.prior import TransferPrior
from botorch_transfer.search_space.cells import codes
from botorch_transfer.search_space.space import check_arguments

logger = logging.getLogger(__name__)

#: A prior, or source data to pre-train a prior: a sequence of tasks, or a mapping from task names
#: to tasks.
PriorOrData = TransferPrior | Sequence[SourceData] | Mapping[str, SourceData]

#: Types of the modules that the models take, see :func:`.search_space.space.check_arguments`.
MODULES: tuple[tuple[str, Any, str], ...] = (
    ("likelihood", Likelihood | None, "give a Likelihood, such as GaussianLikelihood()"),
    ("covar_module", Kernel | None, "give a Kernel, such as RBFKernel()"),
    ("covar_modules", list | tuple | ModuleList | None, "give a list of kernels"),
    (
        "outcome_transform",
        OutcomeTransform | DefaultType | None,
        "give an OutcomeTransform, such as Log()",
    ),
    ("members", Mapping | None, "give a dictionary from names to model classes"),
    ("input_transform", InputTransform | None, "give an InputTransform, such as Normalize(d)"),
)

# Matches a section of a docstring, such as ``Args``, with its indented lines.
_SECTION = r"^{}:\n((?: {{4}}.*\n?)+)"


def check_prior(prior: Any) -> None:
    """Raises an error if the third argument of a transfer model is missing or a tensor.

    In BoTorch's models, the third argument is a tensor of noise variances, so a caller may pass
    this tensor by mistake.

    Args:
        prior: The third argument: a prior or source data.

    Raises:
        TypeError: If ``prior`` is a tensor or ``None``.
    """
    if isinstance(prior, Tensor):
        raise TypeError("prior= is a tensor: give old runs. For noise variances, use train_Yvar=.")
    if prior is None:
        raise TypeError(
            "The source tasks are missing: give the old runs, or a pre-trained prior, as prior=, "
            "the third argument. Without old runs, use SingleTaskGP."
        )


def constructor_arguments(model_class: Any) -> list[str]:
    """Lists the argument names of a model's constructor, without keyword-only arguments.

    Ax does not see keyword-only arguments, so this function leaves them out, too.

    Args:
        model_class: The class, or a function that returns a model.

    Returns:
        The names, without ``self``.
    """
    return [name for name in inspect.getfullargspec(model_class).args if name != "self"]


def _complete(doc: str, section: str, order: list[str], of_bases: list[str]) -> str:
    """Adds entries of base class docstrings to a section of a docstring, and returns the result.

    Args:
        doc: The docstring of a class.
        section: The title of the section, such as ``Args``.
        order: The names of the entries, in order.
        of_bases: The docstrings of the base classes.
    """
    own, entries = _entries(doc, section), dict[str, str]()
    for text in (*of_bases, doc):
        entries |= _entries(text, section)
    names = dict.fromkeys([*(name for name in order if name in entries), *own])
    body = "".join(entries[name] for name in names)
    if section == "Args" and not own and body:
        return f"{doc.rstrip()}\n\n{section}:\n{body}"
    return re.sub(_SECTION.format(section), lambda _: f"{section}:\n{body}", doc, flags=re.M)


def _entries(doc: str, section: str) -> dict[str, str]:
    """Maps the names in one docstring section, such as ``Args``, to their entries."""
    found = re.search(_SECTION.format(section), doc, re.M)
    entries = re.findall(r"^ {4}(\S+?):(.*\n?(?: {5}.*\n?)*)", found[1] if found else "", re.M)
    return {name: f"    {name}:{rest.rstrip()}\n" for name, rest in entries}


def without_task_feature(
    num_columns: int, task_feature: int | None, transform: InputTransform | None
) -> InputTransform | None:
    """Returns an input transform that removes the task column, and then applies ``transform``.

    Args:
        num_columns: The number of columns of the model's inputs, including the task column.
        task_feature: The index of the task column; ``None`` if there is no task column.
        transform: The transform of the remaining columns.

    Returns:
        The chained transform. Without a task column, ``transform``.
    """
    if task_feature is None:
        return transform
    columns = arange(num_columns)
    drop = FilterFeatures(columns[columns != task_feature % num_columns])
    if transform is None:
        return drop
    return ChainedInputTransform(drop_task_feature=drop, prior=transform)


def check_target(
    train_X: Tensor,
    train_Y: Tensor,
    train_Yvar: Tensor | None = None,
    task_feature: int | None = None,
) -> None:
    """Checks a target's training data, which may be empty.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of inputs.
        train_Y: A ``batch_shape x n x 1`` tensor of outcomes.
        train_Yvar: A ``batch_shape x n x 1`` tensor of noise variances.
        task_feature: The index of the task column; ``None`` if there is no task column.

    Raises:
        InputDataError: If an argument is invalid; the message names the remedy.
        ValueError: If ``task_feature`` is not a column of ``train_X``.
    """
    given = {"train_X": train_X, "train_Y": train_Y}
    if train_Yvar is not None:
        given["train_Yvar"] = train_Yvar
    for name, tensor in given.items():
        check_type(name, tensor)
        if tensor.dim() < 2:
            raise InputDataError(
                f"{name} has shape {tuple(tensor.shape)}: give a tensor with rows and columns, for "
                "instance n x 1."
            )
        check_range(name, tensor)
        if name == "train_Yvar" and bool((tensor < 0).any()):
            raise InputDataError("train_Yvar has negative values: give squared standard errors.")
        if tensor.shape[:-1] != train_X.shape[:-1]:
            raise InputDataError(
                f"{name} has shape {tuple(tensor.shape)}, but train_X has shape "
                f"{tuple(train_X.shape)}: give {name} the shape {(*train_X.shape[:-1], 1)}."
            )
    if train_Y.shape[-1] != 1:
        raise InputDataError(
            f"A transfer model has one outcome, but train_Y has {train_Y.shape[-1]} outcomes: use "
            "transfer_models(train_X, train_Y, sources), which builds one model for each outcome."
        )
    num_columns = train_X.shape[-1]
    if task_feature is not None and not -num_columns <= task_feature < num_columns:
        raise ValueError(
            f"task_feature={task_feature} must be the index of one of the {num_columns} columns of "
            "train_X."
        )
    if task_feature is not None and len(train_X[..., task_feature].unique()) > 1:
        several = "train_X= has several values in its task column: keep only the target's rows"
        raise InputDataError(f"{several}, and pass the old tasks' rows as prior=.")


def check_options(model_class: Any, options: Iterable[str]) -> None:
    """Raises an error for options that are not arguments of a model's constructor.

    Args:
        model_class: The class, or a function that returns a model.
        options: The names of the options.

    Raises:
        TypeError: If ``model_class`` is a model instance or cannot be called, such as a string.
        ValueError: If an option is unknown.
    """
    if not callable(model_class) or isinstance(model_class, Model):
        raise TypeError(f"A {type(model_class).__name__} object is not a class: use a model class.")
    if unknown := set(options) - set(constructor_arguments(model_class)):
        name = getattr(model_class, "__name__", repr(model_class))
        raise ValueError(f"{name} has no option {sorted(unknown)[0]!r}: leave out the option.")


def warn_of_outcomes(train_Y: Tensor, train_Yvar: Tensor | None = None) -> None:
    """Warns if outcomes contain codes of failed runs (-999), or if noise variances seem too large.

    Args:
        train_Y: A ``batch_shape x n x 1`` tensor of outcomes, which are maximized.
        train_Yvar: A ``batch_shape x n x 1`` tensor of noise variances.
    """
    if found := codes(train_Y.detach().cpu().double().flatten().numpy()):
        warn_of_data(f"train_Y has {found[0]:g}, far from all other outcomes: omit failed runs")
    spread = EXTREME * train_Y.std() if train_Y.numel() > 2 else 0.0
    if train_Yvar is not None and 0 < spread < train_Yvar.min().sqrt():
        warn_of_data("train_Yvar is far above the range of train_Y: square standard errors")


class ConstructedFromDatasets(Model):
    """Mixin of models whose third argument is the prior or the source tasks.

    Put the mixin before a BoTorch model class in the list of base classes.

    The arguments below mean the same in every model, unless the model documents otherwise. The
    docstring of a subclass documents only its own arguments and errors in ``Args:`` and
    ``Raises:``. For all other constructor arguments, the mixin copies the entries below into the
    docstring of the subclass. ``help`` and the API reference thus show all arguments in order.

    Args:
        train_X: A ``batch_shape x n x d`` tensor of target inputs; ``n`` may be zero.
        train_Y: A ``batch_shape x n x 1`` tensor of target outcomes, which are maximized.
        prior: The prior, or source data to pre-train a prior: a sequence or mapping of
            ``SupervisedDataset``, ``(X, Y)`` or ``(X, Y, Yvar)``. Pre-training is cached, so equal
            data are fitted once.
        train_Yvar: A ``batch_shape x n x 1`` tensor of known noise variances; inferred if omitted.
        likelihood: A likelihood; by default Gaussian, with ``train_Yvar`` or an inferred noise
            variance.
        covar_module: The kernel of the difference between target and sources; by default a scaled
            RBF kernel with a lengthscale for each input.
        covar_modules: One kernel per task; the target's kernel is the last one. By default scaled
            RBF kernels with a lengthscale for each input. The default kernels of the sources have
            the hyperpriors of ScaML-GP.
        outcome_transform: The transform of ``train_Y`` to the prior's units; by default the
            transform that matches ``outcome_scale``. ``None`` if ``train_Y`` already has the
            prior's units. ``Log``, ``Bilog`` and ``Power`` are also applied to the source outcomes.
            In a ``ChainedOutcomeTransform``, they must precede all other transforms.
        input_transform: A frozen transform of the inputs, for example
            ``Normalize(d, bounds=...)``; by default the transform of the prior.
        task_feature: The index of a column of ``train_X`` that holds the task. The model ignores
            this column in ``train_X`` and in the inputs of ``posterior``.
        hyperparameters: The hyperpriors of the default residual kernel, of the noise variance and,
            in ScaML-GP, of the weights. ``"cautious"`` hyperpriors keep the model calibrated with a
            few points, see :func:`~.gp.hyperpriors.cautious_hyperparameters`. ``"paper"`` gives the
            hyperpriors of ScaML-GP (Appendix C.5). With these hyperpriors, the fitted variance of
            the residual is almost zero if the target has only one or two points.
        max_bytes: The maximum memory of the joint model, in bytes.
        max_points: The maximum number of source points; ``None`` for all points. Points of the
            largest tasks are dropped first. If a task loses points, the kept points have evenly
            spaced ranks among the task's outcomes, from the worst to the best outcome.
        outcome_scale: How source outcomes are standardized. This choice also determines the
            target's default ``outcome_transform``. ``"per_task"``: each source task is standardized
            by its own outcomes, and the target by all source and target outcomes together.
            ``"pooled"``: all tasks are standardized by all source outcomes together. ``"raw"``:
            outcomes are not changed; use it for outcomes that are already standardized.

    Raises:
        InputDataError: If the data are invalid; the message names the remedy.
        TypeError: If ``prior`` is a prior of a class that the model does not take, or if a kernel,
            likelihood or transform has a wrong type.
    """

    #: Class of priors that the model takes; ``None`` if the third argument is not a prior.
    prior_class: ClassVar[type[TransferPrior] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__doc__:  # ``python -OO`` removes docstrings
            names = constructor_arguments(cls)
            classes = [c for c in cls.__mro__[::-1] if issubclass(c, ConstructedFromDatasets)]
            *of_bases, doc = (inspect.cleandoc(vars(c).get("__doc__") or "") for c in classes)
            doc = _complete(doc, "Args", names, of_bases)
            cls.__doc__ = _complete(doc, "Raises", ["InputDataError", "TypeError"], of_bases[:1])

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Checks the arguments before pre-training starts. Copying a model skips the checks."""
        given = dict(zip(constructor_arguments(cls), args, strict=False)) | kwargs
        if {"train_X", "train_Y"} <= given.keys():
            prior = inspect.signature(cls.__init__).parameters.get("prior")
            if prior is not None and prior.default is prior.empty:
                check_prior(given.get("prior"))
            of_target = ("train_X", "train_Y", "train_Yvar", "task_feature")
            check_target(**{name: given[name] for name in of_target if name in given})
        check_arguments(given, MODULES)
        if isinstance(given.get("likelihood"), MultitaskGaussianLikelihood):
            raise TypeError("likelihood is for several outcomes: give GaussianLikelihood().")
        own = given.get("input_transform"), getattr(given.get("prior"), "input_transform", None)
        dim = given["train_X"].shape[-1] if own == (None, None) and "train_X" in given else 0
        dim -= given.get("task_feature") is not None
        for kernel in (given.get("covar_module"), *(given.get("covar_modules") or ())):
            check_arguments({"covar_module": kernel}, MODULES)
            ard = getattr(getattr(kernel, "base_kernel", kernel), "ard_num_dims", None)
            if ard not in (None, 1, dim) and dim > 0 and kernel.active_dims is None:
                raise InputDataError(f"covar_module is for {ard} inputs: give ard_num_dims={dim}.")
        return super().__new__(cls)

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset | MultiTaskDataset,
        prior: PriorOrData | None = None,
        categorical_features: list[int] | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Builds constructor arguments from data sets.

        Args:
            training_data: The target's data, or a ``MultiTaskDataset`` that also holds the sources.
            prior: The prior, or source data; replaces the sources in ``training_data``.
            categorical_features: Indices of inputs that hold categories, coded as numbers. Kernels
                treat the codes as ordered numbers. For two categories, the order has no effect.
                Encode more than two categories one-hot, as ``SearchSpace`` does.
            **options: Further arguments of the constructor.

        Returns:
            ``train_X``, ``train_Y``, ``prior``, ``train_Yvar`` if it is known, and the options. The
            task column is removed.

        Raises:
            InputDataError: If there are no source tasks.
            ValueError: If an option is not an argument of the constructor.

        Example:
            >>> inputs = ScaMLGP.construct_inputs(dataset, prior=sources)
            >>> model = ScaMLGP(**inputs)
        """
        check_options(cls, options)
        target, inside = training_data, dict[str, SupervisedDataset]()
        if isinstance(training_data, MultiTaskDataset):  # without the task column
            get = training_data.get_dataset_without_task_feature
            inside = {name: get(name) for name in training_data.datasets}
            target = inside.pop(training_data.target_outcome_name)
        sources = inside if prior is None else prior
        if prior is None and not inside:
            raise InputDataError(
                f"{cls.__name__} needs source tasks: give prior=, or sources in a MultiTaskDataset."
            )
        if categorical_features:
            logger.info(f"{cls.__name__} treats {categorical_features=} as numeric features.")
        return {**super().construct_inputs(target), "prior": sources, **options}
