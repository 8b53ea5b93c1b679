"""What modules that hold source data keep, copy and load: tensors and the names of their tasks.

Read it for copies that share tensors, for what is selected of a batch, and for states that know of
which tasks they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from torch import Tensor
from torch.nn import Module, Parameter

M = TypeVar("M", bound=Module)


def shallow_copy(module: M, memo: dict[int, Module] | None = None) -> M:
    """Copies a tree of modules without its tensors.

    Moving the copy or loading into it leaves the original as it is.

    Args:
        module: The module.
        memo: The copies made so far by the ``id`` of their originals: a module that is registered
            twice is copied once.

    Returns:
        A module with the same tensors in registers of its own.
    """
    memo = {} if memo is None else memo
    if id(module) in memo:
        return cast(M, memo[id(module)])
    # Not copy(): two copies of a GPyTorch kernel would share the dictionary of their attributes.
    twin = type(module).__new__(type(module))
    twin.__dict__ = dict(module.__dict__)
    memo[id(module)] = twin
    twin._parameters = dict(module._parameters)
    twin._buffers = dict(module._buffers)
    twin._modules = {
        name: None if child is None else shallow_copy(child, memo)
        for name, child in module._modules.items()
    }
    return twin


def select_batch(module: M, name: str, index: Any) -> M:
    """Selects from the batch of a module with one parameter.

    Args:
        module: The module.
        name: The parameter's name; its last dimension is not of the batch.
        index: What to select from the batch, as an index of tensors.

    Returns:
        A copy with a parameter of its own.
    """
    index = index if isinstance(index, tuple) else (index,)
    twin, parameter = shallow_copy(module), module.get_parameter(name)
    selected = parameter.detach()[(*index, slice(None))].clone()
    twin._parameters[name] = Parameter(selected, parameter.requires_grad)
    return twin


def own_buffers(module: Module) -> None:
    """Replaces a module's buffers by copies of their own, before something is written into them.

    Args:
        module: A module that may share its buffers with a :func:`shallow_copy`.
    """
    for name, buffer in module._buffers.items():
        module._buffers[name] = None if buffer is None else buffer.clone()


class NamedState(Module):
    """Base class of modules whose ``state_dict`` keeps the names of the tasks that it is of.

    It keeps them in its metadata, as PyTorch keeps versions. A state of other tasks is refused,
    whose data would get wrong names. States without names load: those of earlier versions, and
    those that were made plain dictionaries. Names that only count, as tensors in a list get them,
    are none.
    """

    @property
    def _names_in_state(self) -> Sequence[str]:
        """The names."""
        return ()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None and self._names_in_state:
            metadata["names"] = list(self._names_in_state)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Tensor],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        pairs = zip(local_metadata.get("names", ()), self._names_in_state, strict=False)
        for number, (theirs, ours) in enumerate(pairs):
            counts = {f"{word}{number}" for word in ("", "source task ", "model ", "domain ")}
            if theirs != ours and not counts & {theirs, ours}:
                # PyTorch raises one error with all messages.
                error_msgs.append(
                    f"The state_dict is of {theirs!r} where this {type(self).__name__} has "
                    f"{ours!r}: load it into one of the same tasks in the same order."
                )
                return
        messages = missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *messages)
