"""`keymatch log` shows, checks and recovers a label log."""

import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from cyclopts import App

from service.cli.log import log
from service.core.changes import (
    DeleteInstance,
    DeleteItem,
    DeleteLabel,
    PutInstance,
    PutItem,
    PutLabel,
    UseBundle,
)
from tests.support.commands import one_line, status_of
from tests.support.label_logs import Place, StoredChange, append

AXE = {"id": "axe", "text": "ice axe ⛏", "queries": ["climbing", "ice"], "metadata": {}}
BODIES = (
    (PutLabel.kind, AXE),
    (PutInstance.kind, {"query": "steep ice", "labels": ["axe", "rope"], "weight": 2.5}),
    (DeleteLabel.kind, {"id": "axe"}),
    (UseBundle.kind, {"bundle": "moby-2", "configured": "moby"}),
    (PutItem.kind, {"id": "web", "text": "web application"}),
    (DeleteItem.kind, {"id": "web"}),
)


Log = Callable[..., Any]


@pytest.fixture
def run_log(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Log:
    """`run_log(state, *options, status=0)` runs the command and returns its output."""
    monkeypatch.setenv("COLUMNS", "200")
    command = App(name="service")
    command.command(log)

    def run(state: object, *options: object, status: int = 0) -> Any:
        assert status_of(command, "log", "--state", state, *options) == status
        return capsys.readouterr()

    return run


def write(place: Place, *events: tuple[str, dict[str, Any]]) -> Place:
    with closing(place.open()) as opened, opened.exclusive() as appending:
        vectors = np.ones((1, 4), np.float16)
        new = [StoredChange(kind, body, vectors) for kind, body in events]
        appending.append(new, encoder="0123456789abcdef")
    return place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return write(Place(tmp_path), *BODIES)


def documents(lines: str) -> list[Any]:
    return [orjson.loads(line) for line in lines.splitlines()]


def test_a_table_shows_number_time_kind_and_subject(run_log: Log, place: Place) -> None:
    shown = run_log(place.state).out
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
    cut = run_log(place.state, "--limit", 3).out.splitlines()
    assert cut[-1].endswith("6 events; continue with --after 3")


def test_the_table_has_a_line_per_event_on_a_narrow_terminal(
    run_log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"id": "long", "text": "long keyword " * 20, "queries": []}
    state = write(Place(tmp_path), ("label.put", body)).state
    monkeypatch.setenv("COLUMNS", "80")
    rows = [line for line in run_log(state).out.splitlines() if line.startswith("│")]
    assert len(rows) == 1 and len(rows[0]) == 80 and "…" in rows[0]
    assert re.match(r"│ 1     │ \d{4}-\d\d-\d\d \d\d:\d\d:\d\d │ label.put │ long", rows[0])
    file = tmp_path / "events.jsonl"
    assert run_log(state, "--json", file).out == ""
    assert orjson.loads(file.read_bytes())["body"] == body


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--json", "--check"), "--json takes a file"), (("--limit", 0), "limit must be at least 1")],
)
def test_wrong_options_are_named(
    run_log: Log, place: Place, options: tuple[object, ...], said: str
) -> None:
    assert said in one_line(2, run_log(place.state, *options, status=2).err)


def test_unlearned_and_negative_pairs_are_shown(run_log: Log, tmp_path: Path) -> None:
    pair = {"query": "steep ice", "labels": ["axe", "rope"]}
    negative = (PutInstance.kind, pair | {"weight": -1.0})
    place = write(Place(tmp_path), negative, (DeleteInstance.kind, pair))
    shown = run_log(place.state).out
    assert "steep ice | axe, rope | -1.0" in shown
    assert "instance.delete │ steep ice | axe, rope " in shown


def test_json_lines_hold_the_whole_event(run_log: Log, place: Place) -> None:
    lines = documents(run_log(place.state, "--json", "-").out)
    assert [(line["kind"], line["body"]) for line in lines] == list(BODIES)
    assert [line["sequence"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert all(line["time"].endswith("+00:00") for line in lines)
    assert {line["encoder"] for line in lines} == {"0123456789abcdef"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--after", 2), [3, 4, 5, 6]),
        (("--after", 1, "--limit", 2), [2, 3]),
        (("--after", -1), [6]),
        (("--after", -9), [1, 2, 3, 4, 5, 6]),
        (("--after", 9), []),
    ],
)
def test_a_part_is_shown(
    run_log: Log, place: Place, options: tuple[object, ...], expected: list[int]
) -> None:
    lines = documents(run_log(place.state, "--json", "-", *options).out)
    assert [line["sequence"] for line in lines] == expected


def test_a_text_cannot_steer_the_terminal_nor_the_table(run_log: Log, tmp_path: Path) -> None:
    with closing(Place(tmp_path).open()) as opened:
        append(opened, "[red]\x1b[2J\nline")
    shown = run_log(tmp_path).out
    assert "[red]\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}line | " in shown
    assert "\x1b[2J" not in shown


def test_a_whole_log_gets_a_one_line_verdict(run_log: Log, place: Place, tmp_path: Path) -> None:
    (verdict,) = run_log(place.state, "--check").out.splitlines()
    assert "labels.sqlite: intact, 6 events, 1 to 6, " in verdict
    assert "kinds: label.put 1, instance.put 1" in verdict
    assert "item.put 1, item.delete 1" in verdict
    assert "encoders: 0123456789ab 6" in verdict
    [report] = documents(run_log(place.state, "--check", "--json", "-").out)
    assert (report["events"], report["first"], report["last"]) == (6, 1, 6)
    assert len(report["id"]) == 32
    Place(tmp_path / "empty").open().close()
    said = run_log(tmp_path / "empty", "--check").out
    assert said.endswith("labels.sqlite: intact, no events\n")


def test_a_corrupt_log_has_a_status_of_its_own(run_log: Log, place: Place) -> None:
    place.tamper("UPDATE events SET body = X'7b7d' WHERE sequence = 3")
    said = run_log(place.state, "--check", status=1)
    assert said.out == ""
    assert one_line(1, said.err) == (
        f"corrupt: {place.state}/labels.sqlite: event 3 was altered: its checksum is wrong"
    )


def test_what_was_shown_before_the_damage_stays(run_log: Log, place: Place) -> None:
    place.tamper("DELETE FROM events WHERE sequence = 3")
    said = run_log(place.state, "--json", "-", status=2)
    assert len(said.out.splitlines()) == 2
    assert one_line(2, said.err).endswith("event 3 is missing")


def test_a_folder_without_a_log_is_an_error_and_stays_without(run_log: Log, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        assert "holds no label log" in one_line(2, run_log(folder, status=2).err)
    assert list(tmp_path.iterdir()) == []


def test_a_log_in_postgres_is_shown_without_its_password(run_log: Log, postgres_url: str) -> None:
    url = postgres_url.replace("postgres@", "postgres:secret@")
    with closing(Place(url).open()) as opened:
        append(opened, "axe")
        shown = run_log(url).out  # while the log is open elsewhere
    assert "axe | text of axe ✓" in shown
    assert "secret" not in shown
