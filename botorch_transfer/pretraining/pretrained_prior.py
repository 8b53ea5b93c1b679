"""A GP whose mean, kernel and noise were pre-trained on many source tasks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from copy import deepcopy
from typing import Any, ClassVar, Literal, Self, get_args

import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer.data import SourceData, as_datasets, task_names
from botorch_transfer.outcome_transforms import PooledStandardize
from botorch_transfer.pretraining.gp_parts import GPParts, freeze, spread, thaw
from botorch_transfer.pretraining.gradient_fit import GradientFit, PretrainingOptions
from botorch_transfer.pretraining.input_transforms import frozen_input_transform
from botorch_transfer.pretraining.learning_curve import LearningCurve
from botorch_transfer.pretraining.memo import Memo, content_key
from botorch_transfer.pretraining.outcome_scale import OutcomeScale
from botorch_transfer.pretraining.presets import build_preset
from botorch_transfer.pretraining.prior import TransferPrior
from botorch_transfer.pretraining.training_tasks import Objective, TrainingTasks

# What says how to compute a result, not what it is.
_HOW = {"progress", "checkpoint", "checkpoint_every"}
_CURVE = "learning_curve."
# The modules of the user that `load` hands to what rebuilds a prior.
_given_modules: ContextVar[tuple[Mean | None, Kernel | None]] = ContextVar(
    "given_modules", default=(None, None)
)


class PretrainedPrior(TransferPrior):
    r"""One GP for all tasks, pre-trained on the source tasks: the prior of [Wang2024hyperbo]_.

    Source and target tasks are taken for draws of one GP; its mean, kernel and noise are learned
    from the source tasks, a network and all, and a target is then predicted without any further
    training. Use it with many source tasks that have the outcome's scale in common, say ten or
    more; its cost at the target does not depend on their number. A saved file holds what was
    learned, and no source observation.

    Build one by a preset, :meth:`hyperbo`, :meth:`fsbo`, :meth:`ablr` or :meth:`stationary`, or of
    a mean and a kernel of your own by the constructor; then call :meth:`fit`. Without, it is the
    GP as built, in raw units.

    Args:
        mean_module: The mean; may share modules with the kernel.
        covar_module: The kernel.
        dim: The number of inputs ``d``.
        noise: The noise variance to start from, in the prior's units.

    Example:
        >>> X = torch.rand(20, 2, dtype=torch.double)
        >>> history = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
        >>> prior = PretrainedPrior.hyperbo(d=2, hidden=(8,)).fit(history, steps=20)
        >>> prior.mean(torch.rand(5, 2, dtype=torch.double)).shape
        torch.Size([5])
    """

    _pretrained: ClassVar[Memo] = Memo(size=8)

    outcome_mean: Tensor
    outcome_spread: Tensor

    def __init__(
        self, mean_module: Mean, covar_module: Kernel, dim: int, noise: float = 1e-2
    ) -> None:
        super().__init__("raw")
        if dim < 1:
            raise ValueError(f"dim={dim} must be positive.")
        self.parts = GPParts(*deepcopy((mean_module, covar_module)), noise).eval()
        self.trainable = freeze(self.parts)
        self._dim = dim
        self._preset: dict[str, Any] | None = None
        self._noise = noise
        self.num_tasks = 0
        self.num_points = 0
        self.learning_curve = LearningCurve()
        self.register_buffer("outcome_mean", torch.zeros((), dtype=torch.double))
        self.register_buffer("outcome_spread", torch.ones((), dtype=torch.double))

    @classmethod
    def _of_preset(cls, name: str, noise: float, **arguments: Any) -> Self:
        prior = cls(*build_preset(name, arguments), dim=arguments["dim"], noise=noise)
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
        """HyperBO's mean and kernel, which read the same features of a network.

        Args:
            d: The number of inputs.
            hidden: The widths of the network's layers, the last one that of the features.
            kernel: The stationary kernel on the features.
            noise: The noise variance to start from.
            seed: The seed of the initial weights.

        Returns:
            The prior, yet to be trained.

        Example:
            >>> PretrainedPrior.hyperbo(d=3).dim
            3
        """
        return cls._of_preset("hyperbo", noise, dim=d, hidden=[*hidden], kernel=kernel, seed=seed)

    @classmethod
    def fsbo(
        cls,
        d: int,
        hidden: Sequence[int] = (32, 32),
        kernel: str = "matern52",
        noise: float = 1e-2,
        seed: int = 0,
    ) -> Self:
        """Few-shot Bayesian optimization: a zero mean, and a kernel on a network's features.

        Args:
            d: The number of inputs.
            hidden: The widths of the network's layers.
            kernel: The stationary kernel on the features.
            noise: The noise variance to start from.
            seed: The seed of the initial weights.

        Returns:
            The prior, yet to be trained.

        Example:
            >>> prior = PretrainedPrior.fsbo(d=3)
        """
        return cls._of_preset("fsbo", noise, dim=d, hidden=[*hidden], kernel=kernel, seed=seed)

    @classmethod
    def ablr(
        cls, d: int, hidden: Sequence[int] = (32, 32), noise: float = 1e-2, seed: int = 0
    ) -> Self:
        """Adaptive Bayesian linear regression: a zero mean, linear in a network's features.

        Args:
            d: The number of inputs.
            hidden: The widths of the network's layers.
            noise: The noise variance to start from.
            seed: The seed of the initial weights.

        Returns:
            The prior, yet to be trained.

        Example:
            >>> prior = PretrainedPrior.ablr(d=3)
        """
        return cls._of_preset("ablr", noise, dim=d, hidden=[*hidden], seed=seed)

    @classmethod
    def stationary(
        cls,
        d: int,
        kernel: str = "matern52",
        mean: Literal["constant", "zero"] = "constant",
        noise: float = 1e-2,
    ) -> Self:
        """An ordinary GP without a network: few parameters, for few source tasks.

        Args:
            d: The number of inputs.
            kernel: ``"rbf"``, ``"matern12"``, ``"matern32"`` or ``"matern52"``, with a lengthscale
                for each input.
            mean: The mean.
            noise: The noise variance to start from.

        Returns:
            The prior, yet to be trained.

        Raises:
            ValueError: If there is no such kernel or mean.

        Example:
            >>> prior = PretrainedPrior.stationary(d=3, kernel="rbf")
        """
        return cls._of_preset("stationary", noise, dim=d, kernel=kernel, mean=mean)

    def fit(
        self,
        source_data: Sequence[SourceData] | Mapping[str, SourceData],
        objective: Objective = "nll",
        nll_weight: float = 0.1,
        outcome_scale: OutcomeScale = "pooled",
        input_transform: InputTransform | None = None,
        validation_data: Sequence[SourceData] | Mapping[str, SourceData] | None = None,
        groups: Sequence[Sequence[int]] | None = None,
        tolerance: float | None = None,
        max_points: int = 1000,
        **options: Any,
    ) -> Self:
        """Pre-trains mean, kernel and noise, from their present values.

        Args:
            source_data: The source tasks, a sequence or a mapping from names: each a
                ``SupervisedDataset`` or tensors ``X`` (``n_i x d``), ``Y`` (``n_i x 1``, to be
                maximized) and maybe ``Yvar`` (``n_i x 1``, known noise variances). Inputs lie in
                the unit cube, or are raw and ``input_transform`` maps them there.
            objective: ``"nll"``, for any data; ``"ekl"``, for tasks that were evaluated at the same
                inputs; or ``"nll+ekl"``.
            nll_weight: The weight of the NLL in ``"nll+ekl"``.
            outcome_scale: Whether to standardize the outcomes of all tasks together
                (``"pooled"``), so that a task's level counts, each task's by itself
                (``"per_task"``), where levels and scales mean nothing, or not at all (``"raw"``).
            input_transform: A frozen transform of the inputs, for instance
                ``Normalize(d, bounds=...)``.
            validation_data: Further tasks; pre-training keeps the parameters under which their NLL
                was least, and stops early once it no longer falls.
            groups: For the EKL, sets of tasks by number whose common inputs make a group each; by
                default all matching inputs are found.
            tolerance: How far two values of one input may lie apart and still count as the same;
                1e-8 by default, 1e-6 in single precision.
            max_points: The most inputs of a group; of more, a random sample.
            **options: See :class:`~.gradient_fit.PretrainingOptions`: ``optimizer``, ``steps``,
                ``learning_rate``, ``decay``, ``batch_size``, ``task_batch_size``,
                ``validation_every``, ``patience``, ``seed``, ``progress``, ``checkpoint`` and
                ``checkpoint_every``.

        Returns:
            This prior, trained, on the device of the data. Should the run fail or be interrupted,
            it stays as it was.

        Raises:
            InputDataError: If the source data are unfit, or have no matching inputs for the EKL.
            ModelFittingError: If the loss cannot be evaluated, step after step.
            ValueError: If an option is out of range, or the checkpoint is of another run.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> history = [(X, X.sum(-1, keepdim=True)), (X, X[:, :1])]
            >>> prior = PretrainedPrior.stationary(2).fit(history, objective="ekl", steps=5)
            >>> prior.num_tasks
            2
        """
        chosen = PretrainingOptions(**options)
        transform = frozen_input_transform(input_transform)
        tasks = TrainingTasks.of(
            self._checked(source_data), outcome_scale, transform, objective, nll_weight
        )
        loss = tasks.loss(chosen, groups, tolerance, max_points)
        validation = None
        if validation_data is not None:
            validation = tasks.validation(self._checked(validation_data), transform)
        parts = self._thawed().to(tasks.device)
        key = content_key(
            tasks.content(),
            parts.state_dict(),
            self.trainable,
            groups,
            tolerance,
            max_points,
            None if validation is None else [validation.tasks.X, validation.tasks.Y],
            chosen,
        )
        curve = GradientFit(parts, loss, validation, chosen, key).run()
        freeze(parts.eval())
        self.parts = parts
        self.to(tasks.device)
        self._set_units(outcome_scale, transform)
        self.learning_curve = curve
        self.num_tasks, self.num_points = tasks.num_tasks, tasks.num_points
        self.outcome_mean, self.outcome_spread = tasks.outcome_mean, tasks.outcome_spread
        return self

    def _set_units(self, outcome_scale: OutcomeScale, transform: InputTransform | None) -> None:
        self.outcome_scale, self.input_transform = outcome_scale, transform
        index = get_args(OutcomeScale).index(outcome_scale)
        self.outcome_scale_index = torch.full_like(self.outcome_scale_index, index)

    def _checked(self, data: Sequence[SourceData] | Mapping[str, SourceData]) -> list[Any]:
        datasets = as_datasets(data)
        if datasets[0].X.shape[-1] != self.dim:
            raise InputDataError(
                f"The source tasks have {datasets[0].X.shape[-1]} inputs, but the prior was built "
                f"for {self.dim}."
            )
        return datasets

    @classmethod
    def fit_once(
        cls, source_data: Sequence[SourceData] | Mapping[str, SourceData], **kwargs: Any
    ) -> Self:
        """Pre-trains HyperBO's preset, or recalls the prior that the same content gave before.

        Args:
            source_data: The source tasks.
            **kwargs: The arguments of :meth:`fit`.

        Returns:
            The prior; treat it as immutable, others may hold it.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> history = [(X, X.sum(-1, keepdim=True))]
            >>> prior = PretrainedPrior.fit_once(history, steps=5)
            >>> prior is PretrainedPrior.fit_once(history, steps=5)
            True
        """
        datasets, names = as_datasets(source_data), task_names(source_data)
        what = {name: kwargs[name] for name in sorted(kwargs) if name not in _HOW}
        key = content_key(cls.__qualname__, datasets, names, what)

        return cls._pretrained.recall(
            key, lambda: cls.hyperbo(datasets[0].X.shape[-1]).fit(datasets, **kwargs)
        )

    # ------------------------------------------------------------------------- what it says

    @property
    def dim(self) -> int:
        """The number of input dimensions ``d``."""
        return self._dim

    @property
    def noise(self) -> Tensor:
        """The noise variance, in the prior's units, a tensor without dimensions."""
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
        """Evaluates the pre-trained kernel, noise left out.

        Args:
            X: A ``batch_shape x n x d`` tensor of inputs, before the input transform.

        Returns:
            A ``batch_shape x n x n`` tensor, differentiable in ``X``.
        """
        return self._thawed(fit=False).to(X).covar_module(self._transformed(X)).to_dense()

    def gp(self, batch_shape: torch.Size, fit: bool) -> GPParts:
        """Copies the GP, for a model.

        Args:
            batch_shape: The batch shape of the model.
            fit: Whether the copy's parameters are to be fitted.

        Returns:
            Mean, kernel and likelihood with parameters of their own. Each member of a batched
            model has its own; a frozen mean and kernel of the user's serve all members.
        """
        parts = self._thawed(fit)
        if batch_shape and (fit or self._preset is not None):
            spread(parts, batch_shape)
        elif batch_shape:
            spread(parts.likelihood, batch_shape)
        return parts

    def _thawed(self, fit: bool = True) -> GPParts:
        parts = deepcopy(self.parts)
        thaw(parts, self.trainable, fit)
        return parts

    def _transformed(self, X: Tensor) -> Tensor:
        return X if self.input_transform is None else self.input_transform(X)

    def default_outcome_transform(self, batch_shape: torch.Size) -> OutcomeTransform | None:
        """The outcome transform that brings a target's outcomes into the prior's units.

        Args:
            batch_shape: The batch shape of the target model.

        Returns:
            ``None`` if the prior speaks in raw units, as an untrained one does. Otherwise a
            standardization by the outcomes of the source tasks, and of the target too if each
            source task was standardized by itself.
        """
        if self.outcome_scale == "raw":
            return None
        return PooledStandardize.from_moments(
            self.num_points,
            self.outcome_mean,
            self.outcome_spread,
            include_target=self.outcome_scale == "per_task",
            batch_shape=batch_shape,
        )

    def extra_repr(self) -> str:
        """What ``print`` shows of the prior."""
        return (
            f"tasks={self.num_tasks}, points={self.num_points}, inputs={self.dim}, "
            f"outcome_scale={self.outcome_scale!r}"
        )

    # ------------------------------------------------------------------------------- files

    def _config(self) -> dict[str, Any]:
        return {
            "dim": self._dim,
            "preset": self._preset,
            "noise": self._noise,
            "trainable": self.trainable,
            "modules": self._module_names(),
            "num_tasks": self.num_tasks,
            "num_points": self.num_points,
        }

    def _module_names(self) -> list[str]:
        modules = (self.parts.mean_module, self.parts.covar_module)
        return [type(module).__qualname__ for module in modules]

    def _tensors(self) -> dict[str, Tensor]:
        # Copies: tied tensors share memory, which the file's format does not allow.
        state = {name: tensor.clone() for name, tensor in self.named_buffers()}
        state = {n: t for n, t in state.items() if not n.startswith("input_transform.")}
        curve = self.learning_curve.tensors()
        return state | {f"{_CURVE}{name}": tensor for name, tensor in curve.items()}

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        device: torch.device | str | None = None,
        input_transform: InputTransform | None = None,
        mean_module: Mean | None = None,
        covar_module: Kernel | None = None,
    ) -> Self:
        """Loads a prior that :meth:`save` wrote. Nothing is ever unpickled.

        Args:
            path: The file.
            device: Where to put the prior; the CPU if omitted.
            input_transform: The prior's input transform, needed only where it is none of BoTorch's
                ``Normalize``, which the file holds.
            mean_module: The mean of a prior that was built of the user's own modules; its
                parameters are read from the file. Modules that mean and kernel share must be
                shared again.
            covar_module: Its kernel.

        Returns:
            The prior.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, is no prior, holds another class or an unknown
                version, or if modules are missing, of another structure, or not needed.

        Example:
            >>> X = torch.rand(20, 2, dtype=torch.double)
            >>> prior = PretrainedPrior.ablr(2).fit([(X, X.sum(-1, keepdim=True))], steps=5)
            >>> prior.save("pretrained.safetensors")
            >>> loaded = PretrainedPrior.load("pretrained.safetensors")
            >>> torch.equal(loaded.noise, prior.noise)
            True
        """
        token = _given_modules.set((mean_module, covar_module))
        try:
            return super().load(path, device, input_transform)
        finally:
            _given_modules.reset(token)

    @classmethod
    def _restore(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        input_transform: InputTransform | None,
    ) -> Self:
        prior = cls._untrained(config, *_given_modules.get())
        prior._set_units(config["outcome_scale"], input_transform)
        prior.num_tasks, prior.num_points = config["num_tasks"], config["num_points"]
        own = dict(prior.named_buffers())
        curve = {n.removeprefix(_CURVE): t for n, t in tensors.items() if n.startswith(_CURVE)}
        state = {name: tensor for name, tensor in tensors.items() if not name.startswith(_CURVE)}
        expected = {n: t.shape for n, t in own.items() if not n.startswith("input_transform.")}
        if expected != {name: tensor.shape for name, tensor in state.items()}:
            raise ValueError(
                "The given mean_module and covar_module have other parameters than the saved ones: "
                "build them as they were built before."
            )
        for name, tensor in state.items():
            own[name].copy_(tensor)
        prior.trainable = dict(config["trainable"])
        prior.learning_curve = LearningCurve.from_tensors(curve)
        return prior

    @classmethod
    def _untrained(
        cls, config: Mapping[str, Any], mean_module: Mean | None, covar_module: Kernel | None
    ) -> Self:
        preset, given = config["preset"], (mean_module, covar_module)
        if preset is not None:
            if given != (None, None):
                raise ValueError(
                    f"The saved prior is the preset {preset['name']!r}: leave out mean_module and "
                    "covar_module."
                )
            return cls._of_preset(preset["name"], config["noise"], **preset["arguments"])
        names = [type(module).__qualname__ for module in given]
        if mean_module is None or covar_module is None or names != config["modules"]:
            mean, kernel = config["modules"]
            raise ValueError(
                f"The saved prior has the mean {mean} and the kernel {kernel}, which its file does "
                "not hold: hand them over by load(path, mean_module=..., covar_module=...)."
            )
        return cls(mean_module, covar_module, config["dim"], config["noise"])
