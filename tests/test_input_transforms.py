import warnings

import hypothesis
import pytest
import torch
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.transforms.input import (
    ChainedInputTransform,
    InputStandardize,
    Log10,
    Normalize,
    Round,
    Warp,
)
from hypothesis import strategies as st

from botorch_transfer.input_transforms import (
    describe_transform,
    frozen_input_transform,
    resolve_input_transform,
    restore_transform,
    warn_outside_unit_cube,
)

pytestmark = pytest.mark.usefixtures("nothing_remembered")

BOUNDS = torch.tensor([[0.0, -1.0], [10.0, 0.3]], dtype=torch.double)
X = torch.rand(4, 2, dtype=torch.double)


def normalize(bounds: torch.Tensor = BOUNDS, **kwargs) -> Normalize:
    return Normalize(2, bounds=bounds, **kwargs)


def warp() -> Warp:
    return Warp(d=2, indices=[0, 1], bounds=BOUNDS).double()


@pytest.mark.parametrize(
    "transform",
    [
        normalize(),
        Log10(indices=[0]),
        Round(integer_indices=[0]),
        ChainedInputTransform(one=Log10(indices=[0]), two=normalize()),
        warp().requires_grad_(False),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_frozen_transforms_are_copied(transform) -> None:
    frozen = frozen_input_transform(transform.train())
    assert frozen is not transform
    assert not frozen.training
    assert transform.training
    assert torch.equal(frozen(X), transform(X))


@pytest.mark.parametrize(
    "transform",
    [
        Normalize(2),
        Normalize(2, bounds=BOUNDS, learn_bounds=True),
        InputStandardize(2),
        ChainedInputTransform(one=Log10(indices=[0]), two=Normalize(2)),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_transforms_that_learn_are_refused(transform) -> None:
    name = type(transform).__name__
    message = (
        f"{name} would learn its coefficients from one task, but all tasks need the same "
        f"transform: pre-train the prior with {name}, or set bounds= of the transform"
    )
    with pytest.raises(ValueError, match=message):
        frozen_input_transform(transform)
    with pytest.raises(ValueError, match="would learn its coefficients"):
        resolve_input_transform(None, transform)


def test_transforms_with_parameters_to_fit_are_refused() -> None:
    message = r"Warp has parameters to fit, .* call requires_grad_\(False\)"
    with pytest.raises(ValueError, match=message):
        frozen_input_transform(warp())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_transform_is_accepted(dtype: torch.dtype) -> None:
    given = normalize(BOUNDS.to(dtype))
    assert torch.allclose(resolve_input_transform(normalize(), given)(X), normalize()(X))
    chain = ChainedInputTransform(one=Log10(indices=[0]), two=normalize())
    assert torch.equal(resolve_input_transform(chain, chain)(X), chain(X))


@pytest.mark.parametrize(
    "given",
    [
        normalize(2 * BOUNDS),
        normalize(reverse=True),
        Normalize(3, bounds=torch.cat([BOUNDS, BOUNDS[:, :1]], dim=-1)),
        Normalize(3, indices=[0, 1], bounds=BOUNDS),
        Log10(indices=[0]),
        ChainedInputTransform(one=normalize()),
    ],
    ids=["bounds", "reverse", "dim", "indices", "kind", "chain"],
)
def test_conflicting_transform_is_refused(given) -> None:
    with pytest.raises(ValueError, match="differs from the prior's input transform: leave"):
        resolve_input_transform(normalize(), given)


def test_chains_of_other_lengths_conflict() -> None:
    long = ChainedInputTransform(one=Log10(indices=[0]), two=normalize())
    short = ChainedInputTransform(one=Log10(indices=[0]))
    for inherited, given in ((long, short), (short, long)):
        with pytest.raises(ValueError, match="differs from the prior's input transform"):
            resolve_input_transform(inherited, given)


bounds = st.floats(-1e3, 1e3).flatmap(
    lambda lower: st.tuples(st.just(lower), st.floats(1e-3, 1e4).map(lambda width: lower + width))
)


@hypothesis.given(st.lists(bounds, min_size=1, max_size=4), st.sampled_from([0.5, 0.0, 0.3]))
def test_normalize_is_restored_bit_by_bit(pairs, center: float) -> None:
    ends = torch.tensor(pairs, dtype=torch.double).mT
    transform = Normalize(len(pairs), bounds=ends, center=center).eval()
    again = restore_transform(describe_transform(transform), None)
    x = torch.rand(5, len(pairs), dtype=torch.double)
    assert torch.equal(again(x), transform(x))
    assert not again.training


def test_single_precision_is_restored() -> None:
    tensors = describe_transform(normalize(BOUNDS.float()))
    assert restore_transform(tensors, None).bounds.dtype is torch.float32


@pytest.mark.parametrize(
    "transform",
    [
        Log10(indices=[0]),
        normalize(reverse=True),
        Normalize(3, indices=[0, 1], bounds=BOUNDS),
        normalize(transform_on_fantasize=False),
        ChainedInputTransform(one=normalize()),
    ],
)
def test_other_transforms_are_handed_over(transform) -> None:
    assert describe_transform(transform) == {}
    with pytest.raises(ValueError, match=r"pass the transform to load\(path, input_transform="):
        restore_transform({}, None)
    assert restore_transform({}, transform) is transform


@pytest.mark.parametrize("X", [torch.rand(5, 2), torch.rand(3, 0, 2), 1 + 1e-3 * torch.ones(1, 1)])
def test_the_unit_cube_is_taken_in_silence(X: torch.Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_outside_unit_cube(X, "the target")


@pytest.mark.parametrize("value", [-0.1, 1.1, 300.0])
def test_raw_inputs_are_warned_of(value: float) -> None:
    with pytest.warns(InputDataWarning, match=r"inputs of the target are not .*SearchSpace.encode"):
        warn_outside_unit_cube(torch.tensor([[0.5, value]]), "the target")
