"""Label logs of format 1 stay readable. That format's code wrote the fixture `label-log-v1`."""

import shutil
from contextlib import closing
from pathlib import Path

from service.core.label_log import open_log

HERE = Path(__file__).parent


def test_a_label_log_of_version_1_is_read(tmp_path: Path) -> None:
    """On a copy, which becomes a log of the present format."""
    copy = Path(shutil.copytree(HERE / "label-log-v1", tmp_path / "log"))
    with closing(open_log(copy, create=False)) as log:
        assert log.id == ""
        assert len(list(log.read())) == 2
    with closing(open_log(copy)) as log:
        kayak, tent = log.read()
    assert kayak.body == {
        "id": "kayak",
        "text": "sea kayak",
        "queries": ["paddle"],
        "metadata": {"bid": "0.30"},
    }
    assert (kayak.sequence, kayak.kind, kayak.encoder) == (1, "label.put", "f" * 64)
    assert kayak.vectors.size == 2 * 16
    assert tent.body["text"] == "Zelt für zwei ⛺"
    assert (tent.sequence, tent.vectors.size) == (2, 16)
