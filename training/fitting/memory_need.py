"""How much memory a step of training takes, and how it is kept below what is free."""

from __future__ import annotations

import math
from dataclasses import dataclass

from training.fitting.facts import DataFacts

LARGEST_SHARE = 0.5  # of the free memory
PADDED = 1.2  # tokens of a bucket, padding included, to those of its texts
# Values kept for the gradient, of 4 bytes each: 25 of the hidden size a token and layer, and 5
# attention weights a head and token read. On 65,813 rows of some twenty tokens a step of 1,024
# instances took 16.9 GB without a cache.
HIDDEN_VALUES, ATTENTION_VALUES = 25, 5
SMALLEST_BUCKET, LARGEST_BUCKET = 1_024, 16_384  # tokens


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """What decides how much memory an encoder's activations take."""

    layers: int
    heads: int
    hidden: int

    def bytes_per_token(self, length: int) -> int:
        """Bytes of a token of a text of so many tokens, in fp32."""
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
    """Settings with which a step of so many instances takes at most half of `free` bytes.

    `positives` is how many labels a batch has for each instance; no more than there are labels.
    """
    longest = max(facts.queries.limit, facts.keywords.limit)
    token = transformer.bytes_per_token(longest)
    pool = min(facts.labels, positives * instances)
    tokens = PADDED * (instances * facts.queries.mean + pool * facts.keywords.mean)
    allowed = LARGEST_SHARE * free
    fitting = 2 ** int(math.log2(max(1.0, allowed / 2 / token)))
    return StepMemory(
        gradient_cache=tokens * token > allowed,
        bucket_tokens=min(LARGEST_BUCKET, max(SMALLEST_BUCKET, longest, fitting)),
    )
