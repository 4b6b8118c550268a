"""The manifest is read as it was written, and every edit is detected."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.bundle import manifest
from service.core.bundle.manifest import Manifest
from service.core.errors import BundleAltered, BundleError, BundleMissing, BundleUnsupported
from tests.support.tiny.bundles import write_document
from tests.support.tiny.encoder import tiny_facts
from tests.support.tiny.novel import FACTS as NOVEL


@pytest.fixture(scope="module")
def facts(tiny_bundle_folder: Path) -> Manifest:
    return manifest.read(tiny_bundle_folder)


@pytest.fixture
def folder(tmp_path: Path, facts: Manifest) -> Path:
    manifest.write(facts, tmp_path)
    return tmp_path


def document(folder: Path) -> dict[str, Any]:
    return orjson.loads((folder / "manifest.json").read_bytes())


def test_a_manifest_is_read_as_it_was_written(folder: Path, facts: Manifest) -> None:
    assert manifest.read(folder) == facts


@settings(max_examples=30)
@given(
    tau=st.floats(min_value=1e-6, max_value=1e6),
    name=st.text(st.characters(exclude_categories=["Cs"])),
    metrics=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        st.floats(allow_nan=False, allow_infinity=False),
        max_size=3,
    ),
)
def test_any_numbers_and_names_are_read_as_written(
    tmp_path_factory: pytest.TempPathFactory,
    facts: Manifest,
    tau: float,
    name: str,
    metrics: dict[str, float],
) -> None:
    folder = tmp_path_factory.mktemp("manifest")
    changed = replace(
        facts,
        name=name,
        encoder=tiny_facts(query_prompt=name),
        predictor=replace(facts.predictor, tau=tau),
        metrics=metrics,
    )
    manifest.write(changed, folder)
    assert manifest.read(folder) == changed


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("predictor", "tau", 0.2),
        ("predictor", "depth", 11),
        ("encoder", "max_tokens", 512),
        ("memory", "labels", 7),
        ("metrics", "parity.cosine_mean", 0.5),
    ],
)
def test_an_edited_value_is_detected(folder: Path, section: str, key: str, value: object) -> None:
    edited = document(folder)
    edited[section][key] = value
    (folder / "manifest.json").write_bytes(orjson.dumps(edited))
    with pytest.raises(BundleAltered, match=r"manifest\.json differs from its own checksum"):
        manifest.read(folder)


def test_the_order_of_the_keys_does_not_matter(folder: Path, facts: Manifest) -> None:
    backwards = dict(reversed(document(folder).items()))
    (folder / "manifest.json").write_bytes(orjson.dumps(backwards))
    assert manifest.read(folder) == facts


@pytest.mark.parametrize("version", [0, 2, 4, "1", None])
def test_another_version_is_unsupported(folder: Path, version: object) -> None:
    write_document(folder, document(folder) | {"version": version})
    with pytest.raises(BundleUnsupported) as raised:
        manifest.read(folder)
    assert str(raised.value) == (
        f"{folder / 'manifest.json'} has format version {version!r}, but this build of Keymatch"
        " reads only version 1: export it again with `python -m export`"
    )


def test_irenes_facts_are_read_as_written(tmp_path: Path, facts: Manifest) -> None:
    changed = replace(facts, novel=NOVEL)
    manifest.write(changed, tmp_path)
    assert manifest.read(tmp_path) == changed


def test_facts_that_are_none_are_left_out(folder: Path, facts: Manifest) -> None:
    assert facts.novel is None
    assert "novel" not in document(folder)
    assert set(document(folder)["predictor"]) == {"tau", "depth", "memorization"}


@pytest.mark.parametrize("version", [True, 1.0])
def test_a_version_that_is_not_an_integer_is_refused(folder: Path, version: object) -> None:
    write_document(folder, document(folder) | {"version": version})
    with pytest.raises(BundleAltered, match="version"):
        manifest.read(folder)


def test_the_fingerprint_changes_with_every_fact(facts: Manifest) -> None:
    others = [replace(facts, name="other"), replace(facts, log="other"), replace(facts, files={})]
    assert len({manifest.fingerprint(changed) for changed in (facts, *others)}) == 4
    assert manifest.fingerprint(replace(facts)) == manifest.fingerprint(facts)


@pytest.mark.parametrize("content", [b"[]", b"null", b"3", b"{}", b'{"format": "other"}'])
def test_json_of_another_format_is_unsupported(folder: Path, content: bytes) -> None:
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(BundleUnsupported, match="does not describe a keymatch-bundle"):
        manifest.read(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"format": NaN}', b"\x00" * 50])
def test_a_file_that_is_not_json_is_altered(folder: Path, content: bytes) -> None:
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(BundleAltered, match=r"manifest\.json is not JSON"):
        manifest.read(folder)


@pytest.mark.parametrize(
    ("section", "key", "value", "where"),
    [
        ("predictor", "tau", "0.1", r"predictor\.tau"),
        ("encoder", "dimension", 16.5, r"encoder\.dimension"),
        ("memory", "surprise", 1, r"memory\.surprise"),
    ],
)
def test_a_value_of_the_wrong_type_is_named(
    folder: Path, section: str, key: str, value: object, where: str
) -> None:
    wrong = document(folder)
    wrong[section][key] = value
    write_document(folder, wrong)
    with pytest.raises(BundleAltered, match=where):
        manifest.read(folder)


def test_a_missing_section_is_named(folder: Path) -> None:
    wrong = document(folder)
    del wrong["predictor"]
    write_document(folder, wrong)
    with pytest.raises(BundleAltered, match="predictor"):
        manifest.read(folder)


def test_every_flipped_bit_is_detected_or_changes_nothing(folder: Path, facts: Manifest) -> None:
    """Only a flip in white space, or in the case of an escape, may change nothing."""
    whole = (folder / "manifest.json").read_bytes()
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 0x01
        (folder / "manifest.json").write_bytes(flipped)
        try:
            assert manifest.read(folder) == facts
        except BundleError as error:
            assert "manifest.json" in str(error)


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("not a folder")
    for place in (tmp_path, tmp_path / "nowhere", file):
        with pytest.raises(BundleMissing, match=r"manifest\.json is missing"):
            manifest.read(place)


def test_a_manifest_that_cannot_be_read_is_missing(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(BundleMissing, match=r"manifest\.json cannot be read"):
        manifest.read(tmp_path)
