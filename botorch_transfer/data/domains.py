"""Domains: search spaces, each with its source tasks and with features that describe its inputs.

HyperBO+ and MPHD learn from several domains [Fan2024mphd]_.

.. [Fan2024mphd]
    Z. Fan, X. Han and Z. Wang. Transfer Learning for Bayesian Optimization on Heterogeneous Search
    Spaces. TMLR 2024.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import InputTransform
from botorch.utils.datasets import SupervisedDataset
from pandas import DataFrame
from torch import Tensor

from botorch_transfer.data.datasets import SourceData, as_datasets, task_names, with_outcomes
from botorch_transfer.data.tables import from_dataframe
from botorch_transfer.input_transforms import frozen_input_transform
from botorch_transfer.outcome_transforms import Steps, apply_steps
from botorch_transfer.search_space import SearchSpace


def default_context(
    dim: int, discrete_dims: Iterable[int] = (), dtype: torch.dtype = torch.float64
) -> Tensor:
    """Computes features that describe each input of a search space, for the method MPHD.

    The features are defined in Section 2.1 of [Fan2024mphd]_.

    Args:
        dim: The number of inputs ``d``.
        discrete_dims: Indices of the inputs that take only finitely many values.
        dtype: The data type of the result.

    Returns:
        A ``d x 4`` tensor. Its columns are: whether the input is discrete, whether it is
        continuous, the number of discrete inputs, and the number of continuous inputs.

    Raises:
        ValueError: If an index is out of range.

    Example:
        >>> default_context(3, discrete_dims=[2])
        tensor([[0., 1., 1., 2.],
                [0., 1., 1., 2.],
                [1., 0., 1., 2.]], dtype=torch.float64)
    """
    discrete = torch.zeros(dim, dtype=dtype)
    discrete[list(_as_indices(dim, discrete_dims))] = 1
    counts = torch.stack([discrete.sum(), dim - discrete.sum()])
    return torch.column_stack([discrete, 1 - discrete, counts.expand(dim, 2)])


@dataclass(frozen=True, eq=False)
class Domain:
    """One search space, with the source tasks that were evaluated in this space.

    Use domains for methods that transfer between search spaces (HyperBO+, MPHD): these methods
    learn from several domains. Two domains may differ in the number and meaning of their inputs.
    All tasks of one domain have the same inputs. Outcomes are maximized. Inputs lie in the unit
    cube, or ``input_transform`` maps the inputs to the unit cube.

    Args:
        source_data: The source tasks, in a sequence or as a mapping from task names; see
            ``as_datasets``.
        discrete_dims: Indices of the inputs that take only finitely many values; the remaining
            inputs are continuous.
        context: A ``d x s`` tensor: for each input, ``s`` numbers that describe the input. All
            domains have the same ``s``. By default, the features of ``default_context``.
        name: The domain's name, for messages.
        input_transform: A frozen transform of raw inputs to the unit cube, for instance
            ``Normalize(d, bounds=...)``.

    Raises:
        InputDataError: If the source data are invalid, or if the context is not a finite ``d x s``
            tensor.
        ValueError: If ``discrete_dims`` has an index out of range.

    Example:
        >>> import torch
        >>> X = torch.rand(5, 2, dtype=torch.double)
        >>> domain = Domain({"monday": (X, X.sum(-1, keepdim=True))}, discrete_dims=[1])
        >>> domain.dim, domain.task_names
        (2, ['monday'])
        >>> domain.context
        tensor([[0., 1., 1., 1.],
                [1., 0., 1., 1.]], dtype=torch.float64)
    """

    source_data: Sequence[SourceData] | Mapping[str, SourceData]
    discrete_dims: Iterable[int] = ()
    context: Tensor | None = None
    name: str | None = None
    input_transform: InputTransform | None = None
    datasets: list[SupervisedDataset] = field(init=False, repr=False)
    task_names: list[str] = field(init=False, repr=False)
    has_default_context: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        set_field, context = object.__setattr__, self.context
        set_field(self, "datasets", as_datasets(self.source_data))
        set_field(self, "task_names", task_names(self.source_data))
        frozen = frozen_input_transform(self.input_transform, self.datasets)
        set_field(self, "input_transform", frozen)
        set_field(self, "discrete_dims", _as_indices(self.dim, self.discrete_dims))
        X = self.datasets[0].X
        default = default_context(self.dim, self.discrete_dims, X.dtype)
        context = default if context is None else context
        _check_context(self.name, context, self.dim)
        set_field(self, "has_default_context", torch.equal(context.to(default), default))
        set_field(self, "context", context.to(X))

    @classmethod
    def from_dataframe(
        cls,
        frame: DataFrame,
        space: SearchSpace,
        outcome: str,
        task: str,
        context: Tensor | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Self:
        """Makes a domain from a search space and a table of old runs.

        Args:
            frame: The table, one row per run.
            space: The search space, which determines the discrete inputs. Each column of a one-hot
                encoding is an input.
            outcome: Column with the outcome.
            task: Column with the name of the task.
            context: A ``d x s`` tensor as in the constructor: one row for each of
                ``space.feature_names``.
            name: The domain's name.
            **options: Further options of the function ``from_dataframe``: ``goal``, ``failed``,
                ``noise``, ``missing``.

        Returns:
            The domain, with inputs in the unit cube and in double precision.

        Raises:
            InputDataError: If the table doesn't match the search space; see the function
                ``from_dataframe``.

        Example:
            >>> from pandas import DataFrame
            >>> from botorch_transfer.search_space import FloatParameter, IntegerParameter
            >>> runs = DataFrame({"day": ["mon", "tue"], "C": [1.0, 9.0], "depth": [1, 3]})
            >>> runs["score"] = [0.3, 0.2]
            >>> space = SearchSpace([FloatParameter("C", 0, 10), IntegerParameter("depth", 1, 5)])
            >>> Domain.from_dataframe(runs, space, outcome="score", task="day").discrete_dims
            (1,)
        """
        data = from_dataframe(frame, space, outcome, task, **options)
        discrete = [column for column, finite in enumerate(space.is_discrete) if finite]
        return cls(data, discrete_dims=discrete, context=context, name=name)

    @property
    def dim(self) -> int:
        """Number ``d`` of inputs."""
        return self.datasets[0].X.shape[-1]


def transform_outcomes(sources: Any, steps: Steps) -> Any:
    """Applies element-wise transforms to the outcomes of source data.

    Args:
        sources: The source tasks, in a form that ``as_datasets`` accepts; or a sequence of domains.
        steps: The transforms, each as a name and its arguments, such as ``["Power", 0.5]``.

    Returns:
        A mapping from task names to transformed data sets; for domains, a list of transformed
        domains.

    Raises:
        InputDataError: If a transformed outcome is not finite; the message names the task.
    """
    if isinstance(sources, Sequence) and any(isinstance(each, Domain) for each in sources):
        return [replace(d, source_data=transform_outcomes(d.source_data, steps)) for d in sources]
    datasets = dict(zip(task_names(sources), as_datasets(sources), strict=True))
    for name, data in datasets.items() if steps else ():
        outcomes = apply_steps(f"Task {name!r}", steps, data.Y, data.Yvar)
        datasets[name] = with_outcomes(data, *outcomes)
    return datasets


def _as_indices(dim: int, discrete_dims: Iterable[int]) -> tuple[int, ...]:
    """Sorts indices of inputs, and removes repeats; a negative index counts from the end."""
    try:
        return tuple(sorted({range(dim)[index] for index in discrete_dims}))
    except (IndexError, TypeError) as error:
        raise ValueError(
            f"discrete_dims is {discrete_dims!r}: give a list of input indices below {dim}."
        ) from error


def _check_context(name: str | None, context: Tensor, dim: int) -> None:
    is_matrix = isinstance(context, Tensor) and context.ndim == 2 and context.numel() > 0
    if not is_matrix or len(context) != dim or not bool(context.isfinite().all()):
        where = "The context" if name is None else f"The context of domain {name!r}"
        shape = tuple(context.shape) if isinstance(context, Tensor) else type(context).__name__
        raise InputDataError(
            f"{where} has shape or type {shape}: give a finite d x s tensor, a row for each input."
        )
