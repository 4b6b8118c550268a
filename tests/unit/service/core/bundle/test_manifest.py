"""A manifest is read as it was written, every edit is detected, and absurd values do no harm."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.bundle import manifest
from service.core.bundle.bundle import KEYS, open_bundle
from service.core.bundle.manifest import FILE_NAME, Manifest
from service.core.errors import BundleAltered, BundleError, BundleMissing, BundleUnsupported
from service.engine.trial import first_answer
from tests.support.tiny.bundles import write_document, write_whole_bundle
from tests.support.tiny.encoder import tiny_facts

Key = tuple[str, ...]

ABSURD = (0, -1, 10**9, 10**18, 2**63, 0.0, -0.5, 0.5, 1e9, 1e308, 1e-300, True, "1", None, [], {})
# Values that no numeric field may have. (An event's number may be any below 2**63.)
NEVER = (2**63, 1e308, True, "1", [], {})
NEGATIVE = {"text_threshold", "query_threshold", "intercept"}  # fields that may be negative
LEARNED = {"log": "0f" * 16, "version": 3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with every optional part; do not change it."""
    return write_whole_bundle(tmp_path_factory.mktemp("manifests") / "whole")


@pytest.fixture(scope="module")
def document(whole: Path) -> dict[str, Any]:
    return {**orjson.loads((whole / FILE_NAME).read_bytes()), "learned": LEARNED}


@pytest.fixture(scope="module")
def copy(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(whole, tmp_path_factory.mktemp("manifests") / "copy"))


@pytest.fixture
def folder(copy: Path, document: dict[str, Any]) -> Path:
    """A bundle whose manifest a test may change; the next test gets the original manifest."""
    write_document(copy, document)
    return copy


@pytest.fixture(scope="module")
def facts(whole: Path) -> Manifest:
    return manifest.read(whole)


