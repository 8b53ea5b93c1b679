"""State of modules that hold source data: buffers, copies, loading and caches.

Read this for copies that share tensors, for what is selected of a batch, for parameters that are
frozen to buffers, for states that know of which tasks they are, and for the cache of what is
computed from source data: a model asks for the same source quantities at its training inputs at
every step of a fit and at every prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import Module, Parameter

C = TypeVar("C")
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


def select_batch(module: M, index: Any) -> M:
    """Selects from the batch of a module.

    Args:
        module: The module; the last dimension of its parameters is not of the batch.
        index: What to select from the batch, as an index of tensors.

    Returns:
        A copy with parameters of its own.
    """
    index = index if isinstance(index, tuple) else (index,)
    twin = shallow_copy(module)
    for name, parameter in module.named_parameters(recurse=False):
        selected = parameter.detach()[(*index, slice(None))].clone()
        twin._parameters[name] = Parameter(selected, parameter.requires_grad)
    return twin


def freeze(module: Module) -> dict[str, bool]:
    """Turns a module's parameters into buffers, so that nothing is fitted and views can share them.

    Args:
        module: The module, changed in place.

    Returns:
        The names of the former parameters, and whether each was to be fitted. A parameter of a
        module that is registered twice is listed once.
    """
    trainable = {}
    detached: dict[int, Tensor] = {}  # tied parameters stay tied
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    for name, owner, leaf in _owners(module, names):
        parameter = owner._parameters.pop(leaf, None)
        if parameter is not None:
            trainable[name] = parameter.requires_grad
            owner._buffers[leaf] = detached.setdefault(id(parameter), parameter.detach())
    return trainable


def thaw(module: Module, trainable: dict[str, bool], fit: bool = True) -> None:
    """Turns buffers back into parameters.

    Args:
        module: The module, changed in place.
        trainable: The return value of :func:`freeze`.
        fit: Whether the parameters that were to be fitted are to be fitted again.
    """
    tied: dict[int, Parameter] = {}
    for name, owner, leaf in _owners(module, trainable):
        buffer = owner._buffers.pop(leaf)
        assert buffer is not None
        parameter = tied.setdefault(id(buffer), Parameter(buffer, fit and trainable[name]))
        owner._parameters[leaf] = parameter


def _owners(module: Module, names: Iterable[str]) -> Iterator[tuple[str, Module, str]]:
    for name in names:
        path, _, leaf = name.rpartition(".")
        yield name, module.get_submodule(path), leaf


def own_buffers(module: Module) -> None:
    """Replaces a module's buffers by copies of their own, before something is written into them.

    Args:
        module: A module that may share its buffers with a :func:`shallow_copy`.
    """
    for name, buffer in module._buffers.items():
        module._buffers[name] = None if buffer is None else buffer.clone()


SAVABLE: dict[str, type] = {}
"""Classes whose objects a prior's file may hold, by name."""


def savable(cls: type[C]) -> type[C]:
    """Registers a class whose objects a prior's file may hold, by the constructor's arguments.

    Args:
        cls: The class. Its objects have an attribute for each argument of the constructor.

    Returns:
        The class.
    """
    SAVABLE[cls.__name__] = cls
    return cls


class NamedState(Module):
    """Base class of modules whose ``state_dict`` names its data; a state of other data is refused.

    It keeps the names of tasks in its metadata, as PyTorch keeps versions: the data of other tasks
    would get wrong names. States without names load: states of earlier versions, and plain
    dictionaries. Names that only count, as tensors in a list get them, are none.
    """

    _facts: ClassVar[Sequence[tuple[str, Sequence[str]]]] = ()
    """Buffers that have to be equal in a state that is loaded, by name, and the words that they
    index; none for other values."""

    task_names: Sequence[str] = ()
    """The tasks (of a hyperprior, the search spaces) that the buffers are about, in their order.
    They are kept in the state, and one that is loaded has to agree in them."""

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None and self.task_names:
            metadata["names"] = list(self.task_names)

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
        pairs = zip(local_metadata.get("names", ()), self.task_names, strict=False)
        for number, (theirs, ours) in enumerate(pairs):
            counts = {f"{word}{number}" for word in ("", "source task ", "model ", "domain ")}
            if theirs != ours and not counts & {theirs, ours}:
                # PyTorch raises one error with all messages.
                error_msgs.append(
                    f"The state_dict is of {theirs!r} where this {type(self).__name__} has "
                    f"{ours!r}: load it into one of the same tasks in the same order."
                )
                return
        for name, words in self._facts:
            ours = getattr(self, name)
            theirs = state_dict.get(f"{prefix}{name}", ours)
            if ours.tolist() != theirs.tolist():
                said, own = (words[int(v)] if words else v.tolist() for v in (theirs, ours))
                raise ValueError(
                    f"The state_dict is of the {name.removesuffix('_index')} {said!r}, and this "
                    f"{type(self).__name__} has {own!r}."
                )
        # Copies and views share their tensors: new ones are loaded into, not those.
        for module in self.modules():
            own_buffers(module)
        messages = missing_keys, unexpected_keys, error_msgs
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, *messages)


