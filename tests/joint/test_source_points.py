import pytest
import torch

from botorch_transfer.gp.hyperpriors import SOURCE_HYPERPARAMETERS
from botorch_transfer.joint.conditional import SourceNoise, SourcePoints

HYPERPARAMETER = SOURCE_HYPERPARAMETERS.noise


def make():
    X = torch.rand(6, 2)
    Yvar = torch.tensor([0.0, 0.0, 0.3, 0.4, 0.5, 0.0])
    return SourcePoints(X, X.sum(-1), Yvar, [2, 3, 1], ["a", "b", "c"])


def noise(known=(False, True, False), **kwargs):
    return SourceNoise(known, HYPERPARAMETER, **kwargs)


def test_groups():
    points = make()
    ((everything, rows),) = points.groups(one_a_task=False)
    assert everything.tasks == (0, 1, 2)
    assert torch.equal(everything.X, points.X[rows])
    groups = points.groups(one_a_task=True)
    assert [group.tasks for group, _ in groups] == [(0,), (1,), (2,)]
    assert [group.sizes for group, _ in groups] == [(2,), (3,), (1,)]
    assert torch.equal(torch.cat([points.X[rows] for _, rows in groups]), points.X)
    assert all(torch.equal(group.X, points.X[rows]) for group, rows in groups)


def test_variances_are_known_or_inferred():
    model = noise()
    model.noise = torch.tensor([1e-3, 5e-3])
    expected = torch.tensor([1e-3, 1e-3, 0.3, 0.4, 0.5, 5e-3])
    torch.testing.assert_close(model.variances(make()), expected)


def test_batches():
    model = noise(batch_shape=torch.Size([4]))
    model.noise = torch.linspace(1e-3, 8e-3, 8).reshape(4, 2)
    together = model.variances(make())
    assert together.shape == (4, 6)
    assert torch.equal(model[1].variances(make()), together[1])
    assert torch.equal(model[1:3].variances(make()), together[1:3])


@pytest.mark.parametrize("known", [(True, True, True), (False, False, False)])
def test_all_or_none_known(known):
    model = noise(known)
    assert model.noise.shape == (known.count(False),)
    assert model.raw_noise.requires_grad == (not all(known))
    assert len(list(model.named_priors())) == (0 if all(known) else 1)
    assert model.variances(make()).shape == (6,)


def test_hyperprior_is_of_the_noise():
    model = noise()
    ((_, module, prior, get, set_),) = model.named_priors()
    torch.testing.assert_close(get(module), model.noise)
    assert prior.log_prob(get(module)).shape == (2,)
    set_(module, torch.tensor([2e-3, 3e-3]))
    torch.testing.assert_close(model.noise, torch.tensor([2e-3, 3e-3]))


def test_another_split_of_the_points_is_refused():
    X = torch.rand(5, 2)
    one, other = (SourcePoints(X, X[:, 0], X[:, 1], sizes, "ab") for sizes in ((2, 3), (3, 2)))
    with pytest.raises(ValueError, match=r"the task_sizes \[3, 2\], but this SourcePoints has \[2"):
        one.load_state_dict(other.state_dict())
