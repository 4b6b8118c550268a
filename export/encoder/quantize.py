"""Quantization of an fp32 graph to dynamic int8: weights per channel, activations at run time."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """A kind of quantization.

    `batch_invariant` is true if a text has the same vector in every batch. Dynamic int8 is not: it
    uses one activation scale for the whole batch, so a vector depends on the other texts.
    """

    name: str
    batch_invariant: bool


QUANTIZATIONS = {
    "int8": Quantization(name="int8", batch_invariant=False),
    "none": Quantization(name="none", batch_invariant=True),
}


def quantize(fp32: Path, target: Path, quantization: Quantization) -> None:
    """Write the quantized form of the graph at `fp32` to `target`."""
    if quantization.name == "none":
        target.write_bytes(fp32.read_bytes())
        return
    from onnx import TensorProto
    from onnxruntime.quantization import QuantType, quantize_dynamic

    # onnxruntime advises to pre-process the graph; that helps convolutions, not transformers.
    logging.getLogger().addFilter(_no_preprocessing_advice)
    try:
        quantize_dynamic(
            fp32,
            target,
            per_channel=True,
            weight_type=QuantType.QInt8,
            # Shape inference does not know the output types of fused nodes.
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )
    finally:
        logging.getLogger().removeFilter(_no_preprocessing_advice)


def _no_preprocessing_advice(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()
