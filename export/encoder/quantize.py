"""Quantization of an fp32 graph to 8 bits.

| name          | activations                                | weights               | batches |
|---------------|--------------------------------------------|-----------------------|---------|
| `static-int8` | scales fixed at export, see `static_int8`  | per channel, 7 bits   | yes     |
| `int8`        | a scale for each batch, at run time        | per channel, 8 bits   | no      |
| `none`        | fp32                                       | fp32                  | yes     |

`python -m loadtests.encoders` compares them: processor time a text and closeness to fp32.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """A kind of quantization.

    `batch_invariant` is true if a text has the same vector in every batch, to rounding of fp32.
    Dynamic int8 is not: it uses one activation scale for the whole batch, so a vector depends on
    the other texts.
    """

    name: str
    batch_invariant: bool


QUANTIZATIONS = {
    kind.name: kind
    for kind in (
        Quantization(name="static-int8", batch_invariant=True),
        Quantization(name="int8", batch_invariant=False),
        Quantization(name="none", batch_invariant=True),
    )
}


def quantize(
    fp32: Path,
    target: Path,
    quantization: Quantization,
    *,
    calibration: Sequence[list[int]] = (),
) -> None:
    """Write the quantized form of the graph at `fp32` to `target`.

    `calibration` are token ids of typical texts in random order, for `static-int8`.
    """
    if quantization.name == "none":
        target.write_bytes(fp32.read_bytes())
    elif quantization.name == "int8":
        _quantize_dynamically(fp32, target)
    else:
        from export.encoder.onnx_graph import OnnxGraph
        from export.encoder.static_int8 import quantize_statically

        graph = OnnxGraph.read(fp32)
        quantize_statically(graph, calibration)
        graph.save(target)


def _quantize_dynamically(fp32: Path, target: Path) -> None:
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
