"""A bundle warms up in a bounded time; a log that was begun for other data is refused."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from service.core.bundle.bundle import Bundle
from service.core.errors import BundleMissing, BundleUnsupported, OtherData
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import Answer, Event
from service.engine.loaded_bundle import LogReferences, load_bundle
from service.settings import EngineSettings
from tests.support.tiny.bundles import LABELS

SETTINGS = EngineSettings(threads=2)


def test_each_thread_answers_in_time(tiny_bundle_folder: Path) -> None:
    loaded, released = load_bundle(tiny_bundle_folder, None, SETTINGS), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        loaded.warm_up(pool.submit, threads=2, seconds=60)
        pool.submit(released.wait)  # keeps one thread busy, for which the other waits
        with pytest.raises(BundleUnsupported, match=r"no first answers within 0 s.*warm_up_s"):
            loaded.warm_up(pool.submit, threads=2, seconds=0.1)
        released.set()


def test_the_first_filtered_query_finds_warm_fields_and_votes(
    tiny_bundle_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_bundle(tiny_bundle_folder, None, SETTINGS)
    filtered: list[bool] = []
    predict = Predictor.predict

    def noted(self: Predictor, view: View, *arguments: Any) -> Answer:
        filtered.append(bool(view.labels.kept))
        return predict(self, view, *arguments)

    monkeypatch.setattr(Predictor, "predict", noted)
    with ThreadPoolExecutor(2) as pool:
        loaded.warm_up(pool.submit, threads=2, seconds=60)
    assert sorted(filtered) == [False, False, True, True]


def test_a_defect_is_an_error_of_the_bundle(tiny_bundle_folder: Path) -> None:
    def failing(_function: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()
        future.set_exception(RuntimeError("bad allocation"))
        return future

    with pytest.raises(BundleUnsupported, match=r"cannot answer a query: .*bad allocation"):
        load_bundle(tiny_bundle_folder, None, SETTINGS).warm_up(failing, threads=1, seconds=60)


def test_a_trial_comes_after_the_checks_and_before_anything_is_loaded(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    tried: list[Path] = []

    def refuse(bundle: Bundle) -> None:
        tried.append(bundle.folder)
        raise BundleUnsupported("no")

    with pytest.raises(BundleMissing):
        load_bundle(tmp_path, None, SETTINGS, trial=refuse)
    assert tried == []
    with pytest.raises(BundleUnsupported, match="no"):
        load_bundle(tiny_bundle_folder, None, SETTINGS, trial=refuse)
    assert tried == [tiny_bundle_folder]


def event(kind: str, **body: object) -> Event:
    return Event(sequence=1, kind=kind, body=body)


def click(*labels: str) -> Event:
    return event("instance.put", query="igloo", labels=list(labels))


def read(bundle: Bundle, *events: Event) -> LogReferences:
    references = LogReferences(bundle)
    assert list(references.watched(events)) == list(events)
    return references


def test_labels_that_the_log_has_posted_itself_are_no_sign(trigram_bundle: Bundle) -> None:
    found = read(
        trigram_bundle,
        event("label.put", id="kayak", text="kayak", queries=[], metadata={}),
        click("kayak", "tent"),
        click("kayak", "a"),
        click("a", "lamp"),
        event("label.delete", id="kayak"),
        event("label.change", id="b", metadata={}),
        event("instance.delete", query="igloo", labels=["boots", "kayak", "c"]),
    )
    assert (found.known, list(found.unknown)) == ({"tent", "lamp", "boots"}, ["a", "b", "c"])
    assert found.clicks == 2


@pytest.mark.parametrize(
    ("unknown", "known", "other"), [(2, 0, False), (3, 0, True), (3, 3, False), (4, 3, True)]
)
def test_more_than_half_unknown_and_more_than_a_few_is_other_data(
    trigram_bundle: Bundle, unknown: int, known: int, other: bool
) -> None:
    foreign = [f"foreign {number}" for number in range(unknown)]
    events = [click(label) for label in (*foreign, *list(LABELS)[:known])]
    found = read(trigram_bundle, *events)
    assert found.other_data is other
    found.report(allowed=True)
    if other:
        with pytest.raises(OtherData, match=f"{unknown} of the {unknown + known} labels"):
            found.report(allowed=False)
    name = trigram_bundle.folder.name
    accepted = read(trigram_bundle, *events, event("bundle.use", bundle=name, configured=""))
    assert not accepted.other_data
    another = read(trigram_bundle, *events, event("bundle.use", bundle="else", configured=""))
    assert another.other_data is other


def test_what_is_unknown_or_has_no_effect_is_logged_once(
    trigram_bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    read(trigram_bundle, click("tent")).report(allowed=False)
    assert not caplog.messages
    items = event("item.put", id="web", text="web"), event("item.delete", id="web")
    read(trigram_bundle, click("tent", "a"), click("a"), *items).report(allowed=False)
    void, unknown = caplog.messages
    assert "no item memory: 2 writes of items in the log have no effect" in void
    assert unknown.startswith(
        "1 of the 2 labels that clicks, changes and deletions of the log take for granted"
    )
    assert unknown.endswith("2 clicks lose votes")
