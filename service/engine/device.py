"""The configured device: checked before anything is opened, then opened once per process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from service.core.encoding.onnx_session import require_provider
from service.core.index.devices import ScanDevice, device_module
from service.core.label_log import LabelLog
from service.core.memory.segment_store import DeviceSegments, SegmentSource, SegmentStore
from service.core.processes.low_priority import niceness_of
from service.core.types import DeviceName
from service.settings import EngineSettings


def require_device(name: DeviceName) -> None:
    """Raise `DeviceUnavailable` if the device cannot encode texts and search vectors."""
    if name != "cpu":
        require_provider(name)
        device_module(name).require()


def open_device(name: DeviceName) -> ScanDevice | None:
    """Open the device that searches keys; None means the CPU. Raises as `require_device`."""
    if name == "cpu":
        return None
    require_device(name)
    return device_module(name).open()


def segment_source(
    device: ScanDevice | None, label_log: LabelLog, settings: EngineSettings, *, folder: str = "."
) -> SegmentSource:
    """Return the builder of segments: on the device, or as HNSW graphs.

    The graphs are stored in `folder` within the folder of segments.
    """
    if device is not None:
        return DeviceSegments(device)
    within = segments_folder(label_log, settings) / folder
    return SegmentStore(within, late_niceness=niceness_of(settings.write_share))


def segments_folder(label_log: LabelLog, settings: EngineSettings) -> Path:
    """Return the state's folder of segments, or a temporary one for a log on another machine."""
    if settings.segments is not None:
        return settings.segments
    if isinstance(label_log.state, Path):
        return label_log.state / "segments"
    return Path(tempfile.gettempdir()) / f"keymatch-{os.getuid()}-{label_log.id}"
