"""Wrote `bundle-v2` and what it answers: `python -m tests.golden.write_bundle_2`.

Run it in the repository's root, with the folder removed, only to add something to version 2 before
it is released. After that the files stay as they are: they stand for what users have on their
disks. The bundle is a snapshot, which has all that version 2 added: label details, a version of
the memory, and the log that it came from.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import orjson

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.encoding.encoder import OnnxEncoder, encode
from service.core.memory.changes import DeleteLabel, PutInstance, PutLabel
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import Halves, NewInstance, NewLabel, PredictOptions, Role
from tests.support.bundles import make_bundle

HERE = Path(__file__).parent
BUNDLE, ANSWERS = HERE / "bundle-v2", HERE / "bundle-v2.answers.json"
LOG = "0123456789abcdef" * 2
QUERIES = ("shoes for the trail", "a light tent", "Kaffee am Morgen ☕")
MILL = NewLabel(
    id="mühle", text="Kaffeemühle ☕", queries=("Kaffee am Morgen",), metadata={"bid": "0.30"}
)
TENT = NewLabel(id="tent", text="camping tent", metadata={"bid": "0.10"})


def main() -> None:
    with TemporaryDirectory() as temporary:
        bundle = open_bundle(make_bundle(Path(temporary) / "bundle"))
        write_snapshot(learned(bundle), BUNDLE, name="tiny-snapshot", log=LOG)
    ANSWERS.write_bytes(
        orjson.dumps(answers(open_bundle(BUNDLE)), option=orjson.OPT_INDENT_2) + b"\n"
    )


def learned(bundle: Bundle) -> View:
    """The memory after every kind of change."""
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)

    def vectors(role: Role, *texts: str) -> Halves:
        return encode(encoder, texts, role=role).astype(np.float16)

    mill = np.concatenate([vectors(Role.LABEL, MILL.text), vectors(Role.QUERY, *MILL.queries)])
    clicked = NewInstance(query="breakfast outdoors", labels=("mühle", "stove"))
    return KnowledgeMemory(bundle).apply(
        [
            PutLabel(sequence=1, label=MILL, vectors=mill),
            PutLabel(sequence=2, label=TENT, vectors=vectors(Role.LABEL, TENT.text)),
            PutInstance(sequence=3, instance=clicked, vectors=vectors(Role.QUERY, clicked.query)),
            DeleteLabel(sequence=4, id="boots"),
        ]
    )


def answers(bundle: Bundle) -> list[dict]:
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    predictor = Predictor(encoder, tau=bundle.manifest.predictor.tau)
    view = KnowledgeMemory(bundle).view
    found = []
    for memorization in (0.0, 0.5, 1.0):
        options = PredictOptions(top_k=4, memorization=memorization, depth=5)
        for prediction in predictor.predict(view, QUERIES, options).predictions:
            keywords = {keyword.id: keyword.score for keyword in prediction.keywords}
            found.append(
                {"query": prediction.query, "memorization": memorization, "keywords": keywords}
            )
    return found


if __name__ == "__main__":
    main()
