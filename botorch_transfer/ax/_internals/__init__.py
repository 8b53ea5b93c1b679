"""Everything of Ax that is not its public interface, in one package.

Ax has no public way to give an adapter further data, to make a generator work without any, or to
say how a model class is constructed. What this package overrides or registers for that is here and
nowhere else; its tests fail should Ax change it.
"""

from botorch_transfer.ax._internals.adapter import TransferAdapter
from botorch_transfer.ax._internals.auxiliary_adapter import AuxiliaryTransferAdapter
from botorch_transfer.ax._internals.clients import experiment_of, save_again, search_space_of
from botorch_transfer.ax._internals.registration import (
    TransferGenerators,
    register,
    transfer_inputs_for_ax,
)

__all__ = [
    "AuxiliaryTransferAdapter",
    "TransferAdapter",
    "TransferGenerators",
    "experiment_of",
    "register",
    "save_again",
    "search_space_of",
    "transfer_inputs_for_ax",
]
