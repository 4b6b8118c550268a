"""`keymatch predict` on a long file: the progress that it reports, and the memory that it uses."""

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from service.__main__ import app
from service.bulk import progress
from service.bulk.run import rows_of_part
from tests.support.commands import status_of

WORDS = "boots tent warm trail lamp gas ice axe for two water small".split()
TOP_K = 100
PART = rows_of_part(TOP_K, explain=True)

Answer = Callable[[int], Path]


@pytest.fixture
def answer(tiny_bundle_folder: Path, tmp_path: Path) -> Answer:
    """`answer(rows)` answers `rows` different queries, with evidence, and returns the file."""

    def answered(rows: int) -> Path:
        queries, out = tmp_path / f"{rows}.txt", tmp_path / f"{rows}.jsonl"
        texts = (f"{WORDS[n % 12]} {WORDS[n // 12 % 12]} {n}" for n in range(rows))
        queries.write_text("\n".join(texts) + "\n")
        options = ("--top-k", TOP_K, "--explain", "--bundle", tiny_bundle_folder)
        assert status_of(app, "predict", *options, "--input", queries, "--out", out) == 0
        return out

    return answered


def test_without_a_terminal_lines_say_how_far_it_is(
    answer: Answer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    rows = 3 * PART
    out = answer(rows)
    *lines, last = capsys.readouterr().err.splitlines()
    said = re.compile(rf"([\d,]+) of {rows} queries, [\d,]+/s, \d+ s left")
    found = [said.fullmatch(line) for line in lines]
    assert [match and match[1] for match in found] == [str(part * PART) for part in (1, 2, 3)]
    assert last == f"{out}: {rows} queries; bundle tiny, version 0; scores are sums of votes"


def test_memory_does_not_grow_with_the_file(answer: Answer) -> None:
    """Answers kept in memory would take about three times the size of the output file."""

    def peak(rows: int) -> tuple[int, Path]:
        tracemalloc.start()
        try:
            out = answer(rows)
            return tracemalloc.get_traced_memory()[1], out
        finally:
            tracemalloc.stop()

    answer(1)  # imports all modules before memory is measured
    few, _ = peak(8 * PART)
    many, out = peak(32 * PART)
    assert many - few < out.stat().st_size / 4
