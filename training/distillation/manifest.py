"""`distillation.json` in a student's folder: whom it stands in for, and how it was made."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from service.core.errors import InvalidData
from service.core.files.atomic import write_file

FILE = "distillation.json"
FORMAT, VERSION = "keymatch-distillation", 1


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """A student's origin.

    `teacher_fingerprint` is `training.distillation.teacher.fingerprint`. `agreement` is the mean
    cosine of student and teacher over the held-out queries, None without any. `held_out` are their
    metrics in percent by the student, `teacher_held_out` by the teacher, both against the teacher's
    keys.
    """

    teacher: str
    teacher_fingerprint: str
    teacher_layers: int
    layers: int
    settings: dict[str, Any]
    step: int
    seconds: float
    agreement: float | None
    held_out: dict[str, float]
    teacher_held_out: dict[str, float]


def write(distillation: Distillation, folder: Path) -> None:
    """Write the manifest into a student's folder."""
    document = {"format": FORMAT, "version": VERSION, **asdict(distillation)}
    write_file(folder / FILE, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


def read(folder: Path) -> Distillation:
    """Read a student's manifest; raises `InvalidData` where there is none, or another version."""
    path = folder / FILE
    try:
        document = orjson.loads(path.read_bytes())
        if (document.pop("format"), document.pop("version")) != (FORMAT, VERSION):
            raise InvalidData(path, f"must be {FORMAT!r}, version {VERSION}", field="format")
        return Distillation(**document)
    except OSError as error:
        raise InvalidData(path, "is missing: this is no student of `distill`") from error
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidData(path, f"is not what `distill` writes: {error!r}") from error
