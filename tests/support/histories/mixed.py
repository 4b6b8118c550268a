"""Changes and questions of all kinds, on which a divided memory is compared with a whole one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import Change, DeleteRule
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.tenant import Tenant
from service.core.types import NewLabel, Prediction, PredictOptions
from tests.support.changes import ENCODER, change, click, delete, put, put_rule, unlearn
from tests.support.label_filters import FILTERS
from tests.support.rules import RULES
from tests.support.tiny.bundles import Catalogue, make_bundle

WORDS = "boot lamp tent stove bottle shoe trail light gas water camp run XK-44 two red".split()
METADATA = ({}, {"bid": "0.10"}, {"price": 1.0, "sizes": ("m", "s")}, {"price": True, "bid": "x"})
LIMITS = MemoryLimits(seal_rows=64, fan_out=2)  # so small that blocks are sealed and merged
MOMENTS = (1, 8, 30)  # before, between and after the dates of labels and rules
MOST_QUERIES = 8  # with many more, exact search multiplies matrices and rounds otherwise


def bundle_of(folder: Path, *, parts: int | None = None) -> Bundle:
    """Create a bundle of 60 labels and 120 instances below `folder`, perhaps in parts."""
    drawn = np.random.default_rng(7)
    labels = {f"label-{place}": _text(drawn) for place in range(60)}
    instances = {
        f"{_text(drawn)} {place % 40}": tuple(drawn.choice(list(labels), 3, replace=False))
        for place in range(120)
    }
    catalogue = Catalogue(labels=labels, instances=instances)
    return open_bundle(
        make_bundle(folder / "bundle", catalogue, encoder=ENCODER, depth=20, parts=parts)
    )


def mixed_changes(seed: int) -> Iterator[Change]:
    """Yield labels, changes, deletions, clicks, negative and unlearned pairs, rules: endlessly."""
    drawn, sequence = np.random.default_rng(seed), 0
    while True:
        sequence += 1
        kind = drawn.random()
        label_id = f"label-{drawn.integers(60)}" if drawn.random() < 0.4 else _new_id(drawn)
        if kind < 0.4:
            yield (put if kind < 0.35 else change)(
                sequence,
                NewLabel(
                    id=label_id,
                    text=_text(drawn),
                    queries=tuple({_text(drawn) for _ in range(drawn.integers(3))}),
                    aliases=(_text(drawn),) if drawn.random() < 0.2 else (),
                    metadata=METADATA[drawn.integers(len(METADATA))],
                    boost=float(drawn.choice([1.0, 1.0, 2.0])),
                    expires_at=15 if drawn.random() < 0.05 else None,
                ),
            )
        elif kind < 0.75:
            labels = {f"label-{drawn.integers(60)}", _new_id(drawn)}
            weight = float(drawn.choice([1.0, 5.0, -1.0]))
            yield click(sequence, _text(drawn), *sorted(labels), weight=weight)
        elif kind < 0.85:
            yield delete(sequence, label_id)
        elif kind < 0.95:
            yield unlearn(sequence, _text(drawn), label_id, f"label-{drawn.integers(60)}")
        elif kind < 0.98:
            yield put_rule(sequence, RULES[drawn.integers(len(RULES))])
        else:
            yield DeleteRule(sequence=sequence, id=RULES[drawn.integers(len(RULES))].id)


def exact_options(drawn: np.random.Generator) -> PredictOptions:
    """Draw the options of an exact search."""
    return PredictOptions(
        top_k=int(drawn.integers(1, 12)),
        depth=int(drawn.choice([4, 20, 100])),
        memorization=float(drawn.choice([0.0, 0.4, 1.0])),
        exact=True,
        explain=bool(drawn.random() < 0.3),
        spelling=bool(drawn.random() < 0.2),
        words=0.8 if drawn.random() < 0.5 else None,
        match=("exact", "phrase") if drawn.random() < 0.2 else None,
        diversity=0.3 if drawn.random() < 0.2 else 0.0,
        filter=FILTERS[drawn.integers(len(FILTERS))] if drawn.random() < 0.4 else None,
        tenant=Tenant("bid", "0.10") if drawn.random() < 0.2 else None,
    )


def some_queries(drawn: np.random.Generator) -> list[str]:
    """Draw a few queries."""
    return [_text(drawn) for _ in range(drawn.integers(1, MOST_QUERIES))]


def answered(
    memory: KnowledgeMemory, queries: Sequence[str], options: PredictOptions, now: int
) -> tuple[Prediction, ...]:
    """Answer queries from a memory's newest view, at the Unix time `now`."""
    view = memory.of_tenant(memory.active(memory.view, now), options.tenant)
    view = memory.only(view, options.filter)
    predictor = Predictor(ENCODER, tau=0.1, only=memory.only)
    return predictor.predict(view, queries, options).predictions


def _text(drawn: np.random.Generator) -> str:
    return " ".join(drawn.choice(WORDS, drawn.integers(1, 4)))


def _new_id(drawn: np.random.Generator) -> str:
    return f"new-{drawn.integers(80)}"
