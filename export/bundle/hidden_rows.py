"""Rows of a bundle that are hidden one by one, so that their own texts can be asked.

Words that only the hidden row has are then unknown, as those of a new query. Only training rows
that the encoder has not trained on are hidden: for others, answers are better than for any new
query. Test rows that are in the memory are hidden throughout, so they influence no choice.

Each text is encoded once, in batches, and each question is answered once.

Shapes: n queries, k ranked labels per query, F features of a label, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from service.core.bundle.bundle import Bundle
from service.core.bundle.manifest import Manifest
from service.core.encoding.encoder import OnnxEncoder, encode_all
from service.core.index.protocol import batches
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.view import View
from service.core.prediction.confidence import features_of
from service.core.prediction.predictor import Predictor, QueryCache, Readings
from service.core.prediction.ranking import Stopwatch
from service.core.types import Doubles, Floats, PredictOptions, Reading, Role, Rows
from training.checkpoints.trained_texts import TrainedTexts
from training.evaluation.noise import with_typo

HIDDEN_ROWS = 1_000  # one row is a tenth of a point of P@1
_CACHED = 16 * HIDDEN_ROWS  # vectors of texts that are asked in several ways
_TOGETHER = 128  # queries whose texts are encoded together

Query = tuple[int, str]  # the row that is hidden, and the text that is asked


@dataclass(frozen=True, kw_only=True)
class Asked:
    """How a query was read, and the columns [k] of its best labels with their features [k, F]."""

    reading: Reading
    columns: Sequence[int]
    features: Doubles


@dataclass(frozen=True, kw_only=True, eq=False)
class HiddenRows:
    """Instance rows of a bundle, drawn at random, and what asks their texts.

    `whole` is the bundle's memory, and `view` the same without test rows.
    """

    bundle: Bundle
    whole: View
    view: View
    encoder: OnnxEncoder
    predictor: Predictor
    cache: QueryCache
    rows: Sequence[int]
    threads: int
    _asked: dict[object, Asked] = field(default_factory=dict)

    @classmethod
    def of(cls, bundle: Bundle, trained: TrainedTexts, *, threads: int = 1) -> HiddenRows:
        """Draw from the training rows with a label that the encoder has not trained on.

        These are at most `HIDDEN_ROWS`.
        """
        facts, texts = bundle.manifest, bundle.instance_texts
        encoder = OnnxEncoder(bundle.folder, facts.encoder)
        labelled = np.diff(bundle.indptr)[: len(texts)] > 0
        labelled[bundle.aliases] = False  # they are texts of labels, not queries
        labelled[rows_of_test(bundle)] = False
        unseen = np.flatnonzero(trained.unseen(list(texts)) & labelled)
        whole, cache = KnowledgeMemory(bundle).view, QueryCache(_CACHED)
        base = whole.base.with_tombstones(rows_of_test(bundle).tolist())
        hidden = cls(
            bundle=bundle,
            whole=whole,
            view=replace(whole, base=base),
            encoder=encoder,
            predictor=Predictor.of(bundle, encoder, cache=cache),
            cache=cache,
            rows=np.random.default_rng(0).permutation(unseen)[:HIDDEN_ROWS].tolist(),
            threads=threads,
        )
        hidden.know(np.array(hidden.rows, np.int64))
        return hidden

    def know(self, rows: Rows) -> None:
        """Keep the keys of instance rows [n] as the vectors of their texts, unless they are fused.

        So these texts are not encoded again.
        """
        if self.bundle.items is None:
            keys = self.bundle.keys[rows].astype(np.float32)
            texts = map(self.text, rows.tolist())
            self.cache.add(dict(zip(texts, keys, strict=True)))

    def described(self, manifest: Manifest) -> HiddenRows:
        """Return the same rows of the bundle with another manifest."""
        return replace(self, bundle=replace(self.bundle, manifest=manifest))

    def corrects(self, texts: Sequence[str]) -> bool:
        """Return whether spelling would read any of these texts otherwise."""
        options, watch = replace(PredictOptions(), spelling=True), Stopwatch()
        readings = self.predictor.read(self.whole, texts, options, watch)
        return any(of_query[0].text != text for of_query, text in zip(readings, texts, strict=True))

    def text(self, row: int) -> str:
        """Return the text of a row."""
        return self.bundle.instance_texts[row]

    def typos(self) -> list[str]:
        """Return the text of each row with a typo, or as it is if no word is long enough."""
        chance = Random(0)
        return [with_typo(text, chance) or text for text in map(self.text, self.rows)]

    def without(self, row: int) -> View:
        """Return the memory without a row, and without test rows."""
        return replace(self.view, base=self.view.base.with_tombstones([row]))

    def labels_of(self, row: int) -> Sequence[int]:
        """Return the columns that a row votes for."""
        columns: Sequence[int] = self.view.votes(np.array([row]))[0].tolist()
        return columns

    def ask(
        self,
        queries: Sequence[Query],
        options: PredictOptions,
        *,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Asked]:
        """Ask each query without its row; `progress` receives the number of finished queries.

        Options differ in spelling and reranking alone.
        """
        kind = (options.spelling, options.candidates)
        new = [query for query in dict.fromkeys(queries) if (query, kind) not in self._asked]
        for batch in batches(len(new), _TOGETHER):
            asked = new[batch]
            views = [self.without(row) for row, _ in asked]
            answers = self.ask_views(views, [text for _, text in asked], options)
            self._asked.update(
                ((query, kind), one) for query, one in zip(asked, answers, strict=True)
            )
            progress(len(queries) - len(new) + batch.stop)
        return [self._asked[query, kind] for query in queries]

    def ask_views(
        self, views: Sequence[View], texts: Sequence[str], options: PredictOptions
    ) -> Iterator[Asked]:
        """Ask each text of its own view."""
        watch, readings = Stopwatch(), list[Readings]()
        for view, text in zip(views, texts, strict=True):
            readings += self.predictor.read(view, [text], options, watch)
        vectors = self._encoded(readings)
        for view, of_query in zip(views, readings, strict=True):
            searched = self.predictor.searched(view, [of_query], vectors, options, watch)
            [(query, ranking)] = self.predictor.rank(searched, options)
            features = features_of(query.view, query.reading, ranking)
            yield Asked(reading=query.reading, columns=ranking.columns, features=features)

    def ranked(self, view: View, texts: Sequence[str], options: PredictOptions) -> Rows:
        """Return the columns of the best labels of texts, [n, k], -1 for none."""
        found, watch = np.full((len(texts), options.top_k), -1, np.int64), Stopwatch()
        for batch in batches(len(texts), _TOGETHER):
            read = self.predictor.read(view, texts[batch], options, watch)
            searched = self.predictor.searched(view, read, self._encoded(read), options, watch)
            ranked = self.predictor.rank(searched, options)
            for place, (_, ranking) in enumerate(ranked, start=batch.start):
                found[place, : len(ranking.columns)] = ranking.columns
        return found

    def _encoded(self, readings: Sequence[Readings]) -> Mapping[str, Floats]:
        """Return the vectors of all texts, and encode those together that the cache lacks."""
        texts = dict.fromkeys(reading.text for of_query in readings for reading in of_query)
        vectors = self.cache.known(list(texts))
        missing = [text for text in texts if text not in vectors]
        encoded = encode_all(self.encoder, missing, role=Role.QUERY, threads=self.threads)
        new = dict(zip(missing, encoded, strict=True))
        self.cache.add(new)
        return vectors | new


def rows_of_test(bundle: Bundle) -> Rows:
    """Return the instance rows of a bundle that are from the test split."""
    split = bundle.manifest.split
    return np.arange(0) if split is None else np.arange(split.train, split.train + split.test)
