"""Result files: written, read, and refused if damaged."""

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


JSON, ROWS = results.FILE, results.ROWS


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (JSON, None, "results.json: cannot be read"),
        (JSON, lambda _: b"{", "results.json: not valid JSON"),
        (JSON, lambda _: b'{"format": "else"}', "results.json: format: must be 'keymatch-results'"),
        (
            JSON,
            lambda _: b'{"format": "keymatch-results", "version": 9}',
            "results.json: version: must be 1",
        ),
        (
            JSON,
            lambda content: orjson.dumps({**orjson.loads(content), "more": 1}),
            "results.json: is not what `score` writes",
        ),
        (ROWS, None, "rows.npz: is missing or damaged"),
        (ROWS, lambda content: content[:-40], "rows.npz: is missing or damaged"),
        (ROWS, lambda _: b"PK no zip", "rows.npz: is missing or damaged"),
    ],
)
def test_damage_is_named(
    written: Path, file: str, damage: Callable[[bytes], bytes] | None, message: str
) -> None:
    path = written / file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
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
