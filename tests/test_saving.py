from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from botorch_transfer import saving
from botorch_transfer.saving import read_prior, write_prior

pytestmark = pytest.mark.usefixtures("nothing_remembered")

CONFIG = {"names": ["a", "ü"], "scale": None, "number": 0.1, "nested": {"x": [1, True]}}
TENSORS = {
    "double": torch.rand(3, 2, dtype=torch.double),
    "float": torch.rand(4),
    "bool": torch.tensor([True, False]),
    "scalar": torch.tensor(3),
    "empty": torch.empty(0, 2),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that holds a prior."""
    write_prior(tmp_path / "prior.safetensors", "SomePrior", CONFIG, TENSORS)
    return tmp_path / "prior.safetensors"


def header_of(path: Path) -> dict:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["botorch_transfer"])


def rewrite_header(path: Path, **changes) -> None:
    save_file(TENSORS, path, metadata={"botorch_transfer": json.dumps(header_of(path) | changes)})


def test_round_trip(path: Path) -> None:
    config, tensors = read_prior(path, "SomePrior")
    assert config == CONFIG
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype is tensor.dtype
        assert torch.equal(tensors[name], tensor)


def test_path_may_be_a_string(path: Path) -> None:
    # With a tensor: the oldest safetensors cannot read a file that has none.
    write_prior(str(path), "SomePrior", {}, {"one": torch.ones(1)})
    assert read_prior(str(path), "SomePrior") == ({}, {"one": torch.ones(1)})


def test_header_says_what_it_is(path: Path) -> None:
    header = header_of(path)
    assert (header["class"], header["format_version"]) == ("SomePrior", 5)


def test_views_and_graphs_can_be_saved(tmp_path: Path) -> None:
    base = torch.rand(3, 4, requires_grad=True)
    views = {"transposed": base.mT, "expanded": base[:1].expand(3, 4), "part": base[1]}
    write_prior(tmp_path / "prior", "SomePrior", {}, views)
    _, tensors = read_prior(tmp_path / "prior", "SomePrior")
    for name, tensor in views.items():
        assert torch.equal(tensors[name], tensor)


def test_nothing_is_unpickled(path: Path, monkeypatch) -> None:
    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    read_prior(path, "SomePrior")


def test_pickle_file_is_refused(tmp_path: Path) -> None:
    torch.save({"weights": torch.rand(3)}, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"model\.pt' is damaged or is no safetensors file"):
        read_prior(tmp_path / "model.pt", "SomePrior")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no prior file at '.*nothing'\."):
        read_prior(tmp_path / "nothing", "SomePrior")
    with pytest.raises(FileNotFoundError, match="There is no prior file"):
        read_prior(tmp_path, "SomePrior")


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no folder '.*nothing': make it first\."):
        write_prior(tmp_path / "nothing" / "prior", "SomePrior", {}, TENSORS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_truncated_file(path: Path, data) -> None:
    content = path.read_bytes()
    damaged = path.with_name("truncated")
    damaged.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ValueError, match="truncated' is damaged or is no safetensors file"):
        read_prior(damaged, "SomePrior")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_changed_bit(path: Path, data) -> None:
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    damaged = path.with_name("changed")
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match=r"changed' (is damaged|is a safeten|has format|holds a)"):
        read_prior(damaged, "SomePrior")


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"garbage" * 100, b"\xff" * 8])
def test_garbage(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged or is no safetensors file .* save the prior"):
        read_prior(path, "SomePrior")


def test_changed_values(path: Path) -> None:
    metadata = {"botorch_transfer": json.dumps(header_of(path))}
    save_file(TENSORS | {"float": TENSORS["float"] + 1}, path, metadata=metadata)
    with pytest.raises(ValueError, match=r"prior\.safetensors' is damaged: save the prior again\."):
        read_prior(path, "SomePrior")


@pytest.mark.parametrize("changes", [{"config": {}}, {"checksum": None}])
def test_changed_header(path: Path, changes) -> None:
    rewrite_header(path, **changes)
    with pytest.raises(ValueError, match="is damaged: save the prior again"):
        read_prior(path, "SomePrior")


@pytest.mark.parametrize(
    "metadata",
    [None, {"format": "pt"}, *({"botorch_transfer": text} for text in ("no JSON", "[1]", "{}"))],
)
def test_foreign_safetensors_file(path: Path, metadata) -> None:
    save_file(TENSORS, path, metadata=metadata)
    with pytest.raises(ValueError, match="is a safetensors file, but no prior of botorch_transfer"):
        read_prior(path, "SomePrior")


def test_unknown_format_version(path: Path) -> None:
    rewrite_header(path, format_version=7)
    message = (
        r"has format version 7, and this version of botorch_transfer reads version 5: upgrade "
        r"botorch_transfer if the file is newer, or save the prior again with this version\."
    )
    with pytest.raises(ValueError, match=message):
        read_prior(path, "SomePrior")


def test_other_class(path: Path) -> None:
    message = r"holds a SomePrior, not a OtherPrior: load it by SomePrior\.load\(path\)\."
    with pytest.raises(ValueError, match=message):
        read_prior(path, "OtherPrior")


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("step", ["save_file", "replace"])
def test_interrupted_save_keeps_the_old_file(path: Path, monkeypatch, step: str, error) -> None:
    def interrupted(*args, **kwargs):
        if step == "save_file":
            Path(args[1]).write_bytes(b"half")
        raise error

    owner = saving if step == "save_file" else saving.os
    before = path.read_bytes()
    with monkeypatch.context() as context:
        context.setattr(owner, step, interrupted)
        with pytest.raises(error):
            write_prior(path, "SomePrior", {}, {})
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_on_a_device(path: Path, device: str) -> None:
    write_prior(path, "SomePrior", {}, {"x": TENSORS["double"].to(device)})
    _, tensors = read_prior(path, "SomePrior", device=device)
    assert tensors["x"].device.type == device
    assert torch.equal(tensors["x"].cpu(), TENSORS["double"])
    _, tensors = read_prior(path, "SomePrior")
    assert tensors["x"].device.type == "cpu"
