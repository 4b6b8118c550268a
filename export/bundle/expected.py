"""Says how long an export takes before it starts, from the speed of the encoder on this machine.

The encoder is timed on a sample of the texts. What a key costs in the index, and a row in the
choices and measures, was timed with `export bundle --encoder deploy/demo/encoder` on the sample
`shop` and on 272,688 short texts, on an AMD EPYC with AVX-512.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from service.core.encoding.encoder import Encoder, encode_all
from service.core.types import Role

FEWEST_TEXTS = 2_000  # fewer take seconds
_SAMPLED = 64  # texts that are encoded twice; the second time counts
_MEASURED_ROWS = 1_000  # at most, in each of the choices and measures
_A_ROW = 0.02  # seconds for choosing and measuring with one row
_INDEXED, _INDEX_SECONDS, _GROWTH = 9_206, 1.5, 1.55  # seconds grow with this power of the keys


def expected(encoder: Encoder, texts: Sequence[str], *, threads: int, measured: int) -> str:
    """Return a sentence with the expected seconds; `measured` rows are asked in the measures."""
    sample = [texts[place] for place in np.linspace(0, len(texts) - 1, _SAMPLED, dtype=int)]
    encode_all(encoder, sample, role=Role.LABEL, threads=threads)
    start = perf_counter()
    encode_all(encoder, sample, role=Role.LABEL, threads=1)
    encoding = (perf_counter() - start) / _SAMPLED * len(texts) / threads
    index = _INDEX_SECONDS * (len(texts) / _INDEXED) ** _GROWTH / threads
    measuring = _A_ROW * min(_MEASURED_ROWS, measured)
    parts = [f"{encoding:,.0f} s to encode {len(texts):,} texts", f"{index:,.0f} s for the index"]
    if measured:
        parts.append(f"{measuring:,.0f} s to choose and measure (--quick leaves this out)")
    return f"about {encoding + index + measuring:,.0f} s: {', '.join(parts)}"
