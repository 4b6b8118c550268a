"""Tables whose rows are split over the processes of a run: each stores and trains its part.

Process l mod P holds row l as its local row l div P, which spreads consecutive rows and their work.
All processes look up the same rows, and each computes their whole gradient, so processes exchange
rows but no gradients. All processes must call a method that exchanges rows at the same time.

Shapes: L rows of the table, k of them local to this process, d dimensions, P processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, normalize, pad

TABLE = "weight"  # the name of the parameter that is split


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """The number of a run's processes, and which one this is; a single one holds all rows."""

    processes: int = 1
    process: int = 0

    def local_rows(self, table: Tensor) -> Tensor:
        """Return this process's rows [k, ...] of a table [L, ...]."""
        return table[self.process :: self.processes]

    def look_up(self, rows: Tensor, local: Tensor) -> Tensor:
        """Return the table's `rows` [...] as vectors [..., d]; `local` are the local rows [k, d].

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
        """Return the table [L, ...] from each process's local rows [k, ...]."""
        if self.processes == 1:
            return local
        rows = self.sum(torch.tensor(len(local), device=local.device))
        most = -(-int(rows) // self.processes)
        filled = pad(local, [0] * (2 * (local.ndim - 1)) + [0, most - len(local)]).contiguous()
        shares = [torch.empty_like(filled) for _ in range(self.processes)]
        torch.distributed.all_gather(shares, filled)
        return torch.stack(shares, dim=1).flatten(0, 1)[: int(rows)]

    def sum(self, number: Tensor) -> Tensor:
        """Return the sum of `number` over all processes."""
        if self.processes == 1:
            return number
        summed = number.clone()
        torch.distributed.all_reduce(summed)
        return summed


class ClassifierTable(nn.Module):  # type: ignore[misc]
    """A table W [L, d] whose rows are split over the processes; gradients are sparse.

    `state_dict` gathers all rows, so all processes must call it at the same time.
    `load_state_dict` keeps the process's rows.
    """

    def __init__(self, initial: Tensor, *, learned: bool, sharding: Sharding) -> None:
        super().__init__()
        self.sharding = sharding
        rows = sharding.local_rows(initial).clone()
        self.weight = nn.Parameter(rows, requires_grad=learned)  # [this process's part of L, d]
        self.register_state_dict_post_hook(_gather_rows)
        self.register_load_state_dict_pre_hook(_keep_local_rows)

    def rows(self, columns: Tensor) -> Tensor:
        """Return the rows of the labels `columns`, [..., d], without normalizing them."""
        return self.sharding.look_up(columns, self.weight)

    def forward(self, columns: Tensor) -> Tensor:
        """Return w_l of the labels `columns` as unit vectors [..., d]."""
        return normalize(self.rows(columns), dim=-1)


def _gather_rows(module: ClassifierTable, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    state[f"{prefix}{TABLE}"] = module.sharding.gather(state[f"{prefix}{TABLE}"].detach())


def _keep_local_rows(
    module: ClassifierTable, state: dict[str, Tensor], prefix: str, *_: Any
) -> None:
    state[f"{prefix}{TABLE}"] = module.sharding.local_rows(state[f"{prefix}{TABLE}"])
