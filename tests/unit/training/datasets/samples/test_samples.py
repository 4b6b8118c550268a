"""Rows of a sample, and how they become a data set; the table of samples lists all."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from service.core.errors import InvalidData, InvalidInput, MissingExtra
from training.datasets.dataset import Dataset, Split
from training.datasets.samples import SAMPLES, build, debian, definitions, load_sample, names, shop
from training.datasets.train_test_split import is_test

ROWS = [(f"row {number}", [f"label {number % 3}"]) for number in range(30)]


def built(*rows: tuple[str, list[str]]) -> Dataset:
    return build([*rows, *ROWS], name="n", source="s")


def pairs_of(dataset: Dataset) -> dict[str, set[str]]:
    def of(split: Split) -> dict[str, set[str]]:
        return {
            text: {dataset.labels.texts[label] for label in split.labels_of[row].indices}
            for row, text in enumerate(split.instances.texts)
        }

    return of(dataset.train) | of(dataset.test)


def test_equal_texts_are_one_row() -> None:
    dataset = built(("a  b", ["x"]), (" a b ", ["y ", "x"]), ("no label", []), ("", ["x"]))
    assert pairs_of(dataset) == {"a b": {"x", "y"}} | {text: set(found) for text, found in ROWS}
    assert (dataset.name, dataset.source) == ("n", "s")


def test_a_label_that_equals_the_text_is_filtered() -> None:
    rows = [("x", ["x", "y"]), ("label 1", ["label 1"])]
    dataset = built(*rows)
    assert pairs_of(dataset)["x"] == {"y"}
    assert "label 1" not in pairs_of(dataset)
    assert "x" not in dataset.labels.texts  # no row has it as a positive
    dataset = built(*rows, ("z", ["x"]))
    split = dataset.test if "x" in dataset.test.instances.texts else dataset.train
    row = split.instances.texts.index("x")
    assert [dataset.labels.texts[label] for label in split.filtered[row].indices] == ["x"]


def test_rows_are_sorted_and_split_as_by_data_pairs() -> None:
    one, other = (build(rows, name="n", source="s") for rows in (ROWS, ROWS[::-1]))
    assert (one.train.instances, one.labels) == (other.train.instances, other.labels)
    assert (one.train.labels_of != other.train.labels_of).nnz == 0
    for split, test in ((one.train, False), (one.test, True)):
        assert all(is_test(t, fraction=0.2, seed=0) == test for t in split.instances.texts)
    with pytest.raises(InvalidInput, match="n: 1 rows are too few for a train and a test split"):
        build(ROWS[:1], name="n", source="s")


def test_a_sample_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "Packages"
    path.write_text("".join(f"Description: text {n}\nTag: a::b, c::d\n\n" for n in range(30)))
    dataset = load_sample("debian-tags", path)
    assert (dataset.name, dataset.source) == ("debian-tags", SAMPLES["debian-tags"].source)
    assert len(dataset.train) + len(dataset.test) == 30
    assert dataset.labels.texts == ("a::b", "c::d")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x", "'x' is unknown; there are city-names, debian-depends"),
        ("debian-tags", "debian-tags needs --input: a Debian file Packages"),
    ],
)
def test_an_unknown_name_and_a_missing_source_are_refused(name: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        load_sample(name)


PACKAGES = """\
Package: 0ad
Depends: 0ad-data (>= 0.0.26), 0ad-data (<= 0.0.26-3), python3:any | python2
Description: Real-time strategy game
 of ancient warfare.
 .
 Free.
Tag: game::strategy, role::program,
 x11::application

Package: bare
Maintainer: none
 continued
