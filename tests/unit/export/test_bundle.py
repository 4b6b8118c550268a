"""The export from end to end, with the tiny graph in the place of a traced network."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy.sparse import csr_matrix

from export import bundle as export
from export.bundle import ExportOptions, export_bundle
from export.parity import Tolerance
from service.core.bundle import open_bundle
from service.core.encoder import OnnxEncoder, encode
from service.core.errors import InvalidInput, ParityError
from service.core.index import IndexParameters
from service.core.manifest import AdaptiveFacts
from service.core.memory import KnowledgeMemory
from service.core.predictor import Predictor
from service.core.types import PredictOptions, Role
from tests.support.bundles import INSTANCES, LABELS, Catalogue
from tests.support.tiny_encoder import DIMENSION, tiny_facts, tiny_tokenizer, write_tiny_encoder
from training.datasets.dataset import Dataset, Split, Texts
from training.reduction import METHODS

OPTIONS = ExportOptions(
    quantization="none",
    index=IndexParameters(m=8, ef_construction=40, ef=64),
    threads=2,
)
QUIET = Console(quiet=True)


class TinyReference:
    """Stands for the torch encoder: the tiny graph with the attributes that the export reads."""

    name = "tiny"
    dimension = DIMENSION
    max_tokens = 32
    prompts = {Role.QUERY: "query ", Role.LABEL: "passage "}  # noqa: RUF012

    def __init__(self, folder: Path) -> None:
        write_tiny_encoder(folder)
        self._folder = folder
        facts = tiny_facts(query_prompt="query ", label_prompt="passage ")
        self._encoder = OnnxEncoder(folder, facts)
        self.traced = 0

    @property
    def tokenizer(self) -> "TinyReference":
        return self

    @property
    def backend_tokenizer(self) -> object:
        return tiny_tokenizer()

    def encode(self, texts: list[str], *, role: Role) -> np.ndarray:
        return encode(self._encoder, texts, role=role)

    def trace_to(self, target: Path) -> None:
        self.traced += 1
        target.write_bytes((self._folder / "encoder.onnx").read_bytes())


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyReference:
    monkeypatch.setattr(export, "trace", lambda encoder, target: encoder.trace_to(target))
    return TinyReference(tmp_path / "reference")


@pytest.fixture
def dataset() -> Dataset:
    catalogue = Catalogue()
    votes = catalogue.votes()
    relevance = np.zeros((len(votes), len(LABELS)), np.float32)
    for row, columns in enumerate(votes):
        relevance[row, columns] = 1.0
    texts = Texts(uids=tuple(INSTANCES), texts=tuple(INSTANCES))
    split = Split(
        instances=texts,
        labels_of=csr_matrix(relevance),
        filtered=csr_matrix(relevance.shape, dtype=bool),
    )
    labels = Texts(uids=tuple(LABELS), texts=tuple(LABELS.values()))
    return Dataset(name="outdoor goods", train=split, test=split, labels=labels)


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {"reference"}


def test_the_bundle_holds_the_data_set_and_answers(
    reference: TinyReference, dataset: Dataset, tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    parity = export_bundle(reference, dataset, target, options=OPTIONS, console=QUIET)
    bundle = open_bundle(target)
    facts = bundle.manifest
    assert parity.component < 1e-6
    assert facts.metrics == pytest.approx(parity.as_metrics())
    assert (facts.dataset, facts.encoder.name) == ("outdoor goods", "tiny")
    assert (facts.encoder.query_prompt, facts.encoder.label_prompt) == ("query ", "passage ")
    assert facts.encoder.batch_invariant
    assert list(bundle.instance_texts) == list(INSTANCES)
    assert list(bundle.label_ids) == list(LABELS)
    assert np.split(bundle.indices, bundle.indptr[1:-1])[1].tolist() == [0, 3]  # sorted by column
    predictor = Predictor(OnnxEncoder(target, facts.encoder), tau=facts.predictor.tau)
    answer = predictor.predict(KnowledgeMemory(bundle).view, ["cook outdoors"], PredictOptions())
    assert answer.predictions[0].keywords[0].id == "stove"


def test_keys_are_encoded_each_in_its_role(
    reference: TinyReference, dataset: Dataset, tmp_path: Path
) -> None:
    export_bundle(reference, dataset, tmp_path / "bundle", options=OPTIONS, console=QUIET)
    keys = open_bundle(tmp_path / "bundle").keys.astype(np.float32)
    expected = np.concatenate(
        [
            reference.encode(list(INSTANCES), role=Role.QUERY),
            reference.encode(list(LABELS.values()), role=Role.LABEL),
        ]
    )
    assert keys == pytest.approx(expected, abs=1e-3)


def test_no_work_is_left_beside_a_finished_bundle(
    reference: TinyReference, dataset: Dataset, tmp_path: Path
) -> None:
    export_bundle(reference, dataset, tmp_path / "bundle", options=OPTIONS, console=QUIET)
    assert entries(tmp_path) == {"bundle"}


def test_fingerprints_tell_encoders_apart(reference: TinyReference, tmp_path: Path) -> None:
    folder = tmp_path / "reference"
    prints = {export._fingerprint(reference, folder)}
    reference.max_tokens = 16
    prints.add(export._fingerprint(reference, folder))
    reference.prompts = {Role.QUERY: "", Role.LABEL: "passage "}
    prints.add(export._fingerprint(reference, folder))
    write_tiny_encoder(folder, seed=1)
    prints.add(export._fingerprint(reference, folder))
    assert len(prints) == 4


def test_a_graph_that_differs_from_torch_is_not_written(
    reference: TinyReference, dataset: Dataset, tmp_path: Path
) -> None:
    write_tiny_encoder(tmp_path / "reference", seed=1)  # what is traced is not what was loaded
    with pytest.raises(ParityError, match="differs from torch"):
        export_bundle(reference, dataset, tmp_path / "bundle", options=OPTIONS, console=QUIET)
    assert "bundle" not in entries(tmp_path)


def test_an_interrupted_export_goes_on_where_it_stopped(
    reference: TinyReference, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "bundle"

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(export, "write_bundle", die)
        with pytest.raises(KeyboardInterrupt):
            export_bundle(reference, dataset, target, options=OPTIONS, console=QUIET)
    assert entries(tmp_path) == {".bundle.encoding"}
    encoded: list[int] = []
    real = export.encode_resumably

    def counting(*args: object, progress: object, **kwargs: object) -> np.ndarray:
        return real(*args, progress=encoded.append, **kwargs)

    monkeypatch.setattr(export, "encode_resumably", counting)
    export_bundle(reference, dataset, target, options=OPTIONS, console=QUIET)
    assert encoded == [len(INSTANCES), len(LABELS)]  # all were there at once
    assert entries(tmp_path) == {"bundle"}


def test_an_existing_target_is_refused_before_any_work(
    reference: TinyReference, dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "bundle").mkdir()
    with pytest.raises(InvalidInput, match="exists already"):
        export_bundle(reference, dataset, tmp_path / "bundle", options=OPTIONS, console=QUIET)
    assert reference.traced == 0


def test_a_data_set_without_labels_is_refused(
    reference: TinyReference, dataset: Dataset, tmp_path: Path
) -> None:
    shape = (len(INSTANCES), 0)
    none = replace(
        dataset.train, labels_of=csr_matrix(shape), filtered=csr_matrix(shape, dtype=bool)
    )
    empty = Dataset(name="empty", train=none, test=none, labels=Texts(uids=(), texts=()))
    with pytest.raises(InvalidInput, match="empty has no labels"):
        export_bundle(reference, empty, tmp_path / "bundle", options=OPTIONS, console=QUIET)
    assert entries(tmp_path) == set()


def test_a_tolerance_is_the_callers_choice(
    reference: TinyReference, dataset: Dataset, tmp_path: Path
) -> None:
    strict = replace(OPTIONS, tolerance=Tolerance(cosine=1.1))
    with pytest.raises(ParityError, match="mean cosine"):
        export_bundle(reference, dataset, tmp_path / "bundle", options=strict, console=QUIET)


@pytest.mark.parametrize("reduction", METHODS)
def test_a_reduced_memory_keeps_its_share_of_the_instances_and_all_labels(
    reference: TinyReference, dataset: Dataset, tmp_path: Path, reduction: str
) -> None:
    target = tmp_path / "bundle"
    smaller = replace(OPTIONS, instances=0.5, reduction=reduction)
    export_bundle(reference, dataset, target, options=smaller, console=QUIET)
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


def test_a_merged_key_is_a_mean_and_goes_by_a_members_text(
    reference: TinyReference, dataset: Dataset, tmp_path: Path
) -> None:
    """Equal texts for different labels become one row that votes for both."""
    train = replace(
        dataset.train,
        instances=Texts(uids=tuple(INSTANCES), texts=("tent", "tent", *list(INSTANCES)[2:])),
    )
    target, share = tmp_path / "bundle", 7 / 8
    smaller = replace(OPTIONS, instances=share, reduction="merge")
    export_bundle(reference, replace(dataset, train=train), target, options=smaller, console=QUIET)
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
    reference: TinyReference, dataset: Dataset, tmp_path: Path, changed: dict, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        export_bundle(
            reference,
            dataset,
            tmp_path / "bundle",
            options=replace(OPTIONS, **changed),
            console=QUIET,
        )
    assert (reference.traced, entries(tmp_path)) == (0, set())


def test_a_learned_lambda_answers_where_it_is_switched_on(
    reference: TinyReference, dataset: Dataset, tmp_path: Path
) -> None:
    learned = AdaptiveFacts(weights={"best_label": 3.0}, bias=-1.0, enabled=True)
    predictor = replace(OPTIONS.predictor, adaptive=learned)
    target = tmp_path / "bundle"
    options = replace(OPTIONS, predictor=predictor)
    export_bundle(reference, dataset, target, options=options, console=QUIET)
    facts = open_bundle(target).manifest
    assert (facts.version, facts.predictor.adaptive) == (3, learned)
    assert facts.predictor.default_memorization is None
