"""Results on disk."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.errors import InvalidData
from tests.support.tiny.training import tiny_dataset
from training.evaluation import results
from training.evaluation.metrics import labels_to_rank
from training.evaluation.results import Check, Results, measured


@pytest.fixture
def written(tmp_path: Path) -> Path:
    dataset = tiny_dataset()
    ranked = np.tile(np.arange(16), (16, 1))
    ranked = np.pad(ranked, ((0, 0), (0, 84)), constant_values=-1)
    result, rows = measured(dataset, ranked, method="alphabet", chosen=True)
    results.write(
        Results(
            name="alphabet",
            system="none",
            dataset=dataset.name,
            propensity={"a": 0.55, "b": 1.5},
            results=(result,),
            rows=rows,
            held_out_rows=3,
            history=(Check(step=3, seconds=1.5, memorization=0.5, metrics={"P@1": 2.0}),),
        ),
        tmp_path,
    )
    return tmp_path


def test_they_come_back_as_they_were_written(written: Path) -> None:
    read = results.read(written)

    assert read.name == "alphabet"
    assert read.results[0].chosen
    assert read.results[0].metrics["R@100"] == 100.0
    assert read.history[0].metrics == {"P@1": 2.0}
    assert read.held_out_rows == 3
    assert read.rows.shape == (16, 3)
    for column, name in enumerate(results.PER_ROW):
        assert 100 * read.rows[:, column].mean() == pytest.approx(read.results[0].metrics[name])


def break_json(folder: Path) -> None:
    (folder / results.FILE).write_text("{")


def another_format(folder: Path) -> None:
    (folder / results.FILE).write_bytes(orjson.dumps({"format": "else"}))


def another_version(folder: Path) -> None:
    (folder / results.FILE).write_bytes(orjson.dumps({"format": results.FORMAT, "version": 9}))


def another_field(folder: Path) -> None:
    document = orjson.loads((folder / results.FILE).read_bytes())
    (folder / results.FILE).write_bytes(orjson.dumps({**document, "more": 1}))


def no_json(folder: Path) -> None:
    (folder / results.FILE).unlink()


def no_rows(folder: Path) -> None:
    (folder / results.ROWS).unlink()


def cut_rows(folder: Path) -> None:
    rows = folder / results.ROWS
    rows.write_bytes(rows.read_bytes()[:-40])


def damaged_rows(folder: Path) -> None:
    (folder / results.ROWS).write_bytes(b"PK no zip")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_json, "results.json: cannot be read"),
        (break_json, "results.json: not valid JSON"),
        (another_format, "results.json: format: must be 'keymatch-results'"),
        (another_version, "results.json: version: must be 1"),
        (another_field, "results.json: is not what `score` writes"),
        (no_rows, "rows.npz: is missing or damaged"),
        (cut_rows, "rows.npz: is missing or damaged"),
        (damaged_rows, "rows.npz: is missing or damaged"),
    ],
)
def test_damage_is_named(written: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(written)

    with pytest.raises(InvalidData) as raised:
        results.read(written)
    assert message in str(raised.value)


def test_room_is_left_for_what_is_filtered() -> None:
    dataset = tiny_dataset()
    filtered = dataset.test.filtered.tolil()
    filtered[2, :5] = True
    changed = replace(dataset, test=replace(dataset.test, filtered=filtered.tocsr()))

    assert labels_to_rank(dataset.test.filtered) == 100
    assert labels_to_rank(changed.test.filtered) == 105
