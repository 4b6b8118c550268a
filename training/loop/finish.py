"""Temperature, lambda and b of a trained encoder, chosen on rows that it never saw.

So is what stands for labels in the memory, where a system has keys of its own: beside instances the
labels' texts may serve better, since clicks are in the instances already.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from safetensors.torch import load_file

from service.core.types import Floats
from training.checkpoints.choices import UNCHOSEN, Choices, write_choices
from training.checkpoints.label_keys import LABEL_KEYS
from training.checkpoints.model_folder import OWN
from training.checkpoints.run_json import BEST
from training.loop.setup import memory_tau
from training.loop.trainer import Trainer
from training.models.torch_encoder import load_encoder
from training.selection.memory_choices import DEPTHS, choose_on
from training.selection.validation import criterion
from training.systems import Trained


def choose(trainer: Trainer, *, console: Console) -> Choices:
    """Choose for a run's best checkpoint, and write it beside the weights."""
    recipe = trainer.recipe
    choices = Choices(
        system=str(recipe.system["name"]),
        tau=memory_tau(recipe),
        memorization=UNCHOSEN.memorization,
        depth=recipe.validation.depth,
    )
    trained = None
    if trainer.validation is not None:
        load_best(trainer)
        instances, texts = trainer.refresh.vectors()
        own = trainer.system.label_keys(texts)
        kinds = [own] if own is texts or not trainer.system.encodes_labels else [own, texts]
        with console.status("choosing temperature, lambda and b"):
            tried = [_choose(trainer, instances, labels, choices) for labels in kinds]
        best = max(range(len(tried)), key=lambda place: tried[place][0])
        choices = tried[best][1]
        if kinds[best] is texts and trainer.accelerator.is_main_process:
            (best_of(trainer) / LABEL_KEYS).unlink(missing_ok=True)
        trained = Trained(
            validation=trainer.validation,
            instances=instances,
            labels=texts,
            keys=kinds[best],
            choices=choices,
            own={} if trainer.system.own is None else trainer.system.own.state_dict(),
        )
    if trainer.accelerator.is_main_process:
        with console.status("choosing what the system alone has"):
            said = trainer.system.decide(trained, best_of(trainer))
        if said:
            trainer.journal.said(said)
        write_choices(best_of(trainer), choices)
    return choices


def _choose(
    trainer: Trainer, instances: Floats, labels: Floats, start: Choices
) -> tuple[float, Choices]:
    """The best choices with these label keys [L, d], and how good they are."""
    validation, metrics = trainer.validation, trainer.recipe.validation.metrics
    assert validation is not None
    held_out = validation.retrieve(instances, labels, depth=max(*DEPTHS, start.depth))
    best = choose_on(held_out, start, metrics=metrics, told=trainer.journal.tried)
    found = held_out.metrics(tau=best.tau, memorization=best.memorization, depth=best.depth)
    return criterion({best.memorization: found}, metrics), best


def best_of(trainer: Trainer) -> Path:
    """The folder of the checkpoint that a run keeps."""
    return trainer.folder / BEST


def load_best(trainer: Trainer) -> None:
    """Put the best checkpoint's weights into the trained encoder and the system."""
    best = load_encoder(str(best_of(trainer)))
    trainer.encoder.model.load_state_dict(best.model.state_dict())
    if trainer.system.own is not None:
        trainer.system.own.load_state_dict(load_file(best_of(trainer) / OWN))
