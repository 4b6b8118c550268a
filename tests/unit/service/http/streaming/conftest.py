"""Fixtures for all tests of streams."""

import pytest

from service.http.streaming import label_stream


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an early end, do not wait for the rest of the stream."""
    monkeypatch.setattr(label_stream, "LINGER_SECONDS", 0.01)
