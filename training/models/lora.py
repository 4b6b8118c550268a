"""Low-rank adapters on an encoder's transformer (LoRA, Hu et al., 2022), by the package `peft`.

    W = W_0 + (alpha / r) B A          (section 4.1, Eq. 3)

W_0 [out, in] keeps the weights that were loaded; only A [r, in] and B [out, r] learn. B starts at
zero, so training starts from the pre-trained encoder. A model of billions of weights then has
gradients and moments for a few millions. Checkpoints hold W, so their readers need not know of
adapters. If a model is loaded in half precision, W is rounded to it; A and B learn in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import nn

from service.core.errors import InvalidConfig
from training.models.settings import LoraSettings

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

ADAPTER = "default"  # peft's name for the only adapter
A = "lora_A"  # part of the name of every matrix A among a model's parameters


def add_adapters(model: nn.Module, settings: LoraSettings) -> None:
    """Freeze the model's transformer and put adapters on its linear layers.

    Other modules (dense layers, n-grams, heads) learn as before. Raises `InvalidConfig` if
    `settings.modules` name no layer of the transformer.
    """
    from peft import LoraConfig, inject_adapter_in_model
    from transformers import PreTrainedModel
    from transformers.pytorch_utils import Conv1D

    transformer = next(part for part in model.modules() if isinstance(part, PreTrainedModel))
    layers = {
        name.rpartition(".")[2]: isinstance(layer, Conv1D)
        for name, layer in transformer.named_modules()
        if isinstance(layer, nn.Linear | Conv1D)
    }
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=list(settings.modules) or "all-linear",
        fan_in_fan_out=all(layers.values()),  # GPT-2 keeps its weights transposed
    )
    try:
        inject_adapter_in_model(config, transformer, ADAPTER)
    except ValueError as error:
        raise InvalidConfig(
            "lora.modules names no linear layer of the encoder; its layers are"
            f" {', '.join(sorted(layers))}"
        ) from error
    for parameter in transformer.parameters():
        if parameter.requires_grad:  # A and B; half precision would lose their small steps
            parameter.data = parameter.data.float()


def remove_adapters(model: nn.Module) -> None:
    """Put the layers with W_0 back; the transformer no longer learns."""
    for parent, name, layer in list(_adapted(model)):
        setattr(parent, name, layer.get_base_layer())


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """Replace every adapted layer by a plain one with the weights W within the block."""
    adapted = list(_adapted(model))
    for parent, name, layer in adapted:
        plain = deepcopy(layer.get_base_layer())
        with torch.no_grad():
            plain.weight += layer.get_delta_weight(ADAPTER).to(plain.weight.dtype)
        setattr(parent, name, plain)
    try:
        yield
    finally:
        for parent, name, layer in adapted:
            setattr(parent, name, layer)


def _adapted(model: nn.Module) -> Iterator[tuple[nn.Module, str, LoraLayer]]:
    """Yield each adapted layer with its parent and its name there."""
    for parent in model.modules():
        for name, child in parent.named_children():
            if hasattr(child, A):
                yield parent, name, child
