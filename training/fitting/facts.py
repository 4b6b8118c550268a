"""What `fit` determines before its trials: facts of the data, the hardware, a step's memory.

Shapes: N training rows, L labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch

from service.core.errors import InvalidInput
from service.core.processes.resources import ROOT, control_groups
from training.checkpoints import trained_texts
from training.datasets.dataset import Dataset
from training.datasets.propensity import label_frequency
from training.datasets.training_pairs import TrainingPairs
from training.hardware import gpu_name, machine
from training.models.tokens import tokenize
from training.models.torch_encoder import TorchEncoder

FEWEST_UNSEEN = 2  # the fewest rows that have a standard error
FEWEST_ROWS = 10  # with a label; fewer cannot be split in a meaningful way
MOST_HELD_OUT, LARGEST_SHARE = 2_000, 0.2
LONG = 0.99  # share of the texts that fit within the token limit
SHORTEST_LIMIT = 8  # tokens
FEW_HELD_OUT, MOST_SPLITS = 1_000, 3


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Token counts of the queries or of the labels: their mean, and the limit per text."""

    mean: float
    limit: int


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """The sizes of a data set that `fit` needs."""

    rows: int  # N
    labelled: int  # rows with a label
    labels: int  # L
    pairs: int
    seen_once: float  # share of the used labels that occur in a single row
    known: float  # share of the queries that are also the text of a label
    queries: Lengths
    keywords: Lengths
    unseen: int  # labeled rows that the encoder has not trained on
    held_out: int  # unseen rows on which candidates are compared

    @property
    def texts(self) -> int:
        """The number of texts that a memory encodes: N + L."""
        return self.rows + self.labels

    @property
    def splits(self) -> int:
        """How many times rows are held out and a candidate is trained: few rows decide little.

        There are at most as many splits as the unseen rows allow without repeating rows.
        """
        useful = min(-(-FEW_HELD_OUT // self.held_out), self.unseen // self.held_out)
        return max(1, min(MOST_SPLITS, useful))

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
        if self.unseen < self.labelled:
            yield (
                f"the encoder has trained on {self.labelled - self.unseen:,} of these rows: only"
                f" the other {self.unseen:,} can be held out"
            )
        times = "" if self.splits == 1 else f", {self.splits} times over"
        yield f"{self.held_out:,} rows are held out{times}: on them the candidates are compared"


def data_facts(dataset: Dataset, encoder: TorchEncoder) -> DataFacts:
    """Return the facts of a data set.

    Raises `InvalidInput` if it has too few labeled rows, or too few that are new to the encoder.
    """
    train = dataset.train
    pairs = TrainingPairs(labels_of=train.labels_of, filtered=train.filtered)
    trainable, texts_of_rows = pairs.trainable(), train.instances.texts
    labelled = len(trainable)
    if labelled < FEWEST_ROWS:
        raise InvalidInput(
            f"{dataset.name} has {labelled} training rows with a label that counts;"
            f" fit needs {FEWEST_ROWS} or more",
            field="data",
        )
    unseen = int(trained_texts.of_encoder(encoder.name).unseen(texts_of_rows)[trainable].sum())
    if unseen < FEWEST_UNSEEN:
        raise InvalidInput(
            f"{encoder.name} has trained on all but {unseen} of the {labelled} labeled rows of"
            f" {dataset.name}: fit could not tell whether anything is better on unseen rows. Start"
            " from the encoder that it began with, or add rows",
            field="from",
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
        known=float(np.mean([text in texts for text in texts_of_rows])),
        queries=_lengths(encoder, texts_of_rows),
        keywords=_lengths(encoder, dataset.labels.texts),
        unseen=unseen,
        held_out=min(MOST_HELD_OUT, int(LARGEST_SHARE * labelled), unseen),
    )


def hardware_line(free: int) -> str:
    """Describe the hardware in a sentence; `free` is the memory available to a training step."""
    used = machine(libraries={}, device=gpu_name())
    memory = f"{free / 2**30:.0f} GiB of memory free, of which a step takes half at most"
    return f"{used['device']}, {used['cores']} cores, {memory}"


def _lengths(encoder: TorchEncoder, texts: Sequence[str]) -> Lengths:
    """The mean token count, and a limit that cuts off one text in a hundred."""
    table = tokenize(encoder.tokenizer, texts, prompt="", max_tokens=encoder.max_tokens)
    limit = max(SHORTEST_LIMIT, int(np.quantile(table.lengths, LONG)))
    limit = min(encoder.max_tokens, limit)
    return Lengths(mean=float(np.minimum(table.lengths, limit).mean()), limit=limit)


MEMORY_SHARE = 0.5  # share of the free memory that a step may take
PADDED = 1.2  # tokens of a padded bucket, relative to the tokens of its texts
# Values of 4 bytes that are kept for the gradient: 25 times the hidden size per token and layer,
# and 5 attention weights per head and token pair. On 65,813 rows of some twenty tokens a step of
# 1,024 instances took 16.9 GB without a gradient cache.
HIDDEN_VALUES, ATTENTION_VALUES = 25, 5
SMALLEST_BUCKET, LARGEST_BUCKET = 1_024, 16_384  # tokens


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """The dimensions that decide how much memory an encoder's activations take."""

    layers: int
    heads: int
    hidden: int

    def bytes_per_token(self, length: int) -> int:
        """Bytes per token of a text of `length` tokens, in fp32."""
        values = HIDDEN_VALUES * self.hidden + ATTENTION_VALUES * self.heads * length
        return 4 * self.layers * values


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Whether a step needs the gradient cache, and how many tokens a bucket may have."""

    gradient_cache: bool
    bucket_tokens: int


def step_memory(
    facts: DataFacts, transformer: Transformer, *, instances: int, positives: int, free: int
) -> StepMemory:
    """Settings with which a step of `instances` instances takes at most half of `free` bytes.

    A batch has `positives` labels per instance, but never more than there are labels.
    """
    longest = max(facts.queries.limit, facts.keywords.limit)
    token = transformer.bytes_per_token(longest)
    pool = min(facts.labels, positives * instances)
    tokens = PADDED * (instances * facts.queries.mean + pool * facts.keywords.mean)
    allowed = MEMORY_SHARE * free
    fitting = 2 ** int(math.log2(max(1.0, allowed / 2 / token)))
    return StepMemory(
        gradient_cache=tokens * token > allowed,
        bucket_tokens=min(LARGEST_BUCKET, max(SMALLEST_BUCKET, longest, fitting)),
    )


def free_bytes(root: Path = ROOT) -> int:
    """Memory available to a training step, in bytes; `root` is the folder with /proc and /sys."""
    if torch.cuda.is_available():
        free, _ = torch.cuda.mem_get_info()
        # Torch keeps the memory that earlier steps freed and reuses it.
        return int(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
    available = int(psutil.virtual_memory().available)
    free_of_groups = [free for group in control_groups(root) if (free := group.free()) is not None]
    return min([available, *free_of_groups])
