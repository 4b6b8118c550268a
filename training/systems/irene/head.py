"""IRENE's head: classifiers W, combiner C, and the labels that are associated with each label.

Shapes: P labels of the pool, L labels, m associated labels, d dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from training.models.classifier_table import ClassifierTable
from training.models.sharding import Sharding
from training.systems.irene.combiner import Combiner

_CHUNK = 8_192  # labels combined at once


class IreneHead(ClassifierTable):
    """W, C and the associated labels."""

    def __init__(
        self,
        initial: Tensor,
        combiner: Combiner,
        associated: Tensor,
        *,
        learned: bool,
        sharding: Sharding,
    ) -> None:
        super().__init__(initial, learned=learned, sharding=sharding)
        self.combiner = combiner
        self.register_buffer("associated", associated)  # [L, m], -1 where there is none

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
