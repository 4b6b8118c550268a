"""Weights between the pretrained encoder's and the trained one's: WiSE-FT (Wortsman et al., 2022).

A small data set teaches its own labels and unteaches some of what the encoder knew of all others.
A mean of both sets of weights keeps more of either; which mean is best is chosen on held-out rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Mixture:
    """A module that can be looked at on the way from its first weights to the present ones."""

    def __init__(self, module: nn.Module, mixings: Sequence[float]) -> None:
        """Remember the weights that the module has now, where any of `mixings` needs them."""
        self._module = module
        self._first = {} if set(mixings) == {1.0} else _copy(module)

    @contextmanager
    def at(self, mixing: float) -> Iterator[None]:
        """Within the block the weights are first + mixing * (present - first); 1 is the present."""
        if mixing == 1.0:
            yield
            return
        present = _copy(self._module)
        _put(
            self._module,
            {name: mixed(self._first[name], present[name], mixing) for name in present},
        )
        try:
            yield
        finally:
            _put(self._module, present)


def mixed(first: Tensor, present: Tensor, mixing: float) -> Tensor:
    """(1 - alpha) theta_0 + alpha theta_1 of WiSE-FT, elementwise."""
    return torch.lerp(first.to(present.device), present, mixing)


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def _put(module: nn.Module, weights: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(weights[name])
