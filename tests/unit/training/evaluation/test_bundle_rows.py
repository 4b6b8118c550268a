"""Test rows that a bundle's memory has are left out, or refused; a text in both splits is not."""

from dataclasses import replace
from pathlib import Path

import pytest

from service.core.bundle.bundle import open_bundle
from service.core.bundle.manifest import SplitFacts
from service.core.errors import InvalidInput
from tests.support.tiny.export import tiny_dataset
from training.datasets.dataset import Texts
from training.evaluation.bundle_rows import require_held_out, without_seen_rows


def test_rows_of_a_bundle_with_test_rows_are_left_out(tiny_bundle_folder: Path) -> None:
    bundle, dataset = open_bundle(tiny_bundle_folder), tiny_dataset()
    count = len(dataset.test)
    texts = [f"new {row}" for row in range(count)]
    texts[:2] = bundle.instance_texts[0].upper(), f" {bundle.instance_texts[1]} "
    test = replace(dataset.test, instances=Texts(uids=tuple(texts), texts=tuple(texts)))
    dataset = replace(dataset, test=test)
    assert without_seen_rows(dataset, bundle) == (dataset, 0)
    require_held_out(bundle.manifest)
    split = SplitFacts(train=1, test=2, left_out=0, weight=3.0, left_out_weight=0.0)
    served = replace(bundle, manifest=replace(bundle.manifest, split=split))
    kept, seen = without_seen_rows(dataset, served)
    assert (list(kept.test.instances.texts), seen) == (texts[2:], 2)
    with pytest.raises(InvalidInput, match=r"has 2 test rows in its memory.*--hold-out-test"):
        require_held_out(served.manifest)
