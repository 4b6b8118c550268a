"""WiSE-FT (Wortsman et al., 2022): weights between the pretrained and the trained encoder's.

Training on a small data set improves its labels and forgets some of what the encoder knew of all
others. A mean of both sets of weights keeps more of both; the best mean is chosen on held-out rows.

Under LoRA the weights are W_0 + (alpha / r) B A with B = 0 at first. They are linear in B, so a
mean of B with A as it is now is the mean of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from training.models.lora import A


class Mixture:
    """A module whose weights can be mixed with those it had at first."""

    def __init__(self, module: nn.Module, mixings: Sequence[float]) -> None:
        """Copy the module's weights, unless all `mixings` are 1 and need no copy."""
        self._module = module
        self._first = {} if set(mixings) == {1.0} else _copy(module)

    @contextmanager
    def mixed(self, mixing: float) -> Iterator[None]:
        """Within the block the weights are first + mixing * (present - first)."""
        if mixing == 1.0:
            yield
            return
        present = _copy(self._module)
        _restore(
            self._module,
            {name: interpolate(self._first[name], present[name], mixing) for name in present},
        )
        try:
            yield
        finally:
            _restore(self._module, present)


def interpolate(first: Tensor, present: Tensor, mixing: float) -> Tensor:
    """(1 - alpha) theta_0 + alpha theta_1 (WiSE-FT), with `mixing` as alpha."""
    return torch.lerp(first.to(present.device), present, mixing)


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in _mixed_parameters(module)}


def _restore(module: nn.Module, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in _mixed_parameters(module):
            parameter.copy_(weights[name])


def _mixed_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters whose mean is the mean of the weights: those that learn, but no A of LoRA."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and A not in name.split("."):
            yield name, parameter
