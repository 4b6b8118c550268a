"""Data sets of many short texts: packages are read, and texts become labels and queries."""

import io
import json
import lzma
import sqlite3
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.core.errors import CommandFailed, InvalidData, InvalidInput
from service.core.text_identity import identity
from tests.support.commands import status_of
from training.__main__ import app
from training.datasets import lf_xmc, short_texts
from training.datasets.short_texts import SOURCES, Source, distinct, download, load, queries_of

COLORS, BOOTS = ("red", "blue", "green", "black"), ("rain", "hiking", "ski")


def lines(*contents: bytes) -> Iterator[str]:
    for content in contents:
        yield from content.decode().splitlines()


WHEEL = Source(package="some-boots==1.0", files=("data/b.txt",), texts=lines, origin="boots")
ARCHIVE = Source(package="hats==2.1", files=("hats/h.txt",), texts=lines, origin="hats")
TINY = (WHEEL, ARCHIVE)


def tar(path: Path, name: str, content: bytes) -> None:
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with the archives of `TINY`, which have 12 and 5 usable texts."""
    folder = tmp_path / "packages"
    folder.mkdir()
    with zipfile.ZipFile(folder / "some_boots-1.0-py3-none-any.whl", "w") as wheel:
        boots = (f"{color} {kind}  boots" for color in COLORS for kind in BOOTS)
        wheel.writestr("data/b.txt", "\n".join([*boots, "RED Rain boots"]))
    hats = b"hat\nsun hat\nrain hat\nbobble hat\ntop hat\n"
    tar(folder / "hats-2.1.tar.gz", "hats-2.1/hats/h.txt", hats)
    return folder


def test_labels_are_distinct_and_nested(packages: Path) -> None:
    whole = load(packages, count=17, sources=TINY)
    assert len({identity(text) for text in whole.labels.texts}) == 17
    assert {"red rain boots", "top hat"} <= set(whole.labels.texts)
    assert (whole.name, whole.source) == ("texts-17", "boots; hats")
    part = load(packages, count=9, sources=TINY)
    assert part.labels.texts == whole.labels.texts[:9]
    assert part.labels.texts != tuple(sorted(part.labels.texts))
    assert any("boots" in text for text in part.labels.texts)
    assert any("hat" in text for text in part.labels.texts)


def test_a_query_is_a_label_without_a_word(packages: Path) -> None:
    dataset = load(packages, count=17, sources=TINY)
    found = 0
    for split in (dataset.train, dataset.test):
        for row, query in enumerate(split.instances.texts):
            for label in split.labels_of[row].indices:
                words = dataset.labels.texts[label].split()
                left = [" ".join(words[:at] + words[at + 1 :]) for at in range(len(words))]
                assert query in left
                found += 1
    assert found == 12  # the boots; two words are too few


def test_queries_that_are_texts_are_left_out() -> None:
    known = distinct(["red boots", "rain boots", "red rain", "Red rain boots", "top hat box"])
    labels_of = queries_of(known.values(), known=known)
    assert list(labels_of.values()) == [["top hat box"]]


@pytest.mark.parametrize(
    "text",
    ["", "  ", "é", "1922", "x 1", "a\x00b ab", " ".join(["ab"] * 13), "a" * 101],
)
def test_texts_that_are_no_labels(text: str) -> None:
    assert distinct([text]) == {}


def test_texts_that_are_labels() -> None:
    assert distinct([" Ice \t Axe ", "ice axe", "b" * 100]) == {"ice axe": "Ice Axe"} | {
        "b" * 100: "b" * 100
    }


def test_too_few_texts(packages: Path) -> None:
    for count in (0, 18):
        with pytest.raises(InvalidInput, match=f"must be from 1 to 17, .* not {count}") as caught:
            load(packages, count=count, sources=TINY)
        assert caught.value.field == "count"


def test_packages_that_cannot_be_read(packages: Path) -> None:
    with pytest.raises(InvalidData, match="has no archive of hats==3"):
        load(
            packages, count=1, sources=[Source(package="hats==3", files=(), texts=lines, origin="")]
        )
    tar(packages / "hats-2.1.tar.gz", "hats-2.1/other", b"")
    with pytest.raises(InvalidData, match=r"hats-2\.1\.tar\.gz: cannot be read: 'hats/h\.txt'"):
        load(packages, count=1, sources=TINY)
    (packages / "hats-2.1.tar.gz").write_bytes(b"no archive")
    with pytest.raises(InvalidData, match=r"hats-2\.1\.tar\.gz: cannot be read: "):
        load(packages, count=1, sources=TINY)


def test_only_missing_packages_are_downloaded(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    download(packages, sources=TINY)
    (packages / "hats-2.1.tar.gz").unlink()
    with pytest.raises(CommandFailed, match=r"^pip cannot download hats==2\.1: .*hats==2\.1"):
        download(packages, sources=TINY)


def test_the_command(
    packages: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(short_texts, "SOURCES", TINY)
    out = tmp_path / "texts"
    options = ("--out", out, "--packages", packages)
    assert status_of(app, "data", "texts", *options, "--count", "17") == 0
    assert capsys.readouterr().out.endswith("test rows, 17 labels\n")
    dataset = lf_xmc.read(out)
    assert dataset.labels.texts == load(packages, count=17).labels.texts
    assert status_of(app, "data", "texts", *options, "--count", "17") == 2  # the folder exists


# The formats of the sources ---------------------------------------------------------------------


def test_each_package_has_a_version() -> None:
    assert all(source.package.count("==") == 1 and source.origin for source in SOURCES)
    assert len({source.package for source in SOURCES}) == len(SOURCES)


def test_japanese_dictionary() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for table in ("SenseGloss", "NETransGloss"):
            connection.execute(f"CREATE TABLE {table} (lang TEXT, text TEXT)")
        connection.execute("INSERT INTO SenseGloss VALUES ('eng', 'ice axe'), ('ger', 'Pickel')")
        connection.execute("INSERT INTO NETransGloss VALUES ('eng', 'Takao')")
        content = lzma.compress(connection.serialize())
    assert list(short_texts.japanese_dictionary(content)) == ["ice axe", "Takao"]


def test_taxa() -> None:
    marisa_trie = pytest.importorskip("marisa_trie", reason="TAXA NOT READ: no marisa-trie")
    names = ["Vulpes vulpes", "Sciaridae sp. 3", "unclassified Lynx", "Lynx lynx"]
    trie = marisa_trie.RecordTrie("I", [(name, (1,)) for name in names])
    assert list(short_texts.taxa(trie.tobytes())) == ["Lynx lynx", "Vulpes vulpes"]


def test_substances() -> None:
    table = b"Name\tTYPE\tUNII\nPROCAN\tbn\tA\r\nLUTROPIN [INN]\tcn\tB\nNSC-5\tcd\tC\n\n"
    assert list(short_texts.substances(table)) == ["PROCAN", "LUTROPIN"]


def test_cities() -> None:
    cities = {
        "1": {"name": "Bern", "countrycode": "CH", "alternatenames": ["Berna", "Berne"]},
        "2": {"name": "Atlantis", "countrycode": "XX", "alternatenames": []},
    }
    contents = [json.dumps(part).encode() for part in (cities, {"CH": {"name": "Switzerland"}})]
    expected = ["Bern, Switzerland", "Bern", "Berna", "Berne", "Atlantis"]
    assert list(short_texts.cities(*contents)) == expected


def test_diagnoses() -> None:
    document = b"<d><name>A00</name><desc>Cholera</desc><x><note>cholera NOS</note><note/></x></d>"
    assert list(short_texts.diagnoses(document)) == ["Cholera", "cholera NOS", ""]


def test_thesaurus_and_word_pairs() -> None:
    assert list(short_texts.thesaurus(b"a,b c\nd,e\n")) == ["a", "b c", "d", "e"]
    pairs = "\ufeffice axe 120\nred hat 4\n".encode()
    assert list(short_texts.word_pairs(pairs)) == ["ice axe", "red hat"]
