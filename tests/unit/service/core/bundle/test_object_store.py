"""Bundles at URLs: fetched once, verified, kept by content; pushed whole; errors in a sentence."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time
from typing import Any

import orjson
import pytest
from fsspec.implementations.local import LocalFileSystem

from service.core.bundle import manifest, object_store
from service.core.bundle.bundle import open_bundle
from service.core.bundle.object_store import BundleCache, checked_url, held, local_bundle, push
from service.core.errors import (
    BundleAltered,
    BundleMissing,
    BundleUnsupported,
    InvalidConfig,
    KeymatchError,
    StoreError,
    UnknownBundle,
    Unwritable,
)
from tests.support.disks import SmallDisk
from tests.support.disks import small_disk as small_disk
from tests.support.tiny.bundles import Catalogue

ROOT = Path(__file__).parents[5]


@pytest.fixture
def stored(tiny_bundle_folder: Path, tmp_path: Path) -> Path:
    """The folder of a store with one bundle, at `file://STORED`."""
    return Path(shutil.copytree(tiny_bundle_folder, tmp_path / "store" / "tiny"))


@pytest.fixture
def cache(tmp_path: Path) -> BundleCache:
    return BundleCache(tmp_path / "cache")


def url_of(folder: Path) -> str:
    return f"file://{folder}"


def copies(cache: BundleCache) -> list[Path]:
    return [path for path in cache.folder.glob("*/*") if len(path.parent.name) == 64]


def without_partials(cache: BundleCache) -> bool:
    return not list(cache.folder.rglob("*.partial-*"))


# Fetching --------------------------------------------------------------------------------


def test_a_folder_is_itself_and_needs_no_cache(stored: Path, cache: BundleCache) -> None:
    assert local_bundle(str(stored), cache.folder) == stored
    assert not cache.folder.exists()


def test_a_bundle_is_fetched_whole_and_named_by_its_content(
    stored: Path, cache: BundleCache
) -> None:
    copy = local_bundle(url_of(stored) + "/", cache.folder)
    facts = manifest.read(stored)
    assert copy == cache.folder / manifest.fingerprint(facts) / "tiny"
    assert open_bundle(copy).manifest == facts
    assert without_partials(cache)


def test_a_second_call_reads_the_manifest_alone(stored: Path, cache: BundleCache) -> None:
    copy = cache.copy_of(url_of(stored))
    for name in manifest.read(stored).files:
        (stored / name).unlink()
    assert cache.copy_of(url_of(stored)) == copy


def test_other_content_at_the_url_is_another_copy(
    stored: Path, cache: BundleCache, make_bundle: Callable[..., Path]
) -> None:
    first = cache.copy_of(url_of(stored))
    shutil.rmtree(stored)
    shutil.copytree(make_bundle(Catalogue(labels={"a": "b"}, instances={"q": ("a",)})), stored)
    second = cache.copy_of(url_of(stored))
    assert first != second
    assert second.name == "tiny"
    assert open_bundle(second).labels == 1
    assert first.is_dir()


@pytest.mark.parametrize("damage", ["altered", "missing", "manifest"])
def test_a_damaged_copy_is_fetched_again(stored: Path, cache: BundleCache, damage: str) -> None:
    copy = cache.copy_of(url_of(stored))
    keys = copy / ("manifest.json" if damage == "manifest" else "keys.npy")
    content = keys.read_bytes()
    keys.unlink() if damage == "missing" else keys.write_bytes(b"x" + content[1:])
    assert cache.copy_of(url_of(stored)) == copy
    assert keys.read_bytes() == content
    open_bundle(copy)


def test_processes_that_start_together_fetch_once(
    stored: Path, cache: BundleCache, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "keymatch")
    with ThreadPoolExecutor(6) as pool:  # each call has its own lock, as in processes
        found = set(pool.map(lambda _: cache.copy_of(url_of(stored)), range(6)))
    assert len(found) == 1
    assert caplog.messages.count("bundle fetched") == 1


def test_what_a_killed_process_left_behind_is_removed(stored: Path, cache: BundleCache) -> None:
    copy = cache.folder / manifest.fingerprint(manifest.read(stored)) / "tiny"
    (copy.parent / ".tiny.partial-abc").mkdir(parents=True)
    assert cache.copy_of(url_of(stored)) == copy
    assert without_partials(cache)


def test_a_large_file_arrives_in_several_requests(
    stored: Path, cache: BundleCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "CHUNK_BYTES", 100)
    open_bundle(cache.copy_of(url_of(stored)))


# Removal ---------------------------------------------------------------------------------


def test_copies_unused_for_a_day_are_removed_unless_a_process_holds_them(
    stored: Path, cache: BundleCache
) -> None:
    urls = [url_of(shutil.copytree(stored, stored.parent / f"b{i}")) for i in range(4)]
    old, opened, begun, recent = (cache.copy_of(url) for url in urls)
    for copy in (old, opened, begun):
        long_ago = time() - object_store.UNUSED_SECONDS - 60
        os.utime(copy, (long_ago, long_ago))
    bundle = open_bundle(opened)
    with held(begun):
        newest = cache.copy_of(url_of(stored))
    assert set(copies(cache)) == {opened, begun, recent, newest}
    del bundle
    third = url_of(shutil.copytree(stored, stored.parent / "third"))
    newer = cache.copy_of(third)
    assert set(copies(cache)) == {recent, newest, newer}


# A store that cannot be reached ----------------------------------------------------------


def test_without_the_store_the_last_copy_is_used_only_if_that_is_allowed(
    stored: Path, cache: BundleCache, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    copy = cache.copy_of(url_of(stored))
    gone = object_store.StoreUnreachable("file: the object store cannot be reached (Test)")

    def fail(url: str) -> None:
        raise gone

    monkeypatch.setattr(object_store, "_read_manifest", fail)
    assert cache.copy_of(url_of(stored), without_store=True) == copy
    assert "the object store cannot be reached; its last copy is used" in caplog.messages
    with pytest.raises(StoreError):
        cache.copy_of(url_of(stored))
    with pytest.raises(StoreError):
        cache.copy_of(url_of(stored.parent / "never-fetched"), without_store=True)


class ContentLengthError(Exception):
    """An error like aiohttp's: its `code` does not come from a store."""

    code = 400


