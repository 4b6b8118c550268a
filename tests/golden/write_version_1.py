"""Wrote `bundle-v1`, what it answers, and `label-log-v1`: `python -m tests.golden.write_version_1`.

Run it in the repository's root, with the two folders removed, only to add something to version 1
before it is released. After that the files stay as they are: they stand for what users have on
their disks. A later version gets a script and folders of its own.
"""

from contextlib import closing
from pathlib import Path

import numpy as np
import orjson

from service.core.bundle import open_bundle
from service.core.encoder import OnnxEncoder, encode
from service.core.label_log import PUT_LABEL, LabelLog, NewEvent
from service.core.memory import KnowledgeMemory
from service.core.predictor import Predictor
from service.core.types import PredictOptions, Role
from tests.support.bundles import INSTANCES, LABELS, Catalogue, make_bundle

HERE = Path(__file__).parent
BUNDLE, ANSWERS, LOG = HERE / "bundle-v1", HERE / "bundle-v1.answers.json", HERE / "label-log-v1"
QUERIES = ("shoes for the trail", "a light tent", "größere Flasche ☕")
EVENTS = (
    {"id": "kayak", "text": "sea kayak", "queries": ["paddle"], "metadata": {"bid": "0.30"}},
    {"id": "tent", "text": "Zelt für zwei ⛺", "queries": [], "metadata": {}},
)


def main() -> None:
    catalogue = Catalogue(
        labels=LABELS | {"mühle": "Kaffeemühle ☕"},
        instances=INSTANCES | {"größere Flasche": ("bottle", "mühle")},
    )
    make_bundle(BUNDLE, catalogue)
    bundle = open_bundle(BUNDLE)
    encoder = OnnxEncoder(BUNDLE, bundle.manifest.encoder)
    predictor = Predictor(encoder, tau=bundle.manifest.predictor.tau)
    view = KnowledgeMemory(bundle).view
    answers = []
    for memorization in (0.0, 0.5, 1.0):
        options = PredictOptions(top_k=4, memorization=memorization, depth=5)
        for prediction in predictor.predict(view, QUERIES, options).predictions:
            keywords = {keyword.id: keyword.score for keyword in prediction.keywords}
            answers.append(
                {"query": prediction.query, "memorization": memorization, "keywords": keywords}
            )
    ANSWERS.write_bytes(orjson.dumps(answers, option=orjson.OPT_INDENT_2) + b"\n")
    with closing(LabelLog(LOG)) as log:
        log.append([_event(body, encoder) for body in EVENTS], encoder=encoder.fingerprint)
    (LOG / "writer.lock").unlink()


def _event(body: dict, encoder: OnnxEncoder) -> NewEvent:
    vectors = encode(encoder, [body["text"], *body["queries"]], role=Role.LABEL)
    return NewEvent(kind=PUT_LABEL, body=body, vectors=vectors.astype(np.float16))


if __name__ == "__main__":
    main()
