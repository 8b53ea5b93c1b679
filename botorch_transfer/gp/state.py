"""State of modules that hold source data: buffers, copies, loading and caches.

The functions copy PyTorch modules but not their tensors, select members of a batch, and turn
parameters into buffers. :class:`NamedState` stores task names in a ``state_dict``, and checks the
names when the ``state_dict`` is loaded. :class:`Cache` stores values that are computed from source
data: each step of a fit and each prediction needs the same values at the model's training inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeVar, cast

import torch
from torch import Tensor
from torch.nn import Module, Parameter

C = TypeVar("C")
M = TypeVar("M", bound=Module)


def shallow_copy(module: M) -> M:
    """Copies a module and its submodules, but not their tensors.

    Moving the copy to a device gives the copy new buffers; the original keeps its buffers. If the
    module is a :class:`NamedState`, loading a ``state_dict`` into the copy also gives the copy new
    buffers. Parameters stay shared in both cases, so the original's parameters also change.

    Args:
        module: The module. A submodule that is registered twice is copied once.

    Returns:
        A module that shares the tensors but has its own parameter and buffer dictionaries.
    """
    twins: dict[Module | None, Any] = {}
    for part in module.modules():
        # Not copy(): copies of a GPyTorch kernel would share the dictionary of their attributes.
        twin = twins[part] = type(part).__new__(type(part))
        twin.__dict__ = dict(part.__dict__)
        twin._parameters, twin._buffers = dict(part._parameters), dict(part._buffers)
    for twin in twins.values():
        twin._modules = {name: twins.get(child) for name, child in twin._modules.items()}
    return cast(M, twins[module])


def select_batch(module: M, index: Any) -> M:
    """Returns a copy of a module with selected elements of its batch dimensions.

    Args:
        module: The module. All dimensions of a parameter except the last are batch dimensions.
        index: An index into the batch dimensions, as for tensors.

    Returns:
        A copy of the module with new, indexed parameters.
    """
    index = index if isinstance(index, tuple) else (index,)
    twin = shallow_copy(module)
    for name, parameter in module.named_parameters(recurse=False):
        selected = parameter.detach()[(*index, slice(None))].clone()
        twin._parameters[name] = Parameter(selected, parameter.requires_grad)
    return twin


def freeze(module: Module) -> dict[str, bool]:
    """Turns a module's parameters into buffers, which are not fitted and can be shared.

    Args:
        module: The module, changed in place.

    Returns:
        A mapping from the name of each former parameter to a boolean: whether the parameter
        required a gradient. If a submodule has two names, only the first name is used.
    """
    trainable = {}
    detached: dict[int, Tensor] = {}  # tied parameters stay tied
    names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
    for name, owner, leaf in _owners(module, names):
        if (parameter := owner._parameters.pop(leaf, None)) is not None:
            trainable[name] = parameter.requires_grad
            owner._buffers[leaf] = detached.setdefault(id(parameter), parameter.detach())
    return trainable


def thaw(module: Module, trainable: dict[str, bool], fit: bool = True) -> None:
    """Reverses :func:`freeze`: turns the buffers of former parameters into parameters again.

    Args:
        module: The module, changed in place.
        trainable: The return value of :func:`freeze`.
        fit: Whether parameters require a gradient if they did before :func:`freeze`. If false, no
            parameter requires a gradient.
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


#: Classes whose instances may be stored in the file of a saved prior, by class name.
SAVABLE: dict[str, type] = {}


def savable(cls: type[C]) -> type[C]:
    """Registers a class whose instances may be stored in the file of a saved prior.

    The file stores the arguments of the instance's constructor.

    Args:
        cls: The class. Each argument of its constructor is also an attribute of its instances.

    Returns:
        The class.
    """
    SAVABLE[cls.__name__] = cls
    return cls


class NamedState(Module):
    """Base class of modules that store task names in the ``state_dict`` and check them on loading.

    The names are stored in the metadata of the ``state_dict``, like PyTorch's version numbers. If
    the names in the ``state_dict`` differ from the module's names, loading raises an error.
    Without this check, the loaded data could get wrong names. A ``state_dict`` without names, such
    as a plain dictionary or the ``state_dict`` of an earlier version, is not checked. Default names
    such as "source task 0" are not checked either.
    """

    #: Buffers that a loaded ``state_dict`` must not change: pairs of a buffer's name and a list of
    #: labels. If the list is not empty, the buffer is an index into the list, and error messages
    #: contain the label.
    _facts: ClassVar[Sequence[tuple[str, Sequence[str]]]] = ()

    #: The names of the tasks whose data are in the buffers, in order. In a ``Hyperprior``, each
    #: task is a search space.
    task_names: Sequence[str] = ()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None and self.task_names:
            metadata["names"] = list(self.task_names)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, metadata: dict[str, Any], *args: Any
    ) -> None:
        pairs = zip(metadata.get("names", ()), self.task_names, strict=False)
        for number, (theirs, ours) in enumerate(pairs):
            counts = {f"{word}{number}" for word in ("", "source task ", "model ", "domain ")}
            if theirs != ours and not counts & {theirs, ours}:
                raise RuntimeError(  # PyTorch's error for a state_dict that does not match
                    f"The state_dict has the task {theirs!r}, but this {type(self).__name__} has "
                    f"the task {ours!r} at the same position: load the state_dict into an object "
                    "with the same tasks in the same order."
                )
        for name, words in self._facts:
            ours = getattr(self, name)
            theirs = state_dict.get(f"{prefix}{name}", ours)
            if ours.tolist() != theirs.tolist():
                said, own = (words[int(v)] if words else v.tolist() for v in (theirs, ours))
                raise ValueError(
                    f"The state_dict has the {name.removesuffix('_index')} {said!r}, but this "
                    f"{type(self).__name__} has {own!r}: load the state_dict into an object with "
                    f"{said!r}."
                )
        # Other modules may share the buffers, so the state is loaded into new tensors.
        for module in self.modules():
            for name, buffer in module._buffers.items():
                module._buffers[name] = None if buffer is None else buffer.clone()
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)


