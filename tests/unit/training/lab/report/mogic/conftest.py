"""Made-up runs of MOGIC: an oracle, and runs that it guides in several ways."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from training.lab.report.runs import Run

Make = Callable[..., Run]
P1 = {"oracle": 60.0, "ngame": 50.0, "guided": 52.0}  # 51 for other runs


@pytest.fixture
def make(run: Any, result: Any) -> Make:
    """`make("guided", system="ngame", oracle="oracle", beta=0.0)` makes a run."""

    def one(
        name: str,
        *,
        system: str = "ngame",
        oracle: str | None = None,
        append: str = "none",
        own: dict[str, Any] | None = None,
        **guidance: Any,
    ) -> Run:
        p1 = P1.get(name, 51.0)
        settings = {
            "seed": 0,
            "encoder": {"name": "model", "query_tokens": 64},
            "system": {"name": system, **(own or {})},
            "metadata": {"append": append, "items": 8},
            "guidance": {"oracle": oracle and f"/far/away/{oracle}", **guidance},
        }
        ways = (
            result((p1, 30, 80), memorization=0.5, depth=200, chosen=True),
            result((p1 - 10, 20, 70), memorization=0.0, depth=200, method="labels only"),
        )
        rows = np.zeros((4, 3))
        rows[: int(p1) % 4, 0] = 1.0
        made: Run = run(name, system=system, settings=settings, ways=ways, rows=rows)
        return replace(made, folder=Path("measured") / "set" / name)

    return one


@pytest.fixture
def runs(make: Make) -> list[Run]:
    """An oracle, NGAME without it, and NGAME guided in each way that a table shows."""
    guided = {"oracle": "oracle"}
    return [
        make("oracle", system="rae", append="both"),
        make("ngame"),
        make("guided", **guided),
        make("aligned", beta=0.0, **guided),
        make("matched", alpha=0.0, **guided),
        make("guidance-alone", own_loss=0.0, **guided),
        make("projected", projection="learned", **guided),
        make("strong", alpha=2.0, **guided),
        make("rae", system="rae"),
        make("guided-without-metadata", oracle="rae"),
        make("oak-guided", system="oak", own={"attended": 3}, **guided),
        make("oak-linked", system="oak", own={"attended": 3, "metadata": "linked"}, **guided),
    ]
