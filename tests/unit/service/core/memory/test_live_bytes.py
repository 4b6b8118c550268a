"""`live_bytes` is what texts take of the process' memory, however they are written."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle
from service.core.changes import Change, PutInstance, PutLabel
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory, bytes_of_item
from service.core.types import NewInstance, NewLabel
from tests.support.changes import ENCODER

LATIN = "abcdefghijklmnopqrstuvwxyz"
ACCENTED = "àâäçéèêëîïôöùûüÿ"
CYRILLIC = "".join(map(chr, range(0x430, 0x450)))
HAN = "".join(map(chr, range(0x4E00, 0x9000)))
BEYOND_BMP = "".join(map(chr, range(0x20000, 0x24000)))
MOST = 2_048
BIGRAMS_OF_ASCII = 300_000  # bytes, which are not counted beforehand

Texts = Callable[[Random], str]


def words(letters: str, length: int, separator: str) -> Texts:
    """Return a maker of texts as long as they may be, of random words."""

    def text(random: Random) -> str:
        count = (MOST + len(separator)) // (length + len(separator))
        return separator.join("".join(random.choices(letters, k=length)) for _ in range(count))

    return text


ADVERSARIAL: dict[str, Texts] = {
    "commas": words(LATIN, 3, ","),
    "dots": words(LATIN, 7, "."),
    "hyphens": words(LATIN, 4, "-"),
    "pairs of marks": words(LATIN, 4, "/+"),
    "spaces": words(LATIN, 5, " "),
    "long words": words(LATIN, 64, " "),
    "one word": words(LATIN, MOST, " "),
    "numbers": words("0123456789", 8, ","),
    "accents": words(ACCENTED, 6, "."),
    "Cyrillic": words(CYRILLIC, 7, ","),
    "Han": words(HAN, 64, " "),
    "short Han": words(HAN, 3, " "),
    "beyond the BMP": words(BEYOND_BMP, 64, " "),
    "mixed scripts": words(LATIN + CYRILLIC + HAN + BEYOND_BMP, 20, ","),
}


def labels_with(text: Texts, *, aliases: int) -> Iterator[NewLabel]:
    random = Random(7)
    for number in range(4):
        more = tuple(text(random) for _ in range(aliases))
        yield NewLabel(id=f"label {number}", text=text(random), aliases=more)


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_adversarial_texts_take_what_is_counted(trigram_bundle: Bundle, name: str) -> None:
    aliases = 1
    labels = list(labels_with(ADVERSARIAL[name], aliases=aliases))
    keys = np.zeros((1 + aliases, ENCODER.dimension), np.float16)
    keys[:, 0] = 1.0
    memory = KnowledgeMemory(trigram_bundle, MemoryLimits(seal_rows=16_384))
    memory.apply([PutLabel(sequence=1, label=NewLabel(id="first", text="first"), vectors=keys[:1])])
    counted = memory.view.live_bytes
    gc.collect()
    tracemalloc.start()
    memory.apply(
        [
            PutLabel(sequence=number, label=label, vectors=keys)
            for number, label in enumerate(labels, 2)
        ]
    )
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    grown += sum(len(text.encode()) for label in labels for text in (label.text, *label.aliases))
    counted = memory.view.live_bytes - counted
    assert grown / 2 <= counted <= 2 * grown
    most = sum(bytes_of_item(label, dimension=ENCODER.dimension) for label in labels)
    assert counted <= most + BIGRAMS_OF_ASCII


def keys_of(rows: int) -> np.ndarray:
    keys = np.zeros((rows, ENCODER.dimension), np.float16)
    keys[:, 0] = 1.0
    return keys


def put_label(number: int, *, rows: int = 1, **facts: Any) -> PutLabel:
    label = NewLabel(id=f"label {number}", text=f"text {number}", **facts)
    return PutLabel(sequence=number, label=label, vectors=keys_of(rows))


def put_click(number: int, **facts: Any) -> PutInstance:
    instance = NewInstance(query=f"query {number}", labels=("tent", "lamp"), **facts)
    return PutInstance(sequence=number, instance=instance, vectors=keys_of(1))


LEARNED: dict[str, Callable[[int], Change]] = {
    "labels": put_label,
    "metadata": lambda n: put_label(n, metadata={f"field {k}": 1_000 * n + k for k in range(16)}),
    "aliases": lambda n: put_label(n, rows=5, aliases=tuple(f"a{n}-{k}" for k in range(4))),
    "queries": lambda n: put_label(n, rows=5, queries=tuple(f"q {n} {k}" for k in range(4))),
    "clicks": put_click,
    "weighted clicks": lambda n: put_click(n, weight=2.0, at=10**15 + n),
}


@pytest.mark.parametrize("kind", LEARNED)
def test_each_kind_of_change_takes_at_most_what_is_counted(
    trigram_bundle: Bundle, kind: str
) -> None:
    """The count has room for what `tracemalloc` does not see: maps in Rust, gaps in the heap."""
    memory = KnowledgeMemory(trigram_bundle, MemoryLimits(seal_rows=16_384))
    memory.apply([LEARNED[kind](1)])
    counted = memory.view.live_bytes
    gc.collect()
    tracemalloc.start()
    memory.apply([LEARNED[kind](number) for number in range(2, 302)])
    gc.collect()
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown <= memory.view.live_bytes - counted <= 3 * grown
