"""A query encoder is exported beside the encoder of the keys if it fits and is as good."""

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tokenizers import Tokenizer, models

from export.bundle.build import BundleOptions, export_bundle
from export.encoder import export
from export.encoder.checkpoint import CheckpointOptions, export_query_tower
from export.encoder.export import EncoderOptions, export_encoder
from export.encoder.parity import Tolerance
from export.encoder.query_tower import add_query_encoder
from export.exported_encoder import ExportedEncoder, open_exported
from service.core.bundle.bundle import open_bundle
from service.core.bundle.manifest import PredictorFacts
from service.core.encoding.encoder import OnnxEncoder, encode, open_query_encoder
from service.core.errors import BundleAltered, InvalidInput, ParityError
from service.core.index.libraries import IndexParameters
from service.core.types import Role
from tests.support.tiny.export import TinyReference, tiny_dataset

QUIET = Console(quiet=True)
OPTIONS = EncoderOptions(quantization="none", threads=1, tolerance=Tolerance(query_precision=100.0))


@pytest.fixture
def teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyReference:
    monkeypatch.setattr(export, "trace", lambda encoder, target: encoder.trace_to(target))
    return TinyReference(tmp_path / "teacher")


@pytest.fixture
def student(tmp_path: Path) -> TinyReference:
    reference = TinyReference(tmp_path / "student", seed=1)
    reference.name = "student"
    return reference


def exported(
    teacher: TinyReference, student: TinyReference, target: Path, **changed: object
) -> ExportedEncoder:
    options = replace(OPTIONS, query_encoder=student, **changed)
    return export_encoder(teacher, tiny_dataset(), target, options=options, console=QUIET)


def test_both_graphs_are_described_and_measured(
    teacher: TinyReference, student: TinyReference, tmp_path: Path
) -> None:
    found = exported(teacher, student, tmp_path / "encoder")
    facts = found.description.query_encoder
    assert facts is not None
    assert facts.name == "student"
    assert facts.fingerprint != found.description.encoder.fingerprint
    assert "query_encoder.onnx" in found.description.files
    measured = found.description.parity
    assert measured["query_encoder.torch_fp32_max_component"] < 1e-6
    assert measured["query_encoder.cosine_mean"] < 0.99  # the student is another graph
    assert {"query_encoder.sample_P@1_key_encoder", "query_encoder.sample_P@1"} <= set(measured)
    ours = encode(found.open_query_encoder(), ["tent"], role=Role.QUERY)
    assert ours == pytest.approx(student.encode(["tent"], role=Role.QUERY), abs=1e-6)
    assert "query encoder" in (found.folder / "README.md").read_text()


def test_a_bundle_encodes_keys_with_one_and_queries_with_the_other(
    teacher: TinyReference, student: TinyReference, tmp_path: Path
) -> None:
    found = exported(teacher, student, tmp_path / "encoder")
    options = BundleOptions(
        predictor=PredictorFacts(tau=0.1, depth=3, memorization=0.5),
        index=IndexParameters(m=8, ef_construction=40),
        recall=1.0,
        threads=1,
    )
    export_bundle(found, tiny_dataset(), tmp_path / "bundle", options=options, console=QUIET)
    bundle = open_bundle(tmp_path / "bundle")
    assert bundle.manifest.query_encoder == found.description.query_encoder
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    key = bundle.keys[bundle.instances].astype("float32")
    text = bundle.label_texts[0]
    assert encode(encoder, [text], role=Role.LABEL)[0] == pytest.approx(key, abs=1e-3)
    queries = encode(open_query_encoder(bundle, encoder), [text], role=Role.QUERY)
    assert queries == pytest.approx(student.encode([text], role=Role.QUERY), abs=1e-6)
    assert bundle.manifest.metrics["search.recall@3"] == pytest.approx(100.0)
    assert bundle.manifest.index.ef == 8  # the shortest queue there is


def test_one_that_loses_too_much_is_not_written(
    teacher: TinyReference, student: TinyReference, tmp_path: Path
) -> None:
    strict = Tolerance(query_precision=-1000.0)
    with pytest.raises(ParityError, match=r"query encoder loses .*--max-query-drop"):
        exported(teacher, student, tmp_path / "encoder", tolerance=strict)
    assert not (tmp_path / "encoder").exists()


def test_one_with_another_tokenizer_is_refused(
    teacher: TinyReference, student: TinyReference, tmp_path: Path
) -> None:
    class Other(TinyReference):
        @property
        def backend_tokenizer(self) -> Tokenizer:
            return Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))

    with pytest.raises(InvalidInput, match="another tokenizer"):
        exported(teacher, Other(tmp_path / "other"), tmp_path / "encoder")


def test_how_a_tokenizer_cuts_and_pads_does_not_matter(
    teacher: TinyReference, tmp_path: Path
) -> None:
    class Padding(TinyReference):
        @property
        def backend_tokenizer(self) -> Tokenizer:
            tokenizer = super().backend_tokenizer
            tokenizer.enable_padding()
            tokenizer.enable_truncation(8)
            return tokenizer

    assert exported(teacher, Padding(tmp_path / "padding"), tmp_path / "encoder").query_encoder


def test_one_of_other_dimensions_is_refused(
    teacher: TinyReference, student: TinyReference, tmp_path: Path
) -> None:
    student.dimension = 8
    with pytest.raises(InvalidInput, match="8 dimensions, the encoder of the keys has 16"):
        exported(teacher, student, tmp_path / "encoder")


def test_a_missing_file_is_named(
    teacher: TinyReference, student: TinyReference, tmp_path: Path
) -> None:
    folder = exported(teacher, student, tmp_path / "encoder").folder
    path = folder / "query_encoder.onnx"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleAltered, match=r"query_encoder\.onnx"):
        open_exported(folder)


def test_an_exported_encoder_gets_one_and_its_own_graph_stays(
    teacher: TinyReference, student: TinyReference, tmp_path: Path
) -> None:
    plain = export_encoder(
        teacher, tiny_dataset(), tmp_path / "plain", options=OPTIONS, console=QUIET
    )
    found = add_query_encoder(
        plain, student, tiny_dataset(), tmp_path / "both", options=OPTIONS, console=QUIET
    )
    at_once = exported(teacher, student, tmp_path / "at once")
    assert found.graph.read_bytes() == plain.graph.read_bytes()
    assert found.description.encoder == plain.description.encoder
    assert found.description.query_encoder == at_once.description.query_encoder
    assert found.description.parity == pytest.approx(at_once.description.parity)
    assert "query encoder" in (found.folder / "README.md").read_text()
    with pytest.raises(InvalidInput, match="has a query encoder already"):
        add_query_encoder(
            found, student, tiny_dataset(), tmp_path / "more", options=OPTIONS, console=QUIET
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (CheckpointOptions(), "--query-encoder adds one"),
        (CheckpointOptions(query_encoder="x", quantize="none"), "quantize: .* with its checkpoint"),
    ],
)
def test_what_the_export_has_fixed_cannot_be_chosen_again(
    tmp_path: Path, options: CheckpointOptions, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        export_query_tower(
            tmp_path, tiny_dataset(), tmp_path / "out", options=options, console=QUIET
        )
