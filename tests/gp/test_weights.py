import pickle

import pytest
import torch
from botorch.optim.utils import sample_all_priors
from gpytorch.priors import GammaPrior, NormalPrior
from hypothesis import given
from hypothesis import strategies as st

from botorch_transfer.gp.combine import MIN_WEIGHT, EnsembleWeights, SourceWeights, TaskWeights


@given(st.integers(1, 10), st.lists(st.integers(1, 3), max_size=2))
def test_start(num_tasks: int, batch_shape: list[int]) -> None:
    weights = TaskWeights(num_tasks, torch.Size(batch_shape))
    assert weights.batch_shape == torch.Size(batch_shape)
    expected = torch.full((*batch_shape, num_tasks), 1 / num_tasks)
    torch.testing.assert_close(weights.weights, expected, check_dtype=False)
    assert weights.weights.requires_grad


def test_set() -> None:
    weights = TaskWeights(3, torch.Size([2])).double()
    weights.weights = [0.1, 0.2, 3.0]
    expected = torch.tensor([0.1, 0.2, 3.0]).double().expand(2, 3)
    torch.testing.assert_close(weights.weights.detach(), expected, atol=1e-7, rtol=0)
    weights.weights = 0.5
    assert (weights.weights == 0.5).all()


@pytest.mark.parametrize("bad", [-1.0, torch.nan])
def test_negative_weights_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="A task's weight must not be negative"):
        TaskWeights(2).weights = torch.tensor([1.0, bad])


def test_zero_becomes_the_lower_bound() -> None:
    weights = TaskWeights(2)
    weights.weights = torch.tensor([0.0, 1.0])
    torch.testing.assert_close(weights.weights.detach(), torch.tensor([MIN_WEIGHT, 1.0]))


def test_are_optimized_as_they_are_down_to_the_bound() -> None:
    weights = TaskWeights(2)
    assert weights.raw_weights_constraint.lower_bound.item() == pytest.approx(MIN_WEIGHT)
    assert not weights.raw_weights_constraint.enforced
    weights.raw_weights.data[0] = MIN_WEIGHT
    assert torch.equal(weights.weights, weights.raw_weights)


class ScaledShares(SourceWeights):
    """Weights with two parameters, of which one is fitted."""

    def __init__(self, shares: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self.register_parameter("shares", torch.nn.Parameter(shares, requires_grad=False))
        self.register_parameter("scale", torch.nn.Parameter(scale))

    @property
    def weights(self) -> torch.Tensor:
        return self.scale * self.shares


def test_selects_all_parameters_of_the_batch() -> None:
    weights = ScaledShares(torch.rand(3, 4, 2), torch.rand(3, 4, 1))
    assert weights.batch_shape == (3, 4)
    chosen = weights[1, 2]
    assert torch.equal(chosen.weights, weights.weights[1, 2])
    assert torch.equal(chosen.all_weights, chosen.weights)
    assert chosen.get_parameter("scale").requires_grad
    assert not chosen.get_parameter("shares").requires_grad


def test_selects_from_the_batch() -> None:
    weights = TaskWeights(2, torch.Size([3, 4]), GammaPrior(1.0, 1.0))
    weights.weights = 0.1 + torch.rand(3, 4, 2)
    for index in (1, (1, 2), (slice(None), 2), slice(0, 2)):
        chosen = weights[index]
        assert torch.equal(chosen.weights, weights.weights[index])
        assert isinstance(chosen.raw_weights, torch.nn.Parameter)
        assert len(list(chosen.named_priors())) == 1
    assert weights.batch_shape == (3, 4)


def test_selection_is_a_copy() -> None:
    weights = TaskWeights(2, torch.Size([3]))
    weights[0].weights = 3.0
    assert (weights.weights == 0.5).all()


def test_hyperprior() -> None:
    weights = TaskWeights(3, prior=GammaPrior(1.0, 2.0))
    ((name, module, prior, closure, _),) = weights.named_priors()
    assert name == "weights_prior"
    assert torch.equal(prior.log_prob(closure(module)), prior.log_prob(weights.weights))
    sample_all_priors(weights)
    assert (weights.weights >= MIN_WEIGHT).all()
    assert len(weights.weights.unique()) == 3


def test_samples_below_the_bound_are_moved_to_it() -> None:
    weights = TaskWeights(4, prior=NormalPrior(-5.0, 0.1))
    sample_all_priors(weights)
    torch.testing.assert_close(weights.weights.detach(), torch.full((4,), MIN_WEIGHT))


def test_without_hyperprior() -> None:
    assert not list(TaskWeights(3).named_priors())


def test_shares_start_equal_and_are_not_fitted():
    weights = EnsembleWeights(3, torch.Size([2]))
    assert weights.batch_shape == (2,)
    assert weights.weights.shape == (2, 3)
    assert torch.equal(weights.own, torch.tensor([0.25, 0.25]))
    assert not any(parameter.requires_grad for parameter in weights.parameters())


def test_set_normalizes():
    weights = EnsembleWeights(2).double()
    weights.set(torch.tensor([1.0, 0.0, 3.0]))
    assert weights.weights.tolist() == [0.25, 0.0]
    assert float(weights.own) == 0.75
    assert weights.shares.dtype == torch.double


def test_ensemble_selects_from_the_batch():
    weights = EnsembleWeights(2, torch.Size([2]))
    weights.set(torch.tensor([[1.0, 1.0, 2.0], [0.0, 1.0, 0.0]]))
    assert weights[1].weights.tolist() == [0.0, 1.0]
    assert weights[0].batch_shape == ()


def test_travels_with_the_state():
    weights, other = EnsembleWeights(2), EnsembleWeights(2)
    weights.set(torch.tensor([1.0, 0.0, 3.0]))
    other.load_state_dict(weights.state_dict())
    assert torch.equal(other.shares, weights.shares)
    assert torch.equal(pickle.loads(pickle.dumps(weights)).shares, weights.shares)
