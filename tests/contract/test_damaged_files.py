"""Any bytes in any file that the service reads are read, or refused by one of the project's errors.

A real file is taken, and a few of its bytes are replaced, removed, doubled or added. A traceback, a
crash or a wrong answer without an error would be a defect. Bundles hold checksums, so the manifest
is the one file of theirs whose damage could pass; its checksums are made right again here, so that
the code behind them meets the damage, too.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from service.core.errors import BundleError, InvalidConfig, LogError
from service.core.files.checksums import file_facts
from service.core.index.libraries import IndexParameters
from service.core.label_log import open_log
from service.core.label_log.newest_note import FILE_NAME as NOTE
from service.core.memory.segment_store import FACTS, INDEX, SegmentStore
from service.core.types import Event
from service.http.auth import read_keys
from service.settings import load_settings
from tests.support.label_logs import append

fuzz = settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# faiss and ONNX Runtime trust what they read, so their files' checksums are not made right.
OURS = ("instances", "labels", "keys", "values")

SETTINGS = b"""
[limits]
queries = 16
top_k = 100
[engine]
threads = 2
write_share = 0.15
device = "cpu"
segments = "somewhere"
[server]
host = "127.0.0.1"
port = 8000
origins = ["https://example.org"]
allow_anonymous = false
"""
KEYS = b"# who\nshop:read,write:" + b"0123456789abcdef" * 4 + b"\nops:admin:" + b"f" * 64 + b"\n"

VECTORS = np.eye(12, dtype=np.float16)
PARAMETERS = IndexParameters(m=8, ef_construction=40)

Damage = Callable[[bytes], bytes]


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    """One to four changes at places that are drawn as shares of the length."""
    places = st.floats(0, 1, allow_nan=False)
    changes = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["replace", "remove", "double", "add", "cut"]),
                places,
                st.integers(1, 40),
                st.binary(min_size=1, max_size=8) | st.sampled_from([b"-1", b"1e999", b"null"]),
            ),
            min_size=1,
            max_size=4,
        )
    )

    def damage(content: bytes) -> bytes:
        for kind, share, size, new in changes:
            place = int(share * len(content))
            before, hit, after = (
                content[:place],
                content[place : place + size],
                content[place + size :],
            )
            content = {
                "replace": before + new + content[place + len(new) :],
                "remove": before + after,
                "double": before + hit + hit + after,
                "add": before + new + hit + after,
                "cut": before,
            }[kind]
        return content

    return damage


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture
def damaged(workplace: Path) -> Iterator[Path]:
    """A folder for one example at a time."""
    folder = workplace / "example"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def changed(source: Path, folder: Path, file: str, damage: Damage) -> Path:
    """A copy of `source` in which one file is damaged."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    path = folder / file
    path.write_bytes(damage(path.read_bytes()))
    return folder


def bundle_files(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(folder)) for path in paths)


@fuzz
@given(damage=damages())
def test_a_damaged_manifest(damage: Damage, damaged: Path, tiny_bundle_folder: Path) -> None:
    folder = changed(tiny_bundle_folder, damaged, "manifest.json", damage)
    try:
        open_bundle(folder)
    except BundleError as error:
        assert str(folder) in str(error)


@fuzz
@given(damage=damages(), data=st.data())
def test_a_damaged_file_of_a_bundle(
    damage: Damage, data: st.DataObject, damaged: Path, tiny_bundle_folder: Path
) -> None:
    file = data.draw(st.sampled_from(bundle_files(tiny_bundle_folder)))
    folder = changed(tiny_bundle_folder, damaged, file, damage)
    same = (folder / file).read_bytes() == (tiny_bundle_folder / file).read_bytes()
    try:
        open_bundle(folder)
    except BundleError:
        assert not same
    else:
        assert same or file == "manifest.json"


@fuzz
@given(damage=damages(), data=st.data())
def test_a_damaged_file_whose_checksum_is_right(
    damage: Damage, data: st.DataObject, damaged: Path, tiny_bundle_folder: Path
) -> None:
    """As written by a program with a defect."""
    files = [file for file in bundle_files(tiny_bundle_folder) if file.startswith(OURS)]
    file = data.draw(st.sampled_from(files))
    folder = changed(tiny_bundle_folder, damaged, file, damage)
    facts = manifest.read(folder)
    files_now = {**facts.files, file: file_facts(folder)[file]}
    manifest.write(replace(facts, files=files_now), folder)
    with suppress(BundleError):
        open_bundle(folder)


@pytest.fixture(scope="module")
def segments(workplace: Path) -> Path:
    """A folder with one segment of `VECTORS`."""
    store = SegmentStore(workplace / "segments")
    store.build(store.key(VECTORS, PARAMETERS), VECTORS, PARAMETERS)
    return workplace / "segments"


@fuzz
@given(damage=damages(), file=st.sampled_from([INDEX, FACTS]))
def test_a_damaged_segment_is_not_there(
    damage: Damage, file: str, damaged: Path, segments: Path
) -> None:
    store = SegmentStore(damaged)
    key = store.key(VECTORS, PARAMETERS)
    folder = changed(segments, damaged, f"{key}/{file}", damage)
    content = (folder / key / file).read_bytes()
    segment = store.find(key, PARAMETERS, shape=VECTORS.shape)
    if content == (segments / key / file).read_bytes():
        assert segment is not None
    if segment is not None:
        _, rows = segment.search(VECTORS.astype(np.float32), count=1, ef=50, row_filter=None)
        assert rows[:, 0].tolist() == list(range(len(VECTORS)))


@pytest.fixture(scope="module")
def state(workplace: Path) -> Path:
    """A state folder whose log holds forty events, all of them in the database file."""
    folder = workplace / "state"
    with closing(open_log(folder)) as log:
        append(log, *(f"label {number}" for number in range(40)))
    (folder / NOTE).unlink()
    return folder


@fuzz
@given(damage=damages())
def test_a_damaged_log_returns_no_altered_event(damage: Damage, damaged: Path, state: Path) -> None:
    folder = changed(state, damaged, "labels.sqlite", damage)
    events: list[Event] = []
    with suppress(LogError), closing(open_log(folder, create=False)) as log:
        events.extend(log.read())
    assert [event.body["id"] for event in events] == [f"label {n}" for n in range(len(events))]


@fuzz
@given(damage=damages())
def test_damaged_settings(damage: Damage, workplace: Path) -> None:
    path = workplace / "keymatch.toml"
    path.write_bytes(damage(SETTINGS))
    try:
        load_settings(path, {})
    except InvalidConfig as error:
        assert str(path) in str(error)


@fuzz
@given(damage=damages())
def test_damaged_keys(damage: Damage, workplace: Path) -> None:
    path = workplace / "keys"
    path.write_bytes(damage(KEYS))
    try:
        read_keys(path)
    except InvalidConfig as error:
        assert str(path) in str(error)
