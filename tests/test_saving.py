"""Files of priors, and results that are remembered between processes."""

import json
import multiprocessing
import os
import pickle
import resource
import stat
from pathlib import Path

import pytest
import torch
from botorch.models.transforms.input import ChainedInputTransform, Normalize, Warp
from gpytorch.priors import GammaPrior
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pandas import DataFrame
from safetensors import safe_open
from safetensors.torch import save_file

from botorch_transfer import saving as room
from botorch_transfer.gp.tasks import TaskUnits
from botorch_transfer.pretraining import (
    Hyperprior,
    PretrainedPrior,
    SourceGPs,
    SourceHierarchy,
    SourcePopulation,
    clear_memos,
)
from botorch_transfer.prior import Observations
from botorch_transfer.saving import cached_in, read_prior, stored, write_prior
from botorch_transfer.search_space import FloatParameter, SearchSpace
from botorch_transfer.suggestion import suggest
from tests.suggestion.brief_search import brief_search

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
    write_prior(tmp_path / "prior.safetensors", "SomePrior", CONFIG | TENSORS)
    return tmp_path / "prior.safetensors"


def header_of(path: Path) -> dict:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["botorch_transfer"])


def rewrite_header(path: Path, **changes) -> None:
    save_file(TENSORS, path, metadata={"botorch_transfer": json.dumps(header_of(path) | changes)})


def test_round_trip(path: Path) -> None:
    content = read_prior(path, "SomePrior")
    assert list(content) == [*CONFIG, *TENSORS]
    assert {name: content[name] for name in CONFIG} == CONFIG
    for name, tensor in TENSORS.items():
        assert content[name].dtype is tensor.dtype
        assert torch.equal(content[name], tensor)


def test_nested_objects(tmp_path: Path) -> None:
    rows = Observations(TENSORS["double"], *torch.arange(9).double().split(3))
    units = TaskUnits(["a"], torch.ones(1), torch.ones(1), "raw", TWICE)
    content = {"rows": [rows, None], "prior": GammaPrior(2.0, 3.0), "units": units}
    write_prior(str(tmp_path / "prior"), "SomePrior", content)
    found = read_prior(str(tmp_path / "prior"), "SomePrior", input_transform=TWICE)
    assert isinstance(found["rows"][0], Observations)
    assert torch.equal(found["rows"][0].X, rows.X)
    assert (found["prior"].concentration, found["prior"].rate) == (2.0, 3.0)
    assert found["units"].input_transform is TWICE


def test_what_has_no_place_in_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_prior(tmp_path / "prior", "SomePrior", {"device": torch.device("cpu")})
    assert list(tmp_path.iterdir()) == []


def test_views_and_graphs_can_be_saved(tmp_path: Path) -> None:
    base = torch.rand(3, 4, requires_grad=True)
    views = {"transposed": base.mT, "expanded": base[:1].expand(3, 4), "part": base[1]}
    write_prior(tmp_path / "prior", "SomePrior", views)
    tensors = read_prior(tmp_path / "prior", "SomePrior")
    for name, tensor in views.items():
        assert torch.equal(tensors[name], tensor)


