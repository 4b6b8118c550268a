"""`python -m service log`, for the person on call."""

from contextlib import closing
from pathlib import Path

import numpy as np
import orjson
import pytest
from cyclopts import App

from service.cli.log import log
from service.core.changes import (
    DeleteItem,
    DeleteLabel,
    PutInstance,
    PutItem,
    PutLabel,
    UseBundle,
)
from service.core.label_log import NewEvent
from tests.support.commands import one_line, status_of
from tests.support.label_logs import Place, append

AXE = {"id": "axe", "text": "ice axe ⛏", "queries": ["climbing", "ice"], "metadata": {}}
BODIES = (
    (
        PutLabel.kind,
        AXE,
    ),
    (PutInstance.kind, {"query": "steep ice", "labels": ["axe", "rope"], "weight": 2.5}),
    (DeleteLabel.kind, {"id": "axe"}),
    (UseBundle.kind, {"bundle": "moby-2", "configured": "moby"}),
    (PutItem.kind, {"id": "web", "text": "web application"}),
    (DeleteItem.kind, {"id": "web"}),
)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def app() -> App:
    command = App(name="service")
    command.command(log)
    return command


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    with closing(place.open()) as opened, opened.exclusive() as appending:
        events = [
            NewEvent(kind=kind, body=body, vectors=np.ones((1, 4), np.float16))
            for kind, body in BODIES
        ]
        appending.append(events, encoder="0123456789abcdef")
    return place


def test_a_table_shows_number_time_kind_and_subject(
    app: App, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(app, "log", "--state", place.state) == 0
    shown = capsys.readouterr().out
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in shown.splitlines()
        if line.startswith("│")
    ]
    assert [(number, kind, what) for number, _, kind, what in rows] == [
        ("1", "label.put", "axe | ice axe ⛏ | climbing, ice"),
        ("2", "instance.put", "steep ice | axe, rope | 2.5"),
        ("3", "label.delete", "axe"),
        ("4", "bundle.use", "moby-2"),
        ("5", "item.put", "web | web application"),
        ("6", "item.delete", "web"),
    ]
    assert shown.splitlines()[-1] == f"{place.state}/labels.sqlite: 6 events"


def test_json_lines_hold_the_whole_event(
    app: App, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(app, "log", "--state", place.state, "--json") == 0
    lines = [orjson.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["kind"], line["body"]) for line in lines] == list(BODIES)
    assert [line["sequence"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(line["time"].endswith("+00:00") for line in lines)
    assert {line["encoder"] for line in lines} == {"0123456789abcdef"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--after", 2), [3, 4, 5, 6]),
        (("--after", 1, "--limit", 2), [2, 3]),
        (("--after", -1), [6]),
        (("--after", -9), [1, 2, 3, 4, 5, 6]),
        (("--after", 9), []),
    ],
)
def test_a_part_is_shown(
    app: App,
    place: Place,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[object, ...],
    expected: list[int],
) -> None:
    assert status_of(app, "log", "--state", place.state, "--json", *arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [orjson.loads(line)["sequence"] for line in lines] == expected


def test_a_cut_table_says_how_to_go_on(
    app: App, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(app, "log", "--state", place.state, "--limit", 3) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("6 events; continue with --after 3")


def test_a_text_cannot_steer_the_terminal_nor_the_table(
    app: App, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Place(tmp_path).open()) as opened:
        append(opened, "[red]\x1b[2J\nline")
    assert status_of(app, "log", "--state", tmp_path) == 0
    shown = capsys.readouterr().out
    assert "[red]\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}line | " in shown
    assert "\x1b[2J" not in shown


def test_a_whole_log_gets_a_one_line_verdict(
    app: App, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(app, "log", "--state", place.state, "--check") == 0
    (verdict,) = capsys.readouterr().out.splitlines()
    assert "labels.sqlite: intact, 6 events, 1 to 6, " in verdict
    assert "kinds: label.put 1, instance.put 1" in verdict
    assert "item.put 1, item.delete 1" in verdict
    assert "encoders: 0123456789ab 6" in verdict
    assert status_of(app, "log", "--state", place.state, "--check", "--json") == 0
    report = orjson.loads(capsys.readouterr().out)
    assert (report["events"], report["first"], report["last"]) == (6, 1, 6)
    assert len(report["id"]) == 32


def test_an_empty_log_is_intact(
    app: App, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Place(tmp_path).open().close()
    assert status_of(app, "log", "--state", tmp_path, "--check") == 0
    assert capsys.readouterr().out.endswith("labels.sqlite: intact, no events\n")


def test_a_corrupt_log_has_a_status_of_its_own(
    app: App, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.tamper("UPDATE events SET body = X'7b7d' WHERE sequence = 3")
    assert status_of(app, "log", "--state", place.state, "--check") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert one_line(1, printed.err) == (
        f"corrupt: {place.state}/labels.sqlite: event 3 was altered: its checksum is wrong"
    )


def test_what_was_shown_before_the_damage_stays(
    app: App, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.tamper("DELETE FROM events WHERE sequence = 3")
    assert status_of(app, "log", "--state", place.state, "--json") == 2
    printed = capsys.readouterr()
    assert len(printed.out.splitlines()) == 2
    assert one_line(2, printed.err).endswith("event 3 is missing")


def test_a_folder_without_a_log_is_an_error_and_stays_without(
    app: App, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert status_of(app, "log", "--state", folder) == 2
        assert "holds no label log" in one_line(2, capsys.readouterr().err)
    assert list(tmp_path.iterdir()) == []


def test_a_limit_below_one_is_refused(
    app: App, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(app, "log", "--state", place.state, "--limit", 0) == 2
    assert one_line(2, capsys.readouterr().err) == "limit must be at least 1"


def test_a_log_in_postgres_is_shown_without_its_password(
    app: App, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres_url.replace("postgres@", "postgres:secret@")
    with closing(Place(url).open()) as opened:
        append(opened, "axe")
        assert status_of(app, "log", "--state", url) == 0  # beside a running service
    shown = capsys.readouterr().out
    assert "axe | text of axe ✓" in shown
    assert "secret" not in shown
