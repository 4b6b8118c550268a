"""Wrote `bundle-v1` and what it answers: `python -m tests.golden.write_version_1`.

With the `write_bundle` of that time, that is: the present one writes version 2, see
`write_bundle_2`. The files stay as they are: they stand for what users have on their disks. A
later version gets a script and folders of its own.

`label-log-v1` was written here as well, by the label log of that time, which wrote format 1; the
present one would migrate it. `write_label_log_2` writes format 2.
"""

from pathlib import Path

import orjson

from service.core.bundle.bundle import open_bundle
from service.core.encoding.encoder import OnnxEncoder
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.prediction.predictor import Predictor
from service.core.types import PredictOptions
from tests.support.bundles import INSTANCES, LABELS, Catalogue, make_bundle

HERE = Path(__file__).parent
BUNDLE, ANSWERS = HERE / "bundle-v1", HERE / "bundle-v1.answers.json"
QUERIES = ("shoes for the trail", "a light tent", "größere Flasche ☕")


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


if __name__ == "__main__":
    main()
