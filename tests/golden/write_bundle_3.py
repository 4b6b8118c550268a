"""Wrote `bundle-v3` and what it answers: `python -m tests.golden.write_bundle_3`.

Run it in the repository's root, with the folder removed, only to add something to version 3 before
it is released. After that the files stay as they are: they stand for what users have on their
disks. The bundle has what version 3 added: a learned lambda, switched on.
"""

from pathlib import Path

import orjson

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.bundle.manifest import AdaptiveFacts
from service.core.encoding.encoder import OnnxEncoder
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions
from tests.support.bundles import make_bundle

HERE = Path(__file__).parent
BUNDLE, ANSWERS = HERE / "bundle-v3", HERE / "bundle-v3.answers.json"
QUERIES = ("shoes for the trail", "a light tent", "gas stove")
LEARNED = AdaptiveFacts(
    weights={
        "best_instance": 3.0,
        "best_label": -4.0,
        "entropy": 0.5,
        "instance_mass": 1.0,
        "consensus": -1.5,
        "agreement": 2.0,
    },
    bias=-0.25,
    enabled=True,
)


def main() -> None:
    bundle = open_bundle(make_bundle(BUNDLE, adaptive=LEARNED))
    ANSWERS.write_bytes(orjson.dumps(answers(bundle), option=orjson.OPT_INDENT_2) + b"\n")


def answers(bundle: Bundle) -> list[dict]:
    facts = bundle.manifest.predictor
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    predictor = Predictor(encoder, tau=facts.tau, adaptive=facts.adaptive_memorization())
    view = KnowledgeMemory(bundle).view
    found = []
    for memorization in (None, 0.5):
        options = PredictOptions(top_k=4, memorization=memorization, depth=5)
        for prediction in predictor.predict(view, QUERIES, options).predictions:
            keywords = {keyword.id: keyword.score for keyword in prediction.keywords}
            found.append(
                {"query": prediction.query, "memorization": memorization, "keywords": keywords}
            )
    return found


if __name__ == "__main__":
    main()
