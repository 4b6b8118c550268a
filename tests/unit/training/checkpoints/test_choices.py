"""A checkpoint's file of choices is read as it was written; a damaged file is refused."""

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from service.core.errors import InvalidData
from training.checkpoints.choices import CHOICES, Choices, read_choices, write_choices

CHOSEN = Choices(system="rae", tau=0.05, memorization=0.7, depth=100)


@pytest.mark.parametrize("relevance", [None, "given", "binary", "log"])
def test_choices_come_back(relevance: str | None, tmp_path: Path) -> None:
    choices = replace(CHOSEN, relevance=relevance)
    write_choices(tmp_path, choices)
    assert read_choices(tmp_path) == choices


def test_a_checkpoint_without_a_relevance_has_none(tmp_path: Path) -> None:
    older = {"system": "rae", "tau": 0.05, "memorization": 0.7, "depth": 100}
    (tmp_path / CHOICES).write_bytes(orjson.dumps(older))
    assert read_choices(tmp_path) == CHOSEN
    write_choices(tmp_path, CHOSEN)
    assert orjson.loads((tmp_path / CHOICES).read_bytes()) == older
    assert read_choices(tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    ("field", "value"),
    [("relevance", "loud"), ("relevance", 1), ("tau", "warm"), ("depth", 1.5), ("more", 1)],
)
def test_damage_is_refused(field: str, value: object, tmp_path: Path) -> None:
    write_choices(tmp_path, CHOSEN)
    document = orjson.loads((tmp_path / CHOICES).read_bytes())
    (tmp_path / CHOICES).write_bytes(orjson.dumps({**document, field: value}))
    with pytest.raises(InvalidData, match=r"keymatch\.json: is not what `train` writes") as raised:
        read_choices(tmp_path)
    assert field in str(raised.value)
