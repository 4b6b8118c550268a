"""A gain counts where it is larger than its standard error over the rows."""

import numpy as np
import pytest

from training.selection.gain import gain_of_rows


def test_the_error_is_that_of_the_mean_over_rows() -> None:
    over = np.zeros((4, 3))
    rows = over.copy()
    rows[:2] = 0.03  # two rows gain three points in each metric
    gain = gain_of_rows(1.5, rows, over)
    assert gain.error == pytest.approx(np.std([3.0, 3.0, 0.0, 0.0], ddof=1) / 2)
    assert gain.counts and not gain_of_rows(0.5, rows, over).counts
    assert not gain_of_rows(-1.0, over, over).counts
    assert gain_of_rows(0.1, over, over).counts
