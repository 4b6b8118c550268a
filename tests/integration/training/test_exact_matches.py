"""With `data pairs --keep-exact`, a query that equals a keyword finds that keyword first."""

from pathlib import Path

from export.__main__ import app as export
from tests.support.commands import status_of
from tests.support.serving import local_service
from training.__main__ import app as training
from training.datasets import lf_xmc

ENCODER = Path(__file__).parents[3] / "deploy/demo/encoder"
CLICKED = {  # in addition to the keyword that equals the query
    "tent": ("tarp", "hammock"),
    "camping tent": ("tent", "tarp"),
    "head lamp": ("torch", "lamp"),
    "lamp": ("torch", "lantern"),
    "gas stove": ("stove", "burner"),
    "stove": ("burner", "gas stove"),
    "boots": ("hiking boots", "shoes"),
}


def test_the_equal_keyword_is_served_first(tmp_path: Path) -> None:
    """Each query has as many clicks for each of two other keywords."""
    rows = [f"{query},{label}" for query, others in CLICKED.items() for label in (query, *others)]
    (tmp_path / "clicks.csv").write_text("\n".join(["query,label", *rows]) + "\n")
    table = ("--input", tmp_path / "clicks.csv", "--query", "query", "--label", "label")
    options = ("--keep-exact", "--test-fraction", "0")
    data, bundle = tmp_path / "data", tmp_path / "bundle"
    assert status_of(training, "data", "pairs", *table, *options, "--out", data) == 0
    assert lf_xmc.read(data).train.filtered.nnz == 0
    source = ("--encoder", ENCODER, "--data", data)
    assert status_of(export, "bundle", *source, "--out", bundle) == 0
    with local_service(bundle, tmp_path / "state") as service:
        answer = service.post("/predict", {"queries": list(CLICKED), "top_k": 3}).json()
    first = {result["query"]: result["keywords"][0]["text"] for result in answer["results"]}
    assert first == {keyword: keyword for keyword in CLICKED}
