"""The encoder of a bundle, and the same encoder with fewer dimensions.

Cutting leaves the first dimensions, at unit length. Only an encoder that was trained for it keeps
its quality; here it shows what shorter keys cost and save.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from service.core.bundle.bundle import ENCODER, TOKENIZER, Bundle, QueryEncoder
from service.core.bundle.manifest import EncoderFacts
from service.core.encoding.encoder import OnnxEncoder
from service.core.errors import InvalidInput, MissingExtra


@dataclass(frozen=True, kw_only=True)
class EncoderFiles:
    """A folder with `encoder.onnx` and `tokenizer.json`, and the encoder's facts.

    `query_encoder` is the graph that encodes queries, None if the same one does.
    """

    folder: Path
    facts: EncoderFacts
    query_encoder: QueryEncoder | None = None

    @classmethod
    def of(cls, bundle: Bundle) -> EncoderFiles:
        """The encoder of a bundle."""
        return cls(
            folder=bundle.folder,
            facts=bundle.manifest.encoder,
            query_encoder=bundle.query_encoder,
        )

    @property
    def graph(self) -> Path:
        """The ONNX graph."""
        return self.folder / ENCODER

    @property
    def tokenizer(self) -> Path:
        """The tokenizer."""
        return self.folder / TOKENIZER

    def open(self) -> OnnxEncoder:
        """The encoder, loaded."""
        return OnnxEncoder(self.folder, self.facts)


def cut_encoder(encoder: EncoderFiles, folder: Path, *, dimensions: int) -> EncoderFiles:
    """Write an encoder of the first `dimensions` dimensions into `folder`, for queries as well.

    Raises `InvalidInput` if there are not so many, and `MissingExtra` without `onnx`.
    """
    if not 1 <= dimensions < encoder.facts.dimension:
        raise InvalidInput(
            f"dimensions must be 1 to {encoder.facts.dimension}, not {dimensions}",
            field="dimensions",
        )
    try:
        import onnx
        from onnx import helper, numpy_helper
    except ImportError as error:
        raise MissingExtra("onnx", extra="export") from error
    model = onnx.load(encoder.graph)
    [output] = model.graph.output
    whole = output.name
    bounds = {"cut_start": 0, "cut_end": dimensions, "cut_axis": 1}
    for name, value in bounds.items():
        model.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), name))
    model.graph.node.extend(
        [
            helper.make_node("Slice", [whole, *bounds], ["cut"]),
            helper.make_node("LpNormalization", ["cut"], ["cut_unit"], axis=1, p=2),
        ]
    )
    output.name = "cut_unit"
    output.type.tensor_type.shape.dim[-1].dim_value = dimensions
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / encoder.graph.name)
    shutil.copyfile(encoder.tokenizer, folder / encoder.tokenizer.name)
    digest = hashlib.sha256(f"{encoder.facts.fingerprint}\0{dimensions}".encode()).hexdigest()
    return EncoderFiles(
        folder=folder, facts=replace(encoder.facts, dimension=dimensions, fingerprint=digest)
    )
