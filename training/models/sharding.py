"""A table whose rows are split over the processes of a run: each stores and trains its part.

Process l mod P holds row l as its local row l div P, which spreads consecutive rows and their work.
All processes look up the same rows and each computes the whole gradient of what it looked up, so
only rows are exchanged, never gradients. Methods that exchange rows must be called by all processes
at the same time.

Shapes: L rows of the table, k of them local to this process, d dimensions, P processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn.functional import embedding, pad


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """This process's number among `processes`; a single process holds all rows."""

    processes: int = 1
    process: int = 0

    def local_rows(self, table: Tensor) -> Tensor:
        """This process's rows [k, ...] of a table [L, ...]."""
        return table[self.process :: self.processes]

    def look_up(self, rows: Tensor, local: Tensor) -> Tensor:
        """The table's `rows` [...] as [..., d], from each process's local rows [k, d].

        All processes must look up the same rows. The gradient is sparse.
        """
        if self.processes == 1:
            return embedding(rows, local, sparse=True)
        here = rows % self.processes == self.process
        vectors = local.new_zeros((*rows.shape, local.shape[1]))
        places = torch.div(rows[here], self.processes, rounding_mode="floor")
        vectors = vectors.masked_scatter(here[..., None], embedding(places, local, sparse=True))
        sums = vectors.detach().clone()
        torch.distributed.all_reduce(sums)
        return vectors + (sums - vectors.detach())

    def gather(self, local: Tensor) -> Tensor:
        """The table [L, ...] from each process's local rows [k, ...]."""
        if self.processes == 1:
            return local
        rows = self.sum(torch.tensor(len(local), device=local.device))
        most = -(-int(rows) // self.processes)
        filled = pad(local, [0] * (2 * (local.ndim - 1)) + [0, most - len(local)]).contiguous()
        shares = [torch.empty_like(filled) for _ in range(self.processes)]
        torch.distributed.all_gather(shares, filled)
        return torch.stack(shares, dim=1).flatten(0, 1)[: int(rows)]

    def sum(self, number: Tensor) -> Tensor:
        """The sum of all processes' numbers."""
        if self.processes == 1:
            return number
        summed = number.clone()
        torch.distributed.all_reduce(summed)
        return summed


def sharding_of(accelerator: Accelerator) -> Sharding:
    """One part for each process of a run."""
    return Sharding(processes=accelerator.num_processes, process=accelerator.process_index)
