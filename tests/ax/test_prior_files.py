from __future__ import annotations

import pytest
import torch
from ax.exceptions.core import UserInputError

from botorch_transfer import (
    GuardedTransferGP,
    HyperpriorGP,
    JointScaMLGP,
    MeanHierarchicalGP,
    PretrainedGP,
    RankWeightedGP,
    ScaMLGP,
    SourceGPs,
    SourceHierarchy,
)
from botorch_transfer.ax.model_inputs import (
    describe_prior_file,
    guarded_class,
    load_prior_file,
    prior_class_of,
)
from botorch_transfer.pretraining.memo import clear_memos


@pytest.fixture
def path(tmp_path):
    X = torch.rand(6, 2, dtype=torch.double)
    SourceGPs.fit({"monday": (X, X[:, :1])}, num_restarts=0).save(tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def test_loaded_once_by_what_it_holds(path):
    described = describe_prior_file(path, ScaMLGP)
    assert described["path"] == str(path)
    prior = load_prior_file(described)
    assert isinstance(prior, SourceGPs)
    assert load_prior_file(dict(described)) is prior


def test_another_file_in_its_place_is_refused(path):
    described = describe_prior_file(path, ScaMLGP)
    X = torch.rand(6, 2, dtype=torch.double)
    SourceHierarchy.fit({"sunday": (X, X[:, 1:])}, propagate="mean").save(path)
    clear_memos()
    with pytest.raises(UserInputError, match="not the one"):
        load_prior_file(described)
    assert isinstance(
        load_prior_file(describe_prior_file(path, MeanHierarchicalGP)), SourceHierarchy
    )


def test_which_model_takes_which_prior(path):
    classes = [ScaMLGP, RankWeightedGP, MeanHierarchicalGP, GuardedTransferGP, JointScaMLGP]
    found = [prior_class_of(model) for model in classes]
    assert found == [SourceGPs, SourceGPs, SourceHierarchy, None, None]
    assert describe_prior_file(path, GuardedTransferGP) == describe_prior_file(path, ScaMLGP)
    with pytest.raises(UserInputError, match="a SourceGPs, and PretrainedGP takes a Pretrained"):
        describe_prior_file(path, PretrainedGP)
    with pytest.raises(UserInputError, match="JointScaMLGP takes no prior"):
        describe_prior_file(path, JointScaMLGP)


def test_missing_and_damaged_files_are_refused(path, tmp_path):
    described = describe_prior_file(path, ScaMLGP)
    path.unlink()
    clear_memos()
    with pytest.raises(UserInputError, match="put it back"):
        load_prior_file(described)
    with pytest.raises(FileNotFoundError, match="no prior file"):
        describe_prior_file(path, ScaMLGP)
    other = tmp_path / "text.safetensors"
    other.write_text("no prior")
    with pytest.raises(ValueError, match="damaged"):
        describe_prior_file(other, ScaMLGP)


def test_a_guard_takes_what_the_model_takes_that_it_weighs():
    assert guarded_class(ScaMLGP, {}) is ScaMLGP
    assert guarded_class(GuardedTransferGP, {}) is ScaMLGP
    assert guarded_class(GuardedTransferGP, {"transfer_model": HyperpriorGP}) is HyperpriorGP
