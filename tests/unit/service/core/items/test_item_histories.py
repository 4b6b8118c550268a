"""Random histories of labels, clicks and items: put, deleted, sealed, restarted and snapshotted."""

import os
from pathlib import Path

import pytest

from service.core.bundle.bundle import open_bundle
from tests.support.histories.items import ItemHistories
from tests.support.histories.memory import run_histories
from tests.support.tiny.bundles import make_bundle
from tests.support.tiny.encoder import TrigramEncoder
from tests.support.tiny.items import ITEMS


def test_histories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _file: None)  # no crash is tested here, and it is slow
    bundle = open_bundle(make_bundle(tmp_path / "items", encoder=TrigramEncoder(), items=ITEMS))
    run_histories(bundle, examples=40, machine=ItemHistories)
