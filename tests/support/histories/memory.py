"""Random histories of the memory: every view answers like the dense oracle of the same moment.

With blocks of 1, 3 or 8 rows and merges of two, a few changes make segments of all ages.
"""

import os
from collections import Counter
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import Change, DeleteInstance
from service.core.encoding.encoder import encode
from service.core.label_filter import LabelFilter
from service.core.lexical.words import words_of
from service.core.memory.decay import HOUR, Decay, hour_of
from service.core.memory.draft import MemoryLimits
from service.core.memory.filtered_view import FilteredViews, filtered
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.rule_table import RuleTable
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.prediction.reranking.features import LabelsOfView, trained_frequencies
from service.core.rules import Rule
from service.core.text_identity import distinct_aliases
from service.core.types import NewLabel, Prediction, PredictOptions, Role, RowKind
from tests.support.changes import (
    ENCODER,
    change,
    click,
    delete,
    delete_rule,
    put,
    put_rule,
    seal,
    take_back,
    unlearn,
)
from tests.support.label_filters import FILTERS, passes
from tests.support.oracle import HALF_LIFE, Oracle
from tests.support.rules import RULES
from tests.support.tiny.bundles import INSTANCES, LABELS, Catalogue
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.views import (
    alive_rows,
    label_frequencies,
    labels_by_id,
    matched_texts,
    plan_values,
    row_counts,
    vote_weights,
    word_counts,
)

TAU = 0.1
MATCHED = ("light boots", "red tent xk-12")  # share words with few enough rows
QUERIES = ("tent for the trail", "light boots")
SHARED = [query for query, voted in INSTANCES.items() if len(voted) > 1]
EVERYTHING = 400  # more rows than any history makes

ids = st.sampled_from([*LABELS, "new-1", "new-2", "new-3"])
words = st.sampled_from(["tent", "light tent", "trail boots", "red lamp XK-12", "x"])
queries = st.one_of(words, st.sampled_from(list(INSTANCES)))
weights = st.sampled_from([1.0, 1.0, 0.25, 3.0, -1.0, -0.5])
times = st.sampled_from([None, None, 7, 3 * HOUR, 30 * HOUR + 1])  # of clicks
metadata = st.fixed_dictionaries(
    {},
    optional={
        "bid": st.sampled_from(["0.10", "0.30"]),
        "price": st.sampled_from([1, 2.5, -3, True]),
        "sizes": st.sampled_from([(), ("s",), ("s", "m")]),
    },
)
filters = st.sampled_from(FILTERS)
new_labels = st.builds(
    NewLabel,
    id=ids,
    text=words,
    aliases=st.lists(words, max_size=2).map(tuple),
    queries=st.lists(words, max_size=4).map(tuple),
    metadata=metadata,
    starts_at=st.sampled_from([None, 10, 20]),
    expires_at=st.sampled_from([None, None, 15, 30]),
    boost=st.sampled_from([1.0, 1.0, 0.5, 4.0]),
).map(lambda label: replace(label, aliases=distinct_aliases(label.text, label.aliases)))


def is_active(label: NewLabel | Rule, now: int) -> bool:
    """Return whether a label or a rule has started `now` and not expired."""
    started = label.starts_at is None or label.starts_at <= now
    return started and (label.expires_at is None or now < label.expires_at)


