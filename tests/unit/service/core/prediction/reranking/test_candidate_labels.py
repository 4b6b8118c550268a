"""How often labels were clicked: a novel label counts as never clicked, whatever its rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.prediction.reranking.candidate_labels import LabelsOfView, trained_frequencies
from service.core.types import NewLabel
from tests.support.changes import ENCODER, click, put


@pytest.fixture
def bundle(make_bundle: Callable[..., Path]) -> Bundle:
    return open_bundle(make_bundle(encoder=ENCODER))


def frequency(view: View, label_id: str) -> int:
    labels = LabelsOfView(view=view, trained=trained_frequencies(view.bundle))
    column = view.labels.column(label_id)
    assert column is not None
    return int(labels.frequencies_of(np.array([column]))[0])


def test_clicks_of_a_trained_label_count_and_those_of_a_novel_one_do_not(
    bundle: Bundle, tmp_path: Path
) -> None:
    memory = KnowledgeMemory(bundle)
    before = frequency(memory.view, "tent")
    memory.apply(
        [
            put(1, NewLabel(id="kayak", text="sea kayak", queries=("paddle", "boat for one"))),
            click(2, "igloo", "tent", "kayak"),
            click(3, "shelter", "tent"),
        ]
    )
    assert (frequency(memory.view, "tent"), frequency(memory.view, "kayak")) == (before + 2, 0)

    write_snapshot(memory.view, tmp_path / "snapshot", name="snapshot", log="0f" * 16)
    opened = KnowledgeMemory(open_bundle(tmp_path / "snapshot"), version=3)
    assert (frequency(opened.view, "tent"), frequency(opened.view, "kayak")) == (before + 2, 0)
    opened.apply([click(4, "river", "tent", "kayak")])
    assert (frequency(opened.view, "tent"), frequency(opened.view, "kayak")) == (before + 3, 0)
