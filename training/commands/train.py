"""`keymatch lab train`: trains an encoder by a recipe on a data set."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.command_line import Interrupted, open_console
from service.core.errors import InvalidData
from service.core.files.atomic import refuse_unwritable
from training.checkpoints.choices import Choices
from training.checkpoints.run_json import (
    BEST,
    LAST,
    NOTHING_TO_RESUME,
    RUN,
    read_run_on,
    saved_step,
)
from training.commands.options import MANY
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.datasets.train_test_split import refuse_overlap
from training.loop.interruption import Interruption
from training.models.encoder_location import find_encoder
from training.progress import say
from training.ranks import process_of_run
from training.recipes import recipe as recipes
from training.recipes.recipe import Recipe

if TYPE_CHECKING:
    from training.loop.state import Progress

FIRST_STAGE = "encoder"  # the folder of the first stage's run, within the second stage's


def list_recipes(*, measured: Annotated[bool, Parameter(negative=())] = False) -> None:
    """List the recipes that come with Keymatch: those for any data, in a table.

    Parameters
    ----------
    measured
        List the recipes that were tuned on, or published for, one data set instead.
    """
    table = Table(show_header=False, box=None)
    for name in recipes.names(recipes.MEASURED if measured else recipes.GENERAL):
        table.add_row(name, Text(recipes.summary(name)))
    open_console().print(table)


def train(
    recipe: str,
    /,
    *,
    data: Path,
    out: Path,
    set: Annotated[tuple[str, ...], MANY] = (),
    encoder: str | None = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    allow_test_rows: Annotated[bool, Parameter(negative=())] = False,
) -> int:
    """Train an encoder; `torchrun --nproc-per-node N -m training train ...` uses N GPUs.

    Writes the best checkpoint to OUT/best, a sentence-transformers folder for `export bundle
    --encoder`. OUT also gets the state for --resume (last), metrics.jsonl, TensorBoard files and
    run.json.

    Parameters
    ----------
    recipe
        A recipe's name (`keymatch lab recipes` lists them) or a .toml file.
    data
        The data set's folder.
    out
        The run's folder.
    set
        Settings that override the recipe's, as table.key=value.
    encoder
        The encoder to start from, instead of the recipe's or its first stage's. If it is a run's
        folder, the best checkpoint is used.
    resume
        Continue the run in OUT from its last saved state. SIGINT (Ctrl-C) and SIGTERM save it.
    allow_test_rows
        Train even if texts of the test split occur among the training rows.
    """
    refuse_unwritable(out)
    interruption = Interruption()
    try:
        with interruption.handled():
            chosen = recipes.load(recipe, set)
            if resume and not can_resume(out):
                raise InvalidData(out, f"holds no saved state ({LAST}): {NOTHING_TO_RESUME}")
            if encoder is not None or chosen.encoder.stage_one is None:
                find_encoder(encoder or chosen.encoder.name)
            say(f"reading {data}")
            dataset = lf_xmc.read(data)
            if not allow_test_rows:
                refuse_overlap(dataset, data)
            first = encoder or _first_stage(chosen, dataset, out, interruption, resume=resume)
            chosen = replace(chosen, encoder=replace(chosen.encoder, name=first))
            resume = resume and saved_step(out) is not None  # False if only a first stage had begun
            _train(chosen, dataset, out, interruption, source=recipe, resume=resume)
    except Interrupted as end:
        place, processes = process_of_run()
        if not place:
            words = ["train", recipe, "--data", str(data), "--out", str(out)]
            words += ["--set", *set] if set else []
            words += [] if encoder is None else ["--encoder", encoder]
            words += ["--allow-test-rows"] if allow_test_rows else []
            said = _how_to_go_on(end, words, out, processes=processes)
            open_console(stderr=True).print(said, soft_wrap=True)
        return end.status
    return 0


def can_resume(out: Path) -> bool:
    """Whether a run, or its first stage, has a saved state from which --resume can continue."""
    first = out / FIRST_STAGE
    return saved_step(out) is not None or saved_step(first) is not None or (first / RUN).exists()


def _how_to_go_on(end: Interrupted, words: Sequence[str], out: Path, *, processes: int) -> str:
    """Say what was saved, and which command continues with `processes` processes."""
    start = ["keymatch", "lab"]
    if processes > 1:
        start = ["torchrun", "--nproc-per-node", str(processes), "-m", "training"]
    command = shlex.join([*start, *words])
    if not can_resume(out):
        return f"{end} before the first step: nothing is kept. Begin again: {command}"
    folder = out if saved_step(out) is not None else out / FIRST_STAGE
    state = f"{folder / LAST} has the state of step {saved_step(folder)}"
    return f"{end}: {state}. Go on with: {command} --resume"


def _first_stage(
    second: Recipe, dataset: Dataset, run: Path, interruption: Interruption, *, resume: bool
) -> str:
    """Return the encoder that the recipe starts from, the best of its first stage if it has one.

    The first stage is trained or resumed unless it is finished. Both stages hold out the same rows
    and labels.
    """
    recipe, held_out, out = second.encoder.stage_one, second.validation, run / FIRST_STAGE
    if recipe is None:
        return second.encoder.name
    same = (
        f"seed={second.seed}",
        f"validation.rows={held_out.rows}",
        f"validation.labels={held_out.labels}",
    )
    if not (out / RUN).exists():
        resume = resume and saved_step(out) is not None
        _train(recipes.load(recipe, same), dataset, out, interruption, source=recipe, resume=resume)
    elif read_run_on(out, dataset.name)["recipe"] != recipe:
        raise InvalidData(out, f"is not a run of {recipe}; change --out")
    return str(out / BEST)


def _train(
    chosen: Recipe,
    dataset: Dataset,
    out: Path,
    interruption: Interruption,
    *,
    source: str,
    resume: bool,
) -> None:
    from training.hardware import hardware
    from training.loop.finish import choose_for_inference, write_facts
    from training.loop.setup import open_run

    console = open_console()
    trainer = open_run(
        chosen,
        dataset,
        out,
        source=source,
        resume=resume,
        console=console,
        interruption=interruption,
    )
    progress = trainer.train()
    choices, _ = choose_for_inference(trainer, console=console)
    if not trainer.is_main_process:
        return
    used = hardware(trainer.model.accelerator)
    write_facts(out, source, asdict(chosen), dataset, asdict(progress), choices, used)
    _say_what_is_kept(out, progress, choices, console)


def _say_what_is_kept(out: Path, progress: Progress, choices: Choices, console: Console) -> None:
    console.print(
        f"{out}/best: step {progress.best_step} of {progress.step}, {progress.seconds:,.0f} s;"
        f" chosen on held-out rows: lambda {choices.memorization:g}, b {choices.depth}",
        soft_wrap=True,
    )
    if not progress.best_step:
        console.print(
            "training made the encoder worse on the held-out rows: the one that it started from is"
            " kept. Try a smaller learning rate, or `keymatch fit`",
            soft_wrap=True,
        )
