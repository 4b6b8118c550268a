"""The optimizers of a run: AdamW for dense parameters, SparseAdam for tables with sparse gradients.

In a table with a classifier for each of a million labels, only the rows of the batch's labels have
gradients. Gradients stay sparse, so a step's time and memory do not grow with the number of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer, SparseAdam

from training.models.ngrams import ngrams_of
from training.models.sharding import Sharding
from training.models.two_heads import heads_of
from training.recipes.recipe import Recipe

# Names of modules, also in saved states.
ENCODER = "encoder"
HEAD = "own"
TRAINING_ONLY = "training-only"  # not part of a checkpoint
Moments = dict[str, Tensor]  # by the names of parameter and moment: "encoder/weight/exp_avg"
Groups = dict[tuple[str, bool], list[tuple[str, nn.Parameter]]]  # key: part, has weight decay


@dataclass(kw_only=True, eq=False)
class Optimizers:
    """Several optimizers used as one; tables and their moments are split over processes."""

    each: list[Optimizer]  # their parameters have names
    sharding: Sharding

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for optimizer in self.each for group in optimizer.param_groups]

    def step(self, *, accelerator: Accelerator) -> None:
        """Update every parameter that has a gradient.

        In fp16, an optimizer with infinite gradients updates nothing, and the loss scale falls.
        """
        scaler = accelerator.scaler
        for optimizer in self.each:
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
        if scaler is not None:  # once, after all optimizers: it changes the scale of gradients
            scaler.update()

    def zero_grad(self) -> None:
        """Clear all gradients."""
        for optimizer in self.each:
            optimizer.zero_grad()

    def clip(self, *, largest_norm: float, accelerator: Accelerator) -> Tensor:
        """Scale each group's gradients so that their joint norm is at most `largest_norm`.

        Returns the norms that the groups had before, [groups].
        """
        norms = []
        accelerator.unscale_gradients(self.each)  # for fp16; allowed only once per step
        for group in self.param_groups:
            parameters = group["params"]
            if any(p.grad is not None and p.grad.is_sparse for p in parameters):
                norm = _clip_sparse(parameters, largest_norm=largest_norm, sharding=self.sharding)
            else:
                norm = clip_grad_norm_(parameters, largest_norm)
            norms.append(torch.as_tensor(norm, device=accelerator.device))
        return torch.stack(norms)

    def moments(self) -> Moments:
        """Return the moments of each parameter that ever had a gradient, on the CPU.

        All processes must call it at the same time.
        """
        moments = {}
        for optimizer in self.each:
            names = _names(optimizer)
            for place, entries in optimizer.state_dict()["state"].items():
                if isinstance(optimizer, SparseAdam):
                    entries = _map_tables(self.sharding.gather, entries)
                for key, value in entries.items():
                    value = torch.as_tensor(value).detach().cpu().contiguous()
                    moments[f"{names[place]}/{key}"] = value
        return moments

    def load_moments(self, moments: Moments) -> None:
        """Load what `moments` returned."""
        by_parameter: dict[str, dict[str, Any]] = {}
        for path, value in moments.items():
            name, _, key = path.rpartition("/")
            by_parameter.setdefault(name, {})[key] = value
        for optimizer in self.each:
            document, names = optimizer.state_dict(), _names(optimizer)
            state = {
                place: by_parameter[name]
                for place, name in enumerate(names)
                if name in by_parameter
            }
            if isinstance(optimizer, SparseAdam):
                for entries in state.values():
                    entries.update(_map_tables(self.sharding.local_rows, entries))
                    entries["step"] = int(entries["step"])  # SparseAdam counts in integers
            document["state"] = state
            optimizer.load_state_dict(document)


def make_optimizers(
    modules: Mapping[str, nn.Module],
    recipe: Recipe,
    *,
    sharded: Collection[str] = (),
    sharding: Sharding | None = None,
) -> Optimizers:
    """Return AdamW for all modules, and SparseAdam for the head's parameters named `sharded`.

    The modules are named `ENCODER`, `HEAD` and `TRAINING_ONLY`. Biases, norms and sharded tables
    have no weight decay. Gradients are clipped by group: each module, n-grams and UniDEC's heads.
    """
    rates = _learning_rates(recipe)
    dense, sparse = [], []
    for (part, decays), parameters in _groups(modules, sharded).items():
        group = {"params": parameters, "base_learning_rate": rates[part], "lr": rates[part]}
        if part == "sparse":  # SparseAdam has no weight decay
            sparse.append(group)
        else:
            weight_decay = recipe.optimizer.weight_decay if decays else 0.0
            dense.append({**group, "weight_decay": weight_decay})
    each: list[Optimizer] = []
    if dense:
        each.append(AdamW(dense, fused=True))
    if sparse:
        each.append(SparseAdam(sparse))
    return Optimizers(each=each, sharding=sharding or Sharding())


def _learning_rates(recipe: Recipe) -> dict[str, float]:
    settings = recipe.optimizer
    head = settings.head_learning_rate or settings.learning_rate
    return {
        ENCODER: settings.learning_rate,
        "ngrams": recipe.ngrams.learning_rate,
        "heads": recipe.heads.learning_rate,
        HEAD: head,
        TRAINING_ONLY: head,
        "sparse": settings.sparse_learning_rate or head,
    }


def _groups(modules: Mapping[str, nn.Module], sharded: Collection[str]) -> Groups:
    """Group trained parameters by part (module, n-grams, heads or sparse) and by weight decay."""
    encoder = modules.get(ENCODER)
    part_of: dict[int, str] = {}
    for name, find in (("ngrams", ngrams_of), ("heads", heads_of)):
        module = find(encoder) if encoder is not None else None
        if module is not None:
            part_of.update((id(parameter), name) for parameter in module.parameters())
    groups: Groups = {}
    for label, module in modules.items():
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                part = part_of.get(id(parameter), label)
                part = "sparse" if part == HEAD and name in sharded else part
                group = groups.setdefault((part, parameter.ndim > 1), [])
                group.append((f"{label}/{name}", parameter))
    return groups


def _clip_sparse(parameters: list[Tensor], *, largest_norm: float, sharding: Sharding) -> Tensor:
    """Clip sparse gradients, whose rows are split over the processes; return their joint norm."""
    sparse = [p for p in parameters if p.grad is not None and p.grad.is_sparse]
    for parameter in sparse:
        parameter.grad = parameter.grad.coalesce()
    squares = torch.stack([p.grad.values().square().sum() for p in sparse]).sum()
    norm = sharding.sum(squares).sqrt()
    for parameter in sparse:
        parameter.grad = parameter.grad * (largest_norm / (norm + 1e-6)).clamp(max=1.0)
    return norm


def _names(optimizer: Optimizer) -> list[str]:
    return [name for group in optimizer.param_groups for name in group["param_names"]]


def _map_tables(function: Callable[[Tensor], Tensor], entries: Mapping[str, Any]) -> dict[str, Any]:
    """Apply `function` to the entries with a row for each row of the table; keep the others."""
    return {
        name: function(entry) if torch.is_tensor(entry) and entry.ndim else entry
        for name, entry in entries.items()
    }


def learning_rate_factor(step: int, *, steps: int, warmup: float) -> float:
    """Return the factor: linear warm-up over the share `warmup` of `steps`, then decay to zero."""
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return max(0.0, (steps - step) / max(1, steps - rising))
