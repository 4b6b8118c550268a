"""The device of the settings: checked before anything is opened, then opened once a process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from service.core.encoding.onnx_session import require_provider
from service.core.index.devices import ScanDevice, device_module
from service.core.label_log import LabelLog
from service.core.memory.segment_source import DeviceSegments, SegmentSource
from service.core.memory.segment_store import SegmentStore
from service.core.processes.low_priority import niceness_of
from service.core.types import DeviceName
from service.settings import EngineSettings


def require_device(name: DeviceName) -> None:
    """Raise `DeviceUnavailable` where texts cannot be encoded, or vectors not searched, on it."""
    if name != "cpu":
        require_provider(name)
        device_module(name).require()


def open_device(name: DeviceName) -> ScanDevice | None:
    """Return the device that scans, None for the processor; raises as `require_device`."""
    if name == "cpu":
        return None
    require_device(name)
    return device_module(name).open()


def segment_source(
    device: ScanDevice | None, label_log: LabelLog, settings: EngineSettings
) -> SegmentSource:
    """Return where sealed rows get their segments: on the device, or from graphs in a folder."""
    if device is not None:
        return DeviceSegments(device)
    folder = segments_folder(label_log, settings)
    return SegmentStore(folder, late_niceness=niceness_of(settings.write_share))


def segments_folder(label_log: LabelLog, settings: EngineSettings) -> Path:
    """In the state folder; for a log on another machine, in this one's temporary folder."""
    if settings.segments is not None:
        return settings.segments
    if isinstance(label_log.state, Path):
        return label_log.state / "segments"
    return Path(tempfile.gettempdir()) / f"keymatch-{os.getuid()}-{label_log.id}"
