"""An exported encoder on disk: everything that a bundle needs of a checkpoint, without torch.

| file                 | content                                                                 |
|----------------------|-------------------------------------------------------------------------|
| `encoder.onnx`       | the graph: token ids -> unit vectors, pooling and normalisation inside  |
| `query_encoder.onnx` | optional: a smaller graph of the same space, for queries only           |
| `tokenizer.json`     | the tokenizer, in the format of the Rust library `tokenizers`           |
| `encoder.json`       | format, version, facts, predictor defaults, parity, origin, checksums   |
| `label_keys.npy`     | optional: Z, fp16 [L, d], if the system learned label keys of their own |
| `novel/*`            | optional: IRENE's combiner and classifiers, see `irene_files`           |
| `items/*`            | optional: OAK's fusion and memory bank, see `export.item_files`          |
| `reranker*`          | optional: a second ranking, `training.checkpoints.second_ranking`       |
| `README.md`          | the model card                                                          |
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from export import encoder_json
from export.encoder_json import FILE, Description, LabelFacts
from service.core.bundle import irene_files
from service.core.bundle.bundle import ENCODER, QUERY_ENCODER, TOKENIZER, QueryEncoder
from service.core.bundle.irene_files import NovelFiles
from service.core.encoding.encoder import OnnxEncoder
from service.core.errors import BundleAltered, InvalidInput
from service.core.files.checksums import verify_files
from service.core.files.text_store import mapped
from service.core.types import Halves
from training.checkpoints.label_keys import LABEL_KEYS
from training.datasets.dataset import Dataset

CARD = "README.md"


@dataclass(frozen=True, kw_only=True)
class ExportedEncoder:
    """A verified folder with its description."""

    folder: Path
    description: Description

    @property
    def graph(self) -> Path:
        """Path of `encoder.onnx`."""
        return self.folder / ENCODER

    @property
    def tokenizer(self) -> Path:
        """Path of `tokenizer.json`."""
        return self.folder / TOKENIZER

    @property
    def query_encoder(self) -> QueryEncoder | None:
        """The graph that encodes queries, None if it is `graph`."""
        facts = self.description.query_encoder
        if facts is None:
            return None
        return QueryEncoder(facts=facts, graph=self.folder / QUERY_ENCODER)

    def open_encoder(self) -> OnnxEncoder:
        """Load the graph that encodes keys."""
        return OnnxEncoder(self.folder, self.description.encoder)

    def open_query_encoder(self) -> OnnxEncoder:
        """Load the graph that encodes queries."""
        queries = self.query_encoder
        if queries is None:
            return self.open_encoder()
        return OnnxEncoder(self.folder, queries.facts, graph=queries.graph.name)

    @property
    def agreement(self) -> str:
        """The agreement of the vectors with torch's, for the console."""
        return f"cosine to torch {self.description.parity['parity.cosine_mean']:.4f}"

    @property
    def parity_summary(self) -> str:
        """The agreement with torch in one line, with P@1 on the sample it was measured on."""
        parity = self.description.parity
        return (
            f"{self.agreement}, P@1 on the parity sample"
            f" {parity['parity.sample_P@1']:.2f} (torch {parity['parity.sample_P@1_torch']:.2f})"
        )

    @property
    def bundle_metrics(self) -> dict[str, float]:
        """What a bundle says of its encoder: no P@1, whose sample may be of another data set."""
        return {
            name: value for name, value in self.description.parity.items() if "_P@1" not in name
        }

    def label_keys(self, dataset: Dataset) -> Halves | None:
        """Return Z [L, d], or None if a label's key is the vector of its text.

        Raises `InvalidInput` if the encoder was trained on other labels than the data set's.
        """
        labels = self._label_facts(dataset)
        return None if labels is None or not labels.keys else mapped(self.folder / LABEL_KEYS)

    def novel(self, dataset: Dataset) -> NovelFiles | None:
        """Return IRENE's combiner and classifiers, or None without them.

        Raises `InvalidInput` if the encoder was trained on other labels than the data set's.
        """
        labels = self._label_facts(dataset)
        if labels is None or labels.novel is None:
            return None
        dimension = self.description.encoder.dimension
        return irene_files.read(
            self.folder, labels.novel, labels=len(dataset.labels), dimension=dimension
        )

    def _label_facts(self, dataset: Dataset) -> LabelFacts | None:
        labels = self.description.labels
        if labels is not None and labels.digest != digest_of(dataset):
            raise InvalidInput(
                f"{self.folder} was trained on other labels than those of {dataset.name}:"
                " give the data set that it was trained on"
            )
        return labels


def digest_of(dataset: Dataset) -> str:
    """Return the SHA-256 over the ids of a data set's labels, in order."""
    return hashlib.sha256("\0".join(dataset.labels.uids).encode()).hexdigest()


def is_exported(folder: Path) -> bool:
    """Return whether a folder holds an exported encoder, as opposed to a checkpoint."""
    return (folder / FILE).is_file()


def open_exported(folder: Path) -> ExportedEncoder:
    """Read and verify an exported encoder.

    Raises `BundleMissing`, `BundleUnsupported` (another format or version) or `BundleAltered`,
    naming the file.
    """
    description = encoder_json.read(folder)
    needed = [ENCODER, TOKENIZER]
    if description.query_encoder is not None:
        needed.append(QUERY_ENCODER)
    for name in needed:
        if name not in description.files:
            raise BundleAltered(f"{folder / FILE}: files: {name} is missing")
    verify_files(folder, description.files)
    return ExportedEncoder(folder=folder, description=description)
