"""WiSE-FT (Wortsman et al., 2022): averages the weights of the pre-trained and the trained encoder.

An encoder that is trained on a small data set forgets some of what it knew about other texts. A
weighted mean of both encoders' weights keeps more of both; held-out rows choose the best mean.

Under LoRA the weights are W_0 + (alpha / r) B A, with B = 0 before training. They are linear in B,
so averaging B alone, with the trained A, averages the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from training.models.lora import A


class Mixture:
    """A module whose weights can be mixed with its first weights."""

    def __init__(self, module: nn.Module, mixings: Sequence[float]) -> None:
        """Copy the module's weights as the first ones; if all `mixings` are 1, none are needed."""
        self._module = module
        self._first = {} if set(mixings) == {1.0} else _copy(module)

    @contextmanager
    def mixed(self, mixing: float) -> Iterator[None]:
        """Set the weights to first + mixing * (present - first) within the block."""
        if mixing == 1.0:
            yield
            return
        present = _copy(self._module)
        mean = {name: interpolate(self._first[name], present[name], mixing) for name in present}
        _restore(self._module, mean)
        try:
            yield
        finally:
            _restore(self._module, present)


def interpolate(first: Tensor, present: Tensor, mixing: float) -> Tensor:
    """Return (1 - alpha) theta_0 + alpha theta_1 (WiSE-FT), with `mixing` as alpha."""
    return torch.lerp(first.to(present.device), present, mixing)


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in _mixed_parameters(module)}


def _restore(module: nn.Module, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in _mixed_parameters(module):
            parameter.copy_(weights[name])


def _mixed_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters that learn, without LoRA's A: averaging B averages the weights."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and A not in name.split("."):
            yield name, parameter
