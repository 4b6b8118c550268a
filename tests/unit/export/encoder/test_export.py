"""Export of a checkpoint, with the tiny graph instead of a traced network."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from rich.console import Console
from scipy.sparse import csr_matrix

from export.encoder import export
from export.encoder.export import EncoderOptions, export_encoder, fingerprint
from export.encoder.parity import Tolerance
from export.exported_encoder import FILE, is_exported, open_exported
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.errors import (
    BundleAltered,
    BundleMissing,
    BundleUnsupported,
    InvalidInput,
    ParityError,
)
from service.core.types import Role
from tests.support.tiny.encoder import write_tiny_encoder
from tests.support.tiny.export import TinyReference, tiny_dataset
from training.datasets.dataset import Dataset, Texts

OPTIONS = EncoderOptions(quantization="none", threads=2)
QUIET = Console(quiet=True)


@pytest.fixture
def reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TinyReference:
    monkeypatch.setattr(export, "trace", lambda encoder, target: encoder.trace_to(target))
    return TinyReference(tmp_path / "reference")


@pytest.fixture
def folder(reference: TinyReference, tmp_path: Path) -> Path:
    target = tmp_path / "encoder"
    export_encoder(reference, tiny_dataset(), target, options=OPTIONS, console=QUIET)
    return target


def test_the_folder_holds_what_a_bundle_needs(reference: TinyReference, folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {"encoder.onnx", "tokenizer.json", "encoder.json", "README.md"}
    assert is_exported(folder)
    exported = open_exported(folder)
    facts = exported.description.encoder
    assert (facts.query_prompt, facts.label_prompt, facts.max_tokens) == ("query ", "passage ", 32)
    assert facts.fingerprint == fingerprint(reference, folder)
    assert exported.description.parity["parity.fp32_max_component"] < 1e-6
    opened = OnnxEncoder(folder, facts)
    ours = encode(opened, ["tent"], role=Role.QUERY)
    assert ours == pytest.approx(reference.encode(["tent"], role=Role.QUERY), abs=1e-6)


def test_different_encoders_have_different_fingerprints(
    reference: TinyReference, tmp_path: Path
) -> None:
    folder = tmp_path / "reference"
    fingerprints = {fingerprint(reference, folder)}
    for change in (
        lambda: setattr(reference, "max_tokens", 16),
        lambda: setattr(reference, "prompts", {Role.QUERY: "", Role.LABEL: "passage "}),
        lambda: write_tiny_encoder(folder, seed=1),
    ):
        change()
        fingerprints.add(fingerprint(reference, folder))
    assert len(fingerprints) == 4


@pytest.mark.parametrize(
    ("seed", "tolerance", "said"),
    [
        (1, Tolerance(), "differs from torch"),  # the traced graph is another model
        (0, Tolerance(cosine=1.1), "mean cosine"),
    ],
)
def test_a_graph_that_differs_by_more_than_the_tolerance_is_not_written(
    reference: TinyReference, tmp_path: Path, seed: int, tolerance: Tolerance, said: str
) -> None:
    write_tiny_encoder(tmp_path / "reference", seed=seed)
    options, target = replace(OPTIONS, tolerance=tolerance), tmp_path / "encoder"
    with pytest.raises(ParityError, match=said):
        export_encoder(reference, tiny_dataset(), target, options=options, console=QUIET)
    assert {path.name for path in tmp_path.iterdir()} == {"reference"}


def test_an_existing_target_is_refused_before_any_work(
    reference: TinyReference, folder: Path
) -> None:
    traced = reference.traced
    with pytest.raises(InvalidInput, match="exists already"):
        export_encoder(reference, tiny_dataset(), folder, options=OPTIONS, console=QUIET)
    assert reference.traced == traced


def test_a_data_set_without_labels_is_refused(reference: TinyReference, tmp_path: Path) -> None:
    train = tiny_dataset().train
    shape = (len(train), 0)
    none = replace(train, labels_of=csr_matrix(shape), filtered=csr_matrix(shape, dtype=bool))
    empty = Dataset(name="empty", train=none, test=none, labels=Texts(uids=(), texts=()))
    with pytest.raises(InvalidInput, match="empty has no labels"):
        export_encoder(reference, empty, tmp_path / "encoder", options=OPTIONS, console=QUIET)


def test_a_damaged_or_missing_file_is_named(folder: Path) -> None:
    path = folder / "encoder.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(BundleAltered, match=r"encoder\.onnx"):
        open_exported(folder)
    path.unlink()
    with pytest.raises(BundleMissing, match=r"encoder\.onnx is missing"):
        open_exported(folder)


def test_a_wrong_description_is_named(folder: Path) -> None:
    path = folder / FILE
    description = orjson.loads(path.read_bytes())
    for change, error, said in (
        ({"format": "other"}, BundleUnsupported, "does not describe"),
        ({"version": 9}, BundleUnsupported, r"encoder\.json has format version 9.*export it again"),
        ({"parity": "good"}, BundleAltered, "parity"),
        ({"surprise": 1}, BundleAltered, "surprise"),
        ({"files": {}}, BundleAltered, "encoder.onnx is missing"),
    ):
        path.write_bytes(orjson.dumps({**description, **change}))
        with pytest.raises(error, match=said):
            open_exported(folder)
    path.write_text("{")
    with pytest.raises(BundleAltered, match="is not JSON"):
        open_exported(folder)
    path.unlink()
    assert not is_exported(folder)
    with pytest.raises(BundleMissing, match="cannot be read"):
        open_exported(folder)