class DoubleState(NamedState):
    """Base class of modules whose buffers stay in double precision when the model's dtype changes.

    Covariance matrices of noise-free data are ill-conditioned. With Cholesky factors in single
    precision, predictions would be wrong.
    """

    def register(self, **tensors: Tensor) -> None:
        """Registers tensors as buffers, and converts floating-point tensors to double precision."""
        for name, tensor in tensors.items():
            tensor = tensor.detach()
            self.register_buffer(name, tensor.double() if tensor.is_floating_point() else tensor)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def move(tensor: Tensor) -> Tensor:
            return tensor.to(fn(tensor).device) if tensor.is_floating_point() else fn(tensor)

        return super()._apply(move, recurse)


T = TypeVar("T")


def collapse_batch(x: Tensor) -> Tensor:
    """Drops the batch dimensions of inputs if all elements of the batch are equal.

    Args:
        x: A ``batch_shape x n x d`` tensor of inputs.

    Returns:
        An ``n x d`` tensor if all elements of the batch are equal, else ``x``. Also ``x`` if ``x``
        needs a gradient.
    """
    if x.requires_grad or x.dim() == 2 or x.numel() == 0:
        return x
    first = x[(0,) * (x.dim() - 2)]
    return first if bool((x == first).all()) else x


def same_inputs(x1: Tensor, x2: Tensor) -> bool:
    """Returns whether two inputs are the same tensor, or equal tensors that need no gradient."""
    has_graph = x1.requires_grad or x2.requires_grad
    return x1 is x2 or (not has_graph and _equal(x1, x2))


_EMPTY: tuple[Any, ...] = (), (), ()


@dataclass(eq=False)
class Cache:
    """Cache of the values of one function of a tensor, for the most recent inputs.

    Cached values have no autograd graph. Inputs are compared by value, because GPyTorch copies and
    expands tensors. All other tensors that the function uses are the *state*. If a tensor of the
    state is replaced or changed in place, the cache is cleared. For inputs that require a gradient,
    the function is always evaluated. A deep copy of the cache keeps the values; a pickle does not.

    Args:
        size: The maximum number of inputs whose values are cached.
        max_elements: The maximum number of elements of a cached value.

    Example:
        >>> cache = Cache()
        >>> x, state = torch.rand(3, 2), torch.ones(1)
        >>> cache(torch.square, x, state) is cache(torch.square, x, state)
        True
    """

    # `Memo` hashes only the fields of dataclasses. The cached values are not in a field.
    size: int = 2
    max_elements: float = 2**22

    def __post_init__(self) -> None:
        # The state, the version of the state, and pairs of inputs and values.
        self._memory = _EMPTY

    def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
        # Copies share the cached values, because no code changes a value in place.
        twin = replace(self)
        twin._memory = self._memory
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_memory": _EMPTY}

    def __call__(self, function: Callable[[Tensor], T], x: Tensor, *state: Tensor) -> T:
        """Returns the cached value of a function, or evaluates the function and caches the value.

        Args:
            function: The function to evaluate.
            x: The input, a tensor of any shape.
            *state: The other tensors that the function depends on.

        Returns:
            ``function(x)``.
        """
        if x.requires_grad:
            return function(x)
        # Inference tensors have no version counter: the cache assumes that they do not change.
        version = tuple((id(t), 0 if t.is_inference() else t._version) for t in state)
        _, known, entries = self._memory
        entries = entries if known == version else ()
        found = next((entry for entry in entries if _equal(entry[0], x)), None)
        if found is None:
            # Values are normal tensors, because a later fit could not use inference tensors.
            with torch.inference_mode(False), torch.no_grad():
                found = x.clone(), function(x)
            if isinstance(found[1], Tensor) and found[1].numel() > self.max_elements:
                return found[1]
        # If the cache is full, the least recently used value is dropped.
        entries = (*(entry for entry in entries if entry is not found), found)
        # One assignment: another thread reads either the old memory or the new memory.
        self._memory = state, version, entries[-self.size :]
        return found[1]


def _equal(first: Tensor, second: Tensor) -> bool:
    """Returns whether two tensors have the same dtype, device and values."""
    same_kind = first.dtype is second.dtype and first.device == second.device
    return same_kind and torch.equal(first, second)
