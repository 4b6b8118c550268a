"""Pages of the sites in `origins` use the service from a real browser; others cannot."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from service.http.access import new_key
from service.settings import ServerSettings
from tests.support.browser import measured_by
from tests.support.serving import LocalService, server_process

SITE = "https://shop.example"
ASKS = {"access-control-request-method": "PATCH", "access-control-request-headers": "authorization"}

# Sends requests one after the other; notes what the page may read of each answer.
SCRIPT = """
<!doctype html><body><script>
(async () => {
  const noted = [];
  for (const [method, path, body, headers] of ASKED) {
    try {
      const content = body === null ? undefined : JSON.stringify(body);
      const answer = await fetch(SERVICE + path, {method, headers, body: content});
      noted.push([answer.status, answer.headers.get("x-request-id"), await answer.json()]);
    } catch (error) {
      noted.push([error.name, null, null]);
    }
  }
  const measured = document.createElement("pre");
  measured.id = "measured";
  measured.textContent = JSON.stringify(noted);
  document.body.append(measured);
})();
</script></body>
"""


@contextmanager
def site(page: list[str]) -> Iterator[str]:
    """Serve the only page of a web site; yields its origin."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = page[0].encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_page_of_a_named_site_writes_and_reads_in_a_browser(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    key, line = new_key("shop", ["read", "write"])
    (tmp_path / "keys").write_text(line + "\n")
    page = [""]
    with site(page) as named, site(page) as other:
        config = tmp_path / "keymatch.toml"
        config.write_text(f'[server]\norigins = ["{named}"]\n')
        with server_process(
            tiny_bundle_folder,
            tmp_path / "state",
            tmp_path / "log",
            *("--config", str(config)),
            env={"KEYMATCH_API_KEYS": str(tmp_path / "keys")},
        ) as server:
            as_json = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            axe = {"labels": [{"id": "axe", "text": "ice axe"}]}
            asked = [
                ["POST", "/labels", axe, {**as_json, "Idempotency-Key": "k"}],
                ["PATCH", "/labels/axe", {"metadata": {"stock": 3}}, as_json],
                ["POST", "/predict", {"queries": ["ice axe"], "min_version": 2, "top_k": 1},
                 {**as_json, "X-Request-Id": "mine"}],
                ["GET", "/labels/axe", None, {"Authorization": f"Bearer {key}"}],
                ["POST", "/predict", {"querys": []}, as_json],
                ["POST", "/predict", {"queries": ["axe"]}, {"Content-Type": "application/json"}],
                ["DELETE", "/labels/axe", None, {"Authorization": f"Bearer {key}"}],
            ]  # fmt: skip
            service = f"http://127.0.0.1:{server.port}"
            page[0] = SCRIPT.replace("ASKED", json.dumps(asked)).replace(
                "SERVICE", json.dumps(service)
            )
            found = measured_by(named, folder=tmp_path, seconds=60)
            refused = measured_by(other, folder=tmp_path, seconds=60)
    assert [status for status, *_ in found] == [200, 200, 200, 200, 422, 401, 200]
    assert all(request_id for _, request_id, _ in found)
    predicted, shown = found[2], found[3]
    assert predicted[1] == "mine"
    assert predicted[2]["results"][0]["keywords"][0]["id"] == "axe"
    assert shown[2]["metadata"] == {"stock": 3}
    assert found[4][2]["errors"]
    assert [status for status, *_ in refused] == ["TypeError"] * len(asked)


@pytest.fixture
def named(serve: Any) -> LocalService:
    """A service whose setting names a site."""
    return serve(server=ServerSettings(origins=(SITE,)))


def preflight(service: LocalService, path: str, **headers: str) -> httpx.Response:
    return service.request("OPTIONS", path, headers={"origin": SITE, **ASKS, **headers})


def test_a_preflight_allows_the_methods_of_its_path(named: LocalService) -> None:
    for path, methods in (
        ("/labels", "GET, HEAD, PATCH, POST"),
        ("/labels/axe", "DELETE, GET, HEAD, PATCH"),
        ("/predict", "POST"),
    ):
        answer = preflight(named, path)
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["access-control-allow-methods"] == methods
        assert answer.headers["access-control-allow-origin"] == SITE
        assert "idempotency-key" in answer.headers["access-control-allow-headers"]
        assert "access-control-allow-private-network" not in answer.headers
    private = preflight(named, "/predict", **{"access-control-request-private-network": "true"})
    assert private.headers["access-control-allow-private-network"] == "true"


def test_only_named_sites_get_headers_for_pages(named: LocalService, reader: LocalService) -> None:
    """Whatever the answer is: a page, a problem, an unknown path."""
    for path in ("/info", "/labels/nowhere", "/nothing", "/labels?limit=x", "/docs"):
        allowed = named.get(path, headers={"origin": SITE})
        assert allowed.headers["access-control-allow-origin"] == SITE, path
        assert "x-request-id" in allowed.headers["access-control-expose-headers"]
        for service, origin in ((named, "https://other.example"), (reader, SITE)):
            answer = service.get(path, headers={"origin": origin})
            assert not [name for name in answer.headers if name.startswith("access-control")]
        assert "origin" in named.get(path).headers["vary"]
    assert preflight(named, "/labels", origin="https://other.example").status_code == 403
    assert named.request("OPTIONS", "/labels", headers={"origin": SITE}).status_code == 405
