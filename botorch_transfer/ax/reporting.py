"""The transfer report of an Ax study: what its models use of the history, and whether it helps.

It uses what is private to Ax: ``_generation_strategy`` of a ``Client``.
"""

from __future__ import annotations

import pandas as pd
from ax.api.client import Client
from ax.exceptions.core import UserInputError
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator

from botorch_transfer import report
from botorch_transfer.model import TransferModel


def transfer_report(client: Client, metric: str | None = None) -> pd.DataFrame:
    """Tabulates what the model of a metric uses of each old task, and whether it is borne out.

    The model is the one that chose the last trials; outcomes that came in later are not in it.

    Args:
        client: A client with a :func:`transfer_generation_strategy` that has chosen a trial.
        metric: The metric; it may be omitted if one metric only has a history.

    Returns:
        The table, see ``transfer_report`` of :class:`ScaMLGP`. For a metric to minimize, as for
        one to maximize, a helpful task is one that rises where the new one does.

    Raises:
        UserInputError: If no model has chosen a trial yet, there is no transfer model of the
            metric, or there are several and ``metric`` does not say which.
        ValueError: If the model has no posterior of each old task.

    Example:
        >>> from ax.api.configs import RangeParameterConfig
        >>> from botorch_transfer.ax import transfer_generation_strategy
        >>> runs = pd.DataFrame({"task": ["monday"] * 3, "C": [1.0, 10.0, 100.0]})
        >>> runs["loss"] = [0.5, 0.2, 0.4]
        >>> client = Client()
        >>> C = RangeParameterConfig("C", (0.1, 1000.0), parameter_type="float", scaling="log")
        >>> client.configure_experiment([C])
        >>> client.configure_optimization("-loss")
        >>> client.set_generation_strategy(transfer_generation_strategy(ScaMLGP, history=runs))
        >>> _ = client.complete_trial(client.attach_trial({"C": 9.0}), {"loss": 0.3})
        >>> _ = client.get_next_trials(1)
        >>> transfer_report(client).loc["all sources", "verdict"]
        'used, not yet tested'
    """
    strategy = client._maybe_generation_strategy
    adapter = None if strategy is None else strategy.adapter
    generator = getattr(adapter, "generator", None)
    if not isinstance(generator, BoTorchGenerator):
        raise UserInputError(
            "No transfer model has chosen a trial since the client was made or loaded: call "
            "get_next_trials() first."
        )
    surrogate = generator.surrogate
    fitted = getattr(surrogate.model, "models", [surrogate.model])
    models = {
        name: model
        for name, model in zip(surrogate.outcomes, fitted, strict=True)
        if isinstance(model, TransferModel)
    }
    if metric is None and len(models) == 1:
        (metric,) = models
    if metric not in models:
        raise UserInputError(
            f"There are transfer models of {sorted(models) or 'no metric'}, and metric is "
            f"{metric!r}: name one of them."
        )
    return report.transfer_report(models[metric])
