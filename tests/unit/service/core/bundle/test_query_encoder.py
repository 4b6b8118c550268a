"""A bundle whose queries have an encoder of their own: opened, served, snapshot, reloaded."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder, encode, open_query_encoder
from service.core.errors import BundleAltered
from service.core.label_log import open_log
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.prediction.predictor import Stopwatch
from service.core.types import Role
from service.engine.loaded_bundle import LoadedBundle, load_bundle
from service.engine.status import describe
from service.settings import EngineSettings
from tests.support.tiny.bundles import make_bundle, write_document
from tests.support.tiny.encoder import tiny_facts, write_tiny_encoder

QUERY = "shelter for two"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "bundle", query_encoder=1)


@pytest.fixture
def student(tmp_path: Path) -> OnnxEncoder:
    write_tiny_encoder(tmp_path / "student", seed=1)
    return OnnxEncoder(tmp_path / "student", tiny_facts())


def vector_of(loaded: LoadedBundle, query: str) -> np.ndarray:
    return loaded.predictor.encode([query], Stopwatch())[0]


def test_queries_have_its_vectors_and_keys_do_not(folder: Path, student: OnnxEncoder) -> None:
    bundle = open_bundle(folder)
    encoder = OnnxEncoder(folder, bundle.manifest.encoder)
    queries = open_query_encoder(bundle, encoder)
    assert queries.fingerprint == "q" * 64
    ours = encode(queries, [QUERY], role=Role.QUERY)
    assert np.array_equal(ours, encode(student, [QUERY], role=Role.QUERY))
    place = list(bundle.instance_texts).index(QUERY)
    key = bundle.keys[place].astype(np.float32)
    assert encode(encoder, [QUERY], role=Role.QUERY)[0] == pytest.approx(key, abs=1e-3)


def test_a_bundle_without_one_encodes_queries_with_its_encoder(tmp_path: Path) -> None:
    bundle = open_bundle(make_bundle(tmp_path / "bundle"))
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    assert bundle.query_encoder is None
    assert open_query_encoder(bundle, encoder) is encoder
    assert "query_encoder" not in manifest.as_document(bundle.manifest)


def test_a_snapshot_carries_it(folder: Path, tmp_path: Path) -> None:
    bundle = open_bundle(folder)
    write_snapshot(KnowledgeMemory(bundle).view, tmp_path / "snapshot", name="s", log="")
    copied = open_bundle(tmp_path / "snapshot")
    assert copied.manifest.query_encoder == bundle.manifest.query_encoder
    assert copied.query_encoder is not None
    assert copied.query_encoder.graph.read_bytes() == (folder / "query_encoder.onnx").read_bytes()


def test_a_changed_file_is_noticed(folder: Path) -> None:
    path = folder / "query_encoder.onnx"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(BundleAltered, match=r"query_encoder\.onnx"):
        open_bundle(folder)


def test_a_manifest_that_lists_no_file_is_refused(folder: Path) -> None:
    document = orjson.loads((folder / "manifest.json").read_bytes())
    del document["files"]["query_encoder.onnx"]
    write_document(folder, document)
    with pytest.raises(BundleAltered, match=r"lists no file query_encoder\.onnx"):
        open_bundle(folder)


def test_other_dimensions_are_refused(folder: Path) -> None:
    facts = manifest.read(folder)
    assert facts.query_encoder is not None
    wrong = replace(facts, query_encoder=replace(facts.query_encoder, dimension=8))
    manifest.write(wrong, folder)
    with pytest.raises(BundleAltered, match="has 8 dimensions, the keys have 16"):
        open_bundle(folder)


def test_a_reload_changes_the_encoder_of_queries_and_no_other(
    folder: Path, tmp_path: Path, student: OnnxEncoder
) -> None:
    """The cache of query vectors is the bundle's, and stored labels need no new vectors."""
    settings = EngineSettings(threads=1)
    with closing(open_log(tmp_path / "state")) as log:
        having = load_bundle(folder, log, settings)
        lacking = load_bundle(make_bundle(tmp_path / "other"), log, settings)
    assert np.array_equal(vector_of(having, QUERY), encode(student, [QUERY], role=Role.QUERY)[0])
    ours = encode(lacking.encoder, [QUERY], role=Role.QUERY)[0]
    assert np.array_equal(vector_of(lacking, QUERY), ours)
    assert having.representer.fingerprint == lacking.representer.fingerprint
    shown = describe(having.memory.view, None)["bundle"]["query_encoder"]
    assert (shown["name"], shown["fingerprint"]) == ("tiny queries", "q" * 64)
    assert "query_encoder" not in describe(lacking.memory.view, None)["bundle"]
