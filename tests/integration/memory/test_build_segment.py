"""The child that builds a segment: of low priority, on one thread, ended with its parent."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import orjson

from service.core.memory.segment_store import INDEX
from service.core.processes.low_priority import LowPriorityChild


def test_the_child_is_nice_and_runs_on_one_thread(tmp_path: Path) -> None:
    """Its index library is replaced by one that records the child's priority and threads."""
    script = (
        "import os, sys; from pathlib import Path\n"
        "from service.core.memory import build_segment\n"
        "class Recorder:\n"
        "    def build(self, vectors, parameters, path, progress):\n"
        "        path.write_text(f\"{os.nice(0)} {os.environ['OMP_NUM_THREADS']}\")\n"
        "build_segment.load_library = lambda name: Recorder()\n"
        "build_segment.main(Path(sys.argv[1]), *map(int, sys.argv[2:]))\n"
    )
    _job(tmp_path)
    command = [sys.executable, "-c", script, str(tmp_path)]
    LowPriorityChild().run(command)
    assert (tmp_path / INDEX).read_text() == "19 1"
    if os.nice(0) <= 12:
        LowPriorityChild().run([*command, "7"])  # of a segment that was late
        assert (tmp_path / INDEX).read_text() == f"{os.nice(0) + 7} 1"


def test_an_orphaned_child_gives_up(tmp_path: Path) -> None:
    """Its parent ends at once; the child sees that it has another parent and exits."""
    child = (
        "import os, sys, time; from pathlib import Path\n"
        "from service.core.memory import build_segment\n"
        "class Slow:\n"
        "    def build(self, vectors, parameters, path, progress):\n"
        "        parent = os.getppid()\n"
        "        path.write_text('started')\n"
        "        while os.getppid() == parent:\n"
        "            time.sleep(0.01)\n"
        "        progress(1)\n"
        "        path.write_text('went on')\n"
        "build_segment.load_library = lambda name: Slow()\n"
        "try:\n"
        "    build_segment.main(Path(sys.argv[1]))\n"
        "finally:\n"
        "    Path(sys.argv[1], 'ended').touch()\n"
    )
    parent = (
        "import subprocess, sys, time; from pathlib import Path\n"
        "subprocess.Popen([sys.executable, '-c', *sys.argv[1:]])\n"
        f"while not Path(sys.argv[2], {INDEX!r}).exists():\n"
        "    time.sleep(0.01)\n"
    )
    _job(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", parent, child, str(tmp_path)],
        check=True,
        stderr=subprocess.PIPE,
    )
    # The pipe is closed only when the child has ended too.
    assert b"the service that started this build has ended" in done.stderr
    assert (tmp_path / "ended").exists()
    assert (tmp_path / INDEX).read_text() == "started"


def _job(folder: Path) -> None:
    np.save(folder / "vectors.npy", np.zeros((1, 2), np.float16))
    (folder / "parameters.json").write_bytes(orjson.dumps({"library": "faiss"}))
