"""The golden encoder, written by `write_encoder`, opens, and a bundle can be built from it."""

from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from export.bundle.build import BundleOptions, export_bundle
from export.commands.options import PredictorOptions
from export.exported_encoder import ExportedEncoder, open_exported
from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder
from tests.golden.write_bundle import BUNDLE
from tests.golden.write_encoder import ENCODER, FACTS, ORIGIN, PREDICTOR, label_keys
from tests.golden.write_label_log import LOG
from tests.support.tiny.bundles import LABELS
from tests.support.tiny.export import tiny_dataset


@pytest.fixture(scope="module")
def exported() -> ExportedEncoder:
    return open_exported(ENCODER)


def test_its_description_is_what_was_written(exported: ExportedEncoder) -> None:
    description = exported.description
    assert description.version == 1
    assert (description.encoder, description.predictor) == (FACTS, PREDICTOR)
    assert description.origin == ORIGIN
    assert description.parity == {"parity.cosine_mean": 1.0}
    assert description.labels is not None
    assert description.labels.keys
    assert description.labels.novel is not None


def test_its_graph_still_returns_the_vectors_that_its_label_keys_were_made_from(
    exported: ExportedEncoder,
) -> None:
    stored = exported.label_keys(tiny_dataset())
    assert stored is not None
    computed = label_keys(OnnxEncoder(ENCODER, exported.description.encoder))
    assert computed.astype(np.float32) == pytest.approx(stored.astype(np.float32), abs=1e-3)


def test_a_bundle_is_built_from_it(exported: ExportedEncoder, tmp_path: Path) -> None:
    defaults = exported.description.predictor
    predictor = PredictorOptions().over(defaults)
    export_bundle(
        exported,
        tiny_dataset(),
        tmp_path / "bundle",
        options=BundleOptions(predictor=predictor, hold_out_test=True, threads=1),
        console=Console(quiet=True),
    )
    bundle = open_bundle(tmp_path / "bundle")
    assert bundle.manifest.encoder == FACTS
    assert np.array_equal(bundle.keys[bundle.instances :], exported.label_keys(tiny_dataset()))
    assert bundle.novel is not None
    assert bundle.novel.columns.tolist() == list(range(len(LABELS) - 1))


@pytest.mark.parametrize("fixture", [BUNDLE, ENCODER, LOG], ids=lambda fixture: fixture.name)
def test_a_fixture_is_small(fixture: Path) -> None:
    files = [path for path in fixture.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 50_000
    assert fixture != LOG or [path.name for path in files] == ["labels.sqlite"]
