"""Which labels a log takes for granted, and when it belongs to other data than the bundle's."""

import pytest

from service.core.bundle.bundle import Bundle
from service.core.errors import OtherData
from service.core.types import Event
from service.engine.log_references import LogReferences
from tests.support.tiny.bundles import LABELS


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
        event("label.delete", id="b"),
    )
    assert (found.known, list(found.unknown), found.clicks) == ({"tent", "lamp"}, ["a", "b"], 2)


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


def test_what_is_unknown_is_logged_once(
    trigram_bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    read(trigram_bundle, click("tent")).report(allowed=False)
    assert not caplog.messages
    read(trigram_bundle, click("tent", "a"), click("a")).report(allowed=False)
    [said] = caplog.messages
    assert said.startswith(
        "1 of the 2 labels that clicks and deletions of the log take for granted"
    )
    assert said.endswith("2 clicks lose votes")


def test_writes_of_items_have_no_effect_without_an_item_memory(
    trigram_bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    found = read(
        trigram_bundle, event("item.put", id="web", text="web"), event("item.delete", id="web")
    )
    found.report(allowed=False)
    assert found.void_items == 2
    [record] = [each for each in caplog.records if "item memory" in each.message]
    assert "2 writes of items in the log have no effect" in record.message
