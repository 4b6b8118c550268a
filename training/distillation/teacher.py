"""The teacher: any encoder, its vectors of a data set, and the file that keeps them.

Shapes: N training instances, L labels, d dimensions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from service.core.errors import InvalidInput
from service.core.types import Floats, Role
from training.checkpoints.choices import Choices, read_choices
from training.checkpoints.label_keys import read_label_keys
from training.checkpoints.run_json import BEST, RUN
from training.datasets.dataset import Dataset
from training.distillation.exported_weights import EXPORTED, load_exported
from training.distillation.unlabelled import text_digest
from training.evaluation.encode_texts import encode_texts
from training.models.encoder_location import locate
from training.models.torch_encoder import TorchEncoder, load_encoder

VECTORS = "teacher_vectors.npz"
_PARTS = (("instances", Role.QUERY), ("labels", Role.LABEL), ("unlabelled", Role.QUERY))


@dataclass(frozen=True, kw_only=True, eq=False)
class Teacher:
    """A loaded teacher; `choices` are the inference settings stored with it, if there are any."""

    encoder: TorchEncoder
    folder: Path  # of the checkpoint, or a name on the hub, which is no folder
    choices: Choices | None
    fingerprint: str

    @property
    def name(self) -> str:
        """The name that the teacher was loaded by."""
        return self.encoder.name


@dataclass(frozen=True, kw_only=True, eq=False)
class TeacherVectors:
    """Unit vectors of all texts that a student learns, and the memory's label keys."""

    instances: Floats  # [N, d]
    labels: Floats  # [L, d], of the labels' texts
    label_keys: Floats  # [L, d]; the same, unless the teacher's system learned keys
    unlabelled: Floats  # [T, d], of `texts`
    texts: Sequence[str] = ()  # T texts that are not of the data set


def open_teacher(name: str, *, max_tokens: int | None = None) -> Teacher:
    """Load a teacher: a run's folder, an exported encoder, or what `load_encoder` takes.

    Raises `InvalidInput` for a path that does not exist, and what `load_encoder` raises.
    """
    folder = Path(locate(name))
    if (folder / EXPORTED).is_file():
        exported = load_exported(folder, max_tokens=max_tokens)
        return _teacher(exported.encoder, folder, exported.choices)
    if (folder / RUN).is_file():
        folder = folder / BEST
    elif not folder.exists() and (folder.is_absolute() or name.startswith(".")):
        raise InvalidInput(f"teacher {name!r}: there is no such folder")
    encoder = load_encoder(str(folder), max_tokens=max_tokens)
    return _teacher(encoder, folder, read_choices(folder))


def _teacher(encoder: TorchEncoder, folder: Path, choices: Choices | None) -> Teacher:
    return Teacher(
        encoder=encoder, folder=folder, choices=choices, fingerprint=fingerprint(encoder)
    )


def fingerprint(encoder: TorchEncoder) -> str:
    """SHA-256 over what a vector depends on: token limit, prompts, weights and tokenizer."""
    digest = hashlib.sha256(f"{encoder.max_tokens}".encode())
    for role in (Role.QUERY, Role.LABEL):
        digest.update(encoder.prompts[role].encode() + b"\0")
    for name, weights in sorted(encoder.model.state_dict().items()):
        digest.update(name.encode() + b"\0")
        digest.update(weights.detach().cpu().contiguous().numpy().data)
    digest.update(encoder.tokenizer.backend_tokenizer.to_str().encode())
    return digest.hexdigest()


def teacher_vectors(
    teacher: Teacher, dataset: Dataset, *, folder: Path, unlabelled: Sequence[str] = ()
) -> TeacherVectors:
    """The teacher's vectors in fp32; they are computed once and kept in `folder`."""
    path = folder / VECTORS
    parts = (dataset.train.instances.texts, dataset.labels.texts, unlabelled)
    identity = _identity(teacher, parts)
    stored = _read(path, identity)
    if stored is None:
        stored = {
            name: encode_texts(teacher.encoder, texts, role=role)
            for (name, role), texts in zip(_PARTS, parts, strict=True)
        }
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{VECTORS}.partial.npz")
        np.savez(partial, identity=np.array(identity), allow_pickle=False, **stored)
        partial.replace(path)
    labels = stored["labels"]
    learned = read_label_keys(teacher.folder, labels=len(dataset.labels))
    keys = labels if learned is None else learned
    return TeacherVectors(**stored, label_keys=keys, texts=unlabelled)


def _identity(teacher: Teacher, texts: Sequence[Sequence[str]]) -> str:
    parts = (teacher.fingerprint, *map(text_digest, texts))
    return hashlib.sha256("".join(parts).encode()).hexdigest()


def _read(path: Path, identity: str) -> dict[str, Floats] | None:
    """The stored vectors; None where there are none, or those of another teacher or data set."""
    try:
        with np.load(path) as arrays:
            if str(arrays["identity"]) == identity:
                return {name: arrays[name] for name, _ in _PARTS}
    except (OSError, KeyError, ValueError, BadZipFile):
        return None
    return None
