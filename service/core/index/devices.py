"""The interface of a device that searches matrices exactly, and the table of devices.

To add a device, write one module with a class that implements `ScanDevice` and the functions of
`DeviceModule`, and add one line to `SCAN_DEVICES`. No other part of the memory needs a change.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from service.core.types import DeviceName, Floats, Halves, Rows

SCAN_DEVICES: dict[DeviceName, str] = {"cuda": "service.core.index.faiss_gpu"}


class DeviceMatrix(Protocol):
    """Vectors [R, d] in fp16 in a device's memory. They never change."""

    def search(self, queries: Floats, *, count: int) -> tuple[Floats, Rows]:
        """Find the `count` nearest rows of queries [B, d] by inner product, exactly.

        `count` is at most R and at most the device's `largest_count`. Returns inner products
        [B, count], descending, and rows [B, count]. Any thread may call it.
        """
        ...


class ScanDevice(Protocol):
    """A device that stores matrices and scans them."""

    @property
    def name(self) -> DeviceName:
        """The device's name in the settings."""
        ...

    @property
    def largest_count(self) -> int:
        """The largest number of rows that one search can return."""
        ...

    def upload(self, vectors: Halves) -> DeviceMatrix:
        """Copy vectors [R, d], at least one, to the device. They are freed with the last reference.

        Raises `DeviceUnavailable` if the device's memory is full.
        """
        ...


class DeviceModule(Protocol):
    """The functions that a device's module must have."""

    def require(self) -> None:
        """Raise `DeviceUnavailable` if the device cannot be used. Takes none of its memory."""
        ...

    def open(self) -> ScanDevice:
        """Return the device; raises `DeviceUnavailable` if it cannot be used."""
        ...


def device_module(name: DeviceName) -> DeviceModule:
    """Import a device's module by its name in `SCAN_DEVICES`."""
    return cast(DeviceModule, import_module(SCAN_DEVICES[name]))
