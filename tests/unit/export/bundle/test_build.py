"""Bundles are built from an exported encoder and a data set."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy.sparse import csr_matrix

from export.bundle import build as export
from export.bundle.build import BundleOptions, export_bundle
from export.encoder import export as encoders
from export.encoder.export import EncoderOptions, export_encoder
from export.exported_encoder import ExportedEncoder
from service.command_line import open_console
from service.core.bundle.bundle import open_bundle
from service.core.bundle.manifest import PredictorFacts
from service.core.encoding.encoder import OnnxEncoder
from service.core.errors import InvalidInput
from service.core.index.libraries import IndexParameters
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.prediction.reranking.reranker import open_reranker
from service.core.types import PredictOptions, Role
from tests.support.tiny.bundles import INSTANCES, LABELS
from tests.support.tiny.export import TinyReference, tiny_dataset
from tests.support.tiny.reranker import tiny_reranker
from training.datasets.dataset import Dataset, Texts
from training.datasets.pair_weights import Relevance
from training.reduction import METHODS

OPTIONS = BundleOptions(
    predictor=PredictorFacts(tau=0.04, depth=200, memorization=0.5),
    index=IndexParameters(m=8, ef_construction=40, ef=64),
    threads=2,
)
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> TinyReference:
    return TinyReference(tmp_path_factory.mktemp("reference"))


@pytest.fixture
def dataset() -> Dataset:
    return tiny_dataset()


@pytest.fixture(scope="module")
def encoder(reference: TinyReference, tmp_path_factory: pytest.TempPathFactory) -> ExportedEncoder:
    """The tiny encoder, exported once for all tests, which only read it."""
    target = tmp_path_factory.mktemp("exported") / "encoder"
    options = EncoderOptions(quantization="none", threads=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoders, "trace", lambda encoder, target: encoder.trace_to(target))
        return export_encoder(reference, tiny_dataset(), target, options=options, console=QUIET)


def test_a_second_ranking_goes_into_the_bundle(
    encoder: ExportedEncoder, dataset: Dataset, tmp_path: Path
) -> None:
    trees = tiny_reranker(tmp_path, list(dataset.labels.texts), OPTIONS.predictor, candidates=3)
    options = replace(OPTIONS, reranker=trees)
    export_bundle(encoder, dataset, tmp_path / "bundle", options=options, console=QUIET)
    opened = open_bundle(tmp_path / "bundle")
    assert opened.reranker is not None and opened.reranker.facts == trees.facts
    assert open_reranker(opened) is not None

    other = replace(options, predictor=replace(OPTIONS.predictor, memorization=0.2))
    with pytest.raises(InvalidInput, match=r"lambda 0\.5, .*is to have lambda 0\.2"):
        export_bundle(encoder, dataset, tmp_path / "other", options=other, console=QUIET)
    assert not (tmp_path / "other").exists()


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_bundle_holds_the_data_set_and_answers(
    encoder: ExportedEncoder, dataset: Dataset, tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    export_bundle(encoder, dataset, target, options=OPTIONS, console=QUIET)
    bundle = open_bundle(target)
    facts = bundle.manifest
    parity = encoder.description.parity
    assert any("P@1" in name for name in parity)  # of the encoder's own sample
    assert facts.metrics == {name: parity[name] for name in parity if "P@1" not in name}
    assert facts.encoder == encoder.description.encoder
    assert (facts.dataset, facts.encoder.name) == ("outdoor goods", "tiny")
    assert (facts.encoder.query_prompt, facts.encoder.label_prompt) == ("query ", "passage ")
    assert facts.encoder.batch_invariant
    assert list(bundle.instance_texts) == list(INSTANCES)
    assert list(bundle.label_ids) == list(LABELS)
    assert np.split(bundle.indices, bundle.indptr[1:-1])[1].tolist() == [0, 3]  # sorted by column
    predictor = Predictor(OnnxEncoder(target, facts.encoder), tau=facts.predictor.tau)
    answer = predictor.predict(KnowledgeMemory(bundle).view, ["cook outdoors"], PredictOptions())
    assert answer.predictions[0].keywords[0].id == "stove"


def test_the_relevance_of_labels_becomes_the_weight_of_votes(
    encoder: ExportedEncoder, dataset: Dataset, tmp_path: Path
) -> None:
    plain, weighted = tmp_path / "plain", tmp_path / "weighted"
    export_bundle(encoder, dataset, plain, options=OPTIONS, console=QUIET)
    assert open_bundle(plain).vote_weights is None
    labels_of = dataset.train.labels_of.copy()
    labels_of.data[labels_of.indptr[1]] = 3.0  # the first of two labels
    train = replace(dataset.train, labels_of=labels_of)
    export_bundle(encoder, replace(dataset, train=train), weighted, options=OPTIONS, console=QUIET)
    bundle = open_bundle(weighted)
    assert bundle.vote_weights is not None
    assert np.split(bundle.vote_weights, bundle.indptr[1:-1])[1].tolist() == [1.5, 0.5]


@pytest.mark.parametrize(
    ("relevance", "expected"),
    [("given", [1.5, 0.5]), ("log", [4 / 3, 2 / 3]), ("binary", None)],
)
def test_votes_weigh_on_the_chosen_scale(
    relevance: Relevance,
    expected: list[float] | None,
    encoder: ExportedEncoder,
    dataset: Dataset,
    tmp_path: Path,
) -> None:
    """ln(1 + 3) is twice ln(1 + 1)."""
    labels_of = dataset.train.labels_of.copy()
    labels_of.data[labels_of.indptr[1]] = 3.0  # the first of two labels
    data = replace(dataset, train=replace(dataset.train, labels_of=labels_of))
    options = replace(OPTIONS, relevance=relevance)
    export_bundle(encoder, data, tmp_path / "bundle", options=options, console=QUIET)
    bundle = open_bundle(tmp_path / "bundle")
    if expected is None:
        assert bundle.vote_weights is None
    else:
        assert bundle.vote_weights is not None
        votes = np.split(bundle.vote_weights, bundle.indptr[1:-1])[1]
        assert votes == pytest.approx(expected)


def test_keys_are_encoded_each_in_its_role(
    encoder: ExportedEncoder, reference: TinyReference, dataset: Dataset, tmp_path: Path
) -> None:
    export_bundle(encoder, dataset, tmp_path / "bundle", options=OPTIONS, console=QUIET)
    keys = open_bundle(tmp_path / "bundle").keys.astype(np.float32)
    expected = np.concatenate(
        [
            reference.encode(list(INSTANCES), role=Role.QUERY),
            reference.encode(list(LABELS.values()), role=Role.LABEL),
        ]
    )
    assert keys == pytest.approx(expected, abs=1e-3)


def test_without_a_terminal_each_step_is_said_in_lines(
    encoder: ExportedEncoder,
    dataset: Dataset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    export_bundle(encoder, dataset, tmp_path / "bundle", options=OPTIONS, console=open_console())
    said = capsys.readouterr()
    assert said.out == ""
    steps = {"encode instances": 8, "encode labels": 6, "build the index": 14}
    assert list(dict.fromkeys(said.err.splitlines())) == [
        line
        for step, total in steps.items()
        for line in (f"{step}: 0 of {total} (0 %)", f"{step}: {total} of {total} (100 %)")
    ]
    export_bundle(encoder, dataset, tmp_path / "quiet", options=OPTIONS, console=QUIET)
    assert capsys.readouterr() == ("", "")


def test_no_work_folder_is_left_next_to_a_finished_bundle(
    encoder: ExportedEncoder, dataset: Dataset, tmp_path: Path
) -> None:
    export_bundle(encoder, dataset, tmp_path / "bundle", options=OPTIONS, console=QUIET)
    assert entries(tmp_path) == {"bundle"}


def test_an_interrupted_export_continues_where_it_stopped(
    encoder: ExportedEncoder, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "bundle"

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(export, "write_bundle", die)
        with pytest.raises(KeyboardInterrupt):
            export_bundle(encoder, dataset, target, options=OPTIONS, console=QUIET)
    assert entries(tmp_path) == {".bundle.encoding"}
    encoded: list[int] = []
    real = export.encode_resumably

    def counting(*args: object, progress: object, **kwargs: object) -> np.ndarray:
        return real(*args, progress=encoded.append, **kwargs)

    monkeypatch.setattr(export, "encode_resumably", counting)
    export_bundle(encoder, dataset, target, options=OPTIONS, console=QUIET)
    assert encoded == [len(INSTANCES), len(LABELS)]  # finished vectors were read, not encoded
    assert entries(tmp_path) == {"bundle"}


def test_an_existing_target_is_refused_before_any_work(
    encoder: ExportedEncoder, dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "bundle").mkdir()
    with pytest.raises(InvalidInput, match="exists already"):
        export_bundle(encoder, dataset, tmp_path / "bundle", options=OPTIONS, console=QUIET)
    assert entries(tmp_path) == {"bundle"}


def test_a_data_set_without_labels_is_refused(
    encoder: ExportedEncoder, dataset: Dataset, tmp_path: Path
) -> None:
    shape = (len(INSTANCES), 0)
    none = replace(
        dataset.train, labels_of=csr_matrix(shape), filtered=csr_matrix(shape, dtype=bool)
    )
    empty = Dataset(name="empty", train=none, test=none, labels=Texts(uids=(), texts=()))
    with pytest.raises(InvalidInput, match="empty has no labels"):
        export_bundle(encoder, empty, tmp_path / "bundle", options=OPTIONS, console=QUIET)
    assert entries(tmp_path) == set()


@pytest.mark.parametrize("reduction", METHODS)
def test_a_reduced_memory_keeps_its_share_of_the_instances_and_all_labels(
    encoder: ExportedEncoder, dataset: Dataset, tmp_path: Path, reduction: str
) -> None:
    target = tmp_path / "bundle"
    smaller = replace(OPTIONS, instances=0.5, reduction=reduction)
    export_bundle(encoder, dataset, target, options=smaller, console=QUIET)
    bundle = open_bundle(target)
    assert (bundle.instances, bundle.labels) == (4, len(LABELS))
    assert list(bundle.label_ids) == list(LABELS)
    assert set(bundle.instance_texts) < set(INSTANCES)
    predictor = Predictor(OnnxEncoder(target, bundle.manifest.encoder), tau=0.04)
    options = PredictOptions(explain=True)
    answer = predictor.predict(KnowledgeMemory(bundle).view, ["cook outdoors"], options)
    keywords = answer.predictions[0].keywords
    assert {row.text for keyword in keywords for row in keyword.evidence} <= {
        *bundle.instance_texts,
        *LABELS.values(),
    }
    assert len(keywords) == len(LABELS)


def test_a_merged_key_is_a_mean_and_has_the_text_of_one_of_its_members(
    encoder: ExportedEncoder, reference: TinyReference, dataset: Dataset, tmp_path: Path
) -> None:
    """Equal texts for different labels become one row that votes for both."""
    train = replace(
        dataset.train,
        instances=Texts(uids=tuple(INSTANCES), texts=("tent", "tent", *list(INSTANCES)[2:])),
    )
    target, share = tmp_path / "bundle", 7 / 8
    smaller = replace(OPTIONS, instances=share, reduction="merge")
    export_bundle(encoder, replace(dataset, train=train), target, options=smaller, console=QUIET)
    bundle = open_bundle(target)
    assert bundle.instance_texts[0] == "tent"
    assert np.split(bundle.indices, bundle.indptr[1:-1])[0].tolist() == [0, 3]
    encoded = reference.encode(["tent"], role=Role.QUERY)[0]
    assert bundle.keys[0].astype(np.float32) == pytest.approx(encoded, abs=1e-3)


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"instances": 0.0}, "above 0"), ({"instances": 1.1}, "1.1"), ({"reduction": "x"}, "'x'")],
)
def test_a_wrong_budget_is_refused_before_any_work(
    encoder: ExportedEncoder, dataset: Dataset, tmp_path: Path, changed: dict, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        export_bundle(
            encoder,
            dataset,
            tmp_path / "bundle",
            options=replace(OPTIONS, **changed),
            console=QUIET,
        )
    assert entries(tmp_path) == set()
