"""fp32 graph -> dynamic int8: weights per channel, activations at run time."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """A way to shrink the graph.

    `batch_invariant` says whether a text's vector is the same in every batch; one activation
    scale for a whole batch (dynamic int8) makes it depend on its neighbours.
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

    # Its advice to pre-process is for convolutions; transformers gain nothing.
    logging.getLogger().addFilter(_no_preprocessing_advice)
    try:
        quantize_dynamic(
            fp32,
            target,
            per_channel=True,
            weight_type=QuantType.QInt8,
            # What comes out of a fused node has no type that shape inference knows.
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )
    finally:
        logging.getLogger().removeFilter(_no_preprocessing_advice)


def _no_preprocessing_advice(record: logging.LogRecord) -> bool:
    return "pre-processing before quantization" not in record.getMessage()
