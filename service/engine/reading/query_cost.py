"""What a query costs before it is answered, so that the queue admits and shares out work.

Measured with 126,665 keys on one core: milliseconds of processor time of queries at several depths
and numbers of keywords, with and without evidence. The ratios matter, not the milliseconds: how
fast this machine is, the queue measures itself. Items that are predicted add as much to each query
of a bundle; to name them as evidence takes some microseconds, which are not counted.
"""

from __future__ import annotations

from service.core.types import PredictOptions

_QUERY = 1.6
_KEY = 0.004  # retrieved, with its votes
_KEYWORD = 0.0035  # named in the answer
_EXPLAINED_KEY = 0.002
_EXPLAINED_KEYWORD = 0.01
_GIVEN_ITEM = 0.025  # found by its text, fused, and named in the answer
_CANDIDATE = 0.007  # ranked a second time
_UNIT = 2.5  # a query at depth 200 with ten keywords


def query_cost(options: PredictOptions) -> int:
    """How many plain queries one query with these options costs, at least 1."""
    items = _GIVEN_ITEM * len(options.items or ())
    milliseconds = _QUERY + _KEY * options.depth + items + _interpreted(options)
    return max(1, round(milliseconds / _UNIT))


def is_interpreted(options: PredictOptions) -> bool:
    """Whether a query keeps the interpreter busy for longer than all of a plain one takes.

    Keywords and evidence are put together in Python: in two threads at once they take twice as
    long, and everything else in the process waits for the interpreter.
    """
    return _interpreted(options) > _UNIT


def _interpreted(options: PredictOptions) -> float:
    """The milliseconds in which keywords and evidence are put together, and ranked again."""
    keyword = _KEYWORD + _EXPLAINED_KEYWORD * options.explain
    key = _EXPLAINED_KEY * options.explain
    return keyword * options.top_k + key * options.depth + _CANDIDATE * options.candidates
