"""A snapshot is a bundle that answers like the view it was written from, and can learn more."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.label_details import Details
from service.core.changes import Change
from service.core.encoding.encoder import encode
from service.core.errors import InvalidInput
from service.core.memory.draft import MemoryLimits
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import Keyword, NewLabel, PredictOptions, Role
from tests.support.changes import ENCODER, click, delete, put, seal
from tests.support.tiny.bundles import INSTANCES, LABELS, Catalogue, make_bundle
from tests.support.views import described_rows, labels_by_id, row_counts

LOG = "0f" * 16
QUERIES = ("a tent for two", "winter trail boots", "paddle", "")
KAYAK = NewLabel(
    id="kayak", text="sea kayak", queries=("paddle", "boat for one"), metadata={"bid": "0.30"}
)
TENT = NewLabel(id="tent", text="dome tent", queries=("igloo",))
CHANGES: tuple[Change, ...] = (
    put(1, NewLabel(id="axe", text="hand axe")),
    put(2, KAYAK),
    put(3, TENT),
    put(4, NewLabel(id="lamp", text=LABELS["lamp"], metadata={"bid": "0.10"})),
    click(5, "rowing", "kayak", "bottle"),
    click(6, "chop wood", "axe"),
    delete(7, "boots"),
    put(8, NewLabel(id="boots", text="rubber boots")),
    put(9, replace(KAYAK, text="river kayak")),
    delete(10, "axe"),
)


@pytest.fixture
def memory(trigram_bundle: Bundle, tmp_path: Path) -> KnowledgeMemory:
    """A memory with all of `CHANGES`; some of their rows are sealed, some live."""
    memory = KnowledgeMemory(trigram_bundle, MemoryLimits(seal_rows=3, fan_out=2))
    memory.apply(CHANGES[:6])
    seal(memory, tmp_path)
    memory.apply(CHANGES[6:])
    return memory


@pytest.fixture
def bundle(memory: KnowledgeMemory, tmp_path: Path) -> Bundle:
    return snapshot(memory.view, tmp_path / "snapshot")


def snapshot(view: View, folder: Path) -> Bundle:
    write_snapshot(view, folder, name=folder.name, log=LOG)
    return open_bundle(folder)


def opened(bundle: Bundle) -> KnowledgeMemory:
    version = bundle.manifest.memory.version
    return KnowledgeMemory(bundle, MemoryLimits(seal_rows=3), version=version)


def shown(word: Keyword) -> tuple:
    return word.id, word.text, word.metadata, word.novel, [row.text for row in word.evidence]


def assert_same_answers(one: View, other: View) -> None:
    predictor = Predictor(ENCODER, tau=0.1)
    for memorization, depth in product((0.0, 0.4, 1.0), (3, 50)):
        options = PredictOptions(
            top_k=50, memorization=memorization, depth=depth, exact=True, explain=True
        )
        asked = [predictor.predict(view, QUERIES, options).predictions for view in (one, other)]
        for mine, yours in zip(*asked, strict=True):
            assert [*map(shown, mine.keywords)] == [*map(shown, yours.keywords)]
            scores = [word.score for word in yours.keywords]
            assert [word.score for word in mine.keywords] == pytest.approx(scores, abs=1e-5)


# What it holds --------------------------------------------------------------------------------


def test_a_snapshot_answers_as_the_view_did(memory: KnowledgeMemory, bundle: Bundle) -> None:
    view = opened(bundle).view
    assert row_counts(view) == row_counts(memory.view)
    assert_same_answers(view, memory.view)
    before, after = labels_by_id(memory.view), labels_by_id(view)
    assert list(after) == list(before)
    assert after["lamp"].metadata == {"bid": "0.10"}
    assert bundle.label_details.at(after["stove"].index) == Details()


def test_a_snapshot_keeps_the_hubs_of_trained_rows(tmp_path: Path) -> None:
    hubs = np.linspace(-0.2, 0.2, len(INSTANCES) + len(LABELS))
    folder = make_bundle(tmp_path / "bundle", encoder=ENCODER, hubs=hubs)
    memory = KnowledgeMemory(open_bundle(folder), MemoryLimits(seal_rows=3, fan_out=2))
    memory.apply(CHANGES)
    view, after = memory.view, opened(snapshot(memory.view, tmp_path / "snapshot")).view
    assert_same_answers(after, view)
    rows = after.alive_rows()
    posted = after.posted(rows)
    assert not after.penalties(rows)[posted].any()
    assert after.penalties(rows)[~posted].all()


def test_a_snapshot_names_its_origin(
    memory: KnowledgeMemory, bundle: Bundle, trigram_bundle: Bundle
) -> None:
    facts, origin = bundle.manifest, trigram_bundle.manifest
    assert (facts.name, facts.memory.version, facts.log) == ("snapshot", 10, LOG)
    assert (facts.dataset, facts.encoder, facts.predictor, facts.metrics.keys()) == (
        origin.dataset,
        origin.encoder,
        origin.predictor,
        origin.metrics.keys(),
    )
    assert facts.index.parameters() == origin.index.parameters()
    assert (facts.index.recall, facts.index.nodes) == (1.0, len(np.unique(bundle.keys, axis=0)))
    for name in ("encoder.onnx", "tokenizer.json"):
        assert facts.files[name] == origin.files[name]


def test_vectors_are_carried_over_bit_for_bit(bundle: Bundle) -> None:
    """Each text is encoded only once, when it is posted."""
    for texts, role, keys in (
        (bundle.instance_texts, Role.QUERY, bundle.keys[: bundle.instances]),
        (bundle.label_texts, Role.LABEL, bundle.keys[bundle.instances :]),
    ):
        assert np.array_equal(encode(ENCODER, list(texts), role=role).astype(np.float16), keys)


# Learning after a snapshot ------------------------------------------------------------


def test_a_snapshot_of_a_snapshot(memory: KnowledgeMemory, bundle: Bundle, tmp_path: Path) -> None:
    """Without new changes, only its name differs; with new changes, it holds them."""
    again = snapshot(opened(bundle).view, tmp_path / "again")
    assert again.manifest.files == bundle.manifest.files
    changes = [put(11, replace(TENT, queries=("yurt",))), delete(12, "lamp")]
    after = opened(again)
    for one in (memory, after):
        one.apply(changes)
    third = opened(snapshot(after.view, tmp_path / "third")).view
    assert third.version == 12
    assert row_counts(third) == row_counts(memory.view)
    assert_same_answers(third, memory.view)


def test_a_snapshot_of_an_untouched_bundle_is_that_bundle(
    trigram_bundle: Bundle, tmp_path: Path
) -> None:
    bundle = snapshot(KnowledgeMemory(trigram_bundle).view, tmp_path / "snapshot")
    assert bundle.manifest.files == trigram_bundle.manifest.files
    assert (bundle.manifest.memory.version, bundle.manifest.log) == (0, LOG)


def test_progress_counts_the_rows_and_an_existing_folder_is_not_overwritten(
    memory: KnowledgeMemory, tmp_path: Path
) -> None:
    done: list[int] = []
    write_snapshot(memory.view, tmp_path / "bundle", name="b", log=LOG, progress=done.append)
    view = memory.view
    assert done[-1] == view.base_rows + view.live_rows - view.dead_rows
    with pytest.raises(InvalidInput, match="exists already"):
        write_snapshot(memory.view, tmp_path / "bundle", name="b", log=LOG)


@pytest.mark.parametrize("voteless", [(), ("nothing was clicked",)])
def test_a_memory_without_labels_or_rows_can_be_written_and_filled(
    make_bundle: Callable[..., Path], tmp_path: Path, voteless: tuple[str, ...]
) -> None:
    """A row that never voted remains, because it had no vote to lose."""
    instances = {"igloo": ("tent",), **dict.fromkeys(voteless, ())}
    catalogue = Catalogue(labels={"tent": "tent"}, instances=instances)
    memory = KnowledgeMemory(open_bundle(make_bundle(catalogue, encoder=ENCODER)))
    after = opened(snapshot(memory.apply([delete(1, "tent")]), tmp_path / "snapshot"))
    assert after.view.base_rows == len(voteless)
    assert [text for _, text, _ in described_rows(after.view)] == list(voteless)
    assert labels_by_id(after.view) == {}
    predictor = Predictor(ENCODER, tau=0.1)
    for exact in (False, True):
        options = PredictOptions(exact=exact)
        assert predictor.predict(after.view, ["igloo"], options).predictions[0].keywords == ()
    view = after.apply([put(2, TENT)])
    for exact in (False, True):
        options = PredictOptions(exact=exact)
        (answer,) = predictor.predict(view, ["igloo"], options).predictions
        assert [keyword.id for keyword in answer.keywords] == ["tent"]


def test_classifiers_are_kept_for_the_labels_that_were_not_posted_again(
    make_bundle: Callable[..., Path], tmp_path: Path
) -> None:
    """`boots` is another label now, `tent` never had a classifier, `lamp` is unchanged."""
    base = open_bundle(make_bundle(encoder=ENCODER, novel=0))
    memory = KnowledgeMemory(base, MemoryLimits())
    memory.apply(CHANGES)
    taken = snapshot(memory.view, tmp_path / "snapshot")
    assert base.novel is not None
    assert taken.novel is not None
    ids = [taken.label_ids[column] for column in taken.novel.columns.tolist()]
    assert ids == ["bottle", "lamp", "shoes", "stove"]
    kept = [list(base.label_ids).index(label_id) for label_id in ids]
    assert np.array_equal(taken.novel.classifiers, base.novel.classifiers[kept])
    assert taken.manifest.novel == base.manifest.novel
