from pathlib import Path

import pytest

from service.core.errors import InvalidData
from training.datasets.samples import debian

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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "Packages"
    path.write_text(PACKAGES)
    return path


def test_tags(path: Path) -> None:
    text = "Real-time strategy game of ancient warfare. Free."
    found = ["game::strategy", "role::program", "x11::application"]
    assert list(debian.tags(path)) == [(text, found), ("", [])]


def test_dependencies(path: Path) -> None:
    expected = [("0ad", ["0ad-data", "python3", "python2"]), ("bare", [])]
    assert list(debian.dependencies(path)) == expected


def test_at_most_fifty_dependencies(path: Path) -> None:
    path.write_text("Package: all\nDepends: " + ", ".join(f"p{n}" for n in range(60)))
    ((_, found),) = debian.dependencies(path)
    assert found == [f"p{n}" for n in range(50)]


def test_another_file_is_refused(path: Path) -> None:
    path.write_text("Package: a\nno field\n")
    with pytest.raises(InvalidData, match=r"Packages:2: is not 'Field: value'"):
        list(debian.tags(path))
