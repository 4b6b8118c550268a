"""Imports point one way: the service never imports torch, training or export."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
FORBIDDEN = {"torch", "transformers", "sentence_transformers", "onnx", "training", "export"}
IMPORT_COMMANDS = """
def import_all(app):
    for name in app:
        import_all(app[name])

from {}.__main__ import app
import_all(app)
"""
SERVE_AND_PREDICT = """
import sys
from pathlib import Path
from threading import Thread
import httpx, uvicorn
import service.cli.serve

class Observed(uvicorn.Server):
    def run(self, sockets):
        port = sockets[0].getsockname()[1]
        Thread(target=ask, args=(self, port)).start()
        super().run(sockets)

def ask(server, port):
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        while client.get("/health/ready").status_code != 200:
            pass
        client.post("/labels", json={"labels": [{"text": "ice axe"}]}).raise_for_status()
        asked = {"queries": ["ice axe"], "explain": True, "min_version": 1}
        client.post("/predict", json=asked).raise_for_status()
        for path in ("/docs", "/openapi.json", "/metrics"):
            client.get(path).raise_for_status()
    server.should_exit = True

uvicorn.Server = Observed
bundle, state = sys.argv[1:]
settings = {"port": 0, "access_log": False, "workers": 1}
assert service.cli.serve.serve(bundle=Path(bundle), state=state, **settings) == 0
print("answered")
print(*sys.modules)
"""


def in_a_new_process(code: str, *arguments: object) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=REPOSITORY,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_import_contracts_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    ended = subprocess.run(
        [linter, "--no-cache"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=REPOSITORY,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "0 broken" in ended.stdout


def test_importing_and_serving_bring_nothing_of_torch(
    tiny_bundle_folder: Path, tmp_path: Path
) -> None:
    code = IMPORT_COMMANDS.format("service") + SERVE_AND_PREDICT
    said = in_a_new_process(code, tiny_bundle_folder, tmp_path / "state")
    first, modules = said.splitlines()
    assert first == "answered"
    assert {"onnxruntime", "service.core.prediction.predictor"} <= set(modules.split())
    assert not FORBIDDEN & set(modules.split())
    assert not {"jwt", "cryptography"} & set(modules.split())  # only with KEYMATCH_JWKS
    assert not {"fsspec", "s3fs", "gcsfs"} & set(modules.split())  # only with a bundle's URL


def test_importing_a_package_does_nothing() -> None:
    code = "import service.__main__, threading; print(threading.active_count())"
    assert in_a_new_process(code) == "1\n"


# Packages that the extra `training` installs and the extras of `make serve` do not.
ONLY_TRAINING = (
    *("torch", "transformers", "sentence_transformers", "accelerate", "psutil", "safetensors"),
    *("tensorboard", "pyarrow", "matplotlib", "jinja2", "onnx", "onnxscript", "peft"),
)


@pytest.mark.parametrize("package", ["training", "export"])
def test_commands_open_without_the_extra_training(package: str) -> None:
    hide = "".join(f"sys.modules[{name!r}] = None\n" for name in ONLY_TRAINING)
    in_a_new_process(f"import sys\n{hide}{IMPORT_COMMANDS.format(package)}")
