"""Page cursors, errors for unknown names, and how clicks are stored in the log."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core import errors
from service.core.changes import Posted, PutInstance
from service.core.errors import InvalidInput
from service.core.page_cursor import FIRST_PAGE, PageCursor
from service.core.types import Event, Halves, NewInstance
from service.core.wrong_values import is_unknown

LONG = "x" * 100
PLAIN = {"query": "dusk", "labels": ("lamp", "tent")}

# Pages ------------------------------------------------------------------------------------


def pages(ids: list[str], size: int) -> list[list[str]]:
    """Return all pages of `ids`; each starts at the cursor of the page before."""
    found, after = [], FIRST_PAGE
    while page := following(ids, after)[:size]:
        found.append(page)
        after = PageCursor.parse(str(PageCursor.behind(page[-1])), field="after")
    return found


def following(ids: list[str], after: PageCursor) -> list[str]:
    return list(after.skip((known for known in sorted(ids) if known > after.prefix), id_of=str))


@given(
    ids=st.sets(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=3).flatmap(
            lambda text: st.sampled_from([text, text + LONG, LONG + text])
        ),
        max_size=20,
    ),
    size=st.integers(1, 5),
)
def test_all_pages_hold_every_id_once_in_order(ids: set[str], size: int) -> None:
    walked = pages(list(ids), size)
    assert [known for page in walked for known in page] == sorted(ids)
    assert all(len(page) == size for page in walked[:-1])


def test_a_cursor_is_short_whatever_the_id() -> None:
    for last_id in ("a", "\U0001f97e" * 2048, "x" * 2048, "\0" * 48):
        assert len(str(PageCursor.behind(last_id))) <= 295


def test_an_id_that_is_gone_leaves_no_other_out() -> None:
    ids = [LONG + letter for letter in "abcd"] + ["y"]
    assert following(["a", "c"], PageCursor.behind("b")) == ["c"]
    assert following(ids, PageCursor.behind(LONG + "b")) == [LONG + "c", LONG + "d", "y"]
    gone = [known for known in ids if known != LONG + "b"]
    assert following(gone, PageCursor.behind(LONG + "b")) == gone  # repeats ids, but skips none


@pytest.mark.parametrize(
    "text",
    ["pm-1", "after.", "after.!", "after._w", "after.YQ==", "after.YQ.abc", "after.YQ ", "YQ"],
)
def test_what_no_page_gave_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="must be `next` of the page before"):
        PageCursor.parse(text, field="after")
    assert PageCursor.parse("", field="after") == FIRST_PAGE


# Names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "guess"),
    [("hots", "; did you mean host?"), ("colour", ""), ("host" * 1000, "")],
    ids=["similar", "like none", "long"],
)
def test_a_name_that_was_probably_meant_is_asked_for(name: str, guess: str) -> None:
    assert is_unknown(name, ["host", "port"]) == f"is unknown; known are host, port{guess}"


# Clicks in the label log ------------------------------------------------------------------


def vectors_of(item: Posted) -> Halves:
    return np.ones((1, 4), np.float16)


def read(body: dict[str, object]) -> PutInstance:
    return PutInstance.from_event(Event(sequence=1, kind=PutInstance.kind, body=body), vectors_of)


@pytest.mark.parametrize(
    ("weight", "body"),
    [
        (1.0, PLAIN),
        (0.1, PLAIN | {"weight": 0.1}),
        (7.0, PLAIN | {"weight": 7.0}),
        (-1.0, PLAIN | {"weight": -1.0}),  # a negative pair
    ],
)
def test_a_weight_is_stored_where_it_is_not_one(weight: float, body: dict[str, object]) -> None:
    instance = NewInstance(query="dusk", labels=("lamp", "tent"), weight=weight)
    change = PutInstance(sequence=1, instance=instance, vectors=np.ones((1, 4), np.float16))
    assert list(change.body().items()) == list(body.items())
    assert read(body).instance == instance


def test_counted_clicks_are_stored_as_they_were_counted() -> None:
    instance = NewInstance(query="dusk", labels=("lamp", "tent"), clicks=3.0)
    change = PutInstance(sequence=1, instance=instance, vectors=np.ones((1, 4), np.float16))
    assert change.body() == PLAIN | {"clicks": 3.0}
    assert read(change.body()).instance == instance
    for count in (0, -1.0, float("nan"), float("inf"), "many"):
        with pytest.raises((ValueError, TypeError)):
            read({**PLAIN, "clicks": count})


@pytest.mark.parametrize("weight", [0, float("nan"), float("inf"), -float("inf"), "heavy"])
def test_a_stored_weight_that_is_0_or_no_finite_number_is_refused(weight: object) -> None:
    with pytest.raises(ValueError, match=r"weigh|float"):
        read({**PLAIN, "weight": weight})


def test_a_vote_weighs_the_nearest_float32() -> None:
    instance = NewInstance(query="dusk", labels=("lamp",), weight=0.1)
    assert instance.vote_weight == float(np.float32(0.1)) != 0.1


# The command that installs an extra ------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ('{"url": "file:///x", "dir_info": {"editable": true}}', "in keymatch's checkout, pip"),
        ('{"url": "file:///x", "dir_info": {}}', "in keymatch's checkout, pip install '.[cpu]'"),
        (
            '{"url": "file:///x/keymatch-0.1.0%2Bl-py3-none-any.whl", "archive_info": {}}',
            "pip install 'keymatch-0.1.0+l-py3-none-any.whl[cpu]'",
        ),
        (None, "pip install 'keymatch[cpu]'"),
        ("damaged", "in keymatch's checkout"),
    ],
)
def test_an_extra_is_installed_from_where_keymatch_came(
    monkeypatch: pytest.MonkeyPatch, origin: str | None, command: str
) -> None:
    installed = SimpleNamespace(read_text=lambda name: origin)
    monkeypatch.setattr(errors, "distribution", lambda name: installed)
    assert errors.install_command("cpu").startswith(command)
