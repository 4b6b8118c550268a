"""The learning rate as a pure function of the step, and the precision of the arithmetic."""

from __future__ import annotations

import torch

from service.core.errors import InvalidConfig


def learning_rate_factor(step: int, *, steps: int, warmup: float) -> float:
    """Linear warm-up over the share `warmup` of `steps`, then linear decay to zero."""
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return max(0.0, (steps - step) / max(1, steps - rising))


def chosen_precision(asked: str) -> str:
    """`fp32`, `bf16` or `fp16`; `auto` takes bf16 where the hardware computes with it.

    Raises `InvalidConfig` for fp16 without a GPU.
    """
    cuda = torch.cuda.is_available()
    if asked == "fp16" and not cuda:
        raise InvalidConfig("precision fp16 needs a GPU; take auto, bf16 or fp32")
    if asked != "auto":
        return asked
    if cuda:
        return "bf16" if torch.cuda.is_bf16_supported() else "fp16"
    return "bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "fp32"
