"""The steps at which all texts are encoded again, set by steps, epochs and a first step."""

from types import SimpleNamespace

import numpy as np
import pytest

from service.core.errors import InvalidConfig
from training.loop.batch_source import BatchSource, Neighbourhoods
from training.recipes import recipe as recipes

CLUSTERED = "batch.order=clustered"
MINED = "batch.hard_negatives=1"
TEN_A_STEP = "batch.instances=10"  # an epoch of a hundred rows has ten steps


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ([CLUSTERED], [0]),
        ([CLUSTERED, "refresh.every=8"], [0, 8, 16, 24]),
        ([CLUSTERED, "refresh.every_epochs=1"], [0, 10, 20]),
        ([CLUSTERED, "refresh.every_epochs=0.75"], [0, 8, 16, 24]),
        ([CLUSTERED, "refresh.every_epochs=1", "optimizer.accumulation=2"], [0, 5, 10, 15, 20, 25]),
        ([CLUSTERED, "refresh.every_epochs=1", "refresh.first=4"], [0, 4, 14, 24]),
        ([MINED, "refresh.every_epochs=1", "refresh.first=4"], [4, 14, 24]),
        (["refresh.every_epochs=1"], []),  # nothing needs the vectors
    ],
)
def test_the_steps_of_a_refresh_on_a_hundred_rows(settings: list[str], due: list[int]) -> None:
    source = BatchSource(
        recipe=recipes.load("rae", [TEN_A_STEP, *settings]),
        data=SimpleNamespace(rows=np.arange(100)),
        neighbourhoods=Neighbourhoods(),
    )
    assert [step for step in range(30) if source.refresh_is_due(step)] == due


def test_every_and_every_epochs_are_rivals(tmp_path) -> None:
    by_steps = recipes.load("supcon", ["refresh.every=7"])
    assert (by_steps.refresh.every, by_steps.refresh.every_epochs) == (7, None)
    assert by_steps.validation.checks == 4, "another table's rival stays"

    mine = tmp_path / "mine.toml"
    mine.write_text("extends = 'ance-moby'\n[refresh]\nevery_epochs = 2\n")
    by_epochs = recipes.load(str(mine))
    assert (by_epochs.refresh.every, by_epochs.refresh.every_epochs) == (0, 2.0)

    mine.write_text("extends = 'rae'\n[refresh]\nevery_epochs = 2\nevery = 5\n")
    with pytest.raises(InvalidConfig, match="give either every or every_epochs"):
        recipes.load(str(mine))
