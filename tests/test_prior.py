from pathlib import Path

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models.transforms.input import ChainedInputTransform, Log10, Normalize
from safetensors import safe_open
from torch import Tensor

from botorch_transfer.models import PopulationGP, ScaMLGP
from botorch_transfer.pretraining import SourceGPs, SourceHierarchy, SourcePopulation, TransferPrior
from tests.gp.padded import points
from tests.gp.tasks import draw_data

pytestmark = pytest.mark.usefixtures("nothing_remembered")

X = points(4, 2)
model_of = {SourceGPs: ScaMLGP, SourcePopulation: PopulationGP}
NORMALIZE = Normalize(2, bounds=torch.tensor([[0.1, -0.7], [1.3, 0.9]], dtype=torch.double))
CUSTOM = ChainedInputTransform(log=Log10(indices=[0]), normalize=NORMALIZE)


def fit(seed: int = 0, dtype: torch.dtype = torch.double, **kwargs) -> SourceGPs:
    data = draw_data([6, 3, 8], known_noise=[1])
    data = {k: tuple((t + seed).to(dtype) for t in v) for k, v in data.items()}
    return SourceGPs.fit(data, num_restarts=0, **kwargs)


def values(prior: SourceGPs, x: Tensor = X) -> list[Tensor]:
    x = x.to(prior.outcome_mean)
    own = [prior.outcome_mean, prior.outcome_std, prior.log_posterior, prior.outcomes()]
    return [*own, prior.mean(x), prior.covariance(x)]


def check_equal(first: SourceGPs, expected: SourceGPs) -> None:
    for ours, theirs in zip(values(first), values(expected), strict=True):
        assert ours.dtype is theirs.dtype
        assert torch.equal(ours, theirs)
    assert first.task_names == expected.task_names
    assert first.outcome_scale == expected.outcome_scale


def test_is_abstract() -> None:
    with pytest.raises(TypeError, match="abstract"):
        TransferPrior("raw")


def test_saves_and_loads_bit_by_bit(tmp_path: Path) -> None:
    prior = fit(dtype=torch.float32, outcome_scale="pooled", kernel="matern52")
    prior.gps.prior_mean.fill_(0.3)  # as those of models
    prior.save(tmp_path / "prior")
    loaded = SourceGPs.load(tmp_path / "prior")
    check_equal(loaded, prior)
    assert torch.equal(loaded.gps.prior_mean, prior.gps.prior_mean)


def test_other_input_transforms_are_handed_over(tmp_path: Path) -> None:
    prior = fit(seed=1, input_transform=CUSTOM)
    prior.save(tmp_path / "prior")
    with pytest.raises(ValueError, match=r"pass the transform to load\(path, input_transform="):
        SourceGPs.load(tmp_path / "prior")
    check_equal(SourceGPs.load(tmp_path / "prior", input_transform=CUSTOM), prior)


def test_input_transform_that_is_not_needed_is_refused(tmp_path: Path) -> None:
    fit().save(tmp_path / "prior")
    with pytest.raises(ValueError, match="has no input transform: leave out input_transform"):
        SourceGPs.load(tmp_path / "prior", input_transform=NORMALIZE)


def test_another_input_transform_is_refused(tmp_path: Path) -> None:
    fit(input_transform=NORMALIZE).save(tmp_path / "prior")
    with pytest.raises(ValueError, match="differs from the prior's input transform"):
        SourceGPs.load(tmp_path / "prior", input_transform=CUSTOM)
    fit(seed=1, input_transform=CUSTOM).save(tmp_path / "custom")
    with pytest.raises(ValueError, match="would learn its coefficients"):
        SourceGPs.load(tmp_path / "custom", input_transform=Normalize(2))


