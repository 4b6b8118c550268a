"""A table's rows dealt out to processes, so that each holds, and moves, its share of them.

Row l lies with process l mod P, as its row l div P: neighbours in the file part, and so does the
work. Every process looks up the same rows and has the whole gradient of what it looked up, so that
only the rows themselves travel, never their gradients.

Shapes: L rows of the table, k of them this process's own, d dimensions, P processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn.functional import embedding, pad


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """Which of `processes` this one is; of a single one everything is its own."""

    processes: int = 1
    process: int = 0

    def own(self, table: Tensor) -> Tensor:
        """This process's rows [k, ...] of a table [L, ...]."""
        return table[self.process :: self.processes]

    def looked_up(self, rows: Tensor, own: Tensor) -> Tensor:
        """The table's `rows` [...] as [..., d], from every process's own rows [k, d].

        All processes must ask at once, for the same rows. The gradient is sparse.
        """
        if self.processes == 1:
            return embedding(rows, own, sparse=True)
        here = rows % self.processes == self.process
        found = own.new_zeros((*rows.shape, own.shape[1]))
        places = torch.div(rows[here], self.processes, rounding_mode="floor")
        found = found.masked_scatter(here[..., None], embedding(places, own, sparse=True))
        everyones = found.detach().clone()
        torch.distributed.all_reduce(everyones)
        return found + (everyones - found.detach())

    def whole(self, own: Tensor) -> Tensor:
        """The table [L, ...] from every process's own rows; all must ask at once."""
        if self.processes == 1:
            return own
        rows = self.total(torch.tensor(len(own), device=own.device))
        most = -(-int(rows) // self.processes)
        filled = pad(own, [0] * (2 * (own.ndim - 1)) + [0, most - len(own)]).contiguous()
        shares = [torch.empty_like(filled) for _ in range(self.processes)]
        torch.distributed.all_gather(shares, filled)
        return torch.stack(shares, dim=1).flatten(0, 1)[: int(rows)]

    def total(self, number: Tensor) -> Tensor:
        """The sum of every process's number; all must ask at once."""
        if self.processes == 1:
            return number
        summed = number.clone()
        torch.distributed.all_reduce(summed)
        return summed


def sharding_of(accelerator: Accelerator) -> Sharding:
    """One share for each process of a run."""
    return Sharding(processes=accelerator.num_processes, process=accelerator.process_index)
