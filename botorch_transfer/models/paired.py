"""A GP that takes another model of the same target data along."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from botorch_transfer.models.loss_terms import LogLikelihoodTerm
from botorch_transfer.models.target import TargetGP

_LIKELIHOOD_TERM = "transfer_log_likelihood"


class PairedGP(TargetGP):
    """A plain GP on the target's data, and a transfer model on the same.

    As an exact GP it is the plain one; whatever calls it in evaluation mode gets what the subclass
    makes of both. This class sees to it that both always have the same data, and that a fit is one
    of both. Subclasses set ``transfer`` after this constructor, whose arguments are
    :class:`~.target.TargetGP`'s.
    """

    transfer: TargetGP

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Takes the transfer model out for a while: what is left is the plain GP."""
        transfer = self._modules.pop("transfer", None)
        try:
            yield
        finally:
            if transfer is not None:
                self._modules["transfer"] = transfer

    @property
    def _is_alone(self) -> bool:
        return "transfer" not in self._modules

    def plain(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates the plain GP at transformed inputs, in the model's own units.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.
            **kwargs: Handed to GPyTorch.

        Returns:
            The plain GP's posterior; its prior in training mode.
        """
        return super().__call__(X, **kwargs)

    def __call__(self, *args: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Evaluates what is made of both models; in training mode the plain GP's prior."""
        if self._is_alone:
            return super().__call__(*args, **kwargs)
        if self.training:
            self._set_likelihood_term(self._log_likelihood(self.transfer(*args, **kwargs)))
            return super().__call__(*args, **kwargs)
        return self._combined(*args, **kwargs)

    @abstractmethod
    def _combined(self, X: Tensor, **kwargs: Any) -> MultivariateNormal:
        """Makes one posterior of both models at transformed ``batch_shape x q x d`` inputs."""

    # --------------------------------------------------------------------------------------- fit

    def custom_fit(
        self, mll: ExactMarginalLogLikelihood, *args: Any, **kwargs: Any
    ) -> ExactMarginalLogLikelihood:
        """Fits both models; ``fit_gpytorch_mll`` calls this.

        Args:
            mll: The marginal log likelihood of this model.
            *args: See :meth:`TargetGP.custom_fit`.
            **kwargs: See :meth:`TargetGP.custom_fit`.

        Returns:
            The marginal log likelihood in evaluation mode.
        """
        transfer = self.transfer
        transfer.custom_fit(
            ExactMarginalLogLikelihood(transfer.likelihood, transfer), *args, **kwargs
        )
        with self._alone():
            super().custom_fit(mll, *args, **kwargs)
        return mll.eval()

    def _log_likelihood(self, prior: MultivariateNormal) -> Tensor:
        """The transfer model's log marginal likelihood, in training mode."""
        marginal = self.transfer.likelihood(prior, *self.transfer.train_inputs)
        return marginal.log_prob(self.transfer.train_targets)

    def _set_likelihood_term(self, value: Tensor | None) -> None:
        terms: Any = self._added_loss_terms
        terms[_LIKELIHOOD_TERM] = None if value is None else LogLikelihoodTerm(value)

    def train(self, mode: bool = True) -> Self:
        """Sets the mode.

        Args:
            mode: Whether to train.

        Returns:
            The model.
        """
        if not mode:
            self._set_likelihood_term(None)
        return super().train(mode)

    # -------------------------------------------------------------------------------- data, state

    def get_fantasy_model(
        self, inputs: Tensor | list[Tensor], targets: Tensor, **kwargs: Any
    ) -> Self:
        """Conditions both models on further points; all else stays as it is.

        Args:
            inputs: A ``batch_shape x q x d`` tensor of transformed inputs.
            targets: A ``[num_fantasies x] batch_shape x q`` tensor of transformed outcomes.
            **kwargs: ``noise``, the known noise variances of the new points.

        Returns:
            A model with these points among its data.
        """
        X = inputs[0] if isinstance(inputs, list) else inputs
        for model in (self.transfer, self.plain):
            model(X)  # what is shared by all predictions has to be there already
        with self._alone():
            fantasies = super().get_fantasy_model(inputs, targets, **kwargs)
        fantasies.transfer = self.transfer.get_fantasy_model(inputs, targets, **kwargs)
        return fantasies

    # BoTorch's own classes disagree on the signature.
    def condition_on_observations(  # type: ignore[override]
        self, X: Tensor, Y: Tensor, **kwargs: Any
    ) -> Self:
        """Conditions both models on further points; all else stays as it is.

        Args:
            X: A ``batch_shape x q x d`` tensor of inputs.
            Y: A ``[num_fantasies x] batch_shape x q x 1`` tensor of outcomes.
            **kwargs: ``noise``, the known noise variances of the new points, like ``Y``.

        Returns:
            A model with these points among its data.
        """
        model: Any = super().condition_on_observations(X, Y, **kwargs)
        model.transfer._original_train_inputs = model._original_train_inputs
        return model

    def set_train_data(
        self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True
    ) -> None:
        """Replaces the data of both models.

        Args:
            inputs: The inputs.
            targets: The outcomes, transformed.
            strict: Whether shapes must stay as they are.
        """
        super().set_train_data(inputs, targets, strict)
        if not self._is_alone:
            transfer: Any = self.transfer
            transfer.set_train_data(inputs, targets, strict)

    def _set_transformed_inputs(self) -> None:
        with self._alone():  # the transfer model transforms its own
            super()._set_transformed_inputs()

    def _revert_to_original_inputs(self) -> None:
        with self._alone():
            super()._revert_to_original_inputs()

    def _restore_targets_and_noise(self, Y: Tensor, Yvar: Tensor | None, strict: bool) -> None:
        super()._restore_targets_and_noise(Y, Yvar, strict)
        self.transfer._restore_targets_and_noise(Y, Yvar, strict)
