"""After a reload of a bundle with absurd numbers or graphs, the old bundle still answers."""

import threading
from collections.abc import Callable
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import onnx
import orjson
import pytest
from onnx import TensorProto, helper, numpy_helper

from service.core.bundle import manifest
from service.core.errors import BundleUnsupported
from service.engine.engine import Engine
from service.settings import EngineSettings
from service.telemetry import Telemetry
from tests.support.http.problems import assert_no_internals, assert_problem
from tests.support.serving import LocalService
from tests.support.tiny.bundles import sign_again, write_document

RELOAD, ASKED = "/admin/reload", {"queries": ["a tent for two"], "depth": 10}
SOON, LATE = 3, 120  # seconds for the first answers
MOST_GROWTH = 150_000_000  # bytes that this process may grow by while bundles are refused
GIGABYTES = 64  # requested by the `greedy` graph
ABSURD = (0, -1, 10**9, 2**63, 1e308, None, "1")
NUMBERS = {
    "predictor": ("tau", "depth", "memorization"),
    "index": ("ef", "m"),
    "encoder": ("max_tokens", "dimension"),
    "memory": ("instances", "labels", "votes"),
}
HARMLESS = {("predictor", "memorization", 0)}

Change = Callable[[onnx.GraphProto], None]


def answers(service: LocalService) -> Any:
    answer = service.post("/predict", ASKED)
    assert answer.status_code == 200, answer.text
    return answer.json()["results"]


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


@pytest.mark.parametrize("served", [LATE], indirect=True)
def test_absurd_numbers_are_refused_and_the_old_bundle_answers(
    served: LocalService, shelf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = orjson.loads((shelf / "other" / manifest.FILE_NAME).read_bytes())
    before, peak = answers(served), peak_bytes()
    numbers = ((part, name) for part, names in NUMBERS.items() for name in names)
    for (part, name), value in product(numbers, ABSURD):
        if (part, name, value) not in HARMLESS:
            document = {**whole, part: {**whole[part], name: value}}
            write_document(shelf / "other", document)
            caplog.clear()
            answer = served.post(RELOAD, {"bundle": "other"})
            assert assert_problem(answer, 422)["title"] == "Bundle refused", (name, value)
            assert_no_internals(answer)
            [said] = [r for r in caplog.records if r.message == "Bundle refused"]
            assert str(shelf / "other") in said.__dict__["cause"], (name, value)
    assert answers(served) == before
    assert peak_bytes() - peak < MOST_GROWTH
    write_document(shelf / "other", whole)
    assert served.post(RELOAD, {"bundle": "other"}).status_code == 200
    assert answers(served) == before


def greedy(graph: onnx.GraphProto) -> None:
    """Add the mean of more zeros than fit into memory; optimizers cannot know their number."""
    zeros = np.array([GIGABYTES * 2**28], np.int64)
    graph.initializer.append(numpy_helper.from_array(zeros, "zeros"))
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["shape"]),
        helper.make_node("ReduceMin", ["shape"], ["some"], keepdims=1),
        helper.make_node("Mul", ["some", "zeros"], ["many"]),
        helper.make_node("ConstantOfShape", ["many"], ["memory"]),
        helper.make_node("ReduceMean", ["memory"], ["nothing"], keepdims=0),
    ]
    added(graph, nodes)


def endless(graph: onnx.GraphProto) -> None:
    """Add a zero from a loop that never ends in practice."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["going"], ["go_on"]),
            helper.make_node("Sin", ["counted"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("counted", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, []),
        ],
    )
    for name, value in (("steps", np.int64(2**62)), ("yes", np.bool_(True))):
        graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    graph.initializer.append(numpy_helper.from_array(np.array(0, np.float32), "zero"))
    added(graph, [helper.make_node("Loop", ["steps", "yes", "zero"], ["nothing"], body=body)])


def not_a_number(graph: onnx.GraphProto) -> None:
    nothing = np.array(np.nan, np.float32)
    graph.initializer.append(numpy_helper.from_array(nothing, "nan"))
    added(graph, [helper.make_node("Identity", ["nan"], ["nothing"])])


def other_input(graph: onnx.GraphProto) -> None:
    """Look up a token id that does not exist, which only a call notices."""
    position = np.array([10**6], np.int64)
    graph.initializer.append(numpy_helper.from_array(position, "position"))
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["shape"]),
        helper.make_node("ReduceMin", ["shape"], ["some"], keepdims=1),
        helper.make_node("Mul", ["some", "position"], ["beyond"]),
        helper.make_node("Gather", ["letters", "beyond"], ["letter"]),
        helper.make_node("ReduceMean", ["letter"], ["nothing"], keepdims=0),
    ]
    added(graph, nodes)


def added(graph: onnx.GraphProto, nodes: list[onnx.NodeProto]) -> None:
    """Add `nothing`, a number that `nodes` compute, to the mean of a text's letter vectors."""
    graph.node[-1].input[0] = "more"
    normalize = graph.node.pop()
    graph.node.extend([*nodes, helper.make_node("Add", ["mean", "nothing"], ["more"]), normalize])


def change(folder: Path, how: Change) -> None:
    model = onnx.load(folder / "encoder.onnx")
    how(model.graph)
    (folder / "encoder.onnx").unlink()
    onnx.save(model, folder / "encoder.onnx")
    sign_again(folder)


@pytest.mark.parametrize(
    ("served", "how", "said"),
    [
        (LATE, greedy, "could not answer a query in a child process with"),
        (SOON, endless, f"had no first answer within {SOON} s (engine.warm_up_seconds)"),
        (LATE, not_a_number, "gives scores or vectors that are not finite"),
        (LATE, other_input, "the encoder fails on a text of"),
    ],
    indirect=["served"],
)
def test_a_bundle_that_cannot_answer_is_refused_and_the_old_one_answers(
    served: LocalService, shelf: Path, caplog: pytest.LogCaptureFixture, how: Change, said: str
) -> None:
    change(shelf / "other", how)
    before, peak, start = answers(served), peak_bytes(), monotonic()
    reloads = threading.Thread(target=served.post, args=(RELOAD, {"bundle": "other"}))
    reloads.start()
    while reloads.is_alive():
        assert answers(served) == before
        assert monotonic() - start < LATE
    assert peak_bytes() - peak < MOST_GROWTH
    [record] = [r for r in caplog.records if r.message == "Bundle refused"]
    assert said in record.__dict__["cause"]
    assert served.get("/info").json()["bundle"]["name"] == "tiny"
    assert answers(served) == before
    body = {"labels": [{"id": "axe", "text": "ice axe"}]}
    assert served.post("/labels", body).json()["version"] == 1  # the reload left no event


def test_a_start_with_a_bundle_that_cannot_answer_says_so(shelf: Path, tmp_path: Path) -> None:
    change(shelf / "other", other_input)
    settings = EngineSettings(threads=1)
    engine = Engine(shelf / "other", tmp_path / "state", settings=settings, telemetry=Telemetry())
    with pytest.raises(BundleUnsupported, match="the encoder fails on a text of"):
        engine.open()
    engine.kill_children()
