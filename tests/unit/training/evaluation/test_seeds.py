"""The places of the results of each seed."""

from pathlib import Path

from training.evaluation import results
from training.evaluation.seeds import folder_of_seed, folders_by_seed


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
