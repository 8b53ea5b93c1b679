"""A pretended accelerator, ``"sim"``, for machines without one: the tests' stand-in for CUDA.

A tensor on ``"sim"`` is an empty shell around a tensor in the host's memory, its *image*. PyTorch
hands every operation on shells to :func:`_execute`, which

* refuses what CUDA refuses: the host's tensors among the device's, unless they are scalars of
  elementwise operations, or indices;
* computes on the images, so that results equal the CPU's;
* counts in :data:`launches` the operations that compute something there, which launch kernels;
* counts in :data:`waits` what would make the CPU wait for a real GPU: numbers that are read, copies
  in either direction, and operations whose result's size depends on values.

So it finds misplaced tensors and needless waits, but no numerical or memory faults, and it measures
no times. It differs from CUDA in some more ways:

* its random numbers are the CPU's, from the CPU's default generator, and a generator of the device
  is not refused among tensors of the host;
* ``is_cuda`` is False, and ``torch.cuda`` knows nothing of it;
* moved modules get new parameters; on CUDA they keep theirs, with other values;
* ``torch.load(map_location=)`` cannot name it; saved tensors come back to it;
* fused and foreach optimizers are not chosen by default.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils import backend_registration

NAME = "sim"
#: The minor version of PyTorch that this was tested with; what it uses of it is not stable.
TESTED_VERSION = "2.13"

#: How often a GPU would have made the CPU wait, by reason.
waits: Counter[str] = Counter()

#: How many operations would have launched kernels, some of them several, by operation.
launches: Counter[str] = Counter()

_HOST = torch.device("cpu")
_aten = torch.ops.aten

# Tensors of both sides may meet in these.
_COPIES = {_aten._to_copy.default, _aten.copy_.default, _aten._copy_from.default}

# Their indices may lie on the host.
_INDEXED = {
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index.Tensor,
    _aten._unsafe_index_put.default,
}

# Scalars may lie on the host in these, too, not only in what is elementwise.
_WITH_SCALARS = {
    _aten.fill.Tensor,
    _aten.fill_.Tensor,
    _aten.index_fill.int_Tensor,
    _aten.index_fill_.int_Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten.masked_fill.Tensor,
    _aten.masked_fill_.Tensor,
}

# After these the host knows something of the result.
_READ = {
    _aten._linalg_check_errors.default: "errors of linear algebra",
    _aten._local_scalar_dense.default: "item",
    _aten._unique2.default: "unique",
    _aten.bincount.default: "bincount",
    _aten.equal.default: "equal",
    _aten.masked_select.default: "masked_select",
    _aten.nonzero.default: "nonzero",
    _aten.repeat_interleave.Tensor: "repeat_interleave",
    _aten.unique_consecutive.default: "unique",
    _aten.unique_dim.default: "unique",
}


_WITHOUT_KERNEL = frozenset(
    {"_unsafe_view", "detach", "empty", "empty_like", "empty_strided", "new_empty"}
)


class DeviceTensor(Tensor):
    """A tensor on the simulated device.

    Args:
        image: The host's tensor that holds its values.
    """

    image: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, image: Tensor) -> DeviceTensor:
        shell = torch.Tensor._make_wrapper_subclass(
            cls,
            image.size(),
            strides=image.stride(),
            storage_offset=image.storage_offset(),
            dtype=image.dtype,
            device=_DEVICE,
        )
        shell.image = image
        return shell

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any, kwargs: Any = None) -> Any:
        return _execute(operation, args, kwargs or {})

    # What PyTorch does for real devices in C++, below the operations that it hands over.

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, value: DeviceTensor) -> None:
        Tensor.data.__set__(self, value)
        self.image = value.image

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(_without_lists(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_without_lists(index), value)

    def new_tensor(self, data: Any, **kwargs: Any) -> Tensor:
        return torch.tensor(data, **{"dtype": self.dtype, "device": self.device, **kwargs})

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to "
                "copy the tensor to host memory first."
            )
        return self.detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self.numpy()

    def __repr__(self, **kwargs: Any) -> str:
        return f"{self.image!r} on {self.device}"

    def __format__(self, specification: str) -> str:
        return format(self.item() if self.dim() == 0 else repr(self), specification)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            memo[id(self)] = copy = DeviceTensor(deepcopy(self.image, memo))
            copy.requires_grad_(self.requires_grad)
            if isinstance(self, torch.nn.Parameter):
                memo[id(self)] = torch.nn.Parameter(copy, self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        image = self.detach().cpu()
        rebuild = torch._utils._rebuild_device_tensor_from_cpu_tensor
        arguments = (image, self.dtype, str(self.device), self.requires_grad)
        if not isinstance(self, torch.nn.Parameter):
            return rebuild, arguments
        return torch._utils._rebuild_parameter, (
            rebuild(*arguments[:-1], False),
            self.requires_grad,
            OrderedDict(),
        )


def _without_lists(index: Any) -> Any:
    if isinstance(index, tuple):
        return tuple(_without_lists(part) for part in index)
    if not isinstance(index, list | range):
        return index
    return torch.tensor(index, dtype=None if len(index) else torch.long)


# --------------------------------------------------------------------------------- one operation


@dataclass(frozen=True)
class _Rule:
    """What there is to know of an operation; looked up once, because operations hash slowly.

    Args:
        copies: Whether tensors of both sides may meet in it.
        indexes: Whether its second argument are indices.
        reads: What the host knows of the result afterwards, if anything.
        takes_scalars: Whether scalars among its tensors may lie on the host.
        returned: The position and name of the argument that each result is; ``None`` if it is new.
        launches: Whether it computes something, other than a view or an empty tensor.
    """

    copies: bool
    indexes: bool
    reads: str | None
    takes_scalars: bool
    returned: tuple[tuple[int, str] | None, ...]
    launches: bool


@cache
def _rule(operation: Any) -> _Rule:
    schema = operation._schema
    written = {
        alias: (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for alias in argument.alias_info.before_set
    }
    returned = []
    for result in schema.returns:
        aliases = () if result.alias_info is None else result.alias_info.before_set
        returned.append(next((written[alias] for alias in aliases if alias in written), None))
    views = (r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    elementwise = torch.Tag.pointwise in operation.tags or operation in _WITH_SCALARS
    return _Rule(
        copies=operation in _COPIES,
        indexes=operation in _INDEXED,
        reads=_READ.get(operation),
        takes_scalars=elementwise,
        returned=tuple(returned),
        launches=not any(views) and operation.__name__.split(".")[0] not in _WITHOUT_KERNEL,
    )


def _execute(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operation on the images of its tensors, if all of them may be where they are."""
    shells: list[DeviceTensor] = []
    strangers: list[Tensor] = []

    def image(value: Any) -> Any:
        if isinstance(value, DeviceTensor):
            shells.append(value)
            return value.image
        if isinstance(value, Tensor):
            strangers.append(value)
        elif isinstance(value, list | tuple):
            return type(value)([image(part) for part in value])
        elif isinstance(value, torch.device):
            return _HOST if value.type == NAME else value
        return value

    own_args = [image(value) for value in args]
    own_kwargs = {name: image(value) for name, value in kwargs.items()}
    rule = _rule(operation)
    device = kwargs.get("device")
    to_host = device is not None and device.type != NAME
    if not rule.copies:
        _refuse(operation, args, shells, strangers, rule)
        _check_generator(kwargs.get("generator"))
    _count(operation, args, strangers, to_host, rule)
    launches[str(operation)] += rule.launches
    result = operation(*own_args, **own_kwargs)
    if to_host or operation is _aten._local_scalar_dense.default or not rule.returned:
        return result
    if len(rule.returned) == 1:
        return _outcome(result, rule.returned[0], args, kwargs)
    outcomes = zip(result, rule.returned, strict=True)
    return tuple(_outcome(one, source, args, kwargs) for one, source in outcomes)


