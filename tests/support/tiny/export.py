"""A substitute for a torch encoder, and the tiny catalog as a data set."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.types import Role
from tests.support.tiny.bundles import Catalogue
from tests.support.tiny.encoder import DIMENSION, tiny_facts, tiny_tokenizer, write_tiny_encoder
from training.datasets.dataset import Dataset, Split, Texts


class TinyReference:
    """Replaces a torch encoder: the tiny graph with the attributes that the export reads."""

    name = "tiny"
    dimension = DIMENSION
    max_tokens = 32
    size = 0
    truncation_side = "right"
    prompts = {Role.QUERY: "query ", Role.LABEL: "passage "}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        write_tiny_encoder(folder)
        self._folder = folder
        facts = tiny_facts(query_prompt="query ", label_prompt="passage ")
        self._encoder = OnnxEncoder(folder, facts)
        self.traced = 0

    @property
    def tokenizer(self) -> "TinyReference":
        return self

    @property
    def backend_tokenizer(self) -> object:
        return tiny_tokenizer()

    def encode(self, texts: list[str], *, role: Role) -> np.ndarray:
        return encode(self._encoder, texts, role=role)

    def trace_to(self, target: Path) -> None:
        self.traced += 1
        target.write_bytes((self._folder / "encoder.onnx").read_bytes())


def tiny_dataset(catalogue: Catalogue | None = None) -> Dataset:
    """Return a catalog, by default the tiny bundle's, as a data set that is tested on all rows."""
    catalogue = catalogue or Catalogue()
    votes = catalogue.votes()
    relevance = np.zeros((len(votes), len(catalogue.labels)), np.float32)
    for row, columns in enumerate(votes):
        relevance[row, columns] = 1.0
    split = Split(
        instances=Texts(uids=tuple(catalogue.instances), texts=tuple(catalogue.instances)),
        labels_of=csr_matrix(relevance),
        filtered=csr_matrix(relevance.shape, dtype=bool),
    )
    labels = Texts(uids=tuple(catalogue.labels), texts=tuple(catalogue.labels.values()))
    return Dataset(name="outdoor goods", train=split, test=split, labels=labels)


def without_labels() -> Dataset:
    """Return the tiny data set without its labels."""
    train, none = tiny_dataset().train, (len(tiny_dataset().train), 0)
    split = replace(train, labels_of=csr_matrix(none), filtered=csr_matrix(none, dtype=bool))
    return Dataset(name="empty", train=split, test=split, labels=Texts(uids=(), texts=()))
