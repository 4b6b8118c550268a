"""The precision that an encoder computes in."""

from __future__ import annotations

from typing import Literal

from service.core.errors import InvalidConfig

Precision = Literal["auto", "fp32", "bf16", "fp16"]


def supported_precision(precision: Precision) -> Literal["fp32", "bf16", "fp16"]:
    """Replace `auto` by the fastest precision of the hardware: bf16, else fp16 on GPUs, else fp32.

    Raises `InvalidConfig` for fp16 without a GPU.
    """
    import torch

    cuda = torch.cuda.is_available()
    if precision == "fp16" and not cuda:
        raise InvalidConfig("precision fp16 needs a GPU; take auto, bf16 or fp32")
    if precision != "auto":
        return precision
    if cuda:
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp16"
    return "bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "fp32"