def numbers(value: Any, path: Key = ()) -> Iterator[Key]:
    """Yield the path of every number in a document."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from numbers(inner, (*path, name))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def changed(document: dict[str, Any], path: Key, value: object) -> dict[str, Any]:
    name, *rest = path
    inner = changed(document[name], tuple(rest), value) if rest else value
    return {**document, name: inner}


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
    other = replace(
        facts,
        name=name,
        encoder=tiny_facts(query_prompt=name),
        predictor=replace(facts.predictor, tau=tau),
        metrics=metrics,
    )
    manifest.write(other, folder)
    assert manifest.read(folder) == other


def test_facts_that_are_none_are_left_out(tiny_bundle_folder: Path) -> None:
    assert manifest.read(tiny_bundle_folder).novel is None
    document = orjson.loads((tiny_bundle_folder / FILE_NAME).read_bytes())
    assert not {"novel", "items", "reranker"} & set(document)
    assert set(document["predictor"]) == {"tau", "depth", "memorization", "hubs"}


def test_the_fingerprint_changes_with_every_fact(facts: Manifest) -> None:
    others = [replace(facts, name="other"), replace(facts, log="other"), replace(facts, files={})]
    assert len({manifest.fingerprint(changed) for changed in (facts, *others)}) == 4
    assert manifest.fingerprint(replace(facts)) == manifest.fingerprint(facts)


# Edits ----------------------------------------------------------------------------------------


def test_the_order_of_the_keys_does_not_matter(folder: Path) -> None:
    before = manifest.read(folder)
    backwards = dict(reversed(orjson.loads((folder / FILE_NAME).read_bytes()).items()))
    (folder / FILE_NAME).write_bytes(orjson.dumps(backwards))
    assert manifest.read(folder) == before


def test_every_flipped_bit_is_detected_or_changes_nothing(folder: Path, facts: Manifest) -> None:
    """A flip may go unnoticed only in white space or in the letter case of an escape sequence."""
    manifest.write(facts, folder)
    whole = (folder / FILE_NAME).read_bytes()
    for place in range(0, len(whole), 17):
        flipped = bytearray(whole)
        flipped[place] ^= 0x01
        (folder / FILE_NAME).write_bytes(flipped)
        try:
            assert manifest.read(folder) == facts
        except BundleError as error:
            assert FILE_NAME in str(error)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_unsupported(
    folder: Path, document: dict[str, Any], version: object
) -> None:
    write_document(folder, document | {"version": version})
    with pytest.raises(BundleUnsupported) as raised:
        manifest.read(folder)
    assert str(raised.value) == (
        f"{folder / FILE_NAME} has format version {version!r}, but this build of Keymatch"
        " reads only version 1: export it again with `keymatch export`"
    )


def test_other_content_is_refused(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    for content in (b"[]", b"null", b"3", b"{}", b'{"format": "other"}'):
        path.write_bytes(content)
        with pytest.raises(BundleUnsupported, match="does not describe a keymatch-bundle"):
            manifest.read(tmp_path)
    for content in (b"", b"{", b"\xff\xfe", b'{"format": NaN}', b"\x00" * 50):
        path.write_bytes(content)
        with pytest.raises(BundleAltered, match=r"manifest\.json is not JSON"):
            manifest.read(tmp_path)
    with path.open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(BundleAltered, match="has more than 16777216 bytes"):
        manifest.read(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(BundleMissing, match=r"manifest\.json cannot be read"):
        manifest.read(tmp_path)


# Ranges ---------------------------------------------------------------------------------------


def test_a_number_that_cannot_be_one_is_refused_by_its_name(
    folder: Path, document: dict[str, Any]
) -> None:
    parts = {"encoder", "memory", "index", "predictor", "novel", "items", "learned", "reranker"}
    assert {path[0] for path in numbers(document)} == parts | {"version", "files", "metrics"}
    for path in numbers(document):
        for value in (*NEVER, *(() if path[-1] in NEGATIVE else (-1,))):
            if path[0] == "metrics" and value in (2**63, 1e308, -1):
                continue  # a metric may be any finite number
            write_document(folder, changed(document, path, value))
            with pytest.raises(BundleError) as refused:
                manifest.read(folder)
            assert str(folder / FILE_NAME) in str(refused.value), (path, value)
            if path != ("version",):
                assert f"{FILE_NAME}: {'.'.join(path)}" in str(refused.value), (path, value)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999", "0x10", "1_000"])
def test_a_number_that_json_does_not_have_is_refused(folder: Path, text: str) -> None:
    content = (folder / FILE_NAME).read_bytes()
    for before in (b'"tau":0.1', b'"ef":64', b'"depth":10'):
        assert before in content
        name = before.split(b":")[0]
        (folder / FILE_NAME).write_bytes(content.replace(before, name + b":" + text.encode()))
        with pytest.raises(BundleAltered, match=r"manifest\.json is not JSON"):
            manifest.read(folder)


def test_numbers_that_are_not_refused_are_harmless(folder: Path, document: dict[str, Any]) -> None:
    """Any number leads to an error that names the bundle, or to a finite answer."""
    opened = 0
    one_file = changed(document, ("files",), {KEYS: document["files"][KEYS]})
    for path in numbers(one_file):
        for value in ABSURD:
            write_document(folder, changed(document, path, value))
            try:
                first_answer(open_bundle(folder, verify=path[0] != "files"))
                opened += 1
            except BundleError as error:
                assert folder.name in str(error), (path, value)
    assert opened > 20


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        ("predictor.tau", 0, "at least 0.000001"),
        ("predictor.depth", 10**9, "at most 2000"),
        ("predictor.depth", 0, "at least 1"),
        ("predictor.memorization", 1.5, "at most 1"),
        ("index.ef", 0, "at least 8"),
        ("index.m", 1, "at least 4"),
        ("encoder.max_tokens", 10**9, "at most 32768"),
        ("encoder.dimension", 10**9, "at most 16384"),
        ("encoder.dimension", 16.5, "whole number"),
        ("memory.surprise", 1, "is unknown"),
        ("items.attended", 10**9, "at most 1000"),
        ("reranker.candidates", 10**9, "at most 2000"),
        ("reranker.slope", 0, "greater than 0"),
        ("novel.refinement.shortlist", 10**9, "at most 2000"),
        ("novel.refinement.length", 0, "greater than 0"),
        ("version", True, "whole number"),
        ("version", 1.0, "whole number"),
        ("name", "x" * 10_001, "more than 10000 characters"),
    ],
)
def test_a_refusal_says_what_is_allowed(
    folder: Path, document: dict[str, Any], where: str, value: object, said: str
) -> None:
    write_document(folder, changed(document, tuple(where.split(".")), value))
    with pytest.raises(BundleAltered, match=said) as refused:
        manifest.read(folder)
    assert f"{FILE_NAME}: {where}" in str(refused.value)


FILE = {"bytes": 1, "sha256": "0" * 64}
BELOW = "path of a file below the folder"


@pytest.mark.parametrize(
    ("path", "change", "said"),
    [
        (("files", "keys.npy"), FILE | {"bytes": -1}, r"\.bytes: .*at least 0"),
        (("files", "keys.npy"), FILE | {"sha256": "0"}, r"\.sha256: .*does not have the form"),
        (("files", "/etc/passwd"), FILE, BELOW),
        (("files", "../other/keys.npy"), FILE, BELOW),
        (("files", "a/../keys.npy"), FILE, BELOW),
        (("files", "a//b"), FILE, BELOW),
        (("files", "."), FILE, BELOW),
        (("predictor",), None, "predictor"),
    ],
)
def test_wrong_facts_of_a_file_and_a_missing_section_are_refused(
    folder: Path, document: dict[str, Any], path: Key, change: dict[str, object], said: str
) -> None:
    facts = changed(document, path, change)
    write_document(folder, {name: value for name, value in facts.items() if value is not None})
    with pytest.raises(BundleAltered, match=said):
        manifest.read(folder)