class Histories(RuleBasedStateMachine):
    """Applies the same changes to a memory and to an oracle, compares them, and keeps all views."""

    bundle: Bundle
    aliases: Mapping[str, tuple[str, ...]] = {}  # of the bundle's labels

    @initialize(seal_rows=st.sampled_from([1, 3, 8]))
    def start(self, seal_rows: int) -> None:
        self.temporary = TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.limits = MemoryLimits(
            live_rows=EVERYTHING, seal_rows=seal_rows, seal_items=seal_rows, fan_out=2
        )
        self.oracle = self.new_oracle()
        self.details: dict[str, tuple[NewLabel, bool, int]] = {  # label, novel, version
            label_id: (
                NewLabel(id=label_id, text=text, aliases=self.aliases.get(label_id, ())),
                False,
                0,
            )
            for label_id, text in LABELS.items()
        }
        self.rules: dict[str, Rule] = {}
        self.kept: list[tuple[View, list[object]]] = []  # with what each view must hold
        self.open(self.bundle)

    def new_oracle(self) -> Oracle:
        """Return an oracle of the bundle's content."""
        return Oracle.of(Catalogue(), ENCODER, aliases=self.aliases)

    def teardown(self) -> None:
        """Check that no view has changed since it was taken."""
        with self.temporary:
            for view, expected in self.kept:
                assert self.held(view) == expected

    def open(self, bundle: Bundle) -> None:
        self.memory = self.fresh(bundle)
        self.changes: list[Change] = []
        self.keep()

    def fresh(self, bundle: Bundle) -> KnowledgeMemory:
        version = bundle.manifest.memory.version
        return KnowledgeMemory(bundle, self.limits, version=version, half_life=HALF_LIFE)

    def keep(self) -> None:
        self.kept.append((self.memory.view, self.expected()))

    def expected(self, hour: int | None = None) -> list[object]:
        """Return what the newest view must hold, with what an hour has left of clicks' weights."""
        return [
            self.oracle.row_counts(),
            pytest.approx(self.oracle.click_weights(hour), rel=1e-6),
            Counter(word for row in self.oracle.rows() for word in words_of(row.text)),
            [self.oracle.matches(query) for query in MATCHED],
        ]

    def held(self, view: View) -> list[object]:
        """Return what a view holds."""
        matches = [matched_texts(view, query) for query in MATCHED]
        return [row_counts(view), vote_weights(view), word_counts(view), matches]

    def held_with(self, labels: set[str], hour: int) -> list[object]:
        """Return what a view of some labels must hold at an hour: as if the others were deleted.

        Instances that never had a vote are left out, too: they may be another tenant's.
        """
        whole, self.oracle = self.oracle, deepcopy(self.oracle)
        self.oracle.instances = [row for row in self.oracle.instances if row.voted]
        for label_id in self.details.keys() - labels:
            self.oracle.delete(label_id)
        try:
            return self.expected(hour)
        finally:
            self.oracle = whole

    def apply(self, changes: list[Change]) -> None:
        view = self.memory.apply(changes)
        assert view.version == changes[-1].sequence
        self.changes += changes
        self.keep()

    # Changes ------------------------------------------------------------------------------

    @rule(posted=st.lists(new_labels, min_size=1, max_size=4))
    def put(self, posted: list[NewLabel]) -> None:
        for version, label in enumerate(posted, start=self.next):
            self.oracle.put(label)
            novel = self.details[label.id][1] if label.id in self.details else True
            self.details[label.id] = (label, novel, version)
        self.apply([put(self.next + place, label) for place, label in enumerate(posted)])

    @rule(label_id=ids, forms=st.integers(min_value=3, max_value=9))
    def churn(self, label_id: str, forms: int) -> None:
        """Replace one label so often that all rows of some blocks are dead."""
        self.put([NewLabel(id=label_id, text=f"form {form}") for form in range(forms)])

    @rule(label_id=ids, text=words, data=metadata)
    def put_metadata(self, label_id: str, text: str, data: dict[str, str]) -> None:
        """Change only a label's metadata, which changes no row."""
        known, *_ = self.details.get(label_id, (NewLabel(id=label_id, text=text),))
        view = self.memory.view
        texts = {"aliases": known.aliases, "queries": known.queries}
        self.put([NewLabel(id=label_id, text=known.text, metadata=data, **texts)])
        if label_id in labels_by_id(view):
            assert alive_rows(view).tolist() == alive_rows(self.memory.view).tolist()

    @rule(given=new_labels)
    def change(self, given: NewLabel) -> None:
        """Change a label's metadata, dates and boost, which changes no row."""
        before = alive_rows(self.memory.view).tolist()
        if given.id in self.details:
            known, novel, _ = self.details[given.id]
            texts = {"text": known.text, "aliases": known.aliases, "queries": known.queries}
            self.details[given.id] = (replace(given, **texts), novel, self.next)
        self.apply([change(self.next, given)])
        assert alive_rows(self.memory.view).tolist() == before

    @rule(label_id=ids)
    def delete(self, label_id: str) -> None:
        self.oracle.delete(label_id)
        self.details.pop(label_id, None)
        self.apply([delete(self.next, label_id)])

    @rule(
        query=queries,
        clicked=st.lists(ids, min_size=1, max_size=3, unique=True),
        weight=weights,
        at=times,
    )
    def put_instance(self, query: str, clicked: list[str], weight: float, at: int | None) -> None:
        """Click labels; if that changes no vote, it changes no row."""
        before, known = self.memory.view, deepcopy(self.oracle.clicks)
        self.oracle.click(query, *clicked, weight=weight, at=at)
        self.apply([click(self.next, query, *clicked, weight=weight, at=at)])
        if {of: row.votes for of, row in self.oracle.clicks.items()} == {
            of: row.votes for of, row in known.items()
        }:
            assert alive_rows(self.memory.view).tolist() == alive_rows(before).tolist()

    @rule(posted=st.sampled_from(RULES))
    def put_rule(self, posted: Rule) -> None:
        self.rules[posted.id] = posted
        self.apply([put_rule(self.next, posted)])

    @rule(rule_id=st.sampled_from([posted.id for posted in RULES]))
    def delete_rule(self, rule_id: str) -> None:
        self.rules.pop(rule_id, None)
        self.apply([delete_rule(self.next, rule_id)])

    @rule(query=queries, labels=st.lists(ids, min_size=1, max_size=3, unique=True))
    def unlearn(self, query: str, labels: list[str]) -> None:
        """Unlearn pairs; if the memory held none of them, no row changes."""
        before, held = self.memory.view, self.expected()
        self.unlearn_all(query, labels, [unlearn(self.next, query, *labels)])
        if self.expected() == held:
            assert alive_rows(self.memory.view).tolist() == alive_rows(before).tolist()

    @rule(query=queries, labels=st.lists(ids, min_size=1, max_size=3, unique=True))
    def take_back(self, query: str, labels: list[str]) -> None:
        """Take back clicks; if there were none, no row changes."""
        before, held = self.memory.view, self.expected()
        self.oracle.unlearn(query, *labels, trained=False)
        self.apply([take_back(self.next, query, *labels)])
        if self.expected() == held:
            assert alive_rows(self.memory.view).tolist() == alive_rows(before).tolist()

    @rule(
        query=queries,
        labels=st.lists(ids, min_size=1, max_size=3, unique=True),
        weight=weights,
        at=times,
    )
    def click_and_take_back(
        self, query: str, labels: list[str], weight: float, at: float | None
    ) -> None:
        """Unless a pair was clicked before, the view holds and answers what it did, bit for bit."""
        clicked = self.memory.view.ownership.click(query)
        labels = [one for one in labels if self.column(one) not in clicked.columns]
        before, held = self.memory.view, self.expected()
        self.put_instance(query, labels, weight, at)
        self.oracle.unlearn(query, *labels, trained=False)
        self.apply([take_back(self.next, query, *labels)])
        view = self.memory.view
        assert self.held(view) == held
        if not clicked.columns:
            assert alive_rows(view).tolist() == alive_rows(before).tolist()
            assert ask(view, 0.3, words=0.3) == ask(before, 0.3, words=0.3)

    def column(self, label_id: str) -> int | None:
        return self.memory.view.labels.column(label_id)

    @rule(query=st.sampled_from(SHARED), data=st.data())
    def unlearn_some_of_a_row(self, query: str, data: st.DataObject) -> None:
        """Unlearn votes of a training row that has several, each by a change of its own."""
        voted = st.sampled_from(INSTANCES[query])
        labels = data.draw(st.lists(voted, min_size=1, unique=True))
        first = self.next
        changes = [unlearn(first + place, query, label) for place, label in enumerate(labels)]
        self.unlearn_all(query, labels, changes)

    def unlearn_all(self, query: str, labels: list[str], changes: list[DeleteInstance]) -> None:
        self.oracle.unlearn(query, *labels)
        for one in changes:
            for label_id in self.details.keys() & one.labels:
                label, novel, _ = self.details[label_id]
                left = tuple(other for other in label.queries if other != query)
                if left != label.queries:
                    self.details[label_id] = (replace(label, queries=left), novel, one.sequence)
        self.apply(list(changes))

    @property
    def next(self) -> int:
        return self.memory.view.version + 1

    # Sealing, restarts and snapshots ------------------------------------------------------

    @precondition(lambda self: any(self.memory.view.unsealed_plans()))
    @rule(data=st.data())
    def seal_one(self, data: st.DataObject) -> None:
        plan = data.draw(st.sampled_from(list(self.memory.view.unsealed_plans())))
        seal(self.memory, self.folder, [plan])
        self.keep()

    @precondition(lambda self: any(self.memory.view.unsealed_plans()))
    @rule()
    def seal_all(self) -> None:
        seal(self.memory, self.folder)
        assert list(self.memory.view.unsealed_plans()) == []
        self.keep()

    @rule(batch=st.integers(min_value=1, max_value=9), data=st.data())
    def restart(self, batch: int, data: st.DataObject) -> None:
        """Apply all changes to a new memory, grouped differently and sealed at other moments."""
        again = self.fresh(self.memory.view.bundle)
        for start in range(0, len(self.changes), batch):
            again.apply(self.changes[start : start + batch])
            if data.draw(st.booleans()):
                seal(again, self.folder)
        assert again.view.version == self.memory.view.version
        assert self.held(again.view) == self.held(self.memory.view)
        assert labels_by_id(again.view) == labels_by_id(self.memory.view)
        assert plan_values(again.view) == plan_values(self.memory.view)
        seal(again, self.folder)
        seal(self.memory, self.folder)
        assert answers(again.view) == answers(self.memory.view)
        assert again.view.live_bytes == self.memory.view.live_bytes
        self.memory = again
        self.keep()

    @precondition(lambda self: len(self.changes) > 6)  # slow, therefore less often than other rules
    @rule()
    def snapshot_and_reopen(self) -> None:
        folder = self.folder / f"snapshot-{len(self.kept)}"
        write_snapshot(self.memory.view, folder, name="snapshot", log="log")
        before = labels_by_id(self.memory.view)
        self.open(open_bundle(folder, device=self.bundle.device))
        after = self.memory.view
        assert (after.live_rows, after.dead_rows) == (0, 0)
        assert list(labels_by_id(after)) == list(before)

    # Questions ----------------------------------------------------------------------------

    @rule(
        memorization=st.sampled_from([0.0, 0.3, 1.0]),
        query=st.sampled_from(QUERIES),
        hour=st.sampled_from([None, 24, 100]),
    )
    def predict(self, memorization: float, query: str, hour: int | None) -> None:
        decay = None if hour is None else Decay(hour=hour, half_life=HALF_LIFE)
        scope = replace(self.memory.view.scope, decay=decay)
        without_rules = replace(self.memory.view, rules=RuleTable(), scope=scope)
        scores = {
            keyword.id: keyword.score
            for keyword in ask(without_rules, memorization)[QUERIES.index(query)].keywords
        }
        dense = self.oracle.scores(query, tau=TAU, memorization=memorization, hour=hour)
        assert scores == pytest.approx(
            {label_id: score for label_id, score in dense.items() if label_id in scores}, abs=1e-5
        )
        assert all(score < 1e-9 for label_id, score in dense.items() if label_id not in scores)

    @rule(wanted=filters, now=st.sampled_from([5, 10, 17, 25, 40, 50 * HOUR]))
    def filter(self, wanted: LabelFilter, now: int) -> None:
        """A filtered view holds, lists and answers with the labels that pass, and no others."""
        view = self.memory.active(self.memory.view, now)
        active = {of for of, (label, *_) in self.details.items() if is_active(label, now)}
        if active != self.details.keys():
            self.assert_holds(view, active, hour_of(now))
        else:
            assert self.held(view) == self.expected(hour_of(now))
        passing = {of for of in active if passes(wanted, self.details[of][0].metadata)}
        kept = self.memory.only(view, wanted)
        self.assert_holds(kept, passing, hour_of(now))
        again = filtered(view, wanted).view
        assert answers(again) == answers(kept)
        assert again.filter_warnings == kept.filter_warnings
        active_rules = RuleTable.from_rules(
            rule for rule in self.rules.values() if is_active(rule, now)
        )
        for query in QUERIES:
            assert kept.rules.acting_on(query) == active_rules.acting_on(query)
        fresh = FilteredViews(HALF_LIFE)
        assert answers(fresh.of(fresh.active(self.memory.view, now), wanted)) == answers(kept)

    def assert_holds(self, view: View, labels: set[str], hour: int) -> None:
        """Check what a view of some labels holds, lists and answers, now and when history ends."""
        expected = self.held_with(labels, hour)
        assert self.held(view) == expected
        self.kept.append((view, expected))
        assert len(view.labels) == len(labels)
        assert {of for of in self.details if view.labels.get(of)} == labels
        assert {label.id for label in view.labels.page(size=EVERYTHING)} <= labels
        every = view.labels.page(size=EVERYTHING, every=True)
        assert [label.id for label in every] == sorted(labels)
        light = view.labels_with_words("tent LIGHT").page(size=EVERYTHING, every=True)
        assert [label.id for label in light] == [
            label.id
            for label in every
            if any({"light", "tent"} <= {*words_of(text)} for text in (label.text, *label.aliases))
        ]
        for answer in ask(view, 0.3):
            assert {keyword.id for keyword in answer.keywords} <= labels

    @rule(kind=st.sampled_from([None, *RowKind]), depth=st.integers(min_value=1, max_value=20))
    def retrieve(self, kind: RowKind | None, depth: int) -> None:
        vectors = encode(ENCODER, QUERIES, role=Role.QUERY)
        vectors = self.memory.view.fused(vectors).vectors
        for exact in (False, True):
            found, rows = self.memory.view.retrieve(vectors, depth=depth, kind=kind, exact=exact)
            assert set(rows.ravel().tolist()) <= {-1, *alive_rows(self.memory.view).tolist()}
            for query, similarities in zip(QUERIES, found, strict=True):
                expected = self.oracle.nearest(query, kind, depth=depth)
                assert np.allclose(similarities[: len(expected)], expected, rtol=0, atol=1e-5)
                assert np.all(similarities[len(expected) :] == -np.inf)

    @invariant()
    def the_newest_view_holds_what_the_oracle_holds(self) -> None:
        view, expected = self.kept[-1]
        assert self.held(view) == expected

    @invariant()
    def a_second_ranking_reads_what_the_labels_are(self) -> None:
        view = self.memory.view
        labels = LabelsOfView(view=view, trained=trained_frequencies(view.bundle))
        of_memory = labels_by_id(view).values()
        columns = np.array([label.index for label in of_memory], np.int64)
        assert labels.texts_of(columns) == [label.text for label in of_memory]
        counts = label_frequencies(view)[columns].tolist()
        assert labels.frequencies_of(columns).tolist() == [
            0 if label.novel else count for label, count in zip(of_memory, counts, strict=True)
        ]
        for label, key in zip(of_memory, labels.keys_of(columns), strict=True):
            assert np.array_equal(key, self.oracle.labels[label.id][0].vector)

    @invariant()
    def dead_and_alive_rows_are_all_rows(self) -> None:
        view = self.memory.view
        assert len(alive_rows(view)) + view.dead_rows == view.base_rows + view.live_rows

    @invariant()
    def every_rule_is_as_it_was_last_posted(self) -> None:
        assert {rule.id: rule for rule in self.memory.view.rules} == self.rules

    @invariant()
    def every_label_is_as_it_was_last_posted(self) -> None:
        view = self.memory.view
        labels = labels_by_id(view).values()
        assert {
            label.id: (view.labels.as_posted(label.id), label.novel, label.version)
            for label in labels
        } == self.details
        for label in labels:
            clicked = [row for row in self.oracle.clicks.values() if label.id in row.voted]
            assert len(view.ownership.queries_for(label.index)) == len(clicked)


def ask(view: View, memorization: float, *, words: float | None = None) -> tuple[Prediction, ...]:
    options = PredictOptions(top_k=50, memorization=memorization, depth=EVERYTHING, words=words)
    return Predictor(TrigramEncoder(), tau=TAU).predict(view, QUERIES, options).predictions


def answers(view: View) -> list[tuple[Prediction, ...]]:
    """Predict for comparisons with `==`: scores must be equal bit for bit."""
    return [
        ask(view, memorization, words=words)
        for memorization in (0.0, 0.3, 1.0)
        for words in (None, 0.3)
    ]


def run_histories(opened: Bundle, *, examples: int, machine: type[Histories] = Histories) -> None:
    """Run `examples` histories, the same in every run of the tests."""

    class OfTheBundle(machine):
        bundle = opened

    OfTheBundle.TestCase.settings = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, derandomize=True
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _file: None)  # slow, and matters only in a crash
        OfTheBundle.TestCase("runTest").runTest()
