"""An exported encoder on disk: everything that a bundle needs of a checkpoint, without torch.

| file                  | content                                                                |
|-----------------------|------------------------------------------------------------------------|
| `encoder.onnx`        | the graph: token ids -> unit vectors, pooling and normalization inside |
| `tokenizer.json`      | the tokenizer, in the format of the Rust library `tokenizers`          |
| `encoder.json`        | `Description`: facts, predictor defaults, parity, origin, checksums    |
| `label_keys.npy`      | optional: Z, fp16 [L, d], if the system learned label keys of its own  |
| `novel/*`             | optional: IRENE's combiner and classifiers, see `irene_files`          |
| `items/project.onnx`  | optional: OAK's graph from values of items to what queries read        |
| `items/fuse.onnx`     | optional: OAK's graph from a query and projected items to a vector     |
| `items/residuals.npy` | optional: fp16 [M, d], OAK's bank less the vectors of the items' texts |
| `reranker*`           | optional: a reranker, see `training.checkpoints.reranker_folder`       |
| `trained_texts.npz`   | optional: which queries it has trained on, see `checkpoints`           |
| `README.md`           | the model card                                                         |

The keys and the bank of OAK's items follow from the texts of the data set's metadata items.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass as checked_dataclass

from service.core.bundle import irene_files, ranges
from service.core.bundle.bundle import ENCODER, TOKENIZER
from service.core.bundle.irene_files import NovelFiles
from service.core.bundle.manifest import EncoderFacts, NovelFacts, PredictorFacts
from service.core.config import STRICT
from service.core.encoding.encoder import OnnxEncoder
from service.core.errors import BundleAltered, InvalidData, InvalidInput
from service.core.files.arrays import mapped
from service.core.files.folder_facts import FileFacts, checked, read_document, verify_files
from service.core.types import Halves
from training.checkpoints import trained_texts
from training.checkpoints.choices import UNCHOSEN, read_choices
from training.checkpoints.label_keys import LABEL_KEYS
from training.checkpoints.run_json import RUN, metadata_of_run, read_run
from training.checkpoints.trained_texts import TrainedTexts
from training.datasets.dataset import Dataset
from training.datasets.metadata_links import require_metadata
from training.datasets.pair_weights import Relevance
from training.documents import write_json
from training.evaluation import results

FORMAT = "keymatch-encoder"
VERSION = 1
FILE, CARD = "encoder.json", "README.md"
FUSION, RESIDUALS = "items", "items/residuals.npy"


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class PredictorDefaults(PredictorFacts):
    """Inference settings stored with an encoder.

    `relevance` is the scale of the pairs' weights in the votes; None if it was not chosen.
    """

    relevance: Relevance | None = None


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Origin:
    """The training run that an encoder comes from.

    `mixing` is the trained weights' share when they are averaged with the pre-trained ones
    (`training.models.wise_ft`). `metrics` are in percent, on test rows; empty if not measured.
    """

    recipe: ranges.Text
    base: ranges.Text
    dataset: ranges.Text
    seed: int
    held_out_rows: ranges.RowCount
    steps: ranges.Natural
    seconds: ranges.Seconds
    tokens: ranges.Natural
    hardware: dict[str, Any]
    mixing: ranges.Share = 1.0
    metrics: dict[str, ranges.Finite] = field(default_factory=dict)


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class LabelFacts:
    """Facts about parameters learned per label, which fit this label set only.

    `digest` is the SHA-256 of the label ids, see `digest_of`; `keys` says whether
    `label_keys.npy` exists; `novel` describes the files in `novel/`, None without them.
    """

    digest: ranges.Text
    keys: bool = False
    novel: NovelFacts | None = None


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class ItemMemoryFacts:
    """The number of items, and how many of them a query attends to.

    `digest` is the SHA-256 of the items' ids and texts: the residuals fit no other items.
    """

    items: ranges.RowCount
    attended: ranges.Attended
    digest: ranges.Text


@checked_dataclass(frozen=True, kw_only=True, config=STRICT)
class Description:
    """The content of `encoder.json`.

    `weights` is the digest of the checkpoint that was exported (`weights_digest`), if it is known.
    """

    format: ranges.Text = FORMAT
    version: ranges.Count = VERSION
    encoder: EncoderFacts
    predictor: PredictorDefaults
    parity: dict[str, ranges.Finite]  # agreement with torch, see `parity.Parity`
    libraries: dict[str, ranges.Text]
    files: dict[ranges.FileName, FileFacts]
    origin: Origin | None = None
    labels: LabelFacts | None = None
    items: ItemMemoryFacts | None = None  # None: a query attends to no items
    weights: ranges.Text | None = None


_ADAPTER = TypeAdapter(Description)


def write_description(description: Description, folder: Path) -> None:
    """Write `encoder.json` into an exported encoder's folder."""
    write_json(folder / FILE, _ADAPTER.dump_python(description, mode="json", exclude_none=True))


