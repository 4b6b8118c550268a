"""The choice of a seen label's neighbors among the other seen labels."""

import numpy as np
from scipy.sparse import csr_matrix

from training.systems.irene.system import associations


def test_of_those_that_share_a_row_the_nearest_by_text() -> None:
    rows = [[0, 1, 2, 3], [0, 4], [5]]
    y = np.zeros((3, 6), np.float32)
    for row, labels in enumerate(rows):
        y[row, labels] = 1.0
    angles = np.array([0.0, 0.5, 0.1, 0.3, 0.2, 0.0])
    texts = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)

    found = associations(labels_of=csr_matrix(y), texts=texts, count=3)

    assert found[0].tolist() == [2, 4, 3]
    assert found[4].tolist() == [0, -1, -1], "never itself"
    assert found[5].tolist() == [-1, -1, -1], "label 0 has the same text, and no row in common"


def test_blocks_do_not_show() -> None:
    rng = np.random.default_rng(0)
    y = csr_matrix((rng.random((80, 600)) < 0.02).astype(np.float32))
    texts = rng.standard_normal((600, 8)).astype(np.float32)
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)

    found = associations(labels_of=y, texts=texts, count=3)

    shared = (y.T @ y).toarray()
    np.fill_diagonal(shared, 0)
    for label in (0, 255, 256, 599):
        company = np.flatnonzero(shared[label])
        nearest = company[np.argsort(-(texts[company] @ texts[label]))][:3]
        assert found[label][: len(nearest)].tolist() == nearest.tolist()
