"""LoRA and WiSE-FT: which parameters learn, and how weights are merged and mixed."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from service.core.types import Role
from tests.support.tiny.training import write_tiny_checkpoint, write_tiny_language_model
from training.checkpoints.model_folder import write_model
from training.models.lora import add_adapters, merged, remove_adapters
from training.models.settings import LoraSettings
from training.models.torch_encoder import TorchEncoder, load_encoder
from training.models.wise_ft import Mixture

TEXTS = ["red tent", "a lamp", "boots"]
SETTINGS = LoraSettings(rank=2, alpha=4.0, dropout=0.0)
FAMILIES: dict[str, Callable[[Path], Path]] = {
    "bert": write_tiny_checkpoint,
    "llama": write_tiny_language_model,
    "gpt2": lambda folder: write_tiny_language_model(folder, family="gpt2"),
    "llama-bf16": lambda folder: write_tiny_language_model(folder, dtype="bfloat16"),
}


@pytest.fixture(params=FAMILIES)
def encoder(request: pytest.FixtureRequest, tmp_path: Path) -> TorchEncoder:
    torch.manual_seed(0)
    folder = str(FAMILIES[request.param](tmp_path))
    return load_encoder(folder, max_tokens=16, stored_precision=True)


def vectors(encoder: TorchEncoder) -> np.ndarray:
    return encoder.encode(TEXTS, role=Role.QUERY)


def learned(encoder: TorchEncoder) -> dict[str, torch.Tensor]:
    named = encoder.model.named_parameters()
    return {name: parameter for name, parameter in named if parameter.requires_grad}


def train(encoder: TorchEncoder) -> None:
    """Change A and B, like training."""
    with torch.no_grad():
        for parameter in learned(encoder).values():
            parameter.add_(0.2 * torch.randn_like(parameter))


def test_only_adapters_learn_and_a_checkpoint_holds_plain_weights(
    encoder: TorchEncoder, tmp_path: Path
) -> None:
    before, total = vectors(encoder), sum(p.numel() for p in encoder.model.parameters())
    names = {*encoder.model.state_dict()}
    add_adapters(encoder.model, SETTINGS)
    assert vectors(encoder) == pytest.approx(before, abs=1e-6), "nothing changes at first"
    parameters = learned(encoder)
    assert all({"lora_A", "lora_B"} & {*name.split(".")} for name in parameters)
    assert sum(parameter.numel() for parameter in parameters.values()) < 0.3 * total
    assert {parameter.dtype for parameter in parameters.values()} == {torch.float32}
    train(encoder)
    trained = vectors(encoder)
    assert np.abs(trained - before).max() > 0.01
    write_model(encoder, tmp_path / "best")
    assert np.array_equal(vectors(encoder), trained), "writing changes nothing"
    written = load_encoder(str(tmp_path / "best"), stored_precision=True)
    assert {*written.model.state_dict()} == names
    half = any(p.dtype == torch.bfloat16 for p in written.model.parameters())
    assert vectors(written) == pytest.approx(trained, abs=0.03 if half else 1e-5)
    remove_adapters(encoder.model)
    assert {*encoder.model.state_dict()} == names
    assert np.array_equal(vectors(encoder), before)


def weights(encoder: TorchEncoder) -> dict[str, torch.Tensor]:
    with merged(encoder.model):
        return {name: value.clone() for name, value in encoder.model.state_dict().items()}


def test_weights_are_mixed_between_the_loaded_and_the_trained_ones(encoder: TorchEncoder) -> None:
    add_adapters(encoder.model, SETTINGS)
    mixture = Mixture(encoder.model, [0.5, 1.0])
    first = weights(encoder)
    train(encoder)
    last = weights(encoder)
    with mixture.mixed(0.5):
        middle = weights(encoder)
    assert any(not torch.equal(first[name], last[name]) for name in first)
    for name, value in middle.items():
        expected = (first[name].double() + last[name].double()) / 2
        loose = value.dtype == torch.bfloat16
        assert torch.allclose(value.double(), expected, atol=0.01 if loose else 1e-6)


def test_the_layers_can_be_chosen(tmp_path: Path) -> None:
    encoder = load_encoder(str(write_tiny_language_model(tmp_path)), max_tokens=16)
    add_adapters(encoder.model, LoraSettings(rank=2, modules=("q_proj",)))
    assert all("q_proj" in name for name in learned(encoder))


def test_the_present_weights_come_back_bit_for_bit() -> None:
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    first = module.weight.detach().clone()
    mixture = Mixture(module, [0.0, 0.25, 1.0])
    with torch.no_grad():
        module.weight.add_(torch.rand(2, 3))
    present = module.weight.detach().clone()
    with mixture.mixed(0.25):
        assert torch.allclose(module.weight, 0.75 * first + 0.25 * present)
    assert torch.equal(module.weight, present)
    with mixture.mixed(1.0):
        assert torch.equal(module.weight, present)
    with pytest.raises(KeyboardInterrupt), mixture.mixed(0.0):
        assert torch.equal(module.weight, first)
        raise KeyboardInterrupt
    assert torch.equal(module.weight, present)
