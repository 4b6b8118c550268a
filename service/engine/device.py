"""The configured device: checked before anything is opened, then opened once per process."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from service.core.encoding.onnx_session import require_provider
from service.core.errors import InvalidConfig
from service.core.index.devices import ScanDevice, device_module
from service.core.label_log import LabelLog
from service.core.memory.segment_store import (
    DeviceSegments,
    SegmentSource,
    SegmentStore,
    make_own,
)
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
    return segment_store(label_log, settings, folder=folder)


def segment_store(
    label_log: LabelLog, settings: EngineSettings, *, folder: str = "."
) -> SegmentStore:
    """Return the graphs in the folder of segments: the configured one, or the state's.

    For a log on another machine it is a temporary one, of this user alone. Raises `InvalidConfig`
    if somebody else has made that first.
    """
    niceness, own = niceness_of(settings.write_share), None
    if settings.segments is not None:
        segments = settings.segments
    elif isinstance(label_log.state, Path):
        segments = label_log.state / "segments"
    else:
        segments = own = Path(tempfile.gettempdir()) / f"keymatch-{os.geteuid()}-{label_log.id}"
        try:
            make_own(own)
        except OSError as error:
            raise InvalidConfig(
                f"{own} is for segments, but {error.strerror}: remove it, or name another folder"
                " (engine.segments)"
            ) from error
    return SegmentStore(segments / folder, own=own, late_niceness=niceness)
