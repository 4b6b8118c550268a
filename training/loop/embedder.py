"""Texts of a batch -> unit vectors, in buckets of similar length, shared among the processes.

Every process encodes its part of the texts and sees all vectors; gradients flow through its own
part alone, and the sum over processes is the gradient of the whole batch. A loss therefore does not
change with the number of processes.

Shapes: n texts, k of them this process's own, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from service.core.types import Floats, Rows
from training.models.pooled import PooledEncoder
from training.models.tokens import TokenTable, buckets, by_length, padded

Inputs = list[dict[str, Tensor]]


class BucketedEncoder(nn.Module):  # type: ignore[misc]
    """One call for all buckets of a batch, as data-parallel training wants it."""

    def __init__(self, encoder: PooledEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, inputs: Inputs) -> Tensor:
        """Unit vectors [k, d] in float32, the buckets one after the other."""
        return torch.cat(
            [self.encoder(bucket["input_ids"], bucket["attention_mask"]) for bucket in inputs]
        ).float()


class Embedder:
    """The trained encoder over a fixed table of tokenized texts."""

    def __init__(
        self,
        module: nn.Module,
        table: TokenTable,
        *,
        accelerator: Accelerator,
        padding: int,
        budget: int,
    ) -> None:
        self.module, self.table = module, table
        self._accelerator, self._padding, self._budget = accelerator, padding, budget

    @property
    def learns(self) -> bool:
        """Whether the encoder has anything to train."""
        return any(parameter.requires_grad for parameter in self.module.parameters())

    def embed(self, texts: Rows) -> Tensor:
        """Vectors [n, d] with a graph behind this process's own."""
        order, own = self._share(texts)
        with self._accelerator.autocast():
            vectors = self.module(list(self._inputs(own)))  # [k, d]
        return self._whole(vectors, order)

    def backward_cached(self, texts: Rows, loss_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Back-propagate `loss_of(vectors)` bucket by bucket (Gao et al., 2021); return the loss.

        Memory is bounded by one bucket: vectors are first made without a graph, then each bucket
        is encoded again, with the same dropout, and takes its part of the gradient.
        """
        order, own = self._share(texts)
        inputs, states, vectors = list(self._inputs(own)), [], []
        with torch.no_grad(), self._accelerator.autocast():
            for bucket in inputs:
                states.append(_random_state())
                vectors.append(self.module([bucket]))
        leaf = torch.cat(vectors).requires_grad_()  # [k, d]
        loss = loss_of(self._whole(leaf, order))
        self._accelerator.backward(loss)
        after = _random_state()
        start = 0
        for place, (bucket, state) in enumerate(zip(inputs, states, strict=True)):
            _restore(state)
            stop = start + len(bucket["input_ids"])
            with self._unsynced(last=place == len(inputs) - 1):
                with self._accelerator.autocast():
                    again = self.module([bucket])
                (again * leaf.grad[start:stop]).sum().backward()
            start = stop
        _restore(after)
        return loss.detach()

    def vectors(
        self, texts: Rows, *, progress: Callable[[int], None] = lambda done: None
    ) -> Floats:
        """Vectors [n, d] of many texts, without a graph and without dropout."""
        order, own = self._share(texts)
        training = self.module.training
        self.module.eval()
        pieces, done = [], 0
        with torch.no_grad(), self._accelerator.autocast():
            for bucket in self._inputs(own):
                pieces.append(self.module([bucket]))
                done += len(pieces[-1])
                progress(done * self._accelerator.num_processes)
        self.module.train(training)
        found: Floats = self._whole(torch.cat(pieces), order).cpu().numpy()
        return found

    def tokens(self, texts: Rows) -> int:
        """Tokens of the texts, padding not counted."""
        return int(self.table.lengths[texts].sum())

    def _share(self, texts: Rows) -> tuple[Rows, Rows]:
        """Places in `texts` by length, and this process's texts: each a share of all lengths."""
        order = by_length(self.table, texts)
        own = order[self._accelerator.process_index :: self._accelerator.num_processes]
        if not len(own):  # fewer texts than processes: all must take part in what follows
            own = order[:1]
        return order, texts[own]

    def _inputs(self, texts: Rows) -> Iterator[dict[str, Tensor]]:
        for cut in buckets(self.table.lengths[texts], budget=self._budget):
            yield self._bucket(texts[cut])

    def _bucket(self, texts: Rows) -> dict[str, Tensor]:
        return padded(self.table, texts, padding=self._padding, device=self._accelerator.device)

    def _whole(self, own: Tensor, order: Rows) -> Tensor:
        """All vectors [n, d] in the order of the texts, from this process's [k, d]."""
        world, rank = self._accelerator.num_processes, self._accelerator.process_index
        if world == 1:
            by_place = own
        else:
            most = -(-len(order) // world)
            filled = nn.functional.pad(own.detach(), (0, 0, 0, most - len(own)))
            gathered = self._accelerator.gather(filled)  # [world * most, d]
            shares = list(gathered.reshape(world, most, -1).unbind(0))
            shares[rank] = torch.cat([own, shares[rank][len(own) :]])
            by_place = torch.stack(shares, dim=1).reshape(world * most, -1)[: len(order)]
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return by_place[torch.from_numpy(places).to(own.device)]

    def _unsynced(self, *, last: bool) -> Any:
        """Gradients are summed over processes with the last bucket only."""
        if last:
            return torch.enable_grad()
        return self._accelerator.no_sync(self.module)


def _random_state() -> tuple[Tensor, list[Tensor]]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), cuda


def _restore(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
