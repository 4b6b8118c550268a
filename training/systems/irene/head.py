"""IRENE's head: classifiers W, combiner C, and the labels that are associated with each label.

Shapes: P labels of the pool, L labels, m associated labels, d dimensions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from training.models.sharding import Sharding
from training.systems.irene.combiner import Combiner

_CHUNK = 8_192  # labels combined at once


class IreneHead(nn.Module):  # type: ignore[misc]
    """W, C and the associated labels.

    Each process holds a part of W's rows. `state_dict` has all rows, so every process must call it
    at the same time; `load_state_dict` keeps the process's rows.
    """

    def __init__(
        self,
        initial: Tensor,
        combiner: Combiner,
        associated: Tensor,
        *,
        learned: bool,
        sharding: Sharding,
    ) -> None:
        super().__init__()
        self.sharding = sharding
        rows = sharding.local_rows(initial).clone()
        self.weight = nn.Parameter(rows, requires_grad=learned)  # [this process's part of L, d]
        self.combiner = combiner
        self.register_buffer("associated", associated)  # [L, m], -1 where there is none
        self.register_state_dict_post_hook(_gather_rows)
        self.register_load_state_dict_pre_hook(_keep_local_rows)

    def forward(self, columns: Tensor) -> Tensor:
        """w_l of the labels `columns`, unit vectors [..., d]; the gradient is sparse."""
        return normalize(self.sharding.look_up(columns, self.weight), dim=-1)

    def combine(self, columns: Tensor, texts: Tensor, *, frozen: bool = False) -> Tensor:
        """C(l) of the labels `columns` [P], whose text vectors are `texts` [P, d]; returns [P, d].

        `frozen` keeps C's gradient out of W.
        """
        neighbours = self.associated[columns]  # [P, m]
        classifiers = self(neighbours.clamp(min=0))  # [P, m, d]
        if frozen:
            classifiers = classifiers.detach()
        return self.combiner(texts, classifiers, neighbours >= 0)

    def combine_all(self, texts: Tensor) -> Tensor:
        """C(l) of all labels without a graph and without dropout, [L, d] on the processor."""
        columns = torch.arange(len(texts), device=texts.device)
        training = self.training
        self.eval()
        with torch.no_grad():
            pieces = [self.combine(chunk, texts[chunk]).cpu() for chunk in columns.split(_CHUNK)]
        self.train(training)
        return torch.cat(pieces)


def _gather_rows(module: IreneHead, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    state[f"{prefix}weight"] = module.sharding.gather(state[f"{prefix}weight"].detach())


def _keep_local_rows(module: IreneHead, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    state[f"{prefix}weight"] = module.sharding.local_rows(state[f"{prefix}weight"])
