"""The table of samples."""

from importlib import import_module
from pathlib import Path

import pytest

from service.core.errors import InvalidInput
from training.datasets.samples import SAMPLES, load_sample


@pytest.mark.parametrize("name", SAMPLES)
def test_every_line_names_a_function(name: str) -> None:
    module = import_module(f"training.datasets.samples.{SAMPLES[name].module}")
    assert callable(getattr(module, SAMPLES[name].function))


def test_an_unknown_name() -> None:
    with pytest.raises(InvalidInput, match="'x' is unknown; there are city-names, debian-depends"):
        load_sample("x")


def test_a_source_that_is_missing() -> None:
    with pytest.raises(InvalidInput, match="debian-tags needs --source: a Debian file Packages"):
        load_sample("debian-tags")


def test_a_sample_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "Packages"
    lines = (f"Description: text {n}\nTag: a::b, c::d\n\n" for n in range(30))
    path.write_text("".join(lines))
    dataset = load_sample("debian-tags", path)
    assert (dataset.name, dataset.source) == ("debian-tags", SAMPLES["debian-tags"].source)
    assert len(dataset.train) + len(dataset.test) == 30
    assert dataset.labels.texts == ("a::b", "c::d")
