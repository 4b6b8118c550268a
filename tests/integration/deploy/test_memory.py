"""The memory limits in the deployment files cover all memory that the service may use."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import yaml

from service.core.bundle.manifest import Manifest
from service.server.memory_budget import shares, within_budget
from service.settings import EngineSettings, ServerSettings, Settings, load_settings

ROOT = Path(__file__).parents[3]
KUBERNETES = "deploy/kubernetes"
# Sizes of the demo's bundle: its encoder graph, and everything else.
FILES = {"encoder.onnx": 23_000_000, "keys and segments": 245_000_000}


def document(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def pod() -> dict[str, Any]:
    return document(f"{KUBERNETES}/deployment.yaml")["spec"]["template"]["spec"]


def pod_settings(folder: Path) -> Settings:
    path = folder / "keymatch.toml"
    path.write_text(document(f"{KUBERNETES}/settings.yaml")["data"]["keymatch.toml"])
    return load_settings(path, {})


def test_the_pod_holds_all_that_its_settings_allow(tmp_path: Path) -> None:
    limit = bytes_of(pod()["containers"][0]["resources"]["limits"]["memory"])
    [tmp] = [
        bytes_of(volume["emptyDir"]["sizeLimit"])
        for volume in pod()["volumes"]
        if volume.get("emptyDir", {}).get("medium") == "Memory"
    ]
    settings = pod_settings(tmp_path)
    assert settings.server.memory_bytes == limit - tmp
    decided, used = budget(settings)
    assert used + tmp <= limit
    assert decided.engine.live_bytes is not None
    assert decided.engine.live_bytes > 10**9


def test_the_demo_holds_all_that_the_defaults_allow() -> None:
    service = document("docker-compose.yml")["services"]["service"]
    limit = bytes_of(service["mem_limit"].upper() + "i")
    [tmp] = [bytes_of(mount.split("=")[1].upper() + "i") for mount in service["tmpfs"]]
    engine = EngineSettings(threads=2)  # independent of the machine
    _, used = budget(Settings(engine=engine, server=ServerSettings(memory_bytes=limit - tmp)))
    assert used + tmp <= limit


def bytes_of(quantity: str) -> int:
    """Convert a Kubernetes quantity, such as 2Gi, to bytes."""
    return int(quantity[:-2]) * {"Mi": 1024**2, "Gi": 1024**3}[quantity[-2:]]


def budget(settings: Settings) -> tuple[Settings, int]:
    """Return the demo bundle's settings with a live-memory limit, and the bytes of all parts."""
    encoder = SimpleNamespace(dimension=384)
    files = {name: SimpleNamespace(bytes=size) for name, size in FILES.items()}
    bundle = cast(Manifest, SimpleNamespace(files=files, encoder=encoder))
    decided = within_budget(settings, bundle)
    return decided, sum(share.size for share in shares(decided, bundle))
