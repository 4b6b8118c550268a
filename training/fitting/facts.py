"""What `fit` looks at before it tries anything: sizes, lengths, frequencies, overlap, hardware.

Shapes: N training rows, L labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from service.core.errors import InvalidInput
from training.datasets.dataset import Dataset
from training.datasets.propensity import label_frequency
from training.datasets.training_pairs import TrainingPairs
from training.hardware import machine
from training.models.tokens import tokenize
from training.models.torch_encoder import TorchEncoder

FEWEST_ROWS = 10  # with a label; fewer cannot be split in a meaningful way
MOST_HELD_OUT, LARGEST_SHARE = 2_000, 0.2
LONG = 0.99  # share of the texts that are read to their end
SHORTEST_LIMIT = 8  # tokens
FEW_HELD_OUT, MOST_SPLITS = 1_000, 3


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Tokens of the texts of one side: mean, and how many are read of each text."""

    mean: float
    limit: int


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """A data set's sizes as `fit` needs them."""

    rows: int  # N
    labelled: int  # of them with a label
    labels: int  # L
    pairs: int
    seen_once: float  # share of the labels in use that have a single row
    known: float  # share of the queries that are also the text of a label
    queries: Lengths
    keywords: Lengths
    held_out: int  # rows on which candidates are compared

    @property
    def texts(self) -> int:
        """N + L, how many texts a memory encodes."""
        return self.rows + self.labels

    @property
    def splits(self) -> int:
        """How many times rows are held out and a candidate is trained: few rows decide little."""
        return min(MOST_SPLITS, -(-FEW_HELD_OUT // self.held_out))

    def lines(self) -> Iterator[str]:
        """The facts as sentences."""
        yield (
            f"{self.labelled:,} training rows with a label, {self.labels:,} labels,"
            f" {self.pairs / max(1, self.labelled):.1f} labels a row"
        )
        yield (
            f"{100 * self.seen_once:.0f} % of the labels in use have one row;"
            f" {100 * self.known:.0f} % of the queries are the text of a label"
        )
        yield (
            f"queries have {self.queries.mean:.1f} tokens and labels {self.keywords.mean:.1f};"
            f" {self.queries.limit} and {self.keywords.limit} are read"
        )
        times = "" if self.splits == 1 else f", {self.splits} times anew"
        yield f"{self.held_out:,} rows are held out{times}: on them the candidates are compared"


def data_facts(dataset: Dataset, encoder: TorchEncoder) -> DataFacts:
    """The facts of a data set; raises `InvalidInput` where it has too few labelled rows."""
    train = dataset.train
    pairs = TrainingPairs(labels_of=train.labels_of, filtered=train.filtered)
    labelled = len(pairs.trainable())
    if labelled < FEWEST_ROWS:
        raise InvalidInput(
            f"{dataset.name} has {labelled} training rows with a label that counts;"
            f" fit needs {FEWEST_ROWS} or more",
            field="data",
        )
    frequency = label_frequency(pairs.drawable)
    in_use = frequency[frequency > 0]
    texts = set(dataset.labels.texts)
    return DataFacts(
        rows=len(train),
        labelled=labelled,
        labels=len(dataset.labels),
        pairs=int(pairs.drawable.nnz),
        seen_once=float((in_use == 1).mean()),
        known=float(np.mean([text in texts for text in train.instances.texts])),
        queries=_lengths(encoder, train.instances.texts),
        keywords=_lengths(encoder, dataset.labels.texts),
        held_out=min(MOST_HELD_OUT, int(LARGEST_SHARE * labelled)),
    )


def hardware_line(free: int) -> str:
    """What trains, in a sentence; `free` is the memory that this process can still take."""
    used = machine(libraries={})
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else used["device"]
    return (
        f"{device}, {used['cores']} cores, {free / 2**30:.0f} GiB of memory free, of which a step"
        " takes half at most"
    )


def _lengths(encoder: TorchEncoder, texts: Sequence[str]) -> Lengths:
    """Token counts, with the limit that leaves one text in a hundred cut."""
    table = tokenize(encoder.tokenizer, texts, prompt="", max_tokens=encoder.max_tokens)
    limit = max(SHORTEST_LIMIT, int(np.quantile(table.lengths, LONG)))
    limit = min(encoder.max_tokens, limit)
    return Lengths(mean=float(np.minimum(table.lengths, limit).mean()), limit=limit)
