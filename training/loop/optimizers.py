"""Who moves which parameter: AdamW for most, Adam by rows where a batch touches few of them.

A classifier for each of a million labels has a gradient in the rows of the batch's labels only. It
is kept sparse, and so is the step: neither takes time or memory in proportion to all labels.
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
from training.recipes.recipe import Recipe


@dataclass(kw_only=True, eq=False)
class Optimizers:
    """Several optimizers as one; `names` are those of all parameters, one after the other.

    What moves by rows lies dealt out to processes, and its moments with it.
    """

    each: list[Optimizer]
    names: list[str]
    sharding: Sharding

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all."""
        return [group for one in self.each for group in one.param_groups]

    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for one in self.each:
            one.step()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for one in self.each:
            one.zero_grad()

    def clip(self, *, most: float, accelerator: Accelerator) -> None:
        """Scale each group's gradients so that their norm together is at most `most`."""
        for group in self.param_groups:
            _clip(group["params"], most=most, accelerator=accelerator, sharding=self.sharding)

    def moments(self) -> dict[str, dict[str, Any]]:
        """What is remembered of each parameter that ever had a gradient, by its name.

        Every process must ask at once.
        """
        found = {}
        for one, names in self._named():
            for place, entries in one.state_dict()["state"].items():
                if _by_rows(one):
                    entries = _of_tables(self.sharding.whole, entries)
                found[names[place]] = entries
        return found

    def put_moments(self, moments: dict[str, dict[str, Any]]) -> None:
        """Go on from what `moments` gave."""
        for one, names in self._named():
            document = one.state_dict()
            known = {
                place: dict(moments[name]) for place, name in enumerate(names) if name in moments
            }
            if _by_rows(one):
                for entries in known.values():  # its steps are integers: a tensor would round
                    entries.update(_of_tables(self.sharding.own, entries))
                    entries["step"] = int(entries["step"])
            document["state"] = known
            one.load_state_dict(document)

    def _named(self) -> Iterator[tuple[Optimizer, list[str]]]:
        names = iter(self.names)
        for one in self.each:
            count = sum(len(group["params"]) for group in one.param_groups)
            yield one, list(islice(names, count))


def _by_rows(optimizer: Optimizer) -> bool:
    return isinstance(getattr(optimizer, "optimizer", optimizer), SparseAdam)


def _of_tables(dealt: Callable[[Tensor], Tensor], entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries, `dealt` applied to those that have a row for each of the table's."""
    return {
        name: dealt(entry) if torch.is_tensor(entry) and entry.ndim else entry
        for name, entry in entries.items()
    }


def make_optimizers(
    encoder: nn.Module | None,
    own: nn.Module | None,
    recipe: Recipe,
    *,
    sparse: Collection[str] = (),
    sharding: Sharding | None = None,
) -> Optimizers:
    """AdamW and, for the own parameters named `sparse`, Adam by rows.

    Biases and norms do not decay, nor does what moves by rows. Encoder, n-grams and the system's
    own are groups apart, since gradients are clipped by group.
    """
    settings = recipe.optimizer
    own_rate = settings.own_learning_rate or settings.learning_rate
    rates = {
        "encoder": settings.learning_rate,
        "ngrams": recipe.ngrams.learning_rate,
        "own": own_rate,
        "rows": settings.rows_learning_rate or own_rate,
    }
    ngrams = ngrams_of(encoder) if encoder is not None else None
    tables = {id(parameter) for parameter in ngrams.parameters()} if ngrams is not None else set()
    groups: dict[tuple[str, bool], list[tuple[str, nn.Parameter]]] = {}
    for label, module in (("encoder", encoder), ("own", own)):
        for name, parameter in module.named_parameters() if module is not None else ():
            if parameter.requires_grad:
                part = "ngrams" if id(parameter) in tables else label
                part = "rows" if part == "own" and name in sparse else part
                group = groups.setdefault((part, parameter.ndim > 1), [])
                group.append((f"{label}/{name}", parameter))
    dense = {key: group for key, group in groups.items() if key[0] != "rows"}
    by_rows = {key: group for key, group in groups.items() if key[0] == "rows"}
    each: list[Optimizer] = []
    if dense:
        each.append(AdamW(_described(dense, rates, settings.weight_decay), fused=True))
    if by_rows:
        each.append(SparseAdam(_described(by_rows, rates)))
    named = [name for kept in (dense, by_rows) for group in kept.values() for name, _ in group]
    return Optimizers(each=each, names=named, sharding=sharding or Sharding())


def _clip(
    parameters: list[Tensor], *, most: float, accelerator: Accelerator, sharding: Sharding
) -> None:
    """Of sparse gradients every process has its own rows' part."""
    sparse = [one for one in parameters if one.grad is not None and one.grad.is_sparse]
    if not sparse:
        accelerator.clip_grad_norm_(parameters, most)
        return
    for one in sparse:
        one.grad = one.grad.coalesce()
    squares = torch.stack([one.grad.values().square().sum() for one in sparse]).sum()
    norm = sharding.total(squares).sqrt()
    for one in sparse:
        one.grad = one.grad * (most / (norm + 1e-6)).clamp(max=1.0)


def _described(
    groups: Mapping[tuple[str, bool], Sequence[tuple[str, nn.Parameter]]],
    rates: Mapping[str, float],
    weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Groups as an optimizer takes them; those of Adam by rows know no decay."""
    return [
        {
            "params": [parameter for _, parameter in group],
            "base_learning_rate": rates[part],
            "lr": rates[part],
            **({} if weight_decay is None else {"weight_decay": weight_decay if decays else 0.0}),
        }
        for (part, decays), group in groups.items()
    ]
