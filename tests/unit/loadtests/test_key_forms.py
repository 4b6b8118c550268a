"""Every form of the keys finds the rows that an exact scan of the fp16 keys finds."""

import numpy as np

from loadtests.measure.key_forms import key_forms, principal_axes
from service.core.bundle.bundle import Bundle
from service.core.index.exact import exact_search
from service.core.index.protocol import RowFilter


def test_every_form_returns_the_nearest_rows_with_their_similarities(
    trigram_bundle: Bundle,
) -> None:
    keys = trigram_bundle.keys
    queries = keys[:5].astype(np.float32)
    everything = RowFilter(start=0, stop=len(keys))
    expected, _ = exact_search(keys, queries, count=len(keys), row_filter=everything)
    names = []
    for form in key_forms(trigram_bundle):
        names.append(form.name)
        similarities, rows = form.search(queries, count=len(keys), ef=64)
        np.testing.assert_allclose(similarities, expected, atol=1e-3, err_msg=form.name)
        assert (np.sort(rows, axis=1) == np.arange(len(keys))).all(), form.name
        own = np.take_along_axis(queries @ keys.astype(np.float32).T, rows, axis=1)
        np.testing.assert_allclose(similarities, own, atol=1e-3, err_msg=form.name)
        assert form.walked_bytes > 0
    assert len(set(names)) == len(names)


def test_principal_axes_are_orthonormal_and_the_first_keep_the_most() -> None:
    rng = np.random.default_rng(0)
    spread = np.array([1, 3, 0.2, 2], np.float32)
    keys = rng.standard_normal((200, 4), np.float32) * spread
    axes = principal_axes(keys)
    np.testing.assert_allclose(axes @ axes.T, np.eye(4), atol=1e-5)
    assert np.abs(axes).argmax(axis=1).tolist() == [1, 3, 0, 2]