def _outcome(
    result: Any, source: tuple[int, str] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Puts a result on the device: an argument that was written to, or new shells."""
    if source is None:
        if isinstance(result, Tensor):
            return DeviceTensor(result)
        return [DeviceTensor(one) for one in result] if isinstance(result, list) else result
    position, name = source
    shell = args[position] if position < len(args) else kwargs[name]
    if isinstance(shell, DeviceTensor) and (
        shell.shape != result.shape or shell.stride() != result.stride()
    ):
        Tensor.data.__set__(shell, DeviceTensor(shell.image))  # the image has changed its shape
    return shell


def _refuse(
    operation: Any,
    args: tuple[Any, ...],
    shells: list[DeviceTensor],
    strangers: list[Tensor],
    rule: _Rule,
) -> None:
    """Raises CUDA's error if a tensor lies where the operation can't use it."""
    if not shells or not strangers:
        return
    allowed: list[Tensor] = []
    if rule.indexes and isinstance(args[0], DeviceTensor):
        allowed = [index for index in args[1] if index is not None]
    written = [args[source[0]] for source in rule.returned if source and source[0] < len(args)]
    for stranger in strangers:
        is_scalar = rule.takes_scalars and stranger.dim() == 0
        if any(stranger is one for one in written) or not (
            is_scalar or any(stranger is index for index in allowed)
        ):
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{_DEVICE} and cpu! ({operation} with a {stranger.dtype} of shape "
                f"{tuple(stranger.shape)} on the cpu)"
            )


def _check_generator(generator: torch.Generator | None) -> None:
    if generator is not None and generator._cdata not in _device_generators:
        raise RuntimeError(f"Expected a '{NAME}' device type for generator but found 'cpu'")


def _count(
    operation: Any, args: tuple[Any, ...], strangers: list[Tensor], to_host: bool, rule: _Rule
) -> None:
    if operation is _aten.equal.default and _is_equal_without_looking(*args):
        return
    if rule.reads is not None:
        waits[rule.reads] += 1
    elif rule.copies:
        if to_host or (strangers and not isinstance(args[0], DeviceTensor)):
            waits["copy to the host"] += 1
        elif strangers:
            waits["copy from the host"] += 1
    elif rule.indexes:
        indices = [index for index in args[1] if index is not None]
        waits["nonzero"] += sum(index.dtype in (torch.bool, torch.uint8) for index in indices)
        waits["copy from the host"] += sum(not isinstance(index, DeviceTensor) for index in indices)


def _is_equal_without_looking(left: DeviceTensor, right: DeviceTensor) -> bool:
    """Whether shapes, or memory, tell ``torch.equal`` the result."""
    if left.shape != right.shape or left.numel() == 0:
        return True
    same_memory = left.image.data_ptr() == right.image.data_ptr()
    return same_memory and left.stride() == right.stride()


# ------------------------------------------------------------------------------------ the device


class _Module:
    """What PyTorch expects in ``torch.sim``; random states are the CPU's."""

    is_available = is_initialized = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])  # checkpoints ask for it
    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))


