"""Encoding by shape: how long a batch takes in each bucket, and a single text on the processor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from time import perf_counter

from loadtests.results.result_table import Row
from service.core.encoding.bucketed_graph import BATCHES, lengths_up_to
from service.core.encoding.encoder import OnnxEncoder

REPETITIONS = 30
_TOKEN = 5  # any that the vocabulary has; what it means takes no time


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """Median milliseconds of a batch on the device, by (texts, tokens); of one text without it."""

    on_device: dict[tuple[int, int], float]
    on_processor: dict[int, float]  # by tokens

    def curves(self) -> dict[str, list[tuple[float, float]]]:
        """For the plot: texts and milliseconds, by tokens."""
        return {
            f"{length} tokens": [
                (texts, self.on_device[texts, length])
                for texts in BATCHES
                if (texts, length) in self.on_device
            ]
            for length in self.on_processor
        }

    def rows(self) -> Iterator[Row]:
        """One row for each length of the texts."""
        for length, alone in self.on_processor.items():
            times = {
                texts: self.on_device[texts, length]
                for texts in BATCHES
                if (texts, length) in self.on_device
            }
            shown = ", ".join(f"{texts}: {times[texts]:.2f}" for texts in times)
            yield Row(
                what=f"encode texts of {length} tokens, ms a batch of so many",
                goal="-",
                measured=f"{shown}; on the processor one takes {alone:.2f}",
                figures={
                    "batch_ms": {str(texts): value for texts, value in times.items()},
                    "processor_ms": alone,
                },
            )


def measure_encoding(on_device: OnnxEncoder, on_processor: OnnxEncoder, *, tokens: int) -> Encoding:
    """Run every shape of encoders that cut texts at `tokens`; first runs are not timed."""
    lengths = lengths_up_to(tokens)
    return Encoding(
        on_device={
            (texts, length): _milliseconds(on_device, texts, length)
            for texts in BATCHES
            for length in lengths
        },
        on_processor={length: _milliseconds(on_processor, 1, length) for length in lengths},
    )


def _milliseconds(encoder: OnnxEncoder, texts: int, length: int) -> float:
    batch, seconds = [[_TOKEN] * length] * texts, []
    for _ in range(REPETITIONS + 1):
        start = perf_counter()
        encoder.embed_batch(batch)
        seconds.append(perf_counter() - start)
    return 1000 * median(seconds[1:])
