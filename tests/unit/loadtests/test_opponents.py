"""The comparison with other systems: their choice, keys, traffic and figures."""

from pathlib import Path

import numpy as np
import pytest

from loadtests.opponents.__main__ import traffic_rows
from loadtests.opponents.rounds import Measured, Traffic, kinds, streams
from loadtests.opponents.systems import (
    KEYMATCH,
    OPPONENTS,
    TXTAI,
    chosen,
    first_keys,
    keymatch_store,
    prepared_environment,
)
from loadtests.queries import distinct
from service.core.bundle.bundle import Bundle, open_bundle
from service.core.errors import CommandFailed, InvalidInput

ROOT = Path(__file__).parents[3]


def test_opponents_are_chosen_by_name_and_asked_in_their_own_way() -> None:
    assert chosen([]) == OPPONENTS
    assert list(chosen(["txtai"])) == ["txtai"]
    with pytest.raises(InvalidInput, match="there are plain, txtai"):
        chosen(["milvus"])
    modules = {path.stem for path in (ROOT / "loadtests/opponents/servers").glob("*.py")}
    assert {opponent.module for opponent in OPPONENTS.values()} <= modules
    request = TXTAI.predict("café & tea")
    assert request.startswith(b"GET /search?query=caf%C3%A9+%26+tea&limit=10 HTTP/1.1")


def test_packages_that_cannot_be_installed_are_reported(tmp_path: Path) -> None:
    broken = tmp_path / "bin/python"
    broken.parent.mkdir()
    broken.touch()
    with pytest.raises(CommandFailed, match=r"packages could not be installed: .*bin/python"):
        prepared_environment(tmp_path, OPPONENTS.values())


def test_the_first_keys_keep_the_proportion_and_their_votes(trigram_bundle: Bundle) -> None:
    content = first_keys(trigram_bundle, 7)  # from 8 instances and 6 labels
    assert (len(content.instance_texts), len(content.label_ids)) == (4, 3)
    assert np.array_equal(content.keys[:4], trigram_bundle.keys[:4])
    assert np.array_equal(content.keys[4:], trigram_bundle.keys[8:11])
    # Of boots, bottle, lamp, shoes, stove and tent, the first three are kept.
    voted = [
        content.indices[content.indptr[row] : content.indptr[row + 1]].tolist() for row in range(4)
    ]
    assert voted == [[], [0], [], [2]]
    for keys in (1, 15):
        with pytest.raises(InvalidInput, match="keys must be 2 to 14"):
            first_keys(trigram_bundle, keys)


def test_a_store_is_built_once(trigram_bundle: Bundle, tmp_path: Path) -> None:
    store = keymatch_store(trigram_bundle.folder, tmp_path, keys=10)
    assert len(open_bundle(store).keys) == 10
    assert keymatch_store(trigram_bundle.folder, tmp_path, keys=10) == store
    whole = keymatch_store(trigram_bundle.folder, tmp_path / "whole", keys=None)
    assert whole == trigram_bundle.folder


def test_the_traffic_is_saturation_and_each_rate_with_and_without_inserts() -> None:
    assert [str(kind) for kind in kinds((40.0, 100.0), inserts=50.0)] == [
        "closed loop, 8 connections",
        "40/s",
        "100/s",
        "40/s with 50 inserts/s",
        "100/s with 50 inserts/s",
    ]


def test_all_sides_get_the_same_arrivals() -> None:
    kind = Traffic(rate=20.0, inserts=10.0)
    load = kind.load(seconds=3.0, seed=0)
    ours, theirs = (
        {one.name: one for one in streams(requests, kind, distinct(["a", "b"], seed=0), load)}
        for requests in (KEYMATCH, TXTAI)
    )
    assert set(ours) == {"predict", "labels"}
    for name in ours:
        assert ours[name].starts == theirs[name].starts
        assert len(ours[name].requests) == len(theirs[name].requests)
    # txtai shows inserts only after a separate request, sent once per second.
    assert theirs["publish"].starts == [1.0, 2.0, 3.0]


def test_rows_show_throughput_failures_and_the_ratio_to_the_plain_stack() -> None:
    fast = Measured(latencies=[0.01] * 600, seconds=2.0, cpu_seconds=1.2)
    slow = Measured(latencies=[0.1] * 100, seconds=2.0, failures={"500": 3})
    rows = traffic_rows({Traffic(rate=None): {"keymatch": fast, "plain": slow}})
    assert [row.what for row in rows][:2] == [
        "closed loop, 8 connections: keymatch",
        "closed loop, 8 connections: plain",
    ]
    assert rows[0].measured.startswith("300 requests/s; p50 10.0 ms")
    assert "CPU 2.0 ms a query" in rows[0].measured
    assert "FAILED: {'500': 3}" in rows[1].measured
    assert (rows[2].measured, rows[2].met) == ("6.0x", False)
    [row] = traffic_rows({Traffic(rate=40.0): {"txtai": Measured(failures={"500": 80})}})
    assert row.measured == "no answer; FAILED: {'500': 80}"
