"""Export from an IRENE checkpoint what is needed to compute novel labels' keys without torch.

Shapes: n novel labels, m associated labels, S seen labels with a classifier, d dimensions.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import normalize

from export.encoder.onnx import trace_script
from service.core.bundle import irene_files
from service.core.bundle.irene_files import NovelFiles
from service.core.bundle.manifest import NovelFacts
from service.core.encoding.irene import ASSOCIATED, OnnxCombiner
from service.core.errors import InvalidData, InvalidInput, ParityError
from service.core.types import Floats
from training.checkpoints.choices import NOVEL, NovelChoices, read_novel
from training.checkpoints.label_keys import LABEL_KEYS, read_label_keys
from training.checkpoints.model_folder import HEAD_WEIGHTS
from training.datasets.dataset import Dataset
from training.datasets.propensity import label_frequency
from training.systems.irene.combiner import Combiner, Kind, make_combiner

TOLERANCE = 1e-4  # per component of a vector; graph and torch both compute in fp32
_COMBINER = "combiner."  # prefix of the combiner's tensors in the checkpoint


def export_novel(checkpoint: Path, dataset: Dataset, folder: Path) -> NovelFacts | None:
    """Write `novel/` into an exported encoder's folder; return None without a combiner.

    Only labels with at least one training row have a classifier. Raises `InvalidInput` if the
    checkpoint was trained on another number of labels, and `ParityError` if graph and torch differ.
    """
    choices = read_novel(checkpoint)
    if choices is None:
        return None
    tensors = load_file(checkpoint / HEAD_WEIGHTS)
    weight = _classifiers(choices, checkpoint, tensors, labels=len(dataset.labels))  # [L, d]
    if len(weight) != len(dataset.labels):
        raise InvalidInput(
            f"{checkpoint} has {len(weight)} classifiers, but {dataset.name} has"
            f" {len(dataset.labels)} labels: give the data set that it was trained on"
        )
    columns = np.flatnonzero(label_frequency(dataset.train.labels_of))
    classifiers, dimension = weight[columns], weight.shape[1]
    combiner = _load_combiner(choices, tensors, dimension=dimension)
    with tempfile.TemporaryDirectory() as scratch:
        graph = Path(scratch) / "combiner.onnx"
        trace(combiner, graph, dimension=dimension)
        check(combiner, OnnxCombiner(graph), classifiers)
        facts = NovelFacts(combiner=choices.combiner, refinement=choices.refinement, fingerprint="")
        files = NovelFiles(
            facts=facts,
            combiner=graph,
            classifiers=classifiers.astype(np.float16),
            columns=columns,
        )
        irene_files.write(files, folder)
    return irene_files.with_fingerprint(facts, folder)


def _classifiers(
    choices: NovelChoices, checkpoint: Path, tensors: dict[str, Tensor], *, labels: int
) -> Floats:
    """Return the known labels' classifiers, unit vectors [L, d]. Raises `InvalidData`."""
    if choices.classifiers == "keys":
        keys = read_label_keys(checkpoint, labels=labels)
        if keys is None:
            raise InvalidData(checkpoint / LABEL_KEYS, f"is missing, but {NOVEL} refers to it")
        return keys
    weight: Floats = normalize(tensors["weight"], dim=-1).numpy()
    return weight


def trace(combiner: Combiner, target: Path, *, dimension: int) -> None:
    """Write the combiner's ONNX graph, for any number of labels."""
    example = {
        "texts": torch.randn(2, dimension),
        "classifiers": torch.randn(2, ASSOCIATED, dimension),
        "present": torch.tensor([[True] * ASSOCIATED, [False] * ASSOCIATED]),
    }
    axes = {name: {0: "labels"} for name in (*example, "vectors")}
    trace_script(combiner, example, "vectors", target, axes=axes)


def check(combiner: Combiner, exported: OnnxCombiner, classifiers: Floats) -> None:
    """Compare the graph with torch on up to 64 classifiers. Raises `ParityError`."""
    count = min(len(classifiers), 64)
    texts = classifiers[:count]
    chosen = np.stack([np.roll(texts, turn, axis=0) for turn in range(1, ASSOCIATED + 1)], axis=1)
    present = np.arange(ASSOCIATED) < (np.arange(count) % (ASSOCIATED + 1))[:, None]
    with torch.no_grad():
        expected = combiner(*(torch.from_numpy(values) for values in (texts, chosen, present)))
    worst = float(np.abs(expected.numpy() - exported(texts, chosen, present)).max(initial=0.0))
    if worst > TOLERANCE:
        raise ParityError(f"the combiner's graph differs from torch by {worst:.2g}")


def _load_combiner(
    choices: NovelChoices, tensors: dict[str, Tensor], *, dimension: int
) -> Combiner:
    combiner = make_combiner(
        cast(Kind, choices.combiner),
        dimension,
        places=ASSOCIATED,
        heads=choices.heads,
        dropout=0.0,
        residual=choices.residual,
    )
    combiner.load_state_dict(
        {
            name.removeprefix(_COMBINER): value
            for name, value in tensors.items()
            if name.startswith(_COMBINER)
        }
    )
    combiner.eval()
    return combiner