def test_nothing_is_unpickled(path: Path, monkeypatch) -> None:
    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
        monkeypatch.setattr(module, name, refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    read_prior(path, "SomePrior")


def test_missing_file_or_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no file '.*nothing': correct"):
        read_prior(tmp_path / "nothing", "SomePrior")
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_prior(tmp_path, "SomePrior")
    with pytest.raises(FileNotFoundError, match=r"There is no folder '.*nothing': create the"):
        write_prior(tmp_path / "nothing" / "prior", "SomePrior", TENSORS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_truncated_file(path: Path, data) -> None:
    content = path.read_bytes()
    damaged = path.with_name("truncated")
    damaged.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    with pytest.raises(ValueError, match="truncated' is damaged or not a safetensors file"):
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
    with pytest.raises(ValueError, match=r"is damaged or not a safetensors file .* save the prior"):
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
    with pytest.raises(ValueError, match="has no prior of botorch_transfer"):
        read_prior(path, "SomePrior")


@pytest.mark.parametrize("version", [7, 9])
def test_another_format_version(path: Path, version: int) -> None:
    rewrite_header(path, format_version=version)
    message = (
        rf"has format version {version}, but the installed botorch_transfer reads version 8: "
        "if the file is newer, upgrade botorch_transfer; if the file is older, fit and save the"
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

    owner = room if step == "save_file" else room.os
    before = path.read_bytes()
    with monkeypatch.context() as context:
        context.setattr(owner, step, interrupted)
        with pytest.raises(error):
            write_prior(path, "SomePrior", {})
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_on_a_device(path: Path, device: str) -> None:
    assert read_prior(path, "SomePrior", device=device)["double"].device.type == device
    assert read_prior(path, "SomePrior")["double"].device.type == "cpu"


# ------------------------------------------------------------------------ results between processes

X = torch.rand(8, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
HISTORY = {"monday": (X, X.sum(-1, keepdim=True)), "tuesday": (X, X[:, :1])}
SINGLE = {name: (x.float(), y.float()) for name, (x, y) in HISTORY.items()}
OTHER = {name: (2 * x, y) for name, (x, y) in HISTORY.items()}
UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)
BOUNDS = Normalize(2, bounds=2 * UNIT)
TWICE = ChainedInputTransform(one=BOUNDS, two=Normalize(2, bounds=UNIT))
FITS = {
    "sources": (SourceGPs, HISTORY, {"num_restarts": 0}),
    "single precision": (SourceGPs, SINGLE, {"num_restarts": 0}),
    "transformed": (SourceGPs, OTHER, {"num_restarts": 0, "input_transform": BOUNDS}),
    "transformed twice": (SourceGPs, OTHER, {"num_restarts": 0, "input_transform": TWICE}),
    "population": (SourcePopulation, HISTORY, {}),
    "hierarchy": (SourceHierarchy, HISTORY, {"num_restarts": 0}),
    "boosted": (SourceHierarchy, HISTORY, {"num_restarts": 0, "propagate": "mean"}),
    "network": (PretrainedPrior, HISTORY, {"steps": 3}),
    "hyperprior": (Hyperprior, HISTORY, {"num_restarts": 0}),
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A store of the test's own."""
    monkeypatch.setenv("BOTORCH_TRANSFER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pretraining"


def number(n: float, key: str | None = None) -> float:
    """A number from disk, or this one, which is then kept."""
    found = stored(key or str(n), lambda: {"n": torch.full((100,), n)}, dict, read_prior)
    return found["n"][0].item()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*"))


def no_fits(monkeypatch) -> None:
    def refuse(*args, **kwargs):
        raise AssertionError("fitted again")

    for prior_class in {each for each, _, _ in FITS.values()}:
        monkeypatch.setattr(prior_class, "_pretrain", refuse)


@pytest.mark.parametrize("name", FITS)
def test_a_prior_from_disk_is_the_one_that_was_fitted(name, folder, monkeypatch):
    prior_class, data, options = FITS[name]
    with cached_in("off"):
        expected = prior_class.fit_once(data, **options)
    clear_memos()
    prior_class.fit_once(data, **options)
    clear_memos()
    no_fits(monkeypatch)
    found = prior_class.fit_once(data, **options)
    pairs = dict(expected.named_buffers()), dict(found.named_buffers())
    assert pairs[0].keys() == pairs[1].keys()
    for key, tensor in pairs[0].items():
        assert tensor.dtype == pairs[1][key].dtype
        torch.testing.assert_close(tensor, pairs[1][key], rtol=0, atol=0, equal_nan=True, msg=key)
    if name not in ("hyperprior", "network"):
        at = data["monday"][0] + 0.01
        for moment in ("mean", "variance"):
            assert torch.equal(getattr(expected, moment)(at), getattr(found, moment)(at))


def test_rows_do_not_depend_on_the_store(tmp_path):
    frame = DataFrame(X.numpy(), columns=["a", "b"]).assign(loss=X.sum(-1), task="monday")
    history = frame.assign(task=["monday", "tuesday"] * 4)
    space = SearchSpace([FloatParameter("a", 0.0, 1.0), FloatParameter("b", 0.0, 1.0)])
    rows = []
    with brief_search():
        for place in ("off", tmp_path, tmp_path):
            clear_memos()
            rows.append(suggest(space, history, frame.iloc[:3], cache=place))
    assert files(tmp_path / "pretraining")
    assert rows[0].equals(rows[1])
    assert rows[0].equals(rows[2])


def test_only_the_user_reads_the_files(folder):
    SourceGPs.fit_once(HISTORY, num_restarts=0)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files(folder)} == {0o600}


def test_off_keeps_nothing(folder):
    with cached_in("off"):
        SourceGPs.fit_once(HISTORY, num_restarts=0)
    assert files(folder) == []


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "text", "another's", "renamed"])
def test_a_damaged_or_foreign_file_is_one_line_and_no_other_result(damage, folder, caplog):
    expected = SourceGPs.fit_once(HISTORY, num_restarts=0)
    others = set(files(folder))
    SourceGPs.fit_once(SINGLE, num_restarts=0)
    foreign = max(set(files(folder)) - others, key=lambda path: path.stat().st_size)
    path = max(others, key=lambda path: path.stat().st_size)
    good = path.read_bytes()
    middle = len(good) - 9
    contents = {
        "cut": good[:-7],
        "changed": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
        "empty": b"",
        "text": b"hello",
        "renamed": foreign.read_bytes(),
    }
    if damage == "another's":
        expected.save(path)
    else:
        path.write_bytes(contents[damage])
    clear_memos()
    found = SourceGPs.fit_once(HISTORY, num_restarts=0)
    assert torch.equal(found.mean(X), expected.mean(X))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(f"Pre-training is repeated, because {path} cannot be read")
    clear_memos()
    SourceGPs.fit_once(HISTORY, num_restarts=0)  # it was replaced
    assert len(caplog.messages) == 1


def test_a_full_disk_is_one_line(folder, caplog):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        found = SourceGPs.fit_once(HISTORY, num_restarts=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert torch.equal(found.mean(X), SourceGPs.fit(HISTORY, num_restarts=0).mean(X))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("Pre-training is not cached, because ")
    assert files(folder) == []


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with cached_in(tmp_path / "file"):
        SourceGPs.fit_once(HISTORY, num_restarts=0)
    assert len(caplog.messages) == 1


def test_what_was_not_used_for_longest_goes_first(folder, monkeypatch):
    for n in range(3):
        assert number(n) == n
        path = max(files(folder), key=lambda path: path.stat().st_mtime_ns)
        room.os.utime(path, (n, n))
    assert number(7, key="0") == 0
    monkeypatch.setattr(room, "MAX_BYTES", 3 * path.stat().st_size)
    (folder.parent / "mine.safetensors").write_bytes(bytes(1000))
    number(3)
    monkeypatch.setattr(room, "MAX_BYTES", 10**9)
    assert [number(7, key=str(n)) for n in range(4)] == [0, 7, 2, 3]
    assert (folder.parent / "mine.safetensors").exists()


def test_what_has_no_content_is_not_on_disk(folder):
    warp = Warp(2, indices=[0, 1], bounds=UNIT)
    warp.requires_grad_(False)
    SourceGPs.fit_once(HISTORY, num_restarts=0, input_transform=warp)
    before = files(folder)
    clear_memos()
    SourceGPs.fit_once(HISTORY, num_restarts=0, input_transform=warp)
    assert files(folder) == before


def test_the_key_is_of_code_libraries_and_threads(folder, monkeypatch):
    number(1, key="key")
    assert number(2, key="key") == 1
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 1234)
        assert number(3, key="key") == 3
    monkeypatch.setattr(room, "version", lambda library: "another")
    room._environment.cache_clear()
    assert number(4, key="key") == 4
    room._environment.cache_clear()


def write_and_read() -> None:
    for n in range(200):
        assert number(n % 5) == n % 5
        if n % 7 == 0:
            for path in Path(os.environ["BOTORCH_TRANSFER_CACHE"]).rglob("*.safetensors"):
                path.unlink(missing_ok=True)


def test_two_processes_write_at_once(folder):
    # Forked: to import the package takes longer than to write.
    writers = [multiprocessing.get_context("fork").Process(target=write_and_read) for _ in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(files(folder)) <= 5
