"""The optimizers of a run: AdamW for dense parameters, SparseAdam for tables with sparse gradients.

A table with a classifier for each of a million labels has gradients only in the rows of the batch's
labels. They stay sparse, so a step costs neither time nor memory in proportion to all labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer, SparseAdam

from training.models.ngrams import ngrams_of
from training.models.sharding import Sharding
from training.models.two_heads import heads_of
from training.recipes.recipe import Recipe

HEAD = "own"  # names the head's parameters, also in saved states
TRAINING_ONLY = "training-only"  # the same for those that no checkpoint needs
Moments = dict[str, dict[str, Any]]  # by parameter, by the moment's name
Groups = dict[tuple[str, bool], list[tuple[str, nn.Parameter]]]  # by part and whether they decay


@dataclass(kw_only=True, eq=False)
class Optimizers:
    """Several optimizers used as one; tables and their moments are split over processes."""

    each: list[Optimizer]
    names: list[str]  # of all parameters, optimizer after optimizer
    sharding: Sharding

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of all optimizers."""
        return [group for optimizer in self.each for group in optimizer.param_groups]

    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for optimizer in self.each:
            optimizer.step()

    def zero_grad(self) -> None:
        """Clear all gradients."""
        for optimizer in self.each:
            optimizer.zero_grad()

    def clip(self, *, largest_norm: float, accelerator: Accelerator) -> None:
        """Scale each group's gradients so that their joint norm is at most `largest_norm`."""
        for group in self.param_groups:
            parameters = group["params"]
            if any(p.grad is not None and p.grad.is_sparse for p in parameters):
                _clip_sparse(parameters, largest_norm=largest_norm, sharding=self.sharding)
            else:
                accelerator.clip_grad_norm_(parameters, largest_norm)

    def moments(self) -> Moments:
        """The moments of each parameter that ever had a gradient, by its name.

        All processes must call it at the same time.
        """
        moments = {}
        for optimizer, names in self._named():
            for place, entries in optimizer.state_dict()["state"].items():
                if _is_sparse(optimizer):
                    entries = _map_tables(self.sharding.gather, entries)
                moments[names[place]] = entries
        return moments

    def load_moments(self, moments: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from what `moments` returned."""
        for optimizer, names in self._named():
            document = optimizer.state_dict()
            state = {
                place: dict(moments[name]) for place, name in enumerate(names) if name in moments
            }
            if _is_sparse(optimizer):
                for entries in state.values():
                    entries.update(_map_tables(self.sharding.local_rows, entries))
                    entries["step"] = int(entries["step"])  # SparseAdam counts in integers
            document["state"] = state
            optimizer.load_state_dict(document)

    def _named(self) -> Iterator[tuple[Optimizer, list[str]]]:
        names = iter(self.names)
        for optimizer in self.each:
            count = sum(len(group["params"]) for group in optimizer.param_groups)
            yield optimizer, list(islice(names, count))


def make_optimizers(
    encoder: nn.Module | None,
    head: nn.Module | None,
    recipe: Recipe,
    *,
    training_only: nn.Module | None = None,
    sharded: Collection[str] = (),
    sharding: Sharding | None = None,
) -> Optimizers:
    """AdamW for encoder and head, and SparseAdam for the head's parameters named `sharded`.

    Biases, norms and sharded tables have no weight decay. Encoder, n-grams, heads, the system's
    head and what only training needs are separate groups, since gradients are clipped by group.
    """
    groups = _groups({"encoder": encoder, HEAD: head, TRAINING_ONLY: training_only}, sharded)
    dense = {key: group for key, group in groups.items() if key[0] != "sparse"}
    sparse = {key: group for key, group in groups.items() if key[0] == "sparse"}
    rates = _learning_rates(recipe)
    each: list[Optimizer] = []
    if dense:
        options = _parameter_groups(dense, rates, recipe.optimizer.weight_decay)
        each.append(AdamW(options, fused=True))
    if sparse:
        each.append(SparseAdam(_parameter_groups(sparse, rates)))
    names = [name for part in (dense, sparse) for group in part.values() for name, _ in group]
    return Optimizers(each=each, names=names, sharding=sharding or Sharding())


def _learning_rates(recipe: Recipe) -> dict[str, float]:
    settings = recipe.optimizer
    head = settings.head_learning_rate or settings.learning_rate
    return {
        "encoder": settings.learning_rate,
        "ngrams": recipe.ngrams.learning_rate,
        "heads": recipe.heads.learning_rate,
        HEAD: head,
        TRAINING_ONLY: head,
        "sparse": settings.sparse_learning_rate or head,
    }


def _groups(modules: Mapping[str, nn.Module | None], sharded: Collection[str]) -> Groups:
    """All trained parameters by part, and if they decay; n-grams, heads and `sharded` are parts."""
    encoder = modules["encoder"]
    part_of: dict[int, str] = {}
    for name, find in (("ngrams", ngrams_of), ("heads", heads_of)):
        module = find(encoder) if encoder is not None else None
        if module is not None:
            part_of.update((id(parameter), name) for parameter in module.parameters())
    groups: Groups = {}
    for label, module in modules.items():
        for name, parameter in module.named_parameters() if module is not None else ():
            if parameter.requires_grad:
                part = part_of.get(id(parameter), label)
                part = "sparse" if part == HEAD and name in sharded else part
                group = groups.setdefault((part, parameter.ndim > 1), [])
                group.append((f"{label}/{name}", parameter))
    return groups


def _parameter_groups(
    groups: Mapping[tuple[str, bool], Sequence[tuple[str, nn.Parameter]]],
    rates: Mapping[str, float],
    weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """The groups as torch's optimizers take them; SparseAdam knows no weight decay."""
    return [
        {
            "params": [parameter for _, parameter in group],
            "base_learning_rate": rates[part],
            "lr": rates[part],
            **({} if weight_decay is None else {"weight_decay": weight_decay if decays else 0.0}),
        }
        for (part, decays), group in groups.items()
    ]


def _clip_sparse(parameters: list[Tensor], *, largest_norm: float, sharding: Sharding) -> None:
    """Clip sparse gradients, of which each process has those of its rows."""
    sparse = [p for p in parameters if p.grad is not None and p.grad.is_sparse]
    for parameter in sparse:
        parameter.grad = parameter.grad.coalesce()
    squares = torch.stack([p.grad.values().square().sum() for p in sparse]).sum()
    norm = sharding.sum(squares).sqrt()
    for parameter in sparse:
        parameter.grad = parameter.grad * (largest_norm / (norm + 1e-6)).clamp(max=1.0)


def _is_sparse(optimizer: Optimizer) -> bool:
    # Accelerate wraps an optimizer; the wrapped one is its attribute.
    return isinstance(getattr(optimizer, "optimizer", optimizer), SparseAdam)


def _map_tables(function: Callable[[Tensor], Tensor], entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries, with `function` applied to those that have a row for each row of the table."""
    return {
        name: function(entry) if torch.is_tensor(entry) and entry.ndim else entry
        for name, entry in entries.items()
    }
