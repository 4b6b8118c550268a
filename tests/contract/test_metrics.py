"""The contract, the code and service/README.md name the same metrics with the same labels."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client import Counter

from service.settings import Settings
from service.telemetry import LIMITS, Telemetry

README = Path(__file__).parents[2] / "service/README.md"
CONTRACT = {
    "keymatch_requests_total": {"route", "status"},
    "keymatch_request_seconds": {"route"},
    "keymatch_stage_seconds": {"stage"},
    "keymatch_queue_depth": set(),
    "keymatch_version_waiters": set(),
    "keymatch_held_bytes": set(),
    "keymatch_connections": set(),
    "keymatch_limit": {"setting"},
    "keymatch_batch_size": {"kind"},
    "keymatch_seal_seconds": set(),
    "keymatch_reloads_total": {"outcome"},
    "keymatch_memory_rows": {"kind"},
    "keymatch_items": {"kind"},
    "keymatch_live_bytes": set(),
    "keymatch_log_damaged": set(),
    "keymatch_memory_version": set(),
    "keymatch_log_lag_events": set(),
    "keymatch_encode_cache_hits_total": set(),
    "keymatch_encode_cache_misses_total": set(),
    "keymatch_rejected_total": {"reason"},
    "keymatch_dropped_log_lines_total": set(),
    "keymatch_corrected_queries_total": set(),
    "keymatch_unanswered_queries_total": set(),
    "keymatch_build_info": {"version", "bundle"},
}


def test_the_code_and_the_readme_have_the_contracts_metrics() -> None:
    collectors = Telemetry().registry._collector_to_names
    exported = {
        metric._name + ("_total" if isinstance(metric, Counter) else ""): set(metric._labelnames)
        for metric in collectors
    }
    assert exported == CONTRACT
    _, _, rest = README.read_text().partition("# Metrics\n")
    section = re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    first_column = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")]
    metrics = re.findall(r"(keymatch_\w+)(?:\{([^}]*)\})?", "\n".join(first_column))
    assert CONTRACT == {
        name: {label.strip() for label in labels.split(",") if label.strip()}
        for name, labels in metrics
    }


def test_the_readme_names_every_limit_that_is_shown() -> None:
    [row] = [line for line in README.read_text().splitlines() if "keymatch_limit{setting}" in line]
    assert set(re.findall(r"`(\w+)`", row.split("|")[2])) == set(LIMITS)
    assert set(LIMITS) <= Settings().by_name().keys()
    assert {name for name in Settings().by_name() if name.endswith("_bytes")} - set(LIMITS) == {
        "body_bytes", "header_bytes"
    }  # fmt: skip


def test_seconds_are_counted_in_geometric_buckets_from_50_microseconds() -> None:
    telemetry = Telemetry()
    telemetry.request_seconds.labels("any").observe(1.0)
    for histogram in (telemetry.request_seconds, telemetry.stage_seconds):
        samples = [sample for metric in histogram.collect() for sample in metric.samples]
        bounds = sorted({float(sample.labels["le"]) for sample in samples if "le" in sample.labels})
        assert bounds[0] == pytest.approx(50e-6)
        ratios = [later / earlier for earlier, later in pairwise(bounds[:-1])]
        assert ratios == pytest.approx([ratios[0]] * len(ratios))
        assert bounds[-2] > 5
