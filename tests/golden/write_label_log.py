"""Writes the label log `label-log-v1`: `python -m tests.golden.write_label_log`.

Once 0.1.0 is released, the file must not change: it represents logs on users' disks. If the format
changes before that, remove the folder and run this command in the repository's root.
"""

from contextlib import closing
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory

import numpy as np

from service.core.changes import (
    ChangeLabel,
    DeleteInstance,
    DeleteItem,
    DeleteLabel,
    DeleteRule,
    PutInstance,
    PutItem,
    PutLabel,
    PutRule,
    UseBundle,
)
from service.core.label_log import AnsweredRequest, open_log
from tests.support.label_logs import StoredChange

LOG, LABELS = Path(__file__).parent / "label-log-v1", "labels.sqlite"
ENCODER = "f" * 64
KAYAK = {"id": "kayak", "text": "sea kayak", "queries": ["paddle"], "metadata": {"bid": "0.30"}}
TENT = {"id": "tent", "text": "Zelt für zwei ⛺", "queries": [], "metadata": {}}
DATES = {"starts_at": 1_764_547_200_000_000, "expires_at": 1_767_225_600_500_000}
SALE = {"id": "sale", "text": "sale", "queries": [], "metadata": {"tags": ["new"], "price": 20.5}}
PAIR = {"query": "camping an der See", "labels": ["kayak"]}
RULE = {
    "id": "summer",
    "when": {"query": "zelt", "match": "phrase"},
    "filter": {"none": [{"field": "price", "gt": 30}]},
    "then": {
        "hide": ["kayak"],
        "pin": [{"id": "tent", "position": 1}],
        "boost": {"labels": ["tent", "sale"], "factor": 1.5},
    },
    **DATES,
}
EVENTS = (  # kind, body, number of vectors
    (PutLabel.kind, KAYAK, 2),
    (PutLabel.kind, TENT, 1),
    (PutInstance.kind, {"query": "camping an der See", "labels": ["kayak", "tent"]}, 1),
    (DeleteLabel.kind, {"id": "kayak"}, 0),
    (UseBundle.kind, {"bundle": "outdoor-2", "configured": "outdoor"}, 0),
    (PutLabel.kind, {**SALE, **DATES, "boost": 2.5}, 1),
    (ChangeLabel.kind, {"id": "sale", "metadata": {"price": 15}}, 0),
    (PutInstance.kind, {**PAIR, "weight": -0.5}, 1),
    (DeleteInstance.kind, PAIR, 0),
    (PutItem.kind, {"id": "sea", "text": "an der See"}, 1),
    (DeleteItem.kind, {"id": "sea"}, 0),
    (PutRule.kind, RULE, 0),
    (DeleteRule.kind, {"id": "summer"}, 0),
    (PutRule.kind, {"id": "summer", "then": {"hide": ["tent"]}, "tenant": "shop=north"}, 0),
    (DeleteRule.kind, {"id": "summer", "tenant": "shop=north"}, 0),
)
REQUEST = AnsweredRequest(
    key="a-client's-key",
    digest="0" * 64,
    version=2,
    answer={"version": 2, "labels": [{"id": "tent", "status": "created"}]},
)


def vectors(sequence: int, rows: int) -> np.ndarray:
    """fp16 [rows, 4], filled with a value that identifies the event: sequence / 8."""
    return np.full((rows, 4), sequence / 8, np.float16)


def main() -> None:
    with TemporaryDirectory() as temporary:
        write(Path(temporary))
        LOG.mkdir()
        copyfile(Path(temporary) / LABELS, LOG / LABELS)  # without `labels.newest`


def write(folder: Path) -> None:
    with closing(open_log(folder)) as log:
        for sequence, (kind, body, rows) in enumerate(EVENTS, start=1):
            change = StoredChange(kind, body, vectors(sequence, rows))
            with log.exclusive() as appending:
                appending.append([change], encoder=ENCODER)
                if sequence == REQUEST.version:
                    appending.remember(REQUEST)


if __name__ == "__main__":
    main()
