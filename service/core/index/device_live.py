"""Live vectors on a device: rows that one writer appends while readers search them.

Matrices on a device never change, so appending uploads again. To keep that small, rows lie in two
matrices: whole blocks of `BLOCK_ROWS` in one, which is uploaded again only when another block is
full, and the rest in the other, which every write replaces. So a commit uploads less than 1.6 MB at
d = 384, and a search needs two calls however many rows there are.

A write is in the log by now and must not fail. So rows for which the device has no memory are
scanned on the host, until a later write or sealing brings them there.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np

from service.core.errors import DeviceUnavailable
from service.core.index.device_segment import Piece, PiecewiseSearch
from service.core.index.devices import ScanDevice
from service.core.index.exact import LiveVectors, nearest
from service.core.index.protocol import RowFilter
from service.core.types import Floats, Halves, Rows

BLOCK_ROWS = 2_048

log = logging.getLogger("keymatch")


class DeviceLiveVectors:
    """The same as `LiveVectors`, searched on a device; the host keeps a copy, too."""

    def __init__(self, device: ScanDevice, *, capacity: int, dimension: int) -> None:
        """Reserve `capacity` rows of `dimension` on the host."""
        self._device = device
        self._host = LiveVectors(capacity=capacity, dimension=dimension)
        self._search = PiecewiseSearch(device, self._host.matrix)
        self._pieces: tuple[Piece, ...] = ()  # replaced as a whole: a search takes one or the other

    def write(self, start: int, vectors: Halves) -> None:
        """Write vectors [n, d] to the n rows from `start`; only the writer calls this."""
        self._host.write(start, vectors)
        stop = start + len(vectors)
        unchanged = tuple(piece for piece in self._pieces if piece.stop <= start)
        try:
            self._pieces = self._uploaded(unchanged, stop)
        except DeviceUnavailable as error:
            log.warning("live rows are searched by the processor", extra={"cause": str(error)})
            self._pieces = unchanged

    def read(self, rows: Rows) -> Halves:
        """Return a copy of the vectors [n, d] of `rows` [n]."""
        return self._host.read(rows)

    def search(self, queries: Floats, *, count: int, row_filter: RowFilter) -> tuple[Floats, Rows]:
        """Find the nearest rows of queries [B, d] exactly; returns what `Segment.search` does."""
        pieces = self._pieces
        covered = pieces[-1].stop if pieces else 0
        found = self._search.search(pieces, queries, count=count, row_filter=row_filter)
        if row_filter.stop <= covered:
            return found
        rest = replace(row_filter, start=max(covered, row_filter.start))
        others = self._host.search(queries, count=count, row_filter=rest)
        rows = np.hstack([found[1], others[1]])
        similarities = np.where(rows < 0, np.float32(-np.inf), np.hstack([found[0], others[0]]))
        return nearest(similarities, rows, count=count)

    def _uploaded(self, unchanged: tuple[Piece, ...], stop: int) -> tuple[Piece, ...]:
        """The pieces up to row `stop`; the whole blocks are uploaded only if they have changed."""
        whole = stop - stop % BLOCK_ROWS
        pieces = [piece for piece in unchanged if piece.start == 0 and piece.stop == whole]
        if whole and not pieces:
            pieces.append(self._piece(0, whole))
        if stop > whole:
            pieces.append(self._piece(whole, stop))
        return tuple(pieces)

    def _piece(self, start: int, stop: int) -> Piece:
        matrix = self._device.upload(self._host.matrix[start:stop])
        return Piece(start=start, stop=stop, matrix=matrix)
