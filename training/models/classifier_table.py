"""A table of classifiers, a row for each label; the processes of a run may share its rows.

Shapes: L labels, d dimensions.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import normalize

from training.models.sharding import Sharding

TABLE = "weight"  # the name of the parameter that is split


class ClassifierTable(nn.Module):  # type: ignore[misc]
    """W [L, d]: each process holds a part of its rows, and gradients are sparse.

    `state_dict` has all rows, so every process must call it at the same time; `load_state_dict`
    keeps the process's rows.
    """

    def __init__(self, initial: Tensor, *, learned: bool, sharding: Sharding) -> None:
        super().__init__()
        self.sharding = sharding
        rows = sharding.local_rows(initial).clone()
        self.weight = nn.Parameter(rows, requires_grad=learned)  # [this process's part of L, d]
        self.register_state_dict_post_hook(_gather_rows)
        self.register_load_state_dict_pre_hook(_keep_local_rows)

    def rows(self, columns: Tensor) -> Tensor:
        """The rows of the labels `columns`, [..., d], as long as they are."""
        return self.sharding.look_up(columns, self.weight)

    def forward(self, columns: Tensor) -> Tensor:
        """w_l of the labels `columns`, unit vectors [..., d]."""
        return normalize(self.rows(columns), dim=-1)


def _gather_rows(module: ClassifierTable, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    state[f"{prefix}{TABLE}"] = module.sharding.gather(state[f"{prefix}{TABLE}"].detach())


def _keep_local_rows(
    module: ClassifierTable, state: dict[str, Tensor], prefix: str, *_: Any
) -> None:
    state[f"{prefix}{TABLE}"] = module.sharding.local_rows(state[f"{prefix}{TABLE}"])
