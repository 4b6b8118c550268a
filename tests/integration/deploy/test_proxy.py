"""nginx accepts the example proxy configuration, and its limits are those of the service."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from service.settings import EngineSettings, Limits, ServerSettings

CONFIGURATION = Path(__file__).parents[3] / "deploy/proxy/nginx.conf"
TEXT = re.sub(r"#.*", "", CONFIGURATION.read_text())


def directive(name: str) -> str:
    """Return the value of the first nginx directive with this name."""
    found = re.search(rf"^\s*{name} ([^;]+);", TEXT, re.MULTILINE)
    assert found is not None, name
    return found[1]


@pytest.mark.skipif(
    not (shutil.which("nginx") and shutil.which("openssl")),
    reason="nginx or openssl is not installed: apt-get install nginx openssl",
)
def test_nginx_accepts_the_example(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    shutil.copy(CONFIGURATION, tmp_path)
    key, certificate = tmp_path / "tls/keymatch.key", tmp_path / "tls/keymatch.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=keymatch",
         "-keyout", key, "-out", certificate],
        check=True,
        capture_output=True,
    )  # fmt: skip
    tested = subprocess.run(
        ["nginx", "-t", "-q", "-c", tmp_path / "nginx.conf", "-g", f"pid {tmp_path}/pid;"],
        capture_output=True,
        text=True,
    )
    assert (tested.returncode, tested.stdout + tested.stderr) == (0, "")


def test_the_proxy_has_the_bounds_of_the_service() -> None:
    server, limits = ServerSettings(), Limits()
    number, size = directive("large_client_header_buffers").split()
    assert int(number) * int(size.removesuffix("k")) * 1_024 == server.header_bytes
    assert directive("client_header_timeout") == f"{server.header_seconds}s"
    for name in ("client_body_timeout", "send_timeout"):
        assert directive(name) == f"{server.idle_seconds}s"
    assert int(directive("client_max_body_size").removesuffix("m")) * 1_024**2 == limits.body_bytes
    assert seconds(directive("proxy_read_timeout")) * 1_000 > limits.deadline_ms
    longest = re.findall(r"proxy_read_timeout (\d+)s", TEXT)[-1]
    assert int(longest) > EngineSettings().snapshot_seconds
    upstream = TEXT.partition("upstream")[2]
    kept = re.search(r"keepalive_timeout (\w+);", upstream)
    assert kept is not None
    assert seconds(kept[1]) < server.idle_seconds


def seconds(value: str) -> int:
    return int(value.removesuffix("s"))
