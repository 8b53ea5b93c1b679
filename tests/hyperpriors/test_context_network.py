from __future__ import annotations

import torch

from botorch_transfer.pretraining.hyperprior.network import ContextNetwork

CONTEXTS = torch.tensor([[1.0, 2.0], [1.0, 5.0], [1.0, 14.0]], dtype=torch.double)
BASE = torch.tensor([3.0, 6.0], dtype=torch.double)


def network(**options) -> ContextNetwork:
    return ContextNetwork(CONTEXTS, BASE, **options)


def test_output_zero_is_the_base():
    found = network()
    for parameter in found.layers[-1].parameters():
        torch.nn.init.zeros_(parameter)
    shape, rate = found(CONTEXTS)
    torch.testing.assert_close(shape, BASE[:1].expand(3))
    torch.testing.assert_close(rate, BASE[1:].expand(3))


def test_outputs_are_shape_and_mean():
    found = network()
    for parameter in found.layers[-1].parameters():
        torch.nn.init.zeros_(parameter)
    found.layers[-1].bias.data = torch.tensor([4.0, -3.0], dtype=torch.double)
    shape, rate = found(CONTEXTS)
    torch.testing.assert_close(shape, 3 * torch.tensor(4.0).double().exp().expand(3))
    torch.testing.assert_close(shape / rate, 0.5 * torch.tensor(-3.0).double().exp().expand(3))


def test_bounded_head_is_confined():
    found = network(bounded_head=True)
    for scale in (-1e3, 1e3):
        found.layers[-1].bias.data.fill_(scale)
        for part in found(CONTEXTS):
            assert (part > 0.31).all()
            assert (part < 1.32).all()


def test_contexts_beyond_the_training_data_are_clipped():
    found = network()
    beyond = torch.tensor([[7.0, -3.0], [0.0, 99.0]], dtype=torch.double)
    for left, right in zip(found(beyond), found(CONTEXTS[[0, 2]]), strict=True):
        torch.testing.assert_close(left, right)


def test_one_context_only():
    shape, rate = ContextNetwork(CONTEXTS[:1], BASE)(CONTEXTS)
    assert shape.isfinite().all()
    assert (rate > 0).all()


def test_frozen_weights_are_buffers():
    found = network()
    before = found(CONTEXTS)
    state = {name: tensor.clone() for name, tensor in found.state_dict().items()}
    assert found.freeze() is found
    assert list(found.parameters()) == []
    for left, right in zip(found(CONTEXTS), before, strict=True):
        assert torch.equal(left, right)
        assert not left.requires_grad
    assert {name: tensor.shape for name, tensor in found.state_dict().items()} == {
        name: tensor.shape for name, tensor in state.items()
    }
    other = network().freeze()
    other.load_state_dict(state)
    assert torch.equal(other(CONTEXTS)[0], before[0])


def test_any_layers():
    assert network().context_size == 2
    widths = [layer.out_features for layer in network(hidden=(8, 4, 2)).layers[::2]]
    assert widths == [8, 4, 2, 2]
    assert len(network(hidden=()).layers) == 1
    assert {parameter.dtype for parameter in network().parameters()} == {torch.double}