@dataclass(frozen=True, kw_only=True)
class ExportedEncoder:
    """A verified exported encoder: its folder and description."""

    folder: Path
    description: Description

    @property
    def graph(self) -> Path:
        """Path of `encoder.onnx`."""
        return self.folder / ENCODER

    @property
    def tokenizer(self) -> Path:
        """Path of `tokenizer.json`."""
        return self.folder / TOKENIZER

    def open_encoder(self) -> OnnxEncoder:
        """Load the graph."""
        return OnnxEncoder(self.folder, self.description.encoder)

    @property
    def agreement(self) -> str:
        """How closely the vectors agree with torch's, as text for the console."""
        return f"cosine to torch {self.description.parity['parity.cosine_mean']:.4f}"

    def trained_texts(self) -> TrainedTexts | None:
        """Return which queries it has trained on: none if no training is known behind it.

        None if it comes from a run of an earlier version, which did not write them down.
        """
        if (found := trained_texts.read(self.folder)) is not None:
            return found
        return TrainedTexts() if self.description.origin is None else None

    def chosen_on(self, dataset: Dataset) -> bool:
        """Return whether the predictor's defaults were chosen on a data set, by its name."""
        origin = self.description.origin
        return origin is not None and origin.dataset == dataset.name

    def label_keys(self, dataset: Dataset) -> Halves | None:
        """Return Z [L, d], or None if a label's key is the vector of its text.

        Raises `InvalidInput` if the encoder was trained on other labels than the data set's.
        """
        labels = self._label_facts(dataset)
        if labels is None or not labels.keys:
            return None
        shape = (len(dataset.labels), self.description.encoder.dimension)
        return mapped(self.folder / LABEL_KEYS, np.float16, shape)

    def novel(self, dataset: Dataset) -> NovelFiles | None:
        """Return IRENE's combiner and classifiers, or None without them.

        Raises `InvalidInput` if the encoder was trained on other labels than the data set's.
        """
        labels = self._label_facts(dataset)
        if labels is None or labels.novel is None:
            return None
        dimension = self.description.encoder.dimension
        return irene_files.read(
            self.folder, labels.novel, labels=len(dataset.labels), dimension=dimension
        )

    def _label_facts(self, dataset: Dataset) -> LabelFacts | None:
        labels = self.description.labels
        if labels is not None and labels.digest != digest_of(dataset):
            raise InvalidInput(
                f"{self.folder} was trained on other labels than those of {dataset.name}:"
                " give the data set that it was trained on"
            )
        return labels


def is_exported(folder: Path) -> bool:
    """Return whether a folder holds an exported encoder, not a checkpoint."""
    return (folder / FILE).is_file()


def open_exported(folder: Path) -> ExportedEncoder:
    """Read and verify an exported encoder.

    Raises `BundleMissing`, `BundleUnsupported` (another format or version) or `BundleAltered`,
    naming the file.
    """
    path = folder / FILE
    document = read_document(path, format_name=FORMAT, version=VERSION)
    description = checked(_ADAPTER, document, path=path)
    for name in (ENCODER, TOKENIZER):
        if name not in description.files:
            raise BundleAltered(f"{path}: files: {name} is missing")
    verify_files(folder, description.files)
    return ExportedEncoder(folder=folder, description=description)


def digest_of(dataset: Dataset) -> str:
    """Return the SHA-256 over the ids of a data set's labels, in order."""
    return hashlib.sha256("\0".join(dataset.labels.uids).encode()).hexdigest()


def digest_of_items(dataset: Dataset) -> str:
    """Return the SHA-256 over ids and texts of a data set's metadata items, in order.

    Raises `InvalidInput` for a data set without metadata.
    """
    items = require_metadata(dataset, reader="the encoder looks up")
    return hashlib.sha256("\0".join((*items.uids, *items.texts)).encode()).hexdigest()


def predictor_defaults(checkpoint: Path | None) -> PredictorDefaults:
    """Return the settings that `train` chose on held-out rows, or defaults if it chose none."""
    chosen = UNCHOSEN if checkpoint is None else read_choices(checkpoint) or UNCHOSEN
    return PredictorDefaults(**vars(chosen.predictor), relevance=chosen.relevance)


def read_origin(checkpoint: Path) -> Origin | None:
    """Return the run that trained a checkpoint, or None if its parent folder is no run.

    A run's folder has `best/` (the checkpoint), `run.json` and, after scoring, `results.json`.
    Raises `InvalidData` for a damaged `run.json`, and `InvalidInput` for an oracle: its texts have
    metadata appended, and the queries of a service have none.
    """
    run = checkpoint.resolve().parent
    if not (run / RUN).is_file():
        return None
    facts = read_run(run)
    appended = metadata_of_run(facts, run).append
    if appended != "none":
        raise InvalidInput(
            f"{run} is an oracle: it was trained with metadata appended (metadata.append ="
            f" {appended!r}), which queries of a service do not have. Train another run with"
            f" --set guidance.oracle={run}, and export that one"
        )
    scored = results.read(run).results if (run / results.FILE).is_file() else ()
    try:
        settings, progress = facts["settings"], facts["progress"]
        return Origin(
            recipe=Path(facts["recipe"]).name,
            base=settings["encoder"]["name"],
            dataset=facts["dataset"],
            seed=settings["seed"],
            held_out_rows=settings["validation"]["rows"],
            steps=progress["best_step"],
            seconds=progress["seconds"],
            tokens=progress["tokens"],
            hardware=facts["hardware"],
            mixing=progress.get("best_mixing", 1.0),
            metrics=next((dict(result.metrics) for result in scored if result.chosen), {}),
        )
    except (KeyError, TypeError) as error:
        raise InvalidData(run / RUN, f"is not what `train` writes: {error!r}") from error
