"""Result files: written, read, and refused if damaged."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import orjson
import pytest

from service.core.errors import InvalidData
from tests.support.tiny.training import tiny_dataset
from training.evaluation import results
from training.evaluation.results import Check, Results, measured
from training.evaluation.seeds import folder_of_seed, folders_by_seed


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
        (JSON, lambda _: b'{"format": "else"}', "results.json: format: must be 'keymatch-results'"),
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


def test_seeds_lie_in_the_folder_of_the_first(tmp_path: Path) -> None:
    seeds = (0, 2, 10)
    for seed in seeds:
        folder = folder_of_seed(tmp_path, seed)
        folder.mkdir(exist_ok=True)
        (folder / results.FILE).touch()
    (tmp_path / "seed-3").mkdir()  # training has not finished
    (tmp_path / "seed-none").mkdir()
    (tmp_path / "seed-none" / results.FILE).touch()
    assert folders_by_seed(tmp_path) == {seed: folder_of_seed(tmp_path, seed) for seed in seeds}
    assert list(folders_by_seed(tmp_path)) == [0, 2, 10]
