"""WiSE-FT: interpolated weights of two encoders, which both stay intact."""

import pytest
import torch
from torch import nn

from training.models.wise_ft import Mixture, interpolate


def test_the_mean_lies_between() -> None:
    first, present = torch.tensor([0.0, 2.0]), torch.tensor([1.0, 6.0])
    for mixing, expected in ((0.25, [0.25, 3.0]), (0.0, [0.0, 2.0]), (1.0, [1.0, 6.0])):
        assert interpolate(first, present, mixing).tolist() == expected


def test_the_present_weights_come_back_bit_for_bit() -> None:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    first = module.weight.detach().clone()
    mixture = Mixture(module, [0.0, 0.5, 1.0])
    with torch.no_grad():
        module.weight.add_(torch.rand(2, 3))
    present = module.weight.detach().clone()
    with mixture.mixed(0.5):
        assert torch.allclose(module.weight, (first + present) / 2)
    assert torch.equal(module.weight, present)
    with mixture.mixed(1.0):
        assert torch.equal(module.weight, present)
    with pytest.raises(KeyboardInterrupt), mixture.mixed(0.0):
        assert torch.equal(module.weight, first)
        raise KeyboardInterrupt
    assert torch.equal(module.weight, present)
