"""What `label-log-v1` holds; `main` writes a log of the present format with the same content.

The file must not change: it stands for the logs of format 1 that users have on their disks.
"""

from contextlib import closing
from pathlib import Path

import numpy as np

from service.core.changes import DeleteLabel, PutInstance, PutLabel, UseBundle
from service.core.label_log import AnsweredRequest, NewEvent, open_log

LOG = Path(__file__).parent / "label-log-v1"
ENCODER = "f" * 64
KAYAK = {"id": "kayak", "text": "sea kayak", "queries": ["paddle"], "metadata": {"bid": "0.30"}}
TENT = {"id": "tent", "text": "Zelt für zwei ⛺", "queries": [], "metadata": {}}
EVENTS = (  # kind, body, rows of vectors
    (PutLabel.kind, KAYAK, 2),
    (PutLabel.kind, TENT, 1),
    (PutInstance.kind, {"query": "camping an der See", "labels": ["kayak", "tent"]}, 1),
    (DeleteLabel.kind, {"id": "kayak"}, 0),
    (UseBundle.kind, {"bundle": "outdoor-2", "configured": "outdoor"}, 0),
)
REQUEST = AnsweredRequest(
    key="a-client's-key",
    digest="0" * 64,
    version=2,
    answer={"version": 2, "labels": [{"id": "tent", "status": "created"}]},
)


def vectors(sequence: int, rows: int) -> np.ndarray:
    """Rows, fp16 [rows, 4], whose value tells which event they belong to."""
    return np.full((rows, 4), sequence / 8, np.float16)


def main() -> None:
    with closing(open_log(LOG)) as log:
        for sequence, (kind, body, rows) in enumerate(EVENTS, start=1):
            event = NewEvent(kind=kind, body=body, vectors=vectors(sequence, rows))
            with log.exclusive() as appending:
                appending.append([event], encoder=ENCODER)
                if sequence == REQUEST.version:
                    appending.remember(REQUEST)


if __name__ == "__main__":
    main()
