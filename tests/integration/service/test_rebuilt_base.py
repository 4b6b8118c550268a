"""After many deletions a child process rebuilds the bundle's graph, and restarts keep it."""

from pathlib import Path
from typing import Any

from tests.support.serving import LocalService, local_service, wait_for
from tests.support.tiny.bundles import LABELS

DELETED = ("shoes", "boots", "tent", "lamp")  # 9 of 14 rows


def answers(service: LocalService) -> list[Any]:
    asked = {"queries": [*LABELS.values()], "top_k": 50}
    return [
        service.request("POST", "/predict", json={**asked, "memorization": share}).json()["results"]
        for share in (0.0, 0.4, 1.0)
    ]


def wait_until_built(service: LocalService) -> None:
    wait_for(lambda: service.get("/info").json()["memory"]["unsealed_segments"] == 0)


def test_a_graph_without_the_dead_rows_is_built_once(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with local_service(tiny_bundle_folder, state, seal_rows=4) as service:
        for label in DELETED:
            service.request("DELETE", f"/labels/{label}").raise_for_status()
        wait_until_built(service)
        before = answers(service)
    [built] = (state / "segments" / "base").glob("*/segment.json")
    written = built.stat().st_mtime_ns
    found = {keyword["id"] for results in before for r in results for keyword in r["keywords"]}
    assert found == set(LABELS) - set(DELETED)
    with local_service(tiny_bundle_folder, state, seal_rows=4) as restarted:
        wait_until_built(restarted)
        assert answers(restarted) == before
    assert built.stat().st_mtime_ns == written