def test_a_body_that_ends_early_is_not_an_answer_of_the_store(
    stored: Path, cache: BundleCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cat_file(*_arguments: Any, **_named: Any) -> bytes:
        try:
            raise ContentLengthError("not enough data")
        except ContentLengthError as error:
            raise OSError("read failed") from error

    monkeypatch.setattr(LocalFileSystem, "cat_file", cat_file)
    with pytest.raises(object_store.StoreUnreachable, match="ends early each time") as refused:
        cache.copy_of(url_of(stored))
    assert "400" not in str(refused.value)


# Refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "s3://", "s3://bucket:password@host/x", "s3://user:s3cret@bucket/x", "s3://b/../c",
        "s3://b/x?token=s3cret", "s3://b//x", "s3://b/x*", "file://relative", "gs:///x",
        "s3://b/a b",
    ],
)  # fmt: skip
def test_a_url_of_another_form_is_refused_and_not_repeated(url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="without credentials") as refused:
        local_bundle(url, tmp_path)
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://host/x", "S3://b/x", "hdfs://b/x", "://x"])
def test_another_scheme_is_refused(url: str) -> None:
    with pytest.raises(InvalidConfig, match="is no object store: use s3, gs or file"):
        checked_url(url)


def test_a_url_without_a_bundle_is_named(stored: Path, cache: BundleCache) -> None:
    with pytest.raises(UnknownBundle, match=r"other/manifest.json is missing: file://.*other is"):
        cache.copy_of(url_of(stored.parent / "other"))


