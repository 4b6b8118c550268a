"""Building a bundle from an exported encoder and a data set."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from export.bundle import build as export
from export.bundle import index_parts
from export.bundle.build import BundleOptions, export_bundle
from export.bundle.hidden_rows import HiddenRows
from export.encoder import export as encoders
from export.encoder.export import EncoderOptions, export_encoder
from export.exported_encoder import ExportedEncoder
from service.command_line import open_console
from service.core.bundle.bundle import Bundle, open_bundle, require_sound
from service.core.bundle.content import build_part
from service.core.bundle.manifest import PredictorFacts, SplitFacts
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.encoding.onnx_session import Tokens
from service.core.errors import InvalidInput
from service.core.files.arrays import is_constant
from service.core.index.choose_ef import ChosenEf
from service.core.index.libraries import IndexParameters
from service.core.label_filter import Metadata
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.prediction.reranking.reranker import open_reranker
from service.core.types import Halves, PredictOptions, Role
from tests.support.tiny.bundles import INSTANCES, LABELS
from tests.support.tiny.export import TinyReference, tiny_dataset, without_labels
from tests.support.tiny.reranker import tiny_reranker
from training.checkpoints.choices import UNCHOSEN, Choices
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import Relevance
from training.selection.memory_choices import DEPTHS, MEMORIZATIONS, TAUS, WORDS

OPTIONS = BundleOptions(
    predictor=PredictorFacts(tau=0.04, depth=200, memorization=0.5),
    index=IndexParameters(m=8, ef_construction=40, ef=64),
    hold_out_test=True,
    threads=2,
)
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> TinyReference:
    return TinyReference(tmp_path_factory.mktemp("reference"))


@pytest.fixture(scope="module")
def encoder(reference: TinyReference, tmp_path_factory: pytest.TempPathFactory) -> ExportedEncoder:
    """The tiny encoder, exported once; tests must not change it."""
    target = tmp_path_factory.mktemp("exported") / "encoder"
    options = EncoderOptions(quantization="none", threads=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoders, "trace", lambda encoder, target: encoder.trace_to(target))
        return export_encoder(reference, tiny_dataset(), target, options=options, console=QUIET)


Build = Callable[..., Bundle]


@pytest.fixture
def build(encoder: ExportedEncoder, tmp_path: Path) -> Build:
    """`build(dataset, console, **options)` exports a bundle to `tmp_path / "bundle"`."""

    def build(
        dataset: Dataset | None = None, console: Console = QUIET, **options: object
    ) -> Bundle:
        target = tmp_path / "bundle"
        chosen = replace(OPTIONS, **options)
        export_bundle(encoder, dataset or tiny_dataset(), target, options=chosen, console=console)
        return open_bundle(target)

    return build


CHOSEN = Choices(system="", tau=0.06, depth=50, memorization=0.3, words=0.4, hubs=0.5)


@pytest.mark.parametrize(
    ("fewest", "choose", "origin"),
    [(1, True, False), (1, False, False), (100, True, False), (1, True, True)],
)
def test_numbers_are_chosen_if_no_run_chose_them(
    build: Build, monkeypatch: pytest.MonkeyPatch, fewest: int, choose: bool, origin: bool
) -> None:
    monkeypatch.setattr(export, "FEWEST_HELD_OUT", fewest)
    monkeypatch.setattr(export, "choices_for", lambda *data, **options: CHOSEN)
    monkeypatch.setattr(ExportedEncoder, "chosen_on", lambda encoder, dataset: origin)
    bundle = build(choose=choose)
    are_chosen = (fewest, choose, origin) == (1, True, False)
    chosen = CHOSEN.predictor if are_chosen else OPTIONS.predictor
    assert bundle.manifest.predictor == chosen
    assert bundle.has_hubs == are_chosen


def test_what_is_best_on_a_held_out_row_is_written(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "FEWEST_HELD_OUT", 1)
    facts = build(choose=True).manifest
    assert facts.predictor.tau in (UNCHOSEN.tau, *TAUS)
    assert facts.predictor.depth in DEPTHS
    assert facts.predictor.memorization in MEMORIZATIONS
    assert facts.predictor.words in WORDS
    assert facts.predictor != OPTIONS.predictor


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_bundle_holds_the_data_set_and_answers(
    build: Build, encoder: ExportedEncoder, reference: TinyReference
) -> None:
    bundle = build()
    facts, parity = bundle.manifest, encoder.description.parity
    assert any("P@1" in name for name in parity)  # measured on the encoder's own sample
    spelling = {name: figure for name, figure in facts.metrics.items() if "spelling" in name}
    answers = {
        name: figure
        for name, figure in facts.metrics.items()
        if name.startswith(("known.", "test."))
    }
    assert (len(spelling), len(answers)) == (4, 9)
    assert facts.metrics == {
        **spelling,
        **answers,
        **{name: parity[name] for name in parity if "P@1" not in name},
        "search.recall@14": 100.0,  # measured on the test queries
        "search.recall_queries": 8.0,
    }
    assert (facts.index.recall, facts.index.recall_goal) == (1.0, 0.99)
    assert facts.encoder == encoder.description.encoder
    assert (facts.dataset, facts.encoder.name) == ("outdoor goods", "tiny")
    assert (facts.encoder.query_prompt, facts.encoder.label_prompt) == ("query ", "passage ")
    assert facts.encoder.batch_invariant
    assert list(bundle.instance_texts) == list(INSTANCES)
    assert list(bundle.label_ids) == list(LABELS)
    assert np.split(bundle.indices, bundle.indptr[1:-1])[1].tolist() == [0, 3]  # sorted by column
    assert is_constant(bundle.vote_weights)
    queries = reference.encode(list(INSTANCES), role=Role.QUERY)
    labels = reference.encode(list(LABELS.values()), role=Role.LABEL)
    assert bundle.keys.astype(np.float32) == pytest.approx(
        np.concatenate([queries, labels]), abs=1e-3
    )
    predictor = Predictor(OnnxEncoder(bundle.folder, facts.encoder), tau=facts.predictor.tau)
    answer = predictor.predict(KnowledgeMemory(bundle).view, ["cook outdoors"], PredictOptions())
    assert answer.predictions[0].keywords[0].id == "stove"


def test_test_rows_are_served_but_nothing_is_measured_with_them(build: Build) -> None:
    """All that is chosen and measured is the same as without them."""
    dataset, served = tiny_dataset(), build(hold_out_test=False)
    train, test = dataset.train.instances.texts, dataset.test.instances.texts
    assert list(served.instance_texts) == [*train, *test]
    count = len(train)
    kept, left = (float(side.labels_of.sum()) for side in (dataset.train, dataset.test))
    [votes] = np.split(served.indices, served.indptr[count : count + 2])[1:2]
    assert sorted(votes.tolist()) == sorted(dataset.test.labels_of[0].indices.tolist())
    assert served.manifest.split == SplitFacts(
        train=count, test=len(test), left_out=0, weight=kept + left, left_out_weight=0.0
    )
    shutil.rmtree(served.folder)
    held_out = build()
    split = held_out.manifest.split
    assert split == SplitFacts(
        train=count, test=0, left_out=len(test), weight=kept, left_out_weight=left
    )
    assert held_out.manifest.predictor == served.manifest.predictor
    ours, theirs = served.manifest.metrics, held_out.manifest.metrics
    for name in ("test.P@1", "test.P@5", "test.R@10", "spelling.P@1_off", "spelling.typo_P@1_auto"):
        assert ours[name] == theirs[name]
    assert (ours["known.of"], theirs["known.of"]) == (14, 7)


def test_without_measures_a_bundle_has_the_encoders_settings(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "FEWEST_HELD_OUT", 1)
    facts = build(quick=True, choose=True, hold_out_test=False).manifest
    assert facts.predictor == OPTIONS.predictor
    assert (facts.spelling, facts.confidence) == ("auto", None)
    assert not [name for name in facts.metrics if name.startswith(("known", "test", "spelling"))]


def test_recall_is_a_measure(build: Build) -> None:
    with pytest.raises(InvalidInput, match="quick and recall exclude each other"):
        build(quick=True, recall=0.9)


def test_each_text_is_encoded_once(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: Counter[str] = Counter()

    def tokenize(encoder: OnnxEncoder, texts: Sequence[str], *, role: Role) -> list[Tokens]:
        if role is Role.QUERY:
            encoded.update(texts)
        return original(encoder, texts, role=role)

    original = OnnxEncoder.tokenize
    monkeypatch.setattr(OnnxEncoder, "tokenize", tokenize)
    build(hold_out_test=False)
    data = tiny_dataset()
    rows = [*data.train.instances.texts, *data.test.instances.texts]
    # The export reads the tokens of each text once more, to find texts with equal tokens.
    assert {encoded[text] for text in rows} == {2}
    assert max(count for text, count in encoded.items() if text not in rows) == 1


@pytest.mark.parametrize(("known", "kept"), [((60.0, 99.0), False), ((98.6, 99.0), True)])
def test_a_reranker_that_harms_known_queries_is_left_out(
    build: Build,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    known: tuple[float, float],
    kept: bool,
) -> None:
    def measured(hidden: HiddenRows, *_: object, **__: object) -> dict[str, float]:
        return {"known.first": known[hidden.bundle.manifest.reranker is None]}

    monkeypatch.setattr(export, "measure_known", measured)
    texts = list(tiny_dataset().labels.texts)
    reranker = tiny_reranker(tmp_path, texts, OPTIONS.predictor, candidates=3)
    bundle = build(reranker=reranker, spelling="off")
    assert (bundle.manifest.reranker is not None) == kept
    assert bundle.manifest.metrics["known.first"] == known[not kept]
    assert (bundle.folder / "reranker").exists() == kept
    require_sound(bundle)
    shutil.rmtree(bundle.folder)
    assert build(reranker=reranker, keep_reranker=True).manifest.reranker is not None


def test_a_reranker_goes_into_the_bundle(build: Build, tmp_path: Path) -> None:
    texts = list(tiny_dataset().labels.texts)
    trees = tiny_reranker(tmp_path, texts, OPTIONS.predictor, candidates=3)
    other = replace(OPTIONS.predictor, memorization=0.2)
    with pytest.raises(InvalidInput, match=r"lambda 0\.5, .*is to have lambda 0\.2"):
        build(reranker=trees, predictor=other)
    assert not (tmp_path / "bundle").exists()
    opened = build(reranker=trees, keep_reranker=True)  # also if it harms known queries
    assert opened.reranker is not None and opened.reranker.facts == trees.facts
    assert open_reranker(opened) is not None


@pytest.mark.parametrize(
    ("relevance", "expected"),
    [("given", [1.5, 0.5]), ("log", [4 / 3, 2 / 3]), ("binary", None)],
)
def test_votes_weigh_on_the_chosen_scale(
    relevance: Relevance, expected: list[float] | None, build: Build
) -> None:
    """With logarithmic relevance, weight 3 counts twice as much as 1: ln(1 + 3) = 2 ln(1 + 1)."""
    dataset = tiny_dataset()
    labels_of = dataset.train.labels_of.copy()
    labels_of.data[labels_of.indptr[1]] = 3.0  # the instance's first of two labels
    train = replace(dataset.train, labels_of=labels_of)
    bundle = build(replace(dataset, train=train), relevance=relevance)
    if expected is None:
        assert is_constant(bundle.vote_weights)
    else:
        votes = np.split(bundle.vote_weights, bundle.indptr[1:-1])[1]
        assert votes == pytest.approx(expected)
    # Posted clicks are compared with clicks, whatever the scale.
    assert bundle.vote_clicks.tolist() == [1.0, 2.0, *[1.0] * (len(INSTANCES) - 2)]


def test_without_a_terminal_each_step_is_said_in_lines(
    build: Build, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = build(console=open_console()).folder
    said = capsys.readouterr()
    assert said.out == ""
    rows = sum(map(bool, INSTANCES.values()))  # with a label
    steps = {"encode instances": 8, "encode labels": 6, "build the index": 14}
    steps |= {"measure spelling": 2 * rows, "ask known queries": rows, "ask test rows": 8}
    assert list(dict.fromkeys(said.err.splitlines())) == [
        line
        for step, total in steps.items()
        for line in (f"{step}: 0 of {total} (0 %)", f"{step}: {total} of {total} (100 %)")
    ]
    folder.rename(folder.with_name("other"))
    build()
    assert capsys.readouterr() == ("", "")


def test_an_interrupted_export_continues_where_it_stopped(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(export, "write_bundle", die)
        with pytest.raises(KeyboardInterrupt):
            build()
    assert entries(tmp_path) == {".bundle.encoding"}
    encoded: list[int] = []
    real = export.encode_resumably

    def counting(*args: object, progress: object, **kwargs: object) -> np.ndarray:
        return real(*args, progress=encoded.append, **kwargs)

    monkeypatch.setattr(export, "encode_resumably", counting)
    build()
    assert encoded == [len(INSTANCES), len(LABELS)]  # read from the cache the second time
    assert entries(tmp_path) == {"bundle"}


def test_a_recall_out_of_reach_is_an_error_that_says_what_is_reached(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = ChosenEf(ef=4096, recall=0.9, depth=10, queries=5)
    monkeypatch.setattr(export, "measured_recall", lambda *_, **__: reached)
    with pytest.raises(InvalidInput, match=r"ef 4096, has 0\.9000.*--ef-construction"):
        build(recall=0.95)


def test_an_existing_target_is_refused_before_any_work(build: Build, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    with pytest.raises(InvalidInput, match="exists already"):
        build()
    assert entries(tmp_path) == {"bundle"}


@pytest.mark.parametrize(
    ("dataset", "options", "said"),
    [
        (without_labels(), {}, "empty has no labels"),
        (None, {"instances": 0.0}, "above 0"),
        (None, {"instances": 1.1}, "1.1"),
    ],
)
def test_wrong_data_or_budget_is_refused_before_any_work(
    build: Build, tmp_path: Path, dataset: Dataset | None, options: dict, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        build(dataset, **options)
    assert entries(tmp_path) == set()


def test_a_reduced_memory_keeps_its_share_of_the_instances_and_all_labels(build: Build) -> None:
    bundle = build(instances=0.5)
    assert (bundle.instances, bundle.labels) == (4, len(LABELS))
    assert list(bundle.label_ids) == list(LABELS)
    assert set(bundle.instance_texts) < set(INSTANCES)
    predictor = Predictor(OnnxEncoder(bundle.folder, bundle.manifest.encoder), tau=0.04)
    options = PredictOptions(explain=True)
    answer = predictor.predict(KnowledgeMemory(bundle).view, ["cook outdoors"], options)
    keywords = answer.predictions[0].keywords
    known = {*bundle.instance_texts, *LABELS.values()}
    assert {row.text for keyword in keywords for row in keyword.evidence} <= known
    assert len(keywords) == len(LABELS)


def test_a_bundle_in_parts_answers_as_one_that_is_not(build: Build, tmp_path: Path) -> None:
    whole = build().folder.rename(tmp_path / "whole")
    parted = build(parts=3)
    require_sound(parted)
    assert len(parted.parts) == 3
    encoder = OnnxEncoder(whole, parted.manifest.encoder)
    asked = (["cook outdoors", "warm feet"], PredictOptions(explain=True, exact=True))
    answers = [
        Predictor(encoder, tau=0.04).predict(KnowledgeMemory(bundle).view, *asked).predictions
        for bundle in (open_bundle(whole), parted)
    ]
    assert answers[0] == answers[1]


def test_an_interrupted_export_keeps_finished_graphs(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def counted(keys: Halves, folder: Path, *rest: Any) -> None:
        built.append(len(keys))
        if len(built) == 2:
            raise KeyboardInterrupt
        build_part(keys, folder, *rest)

    monkeypatch.setattr(index_parts, "build_part", counted)
    with pytest.raises(KeyboardInterrupt):
        build(parts=3)
    bundle = build(parts=3)
    rows = [facts.rows for facts in bundle.manifest.parts or () if facts.rows]
    assert len(rows) > 1
    assert built == [*rows[:2], *rows[1:]]
    require_sound(bundle)


def test_without_fields_there_are_no_details(build: Build) -> None:
    assert build().label_details.store is None


def test_fields_are_the_metadata_of_labels_that_are_not_novel(build: Build) -> None:
    fields: dict[str, Metadata] = {"tent": {"price": 9.5, "sizes": ("s", "m")}}
    bundle = build(
        replace(tiny_dataset(), label_fields=tuple(fields.get(uid, {}) for uid in LABELS))
    )
    require_sound(bundle)
    labels = KnowledgeMemory(bundle).view.labels
    for label_id in LABELS:
        label = labels.require(label_id)
        assert label.metadata == fields.get(label_id, {})
        assert (label.novel, label.version, label.queries) == (False, 0, ())
    assert [column for column, _ in bundle.label_details.filled()] == [list(LABELS).index("tent")]


@pytest.mark.parametrize("options", [{}, {"instances": 0.5}])
def test_aliases_are_rows_behind_the_instances(
    build: Build, tmp_path: Path, options: dict[str, Any]
) -> None:
    aliases = {"tent": ("igloo", "TX-77-Q"), "lamp": ("torch",)}
    data = tiny_dataset()
    weighted = data.train.labels_of.copy()
    weighted.data[::2] = 3.0
    dataset = replace(
        data,
        train=replace(data.train, labels_of=weighted),
        label_aliases=tuple(aliases.get(uid, ()) for uid in LABELS),
    )
    facts = PredictorFacts(tau=0.04, depth=10, memorization=0.5, hubs=0.5)
    written = build(dataset, predictor=facts, **options).folder
    bundle = open_bundle(written.rename(tmp_path / "with aliases"))
    require_sound(bundle)
    without = build(replace(dataset, label_aliases=None), predictor=facts, **options)
    first, rows = without.instances, np.arange(without.instances, bundle.instances)
    assert [bundle.instance_texts[row] for row in rows] == ["torch", "igloo", "TX-77-Q"]
    assert bundle.aliases.tolist() == rows.tolist()
    kept = np.delete(np.arange(len(bundle.keys)), rows)
    for name in ("keys", "hubs"):
        assert np.array_equal(getattr(bundle, name)[kept], getattr(without, name))
    assert not bundle.hubs[rows].any()
    votes = len(without.indices)
    assert np.array_equal(bundle.vote_weights[:votes], without.vote_weights)
    assert bundle.vote_weights[votes:].tolist() == [1.0, 1.0, 1.0]
    view = KnowledgeMemory(bundle).view
    for label_id in LABELS:
        label = view.labels.require(label_id)
        assert (label.aliases, label.novel) == (aliases.get(label_id, ()), False)
        own = bundle.label_details.at(label.index).rows
        assert tuple(bundle.instance_texts[row] for row in own) == label.aliases
        assert view.votes(np.array(own, np.int64))[0].tolist() == [label.index] * len(own)
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    keys = encode(encoder, ["torch"], role=Role.LABEL).astype(np.float16)
    assert np.allclose(bundle.keys[first : first + 1], keys, atol=1e-3)
    asked = PredictOptions(explain=True, words=0.3)
    [answer] = Predictor(encoder, tau=0.04).predict(view, ["tx 77 q"], asked).predictions
    assert (answer.keywords[0].id, answer.keywords[0].match) == ("tent", "exact")
    assert answer.keywords[0].evidence[0].kind == "alias"
