"""Encodes a batch's texts to unit vectors, in buckets of similar length, split over the processes.

Each process encodes a part of the texts and receives all vectors. Gradients flow only through its
own part; their sum over processes is the gradient of the whole batch. So the loss does not depend
on the number of processes.

Shapes: n texts, k of them encoded by this process, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from copy import copy
from typing import Self

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from service.core.types import Floats, Rows
from training.models.pooled import PooledEncoder
from training.models.tokens import TokenTable, buckets, by_length, padded

Inputs = list[dict[str, Tensor]]


class BucketedEncoder(nn.Module):  # type: ignore[misc]
    """Encodes all buckets of a batch in one call, as data-parallel training requires."""

    def __init__(self, encoder: PooledEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, inputs: Inputs) -> Tensor:
        """Return unit vectors [k, d] in float32, bucket after bucket."""
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
        bucket_tokens: int,
    ) -> None:
        self.module, self.table = module, table
        self._accelerator, self._padding = accelerator, padding
        self._bucket_tokens = bucket_tokens

    def over(self, table: TokenTable) -> Self:
        """Return the same encoder over other texts."""
        other = copy(self)
        other.table = table
        return other

    @property
    def learns(self) -> bool:
        """Whether the encoder has parameters to train."""
        return any(parameter.requires_grad for parameter in self.module.parameters())

    def embed(self, texts: Rows) -> Tensor:
        """Return vectors [n, d]; gradients flow only through those that this process encoded."""
        order, local = self._split(texts)
        with self._accelerator.autocast():
            vectors = self.module(list(self._inputs(local)))  # [k, d]
        return self._gather(vectors, order)

    def backward_cached(self, texts: Rows, loss_of: Callable[[Tensor], Tensor]) -> Tensor:
        """Back-propagate `loss_of(vectors)` by gradient cache (Gao et al., 2021); return the loss.

        Only one bucket's activations are kept at a time. All texts are encoded without a graph, and
        the loss gives the gradients of the vectors. Then each bucket is encoded again, with the
        same dropout, to propagate its part of these gradients.
        """
        order, local = self._split(texts)
        inputs, states, vectors = list(self._inputs(local)), [], []
        with torch.no_grad(), self._accelerator.autocast():
            for bucket in inputs:
                states.append(_random_state())
                vectors.append(self.module([bucket]))
        leaf = torch.cat(vectors).requires_grad_()  # [k, d]
        loss = loss_of(self._gather(leaf, order))
        self._accelerator.backward(loss)
        after = _random_state()
        start = 0
        for number, (bucket, state) in enumerate(zip(inputs, states, strict=True)):
            _restore(state)
            stop = start + len(bucket["input_ids"])
            is_last = number == len(inputs) - 1  # only then are gradients summed over processes
            with nullcontext() if is_last else self._accelerator.no_sync(self.module):
                with self._accelerator.autocast():
                    again = self.module([bucket])
                (again * leaf.grad[start:stop]).sum().backward()
            start = stop
        _restore(after)
        return loss.detach()

    def vectors(
        self, texts: Rows, *, progress: Callable[[int], None] = lambda done: None
    ) -> Floats:
        """Return vectors [n, d] of many texts, without gradients and without dropout."""
        order, local = self._split(texts)
        training = self.module.training
        self.module.eval()
        pieces, done = [], 0
        with torch.no_grad(), self._accelerator.autocast():
            for bucket in self._inputs(local):
                pieces.append(self.module([bucket]))
                done += len(pieces[-1])
                progress(done * self._accelerator.num_processes)
        self.module.train(training)
        vectors: Floats = self._gather(torch.cat(pieces), order).cpu().numpy()
        return vectors

    def _split(self, texts: Rows) -> tuple[Rows, Rows]:
        """Return the order of `texts` by length, and this process's share, with all lengths."""
        order = by_length(self.table, texts)
        local = order[self._accelerator.process_index :: self._accelerator.num_processes]
        if not len(local):  # fewer texts than processes, but each must encode at least one
            local = order[:1]
        return order, texts[local]

    def _inputs(self, texts: Rows) -> Iterator[dict[str, Tensor]]:
        for cut in buckets(self.table.lengths[texts], budget=self._bucket_tokens):
            yield self._bucket(texts[cut])

    def _bucket(self, texts: Rows) -> dict[str, Tensor]:
        return padded(self.table, texts, padding=self._padding, device=self._accelerator.device)

    def _gather(self, local: Tensor, order: Rows) -> Tensor:
        """Gather all vectors [n, d], in the order of the texts, from each process's [k, d]."""
        world, rank = self._accelerator.num_processes, self._accelerator.process_index
        if world == 1:
            by_length_order = local
        else:
            share = -(-len(order) // world)
            filled = nn.functional.pad(local.detach(), (0, 0, 0, share - len(local)))
            gathered = self._accelerator.gather(filled)  # [world * share, d]
            shares = list(gathered.reshape(world, share, -1).unbind(0))
            shares[rank] = torch.cat([local, shares[rank][len(local) :]])
            by_length_order = torch.stack(shares, dim=1).reshape(world * share, -1)[: len(order)]
        places = np.empty(len(order), np.int64)
        places[order] = np.arange(len(order))
        return by_length_order[torch.from_numpy(places).to(local.device)]


def _random_state() -> tuple[Tensor, list[Tensor]]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return torch.get_rng_state(), cuda


def _restore(state: tuple[Tensor, list[Tensor]]) -> None:
    torch.set_rng_state(state[0])
    if state[1]:
        torch.cuda.set_rng_state_all(state[1])
