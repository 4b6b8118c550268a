"""IRENE's files for tiny bundles; the combiner is the normalized sum of text and classifiers."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, save_model

from service.core.bundle import irene_files
from service.core.bundle.irene_files import NovelFiles
from service.core.bundle.manifest import NovelFacts, Refinement
from service.core.types import Halves, Rows
from tests.support.tiny.encoder import DIMENSION
from tests.support.tiny.graphs import graph_of

FACTS = NovelFacts(
    combiner="sum",
    refinement=Refinement(
        shortlist=6, text_threshold=0.1, query_threshold=0.1, strength=1.0, query_weight=0.5
    ),
    fingerprint="",
)


def write_combiner(path: Path, *, dimension: int = DIMENSION) -> None:
    """Write the graph: texts [n, d] + the sum of present classifiers [n, m, d], normalized."""
    nodes = [
        helper.make_node("Cast", ["present"], ["there"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["there", "last"], ["weights"]),
        helper.make_node("Mul", ["classifiers", "weights"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["all"], keepdims=0),
        helper.make_node("Add", ["texts", "all"], ["sum"]),
        helper.make_node("LpNormalization", ["sum"], ["vectors"], axis=-1, p=2),
    ]
    matrix = ["n", dimension]
    model = graph_of(
        nodes,
        {"texts": matrix, "classifiers": ["n", "m", dimension], "present": ["n", "m"]},
        {"vectors": matrix},
        {"last": np.array([-1], np.int64), "middle": np.array([1], np.int64)},
        present=TensorProto.BOOL,
    )
    save_model(model, str(path))


def tiny_novel(folder: Path, keys: Halves, columns: Rows, *, seed: int = 0) -> NovelFiles:
    """Return files whose classifiers are the label keys [S, d] plus noise."""
    graph = folder / "combiner.onnx"
    write_combiner(graph, dimension=keys.shape[1])
    noise = np.random.default_rng(seed).standard_normal(keys.shape)
    classifiers = keys.astype(np.float32) + 0.05 * noise
    classifiers /= np.linalg.norm(classifiers, axis=1, keepdims=True)
    files = NovelFiles(
        facts=FACTS, combiner=graph, classifiers=classifiers.astype(np.float16), columns=columns
    )
    written = folder / "written"
    written.mkdir()
    irene_files.write(files, written)
    return irene_files.read(
        written,
        irene_files.with_fingerprint(FACTS, written),
        labels=int(columns.max()) + 1,
        dimension=keys.shape[1],
    )
