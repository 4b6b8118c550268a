"""`device = "cuda"` in the service: answers with a simulated GPU, and a refusal without a GPU."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import onnxruntime
import pytest

from service.core.encoding.onnx_session import BucketedGraph, Tokens
from service.core.errors import BundleUnsupported
from service.core.types import Floats
from tests.support.commands import complaint, run
from tests.support.device.scan_device import use_stand_in
from tests.support.serving import LocalService, local_service, wait_for
from tests.support.waiting import READY_WITHIN

TOLERANCE = 1e-3  # of scores; documented in service/how-it-works.md
QUERIES = ["tent", "boots for the trail", "light", "something else entirely"]

Keywords = list[dict[str, Any]]


@pytest.fixture
def on_device(
    tiny_bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LocalService]:
    use_stand_in(monkeypatch)
    with local_service(
        tiny_bundle_folder, tmp_path / "device", device="cuda", seal_rows=4
    ) as service:
        yield service


@pytest.fixture
def on_processor(tiny_bundle_folder: Path, tmp_path: Path) -> Iterator[LocalService]:
    with local_service(tiny_bundle_folder, tmp_path / "processor", seal_rows=4) as service:
        yield service


def answers(service: LocalService, **options: Any) -> list[Keywords]:
    answer = service.post("/predict", {"queries": QUERIES, "top_k": 30, **options})
    assert answer.status_code == 200
    return [result["keywords"] for result in answer.json()["results"]]


def assert_equal_answers(first: LocalService, second: LocalService) -> None:
    for memorization in (0.0, 0.5, 1.0):
        options = {"memorization": memorization, "depth": 60}
        for keywords, others in zip(
            answers(first, **options), answers(second, **options), strict=True
        ):
            scores = {keyword["id"]: keyword["score"] for keyword in keywords}
            assert scores == pytest.approx(
                {keyword["id"]: keyword["score"] for keyword in others}, abs=TOLERANCE
            )


def write(service: LocalService) -> None:
    """Post enough new labels for several segments; replace one, delete one, and post a click."""
    labels = [
        {"id": f"new-{number}", "text": f"new {text}", "queries": [f"{text} {number}"]}
        for number, text in enumerate(["tent", "red lamp", "blue boots", "sled", "map"] * 2)
    ]
    assert service.post("/labels", {"labels": labels}).status_code == 200
    assert service.post("/labels", {"labels": [{"id": "tent", "text": "dome"}]}).status_code == 200
    assert service.request("DELETE", "/labels/boots").status_code == 200
    click = {"query": "light and warm", "labels": ["new-1", "lamp"]}
    assert service.post("/instances", {"instances": [click]}).status_code == 200


def sealed(service: LocalService) -> bool:
    memory = service.get("/info").json()["memory"]
    return memory["sealed_rows"] > 0 and memory["unsealed_segments"] == 0


def test_the_device_answers_as_the_processor_within_the_tolerance(
    on_device: LocalService, on_processor: LocalService, tmp_path: Path
) -> None:
    assert_equal_answers(on_device, on_processor)
    for service in (on_device, on_processor):
        write(service)
    assert_equal_answers(on_device, on_processor)
    for service in (on_device, on_processor):
        wait_for(lambda service=service: sealed(service))
    assert_equal_answers(on_device, on_processor)
    assert not (tmp_path / "device/segments").exists()


def test_info_shows_the_device_and_a_reload_stays_on_it(on_device: LocalService) -> None:
    assert on_device.get("/info").json()["device"] == "cuda"
    assert on_device.post("/admin/reload", {"bundle": "tiny"}).status_code == 200
    assert on_device.get("/info").json()["device"] == "cuda"
    assert answers(on_device)[0][0]["id"] == "tent"


def test_what_queues_while_a_batch_runs_is_the_next_batch(
    tiny_bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stand_in(monkeypatch)
    with (
        local_service(
            tiny_bundle_folder, tmp_path / "state", device="cuda", threads=1, queue_target_ms=60_000
        ) as service,
        ThreadPoolExecutor(24) as clients,
    ):
        sizes, running, proceed = list[int](), Event(), Event()
        run = BucketedGraph.__call__

        def recorded(graph: BucketedGraph, tokens: Tokens) -> Floats:
            sizes.append(len(tokens))
            running.set()
            assert proceed.wait(READY_WITHIN)
            return run(graph, tokens)

        monkeypatch.setattr(BucketedGraph, "__call__", recorded)

        def ask(query: str) -> int:
            document = {"queries": [query], "deadline_ms": 60_000}
            return service.post("/predict", document).status_code

        try:
            first = clients.submit(ask, "first")
            assert running.wait(READY_WITHIN)
            others = [clients.submit(ask, f"other {number}") for number in range(20)]
            wait_for(lambda: service.engine._queue.depth == 21)
        finally:
            proceed.set()
        assert [status.result() for status in (first, *others)] == [200] * 21
    assert sizes == [1, 20]


def test_a_bundle_in_int8_is_not_served_on_a_device(
    make_bundle: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_stand_in(monkeypatch)
    bundle = make_bundle(quantization="static-int8")
    with local_service(bundle, tmp_path / "state", device="cuda", wait=False) as service:
        failure = wait_for(lambda: service.engine.failure)
    assert isinstance(failure, BundleUnsupported)
    assert "export the encoder with --quantize none" in str(failure)


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnxruntime.get_available_providers(), reason="it has CUDA"
)
def test_serve_refuses_to_start_without_a_gpu(tiny_bundle_folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "keymatch.toml"
    config.write_text('[engine]\ndevice = "cuda"\n')
    ended = run(
        *("service", "serve", "--bundle", tiny_bundle_folder, "--state", tmp_path / "state"),
        *("--config", config, "--port", 0),
    )
    assert ended.returncode == 2
    said = complaint(ended)
    assert said.startswith('device = "cuda" needs onnxruntime with its CUDAExecutionProvider')
    assert said.endswith("in keymatch's checkout, pip install '.[gpu]'")
    assert not (tmp_path / "state").exists()