class _DeviceGenerator(torch.Generator):
    """A generator of the device; its numbers are the CPU's."""

    device = property(lambda self: _DEVICE)

    def __init__(self, device: torch.device | str) -> None:
        _device_generators[self._cdata] = self


# Operations get generators without their class.
_device_generators: WeakValueDictionary[int, _DeviceGenerator] = WeakValueDictionary()
_HostGenerator = torch.Generator


class _AnyGenerator(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _HostGenerator)


class _Generator(metaclass=_AnyGenerator):
    """Stands for ``torch.Generator``, which can't be extended by a device."""

    def __new__(cls, device: torch.device | str | int = "cpu") -> Any:
        on_device = torch.device(device).type == NAME
        return _DeviceGenerator(_HOST) if on_device else _HostGenerator(device)


def _by_way_of_the_host(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Extends a function that makes tensors of numbers, which does not reach Python's devices."""

    def wrapped(
        data: Any, *args: Any, device: torch.device | str | None = None, **kwargs: Any
    ) -> Tensor:
        data = _read(data)
        if isinstance(data, Tensor) or device is None or torch.device(device).type != NAME:
            return make(data, *args, device=device, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        made = make(data, *args, device=_HOST, **kwargs).to(_DEVICE)
        return made.requires_grad_() if requires_grad else made

    return wrapped


def _read(data: Any) -> Any:
    """Reads the device's numbers in a list."""
    if not isinstance(data, list | tuple):
        return data
    return [part.tolist() if isinstance(part, DeviceTensor) else _read(part) for part in data]


def register() -> None:
    """Adds the device to this process, once and before the first gradient is computed.

    PyTorch counts the devices at the first gradient, and computes none on later ones.
    """
    if hasattr(torch, NAME):
        return
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    global _DEVICE
    _DEVICE = torch.device(NAME, 0)
    # Operations without a tensor among their arguments.
    _library.fallback(lambda operation, *a, **k: _execute(operation, a, k), "PrivateUse1")


@contextmanager
def usable() -> Iterator[None]:
    """Makes the device usable where PyTorch does not ask devices that are written in Python."""
    found = torch.tensor, torch.as_tensor, torch.Generator
    torch.tensor, torch.as_tensor = map(_by_way_of_the_host, found[:2])
    torch.Generator = _Generator
    try:
        yield
    finally:
        torch.tensor, torch.as_tensor, torch.Generator = found


_DEVICE: torch.device
_library = torch.library.Library("_", "IMPL")