class DoubleState(NamedState):
    """Base class of modules whose buffers stay in double precision wherever the model goes.

    Noise-free data make the factors so ill-conditioned that single precision loses the answer.
    """

    def register(self, **tensors: Tensor) -> None:
        """Registers tensors as buffers; floating-point ones in double precision."""
        for name, tensor in tensors.items():
            tensor = tensor.detach()
            self.register_buffer(name, tensor.double() if tensor.is_floating_point() else tensor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def move(tensor: Tensor) -> Tensor:
            return tensor.to(fn(tensor).device) if tensor.is_floating_point() else fn(tensor)

        return super()._apply(move, recurse)


T = TypeVar("T")


def collapse_batch(x: Tensor) -> Tensor:
    """Drops the batch dimensions of inputs that are the same in every batch.

    Args:
        x: A ``batch_shape x n x d`` tensor of inputs.

    Returns:
        An ``n x d`` tensor if all batches hold the same inputs, else ``x``.
    """
    if x.dim() == 2 or x.numel() == 0:
        return x
    first = x[(0,) * (x.dim() - 2)]
    return first if bool((x == first).all()) else x


def same_inputs(x1: Tensor, x2: Tensor) -> bool:
    """Returns whether two tensors of inputs are one, for values and gradients alike."""
    if x1 is x2:
        return True
    has_graph = x1.requires_grad or x2.requires_grad
    return not has_graph and x1.shape == x2.shape and torch.equal(x1, x2)


@dataclass(frozen=True)
class _Memory:
    state: tuple[Tensor, ...] = ()
    version: tuple[tuple[int, int], ...] = ()
    entries: tuple[tuple[Tensor, Any], ...] = ()


class Cache:
    """Remembers the values of one function, without their graph, at the inputs used last.

    Inputs are compared by value, because GPyTorch copies and expands them on the way. The
    function's state (all other tensors it uses) is compared by identity: when a tensor of the state
    is replaced or changed in place, every value is forgotten. Inputs that require a gradient are
    neither remembered nor looked up. Deep copies start with what is remembered, pickles empty.

    Args:
        size: The number of inputs to remember.
        max_elements: The number of elements above which a tensor is not worth its memory.

    Example:
        >>> cache = Cache()
        >>> x, state = torch.rand(3, 2), torch.ones(1)
        >>> cache(torch.square, x, state) is cache(torch.square, x, state)
        True
    """

    def __init__(self, size: int = 2, max_elements: float = 2**22) -> None:
        self._size = size
        self._max_elements = max_elements
        self._memory = _Memory()

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        # Nothing writes into what is remembered, so copies share it.
        twin = Cache(self._size, self._max_elements)
        twin._memory = self._memory
        return twin

    def content(self) -> tuple[Any, ...]:
        """Nothing: caches are equal, whatever they remember."""
        return ()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_memory": _Memory()}

    def __call__(self, function: Callable[[Tensor], T], x: Tensor, *state: Tensor) -> T:
        """Evaluates the function, or recalls its value.

        Args:
            function: What to evaluate.
            x: A tensor of any shape: its input.
            *state: Tensors that the function depends on, too.

        Returns:
            ``function(x)``.
        """
        if x.requires_grad:
            return function(x)
        # Inference tensors have no version counter; they are assumed unchanged.
        version = tuple((id(t), 0 if t.is_inference() else t._version) for t in state)
        memory = self._memory
        if memory.version != version:
            memory = _Memory(state, version)
        found = next((entry for entry in memory.entries if _equal(entry[0], x)), None)
        if found is None:
            # Tensors made in inference mode could not enter a later fit.
            with torch.inference_mode(False), torch.no_grad():
                found = x.clone(), function(x)
            if isinstance(found[1], Tensor) and found[1].numel() > self._max_elements:
                return found[1]
        # The value that was used longest ago may be forgotten.
        entries = (*(entry for entry in memory.entries if entry is not found), found)
        # Replaced as a whole: another thread sees the old memory or the new one.
        self._memory = replace(memory, entries=entries[-self._size :])
        return found[1]


def _equal(first: Tensor, second: Tensor) -> bool:
    """Returns whether two tensors have the same type and the same values."""
    same_kind = first.dtype is second.dtype and first.device == second.device
    return same_kind and torch.equal(first, second)
