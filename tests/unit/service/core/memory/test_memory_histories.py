"""Random histories of labels and clicks: every view answers as the dense oracle did."""

import os

import pytest

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.index import device_live
from tests.support.device.scan_device import HostScanDevice
from tests.support.histories.memory import run_histories


def test_histories(trigram_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # no crash is tested here, and it is slow
    run_histories(trigram_bundle, examples=60)


def test_histories_on_a_device(trigram_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that returns few rows at a time, in blocks of live rows that are soon full."""
    monkeypatch.setattr(os, "fsync", lambda _file: None)
    monkeypatch.setattr(device_live, "BLOCK_ROWS", 2)
    device = HostScanDevice(largest_count=6, rounds=False)
    run_histories(open_bundle(trigram_bundle.folder, device=device), examples=40)
    assert len(device.fetched) > 100