"""


def test_tags_and_at_most_fifty_dependencies_of_packages(tmp_path: Path) -> None:
    path = tmp_path / "Packages"
    path.write_text(PACKAGES)
    text = "Real-time strategy game of ancient warfare. Free."
    found = ["game::strategy", "role::program", "x11::application"]
    assert list(debian.tags(path)) == [(text, found), ("", [])]
    expected = [("0ad", ["0ad-data", "python3", "python2"]), ("bare", [])]
    assert list(debian.dependencies(path)) == expected
    path.write_text("Package: all\nDepends: " + ", ".join(f"p{n}" for n in range(60)))
    assert list(debian.dependencies(path)) == [("all", [f"p{n}" for n in range(50)])]
    path.write_text("Package: a\nno field\n")
    with pytest.raises(InvalidData, match=r"Packages:2: is not 'Field: value'"):
        list(debian.tags(path))


LICENCE = "  1 This software is provided to you | under a licence\n"
NOUN = (
    "00023953 03 n 03 motivation 0 motive 0 a_need 0 001 @ 00023280 n 0000"
    ' | what arouses to action; the reason; "we know his motives"; "the best motives"  \n'
)
ADJECTIVE = "00001740 00 s 01 awake(p) 0 000 | not asleep\n"


def test_words_of_a_definition(tmp_path: Path) -> None:
    for name, lines in zip(definitions.FILES, (NOUN, "", ADJECTIVE, ""), strict=True):
        (tmp_path / name).write_text(LICENCE + lines)
    assert list(definitions.rows(tmp_path)) == [
        ("what arouses to action; the reason", ["motivation", "motive", "a need"]),
        ("not asleep", ["awake"]),
    ]
    for line in ("00001740 00 s zz awake 0 | x", "a b", "1 00 s 01 awake 0 000 x"):
        (tmp_path / "data.verb").write_text(f"{LICENCE}{line}\n")
        with pytest.raises(InvalidData, match=r"data\.verb:2: is not a line of WordNet's data"):
            list(definitions.rows(tmp_path))


def package(folder: Path, **files: Any) -> Path:
    """Write each file `folder__name` as JSON at folder/name.json."""
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    return folder


def test_names_of_a_large_city(tmp_path: Path) -> None:
    large = {"population": 600_000, "alternatenames": ["Athina"], "countrycode": "GR"}
    small = {"population": 49_999, "alternatenames": [], "countrycode": "US"}
    cities = {"1": {"name": "Athens", **large}, "2": {"name": "Athens", **small}}
    countries = {"GR": {"name": "Greece"}, "US": {"name": "United States"}}
    folder = package(tmp_path, data__cities15000=cities, data__countries=countries)
    assert list(names.cities(folder)) == [
        ("Athens", ["Athens, Greece"]),
        ("Athina", ["Athens, Greece"]),
    ]


def test_emoji_without_skin_tones_and_incomplete_spellings(tmp_path: Path) -> None:
    english = {
        "🐦": {"en": ":black_bird:", "status": 2, "alias": [":raven:"]},
        "👋🏽": {"en": ":waving_hand_medium_skin_tone:", "status": 2},
        "☺": {"en": ":smiling_face:", "status": 4},
    }
    others: dict[str, Any] = {f"unicode_codes__emoji_{name}": {} for name in names.LANGUAGES}
    others["unicode_codes__emoji_de"] = dict.fromkeys(english, ":schwarzer_vogel:")
    folder = package(tmp_path, unicode_codes__emoji=english, **others)
    assert list(names.emoji(folder)) == [
        ("raven", ["black bird"]),
        ("schwarzer vogel", ["black bird"]),
    ]


def test_labels_of_a_subdivision(tmp_path: Path) -> None:
    countries = [{"alpha_2": "GB", "name": "United Kingdom of ...", "common_name": "Britain"}]
    parts = [
        {"code": "GB-WLS", "name": "Wales", "type": "Country"},
        {"code": "GB-CRF", "name": "Cardiff", "type": "Unitary authority", "parent": "WLS"},
        {"code": "GB-SWA", "name": "Swansea", "type": "Unitary authority", "parent": "GB-WLS"},
    ]
    files = {"iso3166-1": {"3166-1": countries}, "iso3166-2": {"3166-2": parts}}
    folder = package(tmp_path, **{f"databases__{name}": file for name, file in files.items()})
    assert list(names.subdivisions(folder)) == [
        ("Wales", ["Britain", "Country"]),
        ("Cardiff", ["Britain", "Unitary authority", "Wales"]),
        ("Swansea", ["Britain", "Unitary authority", "Wales"]),
    ]


def test_a_missing_package_names_the_extra() -> None:
    with pytest.raises(MissingExtra, match=r"no_such_package is not installed.*\[samples\]"):
        names.read_json("no_such_package", "a.json", None)


def test_weights_of_a_mapping_are_kept() -> None:
    dataset = build([("a", {"x": 3, "y": 1.5}), (" a", {"x ": 5}), *ROWS], name="n", source="s")
    split = dataset.test if "a" in dataset.test.instances.texts else dataset.train
    row = split.labels_of[split.instances.texts.index("a")]
    found = {dataset.labels.texts[label]: row[0, label] for label in row.indices.tolist()}
    assert found == {"x": 5.0, "y": 1.5}


def test_half_of_a_shops_clicks_come_from_a_hundred_queries() -> None:
    clicks, frequent = dict(shop.rows()), shop.frequent_queries()
    assert clicks == dict(shop.rows())  # the same each time
    assert len({title for titles in clicks.values() for title in titles}) == shop.PRODUCTS
    assert sum(map(Counter.total, clicks.values())) == shop.CLICKS
    assert len(set(frequent)) == shop.FREQUENT
    of_frequent = [sorted(clicks[query].values()) for query in frequent]
    assert sum(map(sum, of_frequent)) == pytest.approx(shop.CLICKS / 2, rel=0.01)
    assert all(len(counts) == 1 or counts[-1] > 2 * counts[-2] for counts in of_frequent)
    words = frequent[0].split()
    assert sum(set(words) <= set(query.split()) for query in clicks) > 64  # hold all of its words
