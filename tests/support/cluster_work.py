"""A command that makes parts on a Ray cluster: `python -m tests.support.cluster_work FOLDER COUNT`.

Files in FOLDER steer it: a part waits while `hold-NAME` exists, and refuses its arguments if
`refuse-NAME` does. `calls` has a line for each time that a part was begun: its name, and the
process.
"""

import os
import sys
from functools import partial
from pathlib import Path
from time import sleep

from service.command_line import say
from service.core.errors import InvalidInput, KeymatchError
from service.core.index.protocol import Progress
from service.core.processes.ray_cluster import AUTO, joined
from service.core.work_parts import WorkPart, run_parts


def square(folder: Path, progress: Progress, *, number: int, steering: Path) -> None:
    """Write the square of a number."""
    with (steering / "calls").open("a") as calls:
        calls.write(f"{number} {os.getpid()}\n")
    while (steering / f"hold-{number}").exists():
        sleep(0.05)
    if (steering / f"refuse-{number}").exists():
        raise InvalidInput(f"{number} is refused")
    (folder / "square").write_text(str(number * number))


def main(steering: Path, count: int) -> None:
    """Make `count` parts, and print their results."""
    parts = [
        WorkPart(name=f"{number}", arguments={"number": number}) for number in range(1, count + 1)
    ]
    with joined(AUTO) as cluster:
        make = partial(square, steering=steering)
        folders = run_parts(make, parts, work=steering / "work", cluster=cluster)
    say(" ".join((folder / "square").read_text() for folder in folders))


if __name__ == "__main__":
    # The function's module must have the name under which workers import it.
    from tests.support.cluster_work import main as run

    try:
        run(Path(sys.argv[1]), int(sys.argv[2]))
    except KeymatchError as error:
        sys.exit(f"error: {error}")