def test_appended_tasks_have_their_new_names_in_the_state(tmp_path: Path) -> None:
    data = draw_data([6, 3])
    name = next(iter(data))
    appended = SourceGPs.fit(data, num_restarts=0).append({"again": data[name]}, num_restarts=0)
    appended.save(tmp_path / "prior")
    loaded = SourceGPs.load(tmp_path / "prior")
    loaded.load_state_dict(appended.state_dict())
    check_equal(loaded, appended)


# --------------------------------------------------------------------------- without observations


@pytest.mark.parametrize("prior_class", [SourceGPs, SourcePopulation])
@pytest.mark.parametrize("max_inducing", [4, 100])
def test_files_without_observations_hold_no_outcome(tmp_path, prior_class, max_inducing) -> None:
    data = draw_data([6, 3, 8], known_noise=[1])
    prior = prior_class.fit(data, max_inducing=max_inducing, max_iter=5)
    prior.save(tmp_path / "prior", observations=False)
    with safe_open(tmp_path / "prior", framework="pt") as file:
        kept = torch.cat([file.get_tensor(n).double().flatten() for n in file.keys()])  # noqa: SIM118
    kept, standardized = kept[kept.isfinite()], prior.observed.Y
    for hidden in (prior.outcomes(), standardized[standardized.abs() > 1e-6]):
        assert (kept - hidden.unsqueeze(-1)).abs().min() > 1e-7
    loaded = prior_class.load(tmp_path / "prior")
    assert (loaded.gps.points.unsqueeze(-2) != prior.observed.X).any(dim=-1).all()
    error = (loaded.mean(X) - prior.mean(X)) / prior.gps.outputscale.max().sqrt()
    assert error.abs().max() < 1.0
    assert loaded.residual_variance == prior.residual_variance
    assert torch.equal(loaded.num_points, prior.num_points)
    Y = X[:, :1].sin()
    model = model_of[prior_class](X, Y, loaded)
    assert model.posterior(points(3, 2, seed=5)).variance.isfinite().all()
    if prior_class is SourceGPs:
        model.transfer_report()
    with pytest.raises(InputDataError, match="saved without observations"):
        loaded.append({"new": (X, Y)})
    loaded.save(tmp_path / "again")
    assert prior_class.load(tmp_path / "again").data is None


@pytest.mark.parametrize("sizes", [[6, 3], [6, 3, 8]])
def test_a_prior_without_observations_selects_tasks(sizes) -> None:
    whole = SourceGPs.fit(draw_data(sizes), num_restarts=0)
    prior = whole.without_observations()
    chosen = prior.select([-1, 0])
    torch.testing.assert_close(chosen.mean(X), prior.mean(X)[[-1, 0]])
    assert chosen.num_points.tolist() == [sizes[-1], 6]
    assert torch.equal(chosen.pooled_moments, whole.pooled_moments)
    assert whole.select([-1, 0]).num_points.tolist() == [sizes[-1], 6]
    assert whole.select([0, 0]).num_points.tolist() == [6, 6]
    assert prior.without_observations() is prior


def test_outcomes_cannot_be_computed_from_a_prior_without_them() -> None:
    """Inducing points at all rows would give them back: ``y = (FᵀF)⁻¹ α``."""
    gps = fit().without_observations().gps
    assert gps.mask.sum(dim=-1).tolist() == [3, 1, 4]
    population = SourcePopulation.fit(draw_data([6, 3, 8])).without_observations()
    assert len(population.gps.points) <= 8


def test_hierarchies_need_their_observations(tmp_path: Path) -> None:
    hierarchy = SourceHierarchy.fit(draw_data([5, 4]), num_restarts=0)
    with pytest.raises(NotImplementedError, match="saved without outcomes"):
        hierarchy.save(tmp_path / "p", observations=False)


def test_a_loaded_prior_can_be_appended_to(tmp_path: Path) -> None:
    prior, new = fit(), {"new": (X, X[:, :1].sin())}
    prior.save(tmp_path / "prior")
    loaded = SourceGPs.load(tmp_path / "prior").append(new, num_restarts=0)
    check_equal(loaded, prior.append(new, num_restarts=0))
