"""Writes the golden bundle `bundle-v1` and its answers: `python -m tests.golden.write_bundle`.

Once 0.1.0 is released, the fixture must not change: it represents bundles on users' disks. If the
format changes before that, remove the folder and run this command in the repository's root; the
answers must stay the same. The bundle has every part except items and a reranker. It is a snapshot,
taken after every kind of write, of a bundle with prompts and IRENE's combiner and classifiers.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import DeleteLabel, PutInstance, PutLabel
from service.core.encoding.encoder import OnnxEncoder
from service.core.encoding.representer import Representer, open_representer
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import Halves, NewInstance, NewLabel, PredictOptions, Role
from tests.support.tiny.bundles import INSTANCES, LABELS, Catalogue, make_bundle

HERE = Path(__file__).parent
BUNDLE = HERE / "bundle-v1"
ANSWERS = HERE / "bundle-v1.answers.json"
LOG, CHAIN = "0123456789abcdef" * 2, "fedcba9876543210" * 2
PROMPTS = {"query_prompt": "query: ", "label_prompt": "keyword: "}
QUERIES = ("shoes for the trail", "a light tent", "Kaffee am Morgen ☕")
MEMORIZATIONS = (0.0, 0.5, 1.0)
MILL = NewLabel(
    id="mühle", text="Kaffeemühle ☕", queries=("Kaffee am Morgen",), metadata={"bid": "0.30"}
)
TENT = NewLabel(id="tent", text="family tent", metadata={"bid": "0.10"})
CLICK = NewInstance(query="breakfast outdoors", labels=("mühle", "stove"), weight=2.5)
NOVEL_LABEL = ((Role.LABEL, "hiking axe"), (Role.QUERY, "glacier tool"))


def main() -> None:
    catalogue = Catalogue(
        labels=LABELS | {"kayak": "sea kayak"},
        instances=INSTANCES | {"größere Flasche": ("bottle", "kayak")},
    )
    with TemporaryDirectory() as temporary:
        source = make_bundle(Path(temporary) / "source", catalogue, novel=0, **PROMPTS)
        view = after_writes(open_bundle(source))
        write_snapshot(view, BUNDLE, name="golden", log=LOG, log_chain=CHAIN)
    bundle = open_bundle(BUNDLE)
    recorded = {"predictions": predictions(bundle), "novel_label": novel_label(bundle)}
    ANSWERS.write_bytes(orjson.dumps(recorded, option=orjson.OPT_INDENT_2) + b"\n")


def after_writes(bundle: Bundle) -> View:
    """The memory after a new label, a replaced label, an instance and a deleted label."""
    representer = representer_of(bundle)

    def rows(*item: tuple[Role, str]) -> Halves:
        return representer.encode([item])[0].rows

    def label_rows(label: NewLabel) -> Halves:
        return rows((Role.LABEL, label.text), *((Role.QUERY, query) for query in label.queries))

    return KnowledgeMemory(bundle).apply(
        [
            PutLabel(sequence=1, label=MILL, vectors=label_rows(MILL)),
            PutLabel(sequence=2, label=TENT, vectors=label_rows(TENT)),
            PutInstance(sequence=3, instance=CLICK, vectors=rows((Role.QUERY, CLICK.query))),
            DeleteLabel(sequence=4, id="boots"),
        ]
    )


def representer_of(bundle: Bundle) -> Representer:
    return open_representer(OnnxEncoder(bundle.folder, bundle.manifest.encoder), bundle)


def predictions(bundle: Bundle, *, exact: bool = False) -> list[dict[str, Any]]:
    """The four best labels of every query at every lambda, with their scores."""
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    predictor = Predictor(encoder, tau=bundle.manifest.predictor.tau)
    view = KnowledgeMemory(bundle).view
    found = []
    for memorization in MEMORIZATIONS:
        options = PredictOptions(top_k=4, memorization=memorization, depth=5, exact=exact)
        for prediction in predictor.predict(view, QUERIES, options).predictions:
            keywords = {keyword.id: keyword.score for keyword in prediction.keywords}
            found.append(
                {"query": prediction.query, "memorization": memorization, "keywords": keywords}
            )
    return found


def novel_label(bundle: Bundle) -> dict[str, Any]:
    """The key that IRENE gives a novel label, and the ids of the labels that enriched it."""
    [item] = representer_of(bundle).encode([NOVEL_LABEL])
    return {
        "key": item.rows[0].astype(np.float32).tolist(),
        "neighbours": {neighbour.id: neighbour.similarity for neighbour in item.neighbours},
    }


if __name__ == "__main__":
    main()
