"""Pre-trained priors in files."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from botorch.models.transforms.input import Normalize
from gpytorch.kernels import MaternKernel, PeriodicKernel, ScaleKernel
from gpytorch.means import ConstantMean

from botorch_transfer.kernels.features import FeatureKernel, FeatureMean, FeatureNetwork
from botorch_transfer.models import PretrainedGP
from botorch_transfer.pretraining import PretrainedPrior, SourceGPs
from tests.pretraining.pretrained import FAMILY, PRESETS, TEST_X, assert_same, fit, own_modules


def test_source_observations_are_not_kept(tmp_path):
    prior = fit(PRESETS["hyperbo"](), validation_data=FAMILY.sources(), objective="nll")
    sizes = {tensor.numel() for tensor in prior.state_dict().values()}
    total = sum(len(Y) for _, Y in FAMILY.sources().values())
    assert not sizes & {total, 2 * total}
    everything = torch.cat([tensor.flatten().double() for tensor in prior.state_dict().values()])
    for X, Y in FAMILY.sources().values():
        assert not torch.isin(torch.cat([X.flatten(), Y.flatten()]), everything).any()


LOADING = """
import sys, torch
from pathlib import Path
from botorch_transfer import PretrainedGP, PretrainedPrior
for folder in map(Path, sys.argv[1:]):
    X, Y, mean, variance = torch.load(folder / "expected")
    posterior = PretrainedGP(X, Y, PretrainedPrior.load(folder / "prior")).posterior(X)
    assert torch.equal(posterior.mean, mean) and torch.equal(posterior.variance, variance), folder
"""


def test_round_trips_in_a_fresh_process(tmp_path):
    folders = [tmp_path / name for name in PRESETS]
    for folder, preset in zip(folders, PRESETS.values(), strict=True):
        folder.mkdir()
        store(preset(), folder)
    subprocess.run([sys.executable, "-c", LOADING, *map(str, folders)], check=True)


def store(preset, folder):
    bounds = torch.tensor([[-5.0, 100.0], [5.0, 300.0]], dtype=torch.double)
    transform = Normalize(2, bounds=bounds)
    raw = {name: (transform.untransform(X), Y) for name, (X, Y) in FAMILY.sources().items()}
    prior = preset.fit(raw, steps=15, input_transform=transform, validation_data=raw)
    prior.save(folder / "prior")
    train_X, train_Y = FAMILY.target(3)
    X = transform.untransform(train_X)
    posterior = PretrainedGP(X, train_Y, prior).posterior(X)
    torch.save([X, train_Y, posterior.mean, posterior.variance], folder / "expected")
    loaded = PretrainedPrior.load(folder / "prior")
    assert loaded.learning_curve == prior.learning_curve
    assert (loaded.num_tasks, loaded.num_points) == (prior.num_tasks, prior.num_points)


def test_modules_of_the_user_are_handed_over(tmp_path):
    prior = fit(PretrainedPrior(*own_modules(), dim=2))
    prior.save(tmp_path / "prior")
    mean, kernel = own_modules()
    loaded = PretrainedPrior.load(tmp_path / "prior", mean_module=mean, covar_module=kernel)
    assert_same(loaded, prior)
    assert mean.weights.dtype == torch.float  # copies are loaded into


def test_what_the_user_froze_stays_so(tmp_path):
    mean, kernel = own_modules()
    prior = fit(PretrainedPrior(mean, kernel.requires_grad_(False), dim=2))
    prior.save(tmp_path / "prior")
    loaded = PretrainedPrior.load(tmp_path / "prior", None, None, *own_modules())
    assert loaded.trainable == prior.trainable
    trained = fit(loaded, steps=2)
    assert torch.equal(trained.covariance(TEST_X), prior.covariance(TEST_X))
    assert not torch.equal(trained.mean(TEST_X), prior.mean(TEST_X))


def test_a_shared_network_of_the_user(tmp_path):
    def modules():
        network = FeatureNetwork(2, hidden=(3,))
        return FeatureMean(network), FeatureKernel(MaternKernel(ard_num_dims=3), network)

    prior = fit(PretrainedPrior(*modules(), dim=2))
    prior.save(tmp_path / "prior")
    mean, kernel = modules()
    assert_same(PretrainedPrior.load(tmp_path / "prior", None, None, mean, kernel), prior)


def test_wrong_modules_are_refused(tmp_path):
    fit(PretrainedPrior(*own_modules(), dim=2)).save(tmp_path / "prior")
    mean, kernel = own_modules()
    with pytest.raises(ValueError, match="hand them over"):
        PretrainedPrior.load(tmp_path / "prior")
    with pytest.raises(ValueError, match="the mean LinearMean and the kernel ScaleKernel"):
        PretrainedPrior.load(tmp_path / "prior", mean_module=ConstantMean(), covar_module=kernel)
    with pytest.raises(ValueError, match="other parameters"):
        PretrainedPrior.load(
            tmp_path / "prior", mean_module=mean, covar_module=ScaleKernel(PeriodicKernel())
        )
    fit(PretrainedPrior(mean, MaternKernel(nu=2.5), dim=2)).save(tmp_path / "matern")
    with pytest.raises(ValueError, match="not of the kind of the saved ones"):
        PretrainedPrior.load(
            tmp_path / "matern", mean_module=mean, covar_module=MaternKernel(nu=0.5)
        )
    fit(PRESETS["ablr"]()).save(tmp_path / "preset")
    with pytest.raises(ValueError, match="is the preset 'ablr'"):
        PretrainedPrior.load(tmp_path / "preset", mean_module=mean)
    with pytest.raises(ValueError, match=r"PretrainedPrior.load\(path\)"):
        SourceGPs.load(tmp_path / "preset")


def test_states_of_other_units_are_refused(tmp_path):
    prior = fit(PRESETS["stationary"](), outcome_scale="per_task")
    with pytest.raises(ValueError, match="outcome_scale='per_task'"):
        fit(PRESETS["stationary"]()).load_state_dict(prior.state_dict())
    prior.save(tmp_path / "prior")
    PretrainedPrior.load(tmp_path / "prior").load_state_dict(prior.state_dict())