def altered(stored: Path) -> None:
    content = (stored / "keys.npy").read_bytes()
    (stored / "keys.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def cut(stored: Path) -> None:
    os.truncate(stored / "keys.npy", 10)


def missing(stored: Path) -> None:
    (stored / "keys.npy").unlink()


def other_format(stored: Path) -> None:
    document = orjson.loads((stored / "manifest.json").read_bytes())
    (stored / "manifest.json").write_bytes(orjson.dumps({**document, "version": 99}))


def edited(stored: Path) -> None:
    document = orjson.loads((stored / "manifest.json").read_bytes())
    (stored / "manifest.json").write_bytes(orjson.dumps({**document, "name": "x"}))


@pytest.mark.parametrize(
    "damage, kind, message",
    [
        (altered, BundleAltered, "keys.npy differs from its recorded SHA-256"),
        (cut, BundleAltered, "keys.npy has 10 bytes instead of"),
        (missing, BundleMissing, "keys.npy is missing"),
        (other_format, BundleUnsupported, "manifest.json has format version 99"),
        (edited, BundleAltered, "manifest.json differs from its own checksum"),
    ],
)
def test_a_bundle_that_is_not_whole_is_refused_and_leaves_nothing(
    stored: Path, cache: BundleCache, damage: Callable[[Path], None], kind: type[KeymatchError],
    message: str,
) -> None:  # fmt: skip
    damage(stored)
    with pytest.raises(kind, match=message) as refused:
        cache.copy_of(url_of(stored))
    assert str(refused.value).startswith(url_of(stored))
    assert copies(cache) == []
    assert without_partials(cache)


def test_a_full_disk_is_named_and_nothing_is_left(stored: Path, small_disk: SmallDisk) -> None:
    cache = BundleCache(small_disk.folder / "cache")
    cache.folder.mkdir()
    with small_disk.full(left=4), pytest.raises(Unwritable, match="No space left"):
        cache.copy_of(url_of(stored))
    assert copies(cache) == []
    open_bundle(cache.copy_of(url_of(stored)))


def test_a_cache_that_cannot_be_a_folder_is_named(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unwritable, match=r"file: cannot be written: File exists"):
        BundleCache(tmp_path / "file").copy_of(url_of(stored))


@pytest.mark.parametrize("package, scheme", [("s3fs", "s3"), ("gcsfs", "gs"), ("fsspec", "file")])
def test_a_missing_extra_is_named(package: str, scheme: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from service.__main__ import app; from service.command_line import run\n"
        f"sys.exit(run(app, ['check', '--bundle', '{scheme}:///x'.replace('///', "
        f"'///' if '{scheme}' == 'file' else '//b/')]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    said = f"error: {package} is not installed: in keymatch's checkout, pip install '.[objects]'\n"
    assert (ended.returncode, ended.stderr) == (2, said)


# Pushing ---------------------------------------------------------------------------------


def test_a_pushed_bundle_appears_with_its_manifest(stored: Path, cache: BundleCache) -> None:
    target = stored.parent / "pushed"
    seen: list[bool] = []
    push(stored, url_of(target), goes_on=lambda: seen.append((target / "manifest.json").exists()))
    assert seen == [False] * (len(manifest.read(stored).files) + 1)
    assert open_bundle(target).manifest == manifest.read(stored)
    assert not (target / "manifest.json.partial").exists()
    open_bundle(cache.copy_of(url_of(target)))


def test_an_interrupted_push_is_no_bundle_and_can_be_repeated(
    stored: Path, cache: BundleCache
) -> None:
    url, left = url_of(stored.parent / "pushed"), iter(range(3))

    with pytest.raises(StopIteration):
        push(stored, url, goes_on=lambda: next(left))
    assert not object_store.exists(url)
    with pytest.raises(UnknownBundle):
        cache.copy_of(url)
    push(stored, url)
    open_bundle(cache.copy_of(url))
