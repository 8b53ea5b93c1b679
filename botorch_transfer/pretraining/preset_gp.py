"""A frozen GP that can be built by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from botorch_transfer.pretraining.frozen_gp import FrozenGP
from botorch_transfer.pretraining.presets import build_preset


class PresetGP(FrozenGP):
    """A :class:`~.frozen_gp.FrozenGP` with a constructor for each preset."""

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
        cls, d: int, hidden: Sequence[int] = (32, 32), noise: float = 0.3, seed: int = 0
    ) -> Self:
        """Adaptive Bayesian linear regression: a zero mean, linear in a network's features.

        Args:
            d: The number of inputs.
            hidden: The widths of the network's layers.
            noise: The noise variance to start from: so much that it holds what features yet to be
                learned cannot explain. With little noise, training ends in a poor optimum.
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
