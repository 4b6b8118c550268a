"""Writes the golden bundles of `FIXTURES` that are missing: `python -m tests.golden.write_bundle`.

Once 0.1.0 is released, a fixture must not change: it represents bundles on users' disks. What is
added to version 1 before that gets a fixture of its own: a line in `FIXTURES`, then this command in
the repository's root. The bundles have everything that a bundle could have when they were written:
each is a snapshot, taken after every kind of write, of a bundle with prompts and with IRENE's
combiner and classifiers.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from service.core.bundle.bundle import Bundle, open_bundle
from service.core.changes import DeleteLabel, PutInstance, PutLabel
from service.core.encoding.encoder import OnnxEncoder, open_query_encoder
from service.core.encoding.representer import Representer, open_representer
from service.core.memory.knowledge_memory import KnowledgeMemory
from service.core.memory.snapshot import write_snapshot
from service.core.memory.view import View
from service.core.prediction.predictor import Predictor
from service.core.types import Halves, NewInstance, NewLabel, PredictOptions, Role
from tests.support.tiny.bundles import INSTANCES, LABELS, Catalogue, make_bundle

HERE = Path(__file__).parent
LOG = "0123456789abcdef" * 2
PROMPTS = {"query_prompt": "query: ", "label_prompt": "keyword: "}
QUERIES = ("shoes for the trail", "a light tent", "Kaffee am Morgen ☕")
MEMORIZATIONS = (0.0, 0.5, 1.0)
MILL = NewLabel(
    id="mühle", text="Kaffeemühle ☕", queries=("Kaffee am Morgen",), metadata={"bid": "0.30"}
)
TENT = NewLabel(id="tent", text="family tent", metadata={"bid": "0.10"})
CLICK = NewInstance(query="breakfast outdoors", labels=("mühle", "stove"))
NOVEL_LABEL = ((Role.LABEL, "hiking axe"), (Role.QUERY, "glacier tool"))


@dataclass(frozen=True, kw_only=True)
class Fixture:
    """One golden bundle, and the file with its answers; `query_encoder` is a seed.

    `weight` is that of its click.
    """

    name: str
    query_encoder: int | None = None
    weight: float = 1.0

    @property
    def folder(self) -> Path:
        return HERE / self.name

    @property
    def answers(self) -> Path:
        return HERE / f"{self.name}.answers.json"


FIXTURES = (
    Fixture(name="bundle-v1"),  # written before snapshots remembered which instances were clicks
    Fixture(name="bundle-v1-query-encoder", query_encoder=1),
    Fixture(name="bundle-v1-weights", query_encoder=1, weight=2.5),
)


def main() -> None:
    for fixture in FIXTURES:
        if not fixture.folder.exists():
            write(fixture)


def write(fixture: Fixture) -> None:
    """Write the bundle and its answers."""
    catalogue = Catalogue(
        labels=LABELS | {"kayak": "sea kayak"},
        instances=INSTANCES | {"größere Flasche": ("bottle", "kayak")},
    )
    with TemporaryDirectory() as temporary:
        source = make_bundle(
            Path(temporary) / "source",
            catalogue,
            novel=0,
            query_encoder=fixture.query_encoder,
            **PROMPTS,
        )
        view = after_writes(open_bundle(source), click=replace(CLICK, weight=fixture.weight))
        write_snapshot(view, fixture.folder, name="golden", log=LOG)
    bundle = open_bundle(fixture.folder)
    recorded = {"predictions": predictions(bundle), "novel_label": novel_label(bundle)}
    fixture.answers.write_bytes(orjson.dumps(recorded, option=orjson.OPT_INDENT_2) + b"\n")


def after_writes(bundle: Bundle, *, click: NewInstance) -> View:
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
            PutInstance(sequence=3, instance=click, vectors=rows((Role.QUERY, click.query))),
            DeleteLabel(sequence=4, id="boots"),
        ]
    )


def representer_of(bundle: Bundle) -> Representer:
    return open_representer(OnnxEncoder(bundle.folder, bundle.manifest.encoder), bundle)


def predictions(bundle: Bundle, *, exact: bool = False) -> list[dict[str, Any]]:
    """The four best labels of every query at every lambda, with their scores."""
    encoder = OnnxEncoder(bundle.folder, bundle.manifest.encoder)
    queries = open_query_encoder(bundle, encoder)
    predictor = Predictor(queries, tau=bundle.manifest.predictor.tau)
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
