"""A damaged file is either read or refused with one of the project's errors.

A few bytes of a real file are replaced, removed, doubled or added. A traceback, a crash or a wrong
answer without an error would be a defect. A bundle's checksums would reveal most damage, so some
tests correct the checksums. The code that reads the files then meets the damage too.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.core.bundle import manifest
from service.core.bundle.bundle import open_bundle
from service.core.errors import BundleError, InvalidConfig, LogError
from service.core.files.folder_facts import file_facts
from service.core.index.libraries import IndexParameters
from service.core.label_log import open_log
from service.core.label_log.newest_note import FILE_NAME as NOTE
from service.core.memory.segment_store import FACTS, INDEX, SegmentStore
from service.core.types import Event
from service.http.access import read_keys
from service.settings import load_settings
from tests.support.label_logs import append

fuzz = settings(
    max_examples=200,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# Only these files get correct checksums: faiss and ONNX Runtime trust the files that they read.
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


def changed_at(content: bytes, change: tuple[str, float, int, bytes]) -> bytes:
    """Return `content` after `change`: (kind, place as a share of the length, size, new bytes)."""
    kind, share, size, new = change
    place = int(share * len(content))
    before, hit, after = content[:place], content[place : place + size], content[place + size :]
    return {
        "replace": before + new + content[place + len(new) :],
        "remove": before + after,
        "double": before + hit + hit + after,
        "add": before + new + hit + after,
        "cut": before,
    }[kind]


def damages() -> st.SearchStrategy[Damage]:
    """Functions that make one to four changes to a file's content."""
    change = st.tuples(
        st.sampled_from(["replace", "remove", "double", "add", "cut"]),
        st.floats(0, 1, allow_nan=False),
        st.integers(1, 40),
        st.binary(min_size=1, max_size=8) | st.sampled_from([b"-1", b"1e999", b"null"]),
    )
    changes = st.lists(change, min_size=1, max_size=4)
    return changes.map(lambda drawn: lambda content: reduce(changed_at, drawn, content))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged")


@pytest.fixture
def damaged(workplace: Path) -> Iterator[Path]:
    """A folder that each example fills again."""
    folder = workplace / "example"
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def changed(source: Path, folder: Path, file: str, damage: Damage) -> Path:
    """Copy `source` to `folder`, and damage one file of the copy."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    path = folder / file
    path.write_bytes(damage(path.read_bytes()))
    return folder


def bundle_files(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return sorted(str(path.relative_to(folder)) for path in paths)


@fuzz
@given(damage=damages(), data=st.data())
def test_a_damaged_file_of_a_bundle(
    damage: Damage, data: st.DataObject, damaged: Path, tiny_bundle_folder: Path
) -> None:
    files = bundle_files(tiny_bundle_folder)
    file = data.draw(st.just("manifest.json") | st.sampled_from(files))
    folder = changed(tiny_bundle_folder, damaged, file, damage)
    same = (folder / file).read_bytes() == (tiny_bundle_folder / file).read_bytes()
    try:
        open_bundle(folder)
    except BundleError as error:
        assert not same
        assert file != "manifest.json" or str(folder) in str(error)
    else:
        assert same or file == "manifest.json"


@fuzz
@given(damage=damages(), data=st.data())
def test_a_damaged_file_whose_checksum_is_right(
    damage: Damage, data: st.DataObject, damaged: Path, tiny_bundle_folder: Path
) -> None:
    """A defective program could write such a file."""
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
    """A folder with one sealed segment of `VECTORS`."""
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
    """A state folder whose log holds forty events, all in the database file and none in the WAL."""
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


@pytest.mark.parametrize(
    ("content", "read"),
    [(SETTINGS, lambda path: load_settings(path, {})), (KEYS, read_keys)],
    ids=["settings", "keys"],
)
@fuzz
@given(damage=damages())
def test_damaged_settings_and_keys(
    content: bytes, read: Callable[[Path], object], damage: Damage, workplace: Path
) -> None:
    path = workplace / "damaged"
    path.write_bytes(damage(content))
    try:
        read(path)
    except InvalidConfig as error:
        assert str(path) in str(error)
