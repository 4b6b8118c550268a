"""Missing and wrong metadata: how many links are changed, and that nothing else is."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from training.datasets.metadata_noise import bank, dropped, replaced, within


@pytest.fixture
def links() -> csr_matrix:
    """A thousand texts with two of fifty items each."""
    rng = np.random.default_rng(1)
    dense = np.zeros((1000, 50), np.float32)
    for row in dense:
        row[rng.choice(50, 2, replace=False)] = 1.0
    return csr_matrix(dense)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
def test_a_share_of_the_links_is_dropped(links: csr_matrix, share: float) -> None:
    left = dropped(links, share, np.random.default_rng(0))
    assert left.nnz == pytest.approx((1.0 - share) * links.nnz, abs=60)
    assert (left > links).nnz == 0, "no link is new"


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_share_of_the_links_leads_elsewhere(links: csr_matrix, share: float) -> None:
    changed = replaced(links, share, np.random.default_rng(0))
    kept = changed.multiply(links).nnz
    assert kept == pytest.approx((1.0 - share * 48 / 50) * links.nnz, abs=60)
    assert set(np.unique(changed.data)) == {1.0}


def test_a_bank_has_a_share_of_the_items(links: csr_matrix) -> None:
    banked = bank(50, 0.2, np.random.default_rng(0))
    assert banked.sum() == 10
    left = within(links, banked)
    assert left.toarray()[:, ~banked].sum() == 0
    assert (left.toarray()[:, banked] == links.toarray()[:, banked]).all()
