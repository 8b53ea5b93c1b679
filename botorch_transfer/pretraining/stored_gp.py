"""A frozen GP in a file: the preset that it was, or the user's own modules, handed over again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

import torch
from botorch.models.transforms.input import InputTransform
from gpytorch.kernels import Kernel
from gpytorch.means import Mean
from torch import Tensor

from botorch_transfer.pretraining.gp_parts import structure
from botorch_transfer.pretraining.learning_curve import LearningCurve
from botorch_transfer.pretraining.preset_gp import PresetGP

_CURVE = "learning_curve."


class StoredGP(PresetGP):
    """A :class:`~.frozen_gp.FrozenGP` that can be saved and loaded."""

    def _config(self) -> dict[str, Any]:
        return {
            "dim": self._dim,
            "preset": self._preset,
            "noise": self._noise,
            "trainable": self.trainable,
            "modules": self._module_names(),
            "structure": structure(self.parts),
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
        saved = cls._read(path, device, input_transform)
        return cls._restore(*saved, mean_module, covar_module).to(device)

    @classmethod
    def _restore(
        cls,
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        input_transform: InputTransform | None,
        mean_module: Mean | None = None,
        covar_module: Kernel | None = None,
    ) -> Self:
        prior = cls._untrained(config, mean_module, covar_module)
        prior._set_units(config["outcome_scale"], input_transform)
        own = dict(prior.named_buffers())
        curve = {n.removeprefix(_CURVE): t for n, t in tensors.items() if n.startswith(_CURVE)}
        state = {name: tensor for name, tensor in tensors.items() if not name.startswith(_CURVE)}
        expected = {n: t.shape for n, t in own.items() if not n.startswith("input_transform.")}
        if expected != {name: tensor.shape for name, tensor in state.items()}:
            raise ValueError(
                "The given mean_module and covar_module have other parameters than the saved ones: "
                "build them as they were built before."
            )
        if config["preset"] is None and structure(prior.parts) != config["structure"]:
            raise ValueError(
                "The given mean_module and covar_module are not of the kind of the saved ones: "
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
