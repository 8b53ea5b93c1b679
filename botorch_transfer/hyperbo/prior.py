"""A GP whose mean, kernel and noise are pre-trained on source tasks: HyperBO, FSBO and ABLR.

``PretrainedPrior`` is the prior of :class:`~botorch_transfer.models.PretrainedGP`. Build it by a
preset or from your own mean and kernel. The presets are HyperBO [Wang2024hyperbo]_, FSBO
[Wistuba2021fsbo]_ and ABLR [Perrone2018ablr]_.

.. [Wang2024hyperbo]
    Z. Wang, G. E. Dahl, K. Swersky, C. Lee, Z. Nado, J. Gilmer, J. Snoek and Z. Ghahramani.
    Pre-trained Gaussian Processes for Bayesian Optimization. JMLR 25, 2024. arXiv:2109.08215.

.. [Wistuba2021fsbo]
    M. Wistuba and J. Grabocka. Few-Shot Bayesian Optimization with Deep Kernel Surrogates. ICLR
    2021. arXiv:2101.07667.

.. [Perrone2018ablr]
    V. Perrone, R. Jenatton, M. Seeger and C. Archambeau. Scalable Hyperparameter Transfer
    Learning. NeurIPS 2018.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, Literal, Self, cast

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean, Mean, ZeroMean
from torch import Tensor

from botorch_transfer.data import SourceData, as_datasets
from botorch_transfer.gp.state import freeze, thaw
from botorch_transfer.gp.tasks import (
    OutcomeScale,
    PaddedTasks,
    check_choice,
    outcome_scales,
    target_transform,
)
from botorch_transfer.hyperbo.features import (
    MIN_NOISE,
    FeatureKernel,
    FeatureMean,
    FeatureNetwork,
    GPParts,
    scaled_linear,
    scaled_stationary,
    spread,
    structure,
)
from botorch_transfer.hyperbo.fit import LearningCurve, Objective, PretrainingOptions, pretrain
from botorch_transfer.input_transforms import (
    frozen_input_transform,
    warn_of_data,
    warn_outside_unit_cube,
)
from botorch_transfer.outcome_transforms import OutcomeMoments
from botorch_transfer.prior import TransferPrior

#: Minimum number of source tasks for which ``fit_once`` holds out a quarter of the tasks.
_ENOUGH_TO_HOLD_OUT = 8

#: Raw outcomes cause a warning if the absolute value of their mean exceeds ``_FAR``, or if their
#: standard deviation lies outside ``(1 / _FAR, _FAR)``.
_FAR = 30.0


class PretrainedPrior(TransferPrior):
    r"""One GP for all tasks, pre-trained on the source tasks: the prior of [Wang2024hyperbo]_.

    The prior assumes that source and target tasks are draws of one GP. Mean, kernel and noise of
    the GP, including the weights of a network, are learned from the source tasks. A target is then
    predicted without further training. Use the prior with many source tasks, say ten or more, whose
    outcomes have a common scale. The cost at the target does not depend on the number of source
    tasks. A saved file contains the learned parameters, but no source observations.

    Build a prior by one of the four presets (:meth:`hyperbo`, :meth:`fsbo`, :meth:`ablr` and
    :meth:`stationary`), or pass your own mean and kernel to the constructor. Then call :meth:`fit`.
    An unfitted prior has the initial hyperparameters and does not standardize outcomes.

    Args:
        mean_module: The mean; it may share modules with the kernel.
        covar_module: The kernel.
        dim: The number of inputs ``d``.
        noise: The noise variance to start from, in the prior's units.

    Raises:
        ValueError: If ``dim`` is not positive, or if the noise variance is too small or infinite.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
        >>> prior = PretrainedPrior.hyperbo(d=2, hidden=(8,)).fit(history, steps=20)
        >>> prior.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([5])
    """

    counts: Tensor
    outcome_mean: Tensor
    outcome_spread: Tensor

    def __init__(
        self, mean_module: Mean, covar_module: Kernel, dim: int, noise: float = 1e-2
    ) -> None:
        super().__init__("raw")
        if dim < 1:
            raise ValueError(f"dim={dim} must be positive.")
        if not MIN_NOISE < noise < math.inf:
            raise ValueError(f"noise={noise} must be finite and greater than {MIN_NOISE}.")
        self.parts = GPParts(*deepcopy((mean_module, covar_module)), noise).eval()
        self.trainable = freeze(self.parts)
        self._dim = dim
        # The preset's name and arguments; None if the user gave mean and kernel.
        self._preset: dict[str, Any] | None = None
        self.register_buffer("counts", torch.zeros(2, dtype=torch.long))
        self.learning_curve = LearningCurve()
        self.register_buffer("outcome_mean", torch.zeros((), dtype=torch.double))
        self.register_buffer("outcome_spread", torch.ones((), dtype=torch.double))

    # ------------------------------------------------------------------------------- presets

    @classmethod
    def _on_features(
        cls, name: str, d: int, hidden: Sequence[int], kernel: str | None, noise: float, seed: int
    ) -> Self:
        """Builds an untrained prior with a stationary or linear kernel on a network's features."""
        network = FeatureNetwork(d, hidden, seed)
        arguments = {"hidden": [*hidden], "seed": seed}
        if kernel is None:
            base = scaled_linear(network.num_features)
        else:
            base = scaled_stationary(network.num_features, kernel)
            arguments["kernel"] = kernel
        mean = FeatureMean(network) if name == "hyperbo" else ZeroMean()
        prior = cls(mean, FeatureKernel(base, network), d, noise)
        prior._preset = {"name": name, "arguments": arguments}
        return prior

    @classmethod
    def hyperbo(
        cls,
        d: int,
        hidden: Sequence[int] = (32, 32),
        kernel: str = "matern52",
        noise: float = 1e-2,
        seed: int = 0,
    ) -> Self:
        """Builds HyperBO's prior: a linear mean and a kernel, both on a network's features.

        Args:
            d: The number of inputs.
            hidden: The widths of the network's layers; the last width is the number of features.
            kernel: The stationary kernel on the features.
            noise: The noise variance to start from.
            seed: The seed of the initial weights.

        Returns:
            The prior, not trained yet.

        Example:
            >>> PretrainedPrior.hyperbo(d=3).dim
            3
        """
        return cls._on_features("hyperbo", d, hidden, kernel, noise, seed)

    @classmethod
    def fsbo(
        cls,
        d: int,
        hidden: Sequence[int] = (32, 32),
        kernel: str = "matern52",
        noise: float = 1e-2,
        seed: int = 0,
    ) -> Self:
        """Builds FSBO's prior (few-shot BO): a zero mean, and a kernel on a network's features.

        Args:
            d: The number of inputs.
            hidden: The widths of the network's layers.
            kernel: The stationary kernel on the features.
            noise: The noise variance to start from.
            seed: The seed of the initial weights.

        Returns:
            The prior, not trained yet.

        Example:
            >>> prior = PretrainedPrior.fsbo(d=3)
        """
        return cls._on_features("fsbo", d, hidden, kernel, noise, seed)

    @classmethod
    def ablr(
        cls, d: int, hidden: Sequence[int] = (32, 32), noise: float = 0.3, seed: int = 0
    ) -> Self:
        """Builds ABLR's prior: Bayesian linear regression on a network's features.

        Args:
            d: The number of inputs.
            hidden: The widths of the network's layers.
            noise: The noise variance to start from. The default is large, because training from
                small noise ends in a poor optimum.
            seed: The seed of the initial weights.

        Returns:
            The prior, not trained yet.

        Example:
            >>> prior = PretrainedPrior.ablr(d=3)
        """
        return cls._on_features("ablr", d, hidden, None, noise, seed)

    @classmethod
    def stationary(
        cls,
        d: int,
        kernel: str = "matern52",
        mean: Literal["constant", "zero"] = "constant",
        noise: float = 1e-2,
    ) -> Self:
        """Builds a prior with a stationary kernel and without a network, for few source tasks.

        Args:
            d: The number of inputs.
            kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``, with a lengthscale
                for each input.
            mean: The mean function: a constant to learn, or zero.
            noise: The noise variance to start from.

        Returns:
            The prior, not trained yet.

        Raises:
            ValueError: If the kernel or the mean is unknown.

        Example:
            >>> prior = PretrainedPrior.stationary(d=3, kernel="rbf")
        """
        check_choice("mean", mean, Literal["constant", "zero"])
        mean_module = ConstantMean() if mean == "constant" else ZeroMean()
        prior = cls(mean_module, scaled_stationary(d, kernel, lengthscale=0.5), d, noise)
        prior._preset = {"name": "stationary", "arguments": {"kernel": kernel, "mean": mean}}
        return prior

    # ------------------------------------------------------------------------------ training

    def fit(
        self,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        objective: Objective = "nll",
        outcome_scale: OutcomeScale = "pooled",
        input_transform: InputTransform | None = None,
        **options: Any,
    ) -> Self:
        """Pre-trains mean, kernel and noise of an untrained prior.

        Args:
            source_data: The source tasks, a sequence or a mapping from names: each a
                ``SupervisedDataset`` or tensors ``X`` (``n_i x d``), ``Y`` (``n_i x 1``, to be
                maximized) and optionally ``Yvar`` (``n_i x 1``, known noise variances). Inputs must
                lie in the unit cube, or ``input_transform`` must map them to the unit cube.
            objective: ``"nll"``, for any data; ``"ekl"``, for tasks that were evaluated at the same
                inputs; or ``"nll+ekl"``. The empirical covariance of ``N`` tasks has at most rank
                ``N - 1``. If ``N`` tasks share more than ``N`` inputs, the EKL leaves part of the
                GP undetermined: use ``"nll"`` or ``"nll+ekl"`` instead.
            outcome_scale: How to standardize the outcomes. ``"pooled"``: all tasks together, which
                keeps the differences between the tasks' means. ``"per_task"``: each task by itself;
                choose it if the tasks' means and scales are not comparable. ``"raw"``: not at all;
                choose it if the outcomes are roughly standardized already.
            input_transform: A frozen transform of the inputs, for instance
                ``Normalize(d, bounds=...)``.
            **options: Further fields of :class:`~.pretraining.PretrainingOptions`, such as
                ``steps``, ``hold_out`` (early stopping) and ``seed``.

        Returns:
            This prior, trained, on the device of the data. If the run fails or is interrupted, the
            prior does not change.

        Raises:
            InputDataError: If the source data are invalid, have no matching inputs for the EKL, or
                have too few tasks for ``hold_out``.
            ModelFittingError: If the loss is not finite in many consecutive steps.
            ValueError: If an option is out of range, or this prior is trained already.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> history = [(X, X.sum(-1, keepdim=True)), (X, X[:, :1])]
            >>> prior = PretrainedPrior.stationary(2).fit(history, objective="ekl", steps=5)
            >>> prior.num_tasks
            2
        """
        if self.num_tasks > 0:
            raise ValueError(
                "This prior is trained already and cannot be trained again: build and fit a new "
                f"prior, for instance by {type(self).__name__}.hyperbo(d={self.dim})."
            )
        chosen = PretrainingOptions(objective=objective, **options)
        datasets = as_datasets(source_data)
        if datasets[0].X.shape[-1] != self.dim:
            raise InputDataError(
                f"The source tasks have {datasets[0].X.shape[-1]} inputs, but the prior was built "
                f"for {self.dim} inputs: build a prior with the source tasks' number of inputs."
            )
        transform = frozen_input_transform(input_transform, datasets)
        if chosen.tolerance is None and datasets[0].X.dtype == torch.float32:
            chosen = replace(chosen, tolerance=1e-6)
        tasks = PaddedTasks.from_datasets(datasets, transform).double()
        outcomes = tasks.Y[tasks.mask]
        tasks = tasks.standardize(*outcome_scales(tasks, outcome_scale))
        if self._preset is not None:  # the user's own modules may accept inputs of any range
            warn_outside_unit_cube(tasks.X, "the source tasks")
        if outcome_scale == "raw":
            _warn_of_raw_outcomes(outcomes)
        parts = self._thawed().double().to(tasks.X.device)
        curve = pretrain(parts, tasks, chosen)
        freeze(parts.eval())
        self.parts = parts
        self.to(outcomes.device)
        self._set_units(outcome_scale, transform)
        self.learning_curve = curve
        self.counts = torch.tensor([len(datasets), len(outcomes)], device=outcomes.device)
        self.outcome_mean, self.outcome_spread = outcomes.mean(), outcomes.std(correction=0)
        return self

    @classmethod
    def _content_and_options(
        cls, source_data: Any, options: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        datasets, options = super()._content_and_options(source_data, options)
        if len(datasets) >= _ENOUGH_TO_HOLD_OUT:
            options = {"hold_out": 0.25, **options}
        return datasets, options

    @classmethod
    def _pretrain(cls, source_data: Any, **options: Any) -> Self:
        dim = next(iter(source_data.values())).X.shape[-1]
        return cls.hyperbo(dim).fit(source_data, **options)

    # -------------------------------------------------------------------------------- the GP

    @property
    def num_tasks(self) -> int:
        """The number of source tasks."""
        return int(self.counts[0])

    @property
    def num_points(self) -> int:
        """The total number of evaluations in the source tasks."""
        return int(self.counts[1])

    @property
    def dim(self) -> int:
        """The number of input dimensions ``d``."""
        return self._dim

    @property
    def noise(self) -> Tensor:
        """The noise variance in the prior's units, a tensor without dimensions."""
        return self.parts.noise.squeeze(-1)

    def mean(self, X: Tensor) -> Tensor:
        """Evaluates the pre-trained mean, in the prior's units.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n`` tensor, differentiable in ``X``.
        """
        return self._thawed(fit=False).to(X).mean_module(self._transformed(X))

    def covariance(self, X: Tensor) -> Tensor:
        """Evaluates the pre-trained kernel, without noise.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n x n`` tensor, differentiable in ``X``.
        """
        return self._thawed(fit=False).to(X).covar_module(self._transformed(X)).to_dense()

    def gp(self, batch_shape: torch.Size, fit: bool) -> GPParts:
        """Copies the pre-trained mean, kernel and likelihood for a target model.

        Args:
            batch_shape: The batch shape of the model.
            fit: Whether a fit may change the parameters of the copy.

        Returns:
            The copy. Each model of a batch has its own parameters, with one exception: if ``fit``
            is false and the user passed mean and kernel to the prior, all models share this mean
            and kernel.
        """
        parts = self._thawed(fit)
        if batch_shape:
            own = parts if fit or self._preset is not None else parts.likelihood
            spread(own, batch_shape)
        return parts

    def _thawed(self, fit: bool = True) -> GPParts:
        parts = deepcopy(self.parts)
        thaw(parts, self.trainable, fit)
        return parts

    def _transformed(self, X: Tensor) -> Tensor:
        x = super()._transformed(X)
        if x.shape[-1] != self.dim:
            raise BotorchTensorDimensionError(
                f"X has {x.shape[-1]} columns, but the prior was built for {self.dim} inputs."
            )
        return x

    def typical_outcomes(self) -> tuple[Tensor, Tensor] | None:
        """Returns typical source outcomes and a task index for each outcome.

        The outcomes are evenly spaced within two standard deviations of the mean of all source
        outcomes. All task indices are zero. Returns ``None`` for an unfitted prior.
        """
        if self.num_tasks == 0:
            return None
        steps = torch.linspace(-2.0, 2.0, 40).to(self.outcome_mean)
        return self.outcome_mean + self.outcome_spread * steps, torch.zeros_like(steps).long()

    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """Builds the outcome transform that brings a target's outcomes into the prior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            ``None`` if the prior's units are raw; an unfitted prior has raw units. For ``"pooled"``
            units, a standardization by the mean and standard deviation of all source outcomes. For
            ``"per_task"`` units, a standardization by the mean and standard deviation of all source
            and target outcomes together.
        """
        moments = OutcomeMoments(self.num_points, self.outcome_mean, self.outcome_spread)
        return target_transform(self.outcome_scale, moments, batch_shape)

    def extra_repr(self) -> str:
        """Returns the description of the prior that ``print`` shows."""
        return (
            f"tasks={self.num_tasks}, points={self.num_points}, inputs={self.dim}, "
            f"outcome_scale={self.outcome_scale!r}"
        )

    # ----------------------------------------------------------------------- saving, loading

    def _arguments(self) -> dict[str, Any]:
        buffers = dict(self.named_buffers())
        return {
            "dim": self._dim,
            "preset": self._preset,
            "trainable": self.trainable,
            "structure": structure(self.parts),
            "learning_curve": vars(self.learning_curve),
            "units": [self.outcome_scale, self.input_transform, self.outcome_steps],
            "state": {n: t for n, t in buffers.items() if not n.startswith("input_transform.")},
        }

    @classmethod
    def _from_arguments(  # type: ignore[override]
        cls,
        arguments: dict[str, Any],
        mean_module: Mean | None = None,
        covar_module: Kernel | None = None,
    ) -> Self:
        dim, preset, state = arguments["dim"], arguments["preset"], arguments["state"]
        given: Any = [part for part in (mean_module, covar_module) if part is not None]
        if preset is not None:
            presets = {p.__name__: p for p in (cls.hyperbo, cls.fsbo, cls.ablr, cls.stationary)}
            prior = cast(Any, presets[preset["name"]])(dim, **preset["arguments"])
        elif len(given) == 2:
            prior = cls(given[0], given[1], dim)
        else:
            raise ValueError(
                "The saved prior has a mean and a kernel of your own, which the file does not "
                f"contain ({'; '.join(arguments['structure'])}): pass both to load(path, "
                "mean_module=..., covar_module=...)."
            )
        own = dict(prior.named_buffers())
        shapes = [{name: tensor.shape for name, tensor in part.items()} for part in (own, state)]
        is_equal = structure(prior.parts) == arguments["structure"] and shapes[0] == shapes[1]
        if not is_equal or (preset is not None and given):
            raise ValueError(
                "mean_module= and covar_module= differ from the saved mean and kernel, or have "
                "other parameters: build the same mean and kernel as for the saved prior. If the "
                "saved prior is a preset, leave out both arguments."
            )
        for name, tensor in state.items():
            own[name].copy_(tensor)
        outcome_scale, transform, prior.outcome_steps = arguments["units"]
        prior._set_units(outcome_scale, frozen_input_transform(transform))
        prior.trainable = arguments["trainable"]
        prior.learning_curve = LearningCurve(**arguments["learning_curve"])
        return prior


def _warn_of_raw_outcomes(outcomes: Tensor) -> None:
    """Warns if raw outcomes have a mean far from zero, or a standard deviation far from one."""
    mean, spread = float(outcomes.mean()), float(outcomes.std(correction=0))
    if abs(mean) > _FAR or not 1 / _FAR < spread < _FAR:
        warn_of_data(
            f"The raw outcomes have mean {mean:.3g} and standard deviation {spread:.3g}, but the "
            "optimizer needs outcomes of order one: standardize the outcomes, or leave out "
            "outcome_scale='raw'."
        )
