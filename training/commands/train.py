"""`python -m training train`: trains an encoder by a recipe on a data set."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from service.command_line import open_console
from service.core.errors import InvalidData, MissingExtra
from service.core.files.atomic import refuse_unwritable
from training.checkpoints.run_json import BEST, RUN, read_run_on, write_run
from training.commands.options import MANY
from training.datasets import lf_xmc
from training.datasets.dataset import Dataset
from training.datasets.train_test_overlap import refuse_overlap
from training.recipes import recipe as recipes
from training.recipes.recipe import Recipe

FIRST_STAGE = "encoder"  # the folder of the first stage's run, in that of the second


def list_recipes(*, measured: Annotated[bool, Parameter(negative=())] = False) -> None:
    """List the recipes that come with Keymatch: those for any data, in a table.

    Parameters
    ----------
    measured
        List those that were tuned on, or published for, one data set.
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
) -> None:
    """Train an encoder; `torchrun --nproc-per-node N -m training train ...` uses N GPUs.

    Writes the best checkpoint to OUT/best, a sentence-transformers folder that `export bundle
    --encoder` takes. OUT also gets the state for --resume (last), metrics.jsonl, TensorBoard files
    and run.json.

    Parameters
    ----------
    recipe
        A recipe's name (`python -m training recipes` lists them) or a .toml file.
    data
        The data set's folder.
    out
        The run's folder.
    set
        Settings that override the recipe's, as table.key=value.
    encoder
        The encoder to start from, in place of the recipe's or of its first stage.
    resume
        Continue the run in OUT from its last saved state.
    allow_test_rows
        Train even if texts of the test split occur among the training rows.
    """
    refuse_unwritable(out)
    chosen = recipes.load(recipe, set)
    dataset = lf_xmc.read(data)
    if not allow_test_rows:
        refuse_overlap(dataset, data)
    if encoder is None and chosen.encoder.stage_one is not None:
        encoder = _first_stage(chosen, dataset, out / FIRST_STAGE, resume=resume)
    if encoder is not None:
        chosen = replace(chosen, encoder=replace(chosen.encoder, name=encoder))
    _train(chosen, dataset, out, source=recipe, resume=resume)


def _first_stage(second: Recipe, dataset: Dataset, out: Path, *, resume: bool) -> str:
    """The best encoder of the first stage, which is trained now unless it has been.

    Both stages hold out the same rows and labels.
    """
    recipe, held_out = str(second.encoder.stage_one), second.validation
    same = (
        f"seed={second.seed}",
        f"validation.rows={held_out.rows}",
        f"validation.labels={held_out.labels}",
    )
    if not (out / RUN).exists():
        _train(recipes.load(recipe, same), dataset, out, source=recipe, resume=resume)
    elif read_run_on(out, dataset.name)["recipe"] != recipe:
        raise InvalidData(out, f"is not a run of {recipe}; change --out")
    return str(out / BEST)


def _train(chosen: Recipe, dataset: Dataset, out: Path, *, source: str, resume: bool) -> None:
    try:
        from training.hardware import hardware
        from training.loop.finish import choose_for_inference
        from training.loop.setup import open_run
    except ImportError as error:
        raise MissingExtra(error.name or "a package", extra="training") from error
    console = open_console()
    trainer = open_run(chosen, dataset, out, source=source, resume=resume, console=console)
    progress = trainer.train()
    choices, _ = choose_for_inference(trainer, console=console)
    if not trainer.is_main_process:
        return
    facts = {
        "recipe": source,
        "settings": asdict(chosen),
        "dataset": dataset.name,
        "progress": asdict(progress),
        "choices": asdict(choices),
        "hardware": hardware(trainer.model.accelerator),
    }
    write_run(out, facts)
    console.print(
        f"{out}/best: step {progress.best_step} of {progress.step}, {progress.seconds:,.0f} s;"
        f" chosen on held-out rows: lambda {choices.memorization:g}, b {choices.depth}",
        soft_wrap=True,
    )
    if not progress.best_step:
        console.print(
            "training made the encoder worse on the held-out rows: the untrained one is kept. Try a"
            " smaller learning rate, or `python -m training fit`",
            soft_wrap=True,
        )
