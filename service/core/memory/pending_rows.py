"""Rows and tombstones that a draft has collected and not yet written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from service.core.index.bitmaps import count_dead, set_tombstones
from service.core.memory.live_rows import LiveRows, LiveStore, NewRow
from service.core.memory.part import Part
from service.core.memory.view import View


class PendingRows:
    """Numbers new rows and collects tombstones; `write` puts both into a view in one step."""

    def __init__(self, view: View, *, block_rows: int) -> None:
        """Continue after the last row of `view`; live rows lie in blocks of `block_rows`."""
        self._first_live_row, self._block_rows = view.base_rows, block_rows
        self._next_row = view.next_row
        self._rows: list[NewRow] = []
        self._tombstones: list[int] = []
        self.size = 0  # bytes of main memory that the rows will take

    @property
    def count(self) -> int:
        """How many rows are to be appended."""
        return len(self._rows)

    def append(self, row: NewRow) -> int:
        """Collect a row and return the number that it will have."""
        self._rows.append(row)
        self.size += row.size
        self._next_row += 1
        return self._next_row - 1

    def tombstone(self, rows: Iterable[int]) -> None:
        """Collect tombstones for rows of the view or for rows appended since."""
        self._tombstones += rows

    @property
    def fill_a_block(self) -> bool:
        """Whether writing the collected rows makes a block full."""
        written = self._next_row - len(self._rows)
        return self._full_blocks(self._next_row) != self._full_blocks(written)

    def write(self, view: View) -> View:
        """Return `view` with the collected rows and tombstones, and forget them here.

        Rows are written behind those that published views count, so no such view changes.
        """
        tombstones = sorted(set(self._tombstones))
        parts = [_with_tombstones(part, tombstones) for part in self._appended(view)]
        self._rows, self._tombstones, self.size = [], [], 0
        return _with_base_tombstones(replace(view, parts=tuple(parts)), tombstones)

    def _appended(self, view: View) -> list[Part]:
        """Write the collected rows into the last block, and into new blocks when it is full."""
        rows, parts = self._rows, list(view.parts)
        while rows:
            last = parts[-1] if parts else None
            if not isinstance(last, LiveRows) or last.full:
                last = self._new_block(view, last.stop if last else view.base_rows)
                parts.append(last)
            room = last.store.capacity - last.count
            parts[-1] = last.append(rows[:room])
            rows = rows[room:]
        return parts

    def _new_block(self, view: View, first: int) -> LiveRows:
        bundle = view.bundle
        store = LiveStore(
            capacity=self._block_rows,
            dimension=bundle.manifest.encoder.dimension,
            device=bundle.device,
        )
        return LiveRows(store=store, first=first, count=0)

    def _full_blocks(self, stop: int) -> int:
        """Return how many blocks are full once all rows before `stop` are written."""
        return (stop - self._first_live_row) // self._block_rows


def _with_tombstones(part: Part, rows: list[int]) -> Part:
    rows_of_part = [row for row in rows if part.first <= row < part.stop]
    return part.with_tombstones(rows_of_part) if rows_of_part else part


def _with_base_tombstones(view: View, rows: list[int]) -> View:
    base_rows = [row for row in rows if row < view.base_rows]
    if not base_rows:
        return view
    alive = set_tombstones(view.base_alive, base_rows, view.base_rows)
    return replace(view, base_alive=alive, base_dead_rows=count_dead(alive, view.base_rows))
