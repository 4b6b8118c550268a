"""The one owner of what a run trains: the encoder, the system's head, and their optimizers.

The texts are numbered as in the embedder's table: all training instances, then all labels, then the
metadata items where the system reads them.

Shapes: N training instances, L labels, M items, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor, nn

from service.core.types import Floats, Role, Rows
from training.batches.batch import Batch
from training.checkpoints.model_folder import HEAD_WEIGHTS, write_model
from training.loop.embedder import Embedder
from training.loop.optimizers import HEAD, TRAINING_ONLY, Optimizers
from training.models.lora import remove_adapters
from training.models.tokens import tokenize
from training.models.torch_encoder import TorchEncoder, load_encoder
from training.models.wise_ft import Mixture
from training.systems.system import EncodedBatch, System


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedState:
    """Weights and optimizers' moments by name, on the processor."""

    weights: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]


@dataclass(kw_only=True, eq=False)
class TrainedModel:
    """Encoder, head and optimizers; all other objects of a run refer to this one.

    Tables of the head may be split over processes: all processes must call `state`, `head_weights`
    and `memory_keys` at the same time.
    """

    encoder: TorchEncoder
    embedder: Embedder
    system: System
    mixture: Mixture
    optimizers: Optimizers
    accelerator: Accelerator
    instances: int  # N
    items: int = 0  # M, 0 where the system reads none

    def texts_of(self, batch: Batch) -> Rows:
        """The texts that a batch encodes: its instances, its pool, its instances' items."""
        if not self.system.encodes_labels:
            return batch.rows
        items = len(self.embedder.table) - self.items + self.system.items_of(batch.rows)
        return np.concatenate([batch.rows, self.instances + batch.pool, items])

    def loss_of(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """The batch's loss as a function of the vectors of its texts."""
        return lambda vectors: self.system.loss(EncodedBatch.from_vectors(batch, vectors))

    def backward(self, batch: Batch, *, accumulation: int, gradient_cache: bool) -> Tensor:
        """Add the gradient of one of `accumulation` batches; returns the batch's loss."""
        texts, loss_of = self.texts_of(batch), self.loss_of(batch)
        # Gradients are averaged over processes, but each has only its texts' part of the sum.
        scale = self.accelerator.num_processes / accumulation
        if gradient_cache and self.embedder.learns:
            scaled = self.embedder.backward_cached(texts, lambda vectors: scale * loss_of(vectors))
            return scaled / scale
        if self.embedder.learns:
            vectors = self.embedder.embed(texts)
        else:
            vectors = torch.from_numpy(self.embedder.vectors(texts)).to(self.accelerator.device)
        loss = loss_of(vectors)
        self.accelerator.backward(scale * loss)
        return loss.detach()

    def step(self, *, learning_rate_factor: float, clip: float) -> None:
        """Move all parameters by their gradients, then clear these."""
        for group in self.optimizers.param_groups:
            group["lr"] = learning_rate_factor * group["base_learning_rate"]
        for parameter in self._whole_parameters():
            if parameter.grad is not None:
                parameter.grad /= self.accelerator.num_processes
        self.optimizers.clip(largest_norm=clip, accelerator=self.accelerator)
        self.optimizers.step()
        self.optimizers.zero_grad()

    def vectors(self, progress: Callable[[int, int], None]) -> tuple[Floats, Floats]:
        """The keys of all instances [N, d], and the encoder's vectors of all labels [L, d]."""
        instances, labels, items = self._encoded(progress)
        return self.system.instance_keys(instances, items), labels

    def _encoded(self, progress: Callable[[int, int], None]) -> tuple[Floats, Floats, Floats]:
        """The encoder's vectors of all instances [N, d], labels [L, d] and items [M, d]."""
        texts = len(self.embedder.table)
        vectors = self.embedder.vectors(
            np.arange(texts), progress=lambda done: progress(done, texts)
        )
        items = texts - self.items
        return vectors[: self.instances], vectors[self.instances : items], vectors[items:]

    def query_vectors(self, queries: Sequence[str], *, max_tokens: int) -> Floats:
        """The encoder's vectors of further queries, [n, d]; all processes must call it."""
        table = tokenize(
            self.encoder.tokenizer,
            queries,
            prompt=self.encoder.prompts[Role.QUERY],
            max_tokens=max_tokens,
        )
        return self.embedder.over(table).vectors(np.arange(len(table)))

    def neighbours(self, progress: Callable[[int, int], None]) -> tuple[Floats, Floats]:
        """What hard negatives and clusters are computed with: [N, d'] and [L, d'].

        The items of the instances are predicted anew.
        """
        instances, labels, items = self._encoded(progress)
        self.system.look_up(instances, items)
        instances = self.system.instance_keys(instances, items)
        return self.system.neighbour_vectors(instances), self.system.neighbour_vectors(labels)

    def memory_keys(self, progress: Callable[[int, int], None]) -> tuple[Floats, Floats]:
        """The memory's keys at present: X of the instances [N, d], Z of the labels [L, d]."""
        instances, labels = self.vectors(progress)
        return instances, self.system.label_keys(labels)

    def sampled_keys(
        self, texts: Rows, progress: Callable[[int, int], None]
    ) -> tuple[Floats, Floats]:
        """`memory_keys` [N, d] and [L, d] of a system without a head, for some `texts` alone.

        The rows of all others are zero, so that a query meets them after those with a similarity.
        """
        encoded = self.embedder.vectors(texts, progress=lambda done: progress(done, len(texts)))
        vectors = np.zeros((len(self.embedder.table), encoded.shape[1]), np.float32)
        vectors[texts] = encoded
        return vectors[: self.instances], vectors[self.instances :]

    @contextmanager
    def mixed(self, mixing: float) -> Iterator[None]:
        """Within the block the weights lie between the pretrained (0) and the trained ones (1)."""
        with self.mixture.mixed(mixing):
            yield

    def head_weights(self) -> dict[str, Tensor] | None:
        """The head's parameters by name, all rows of split tables; None without a head."""
        return None if self.system.head is None else self.system.head.state_dict()

    def write_checkpoint(
        self,
        folder: Path,
        *,
        mixing: float,
        head_weights: dict[str, Tensor] | None,
        label_keys: Floats | None,
    ) -> None:
        """Replace `folder` by the model with weights mixed by `mixing`."""
        with self.mixed(mixing):
            write_model(self.encoder, folder, head_weights=head_weights, label_keys=label_keys)

    def load_checkpoint(self, folder: Path) -> None:
        """Take over the weights of a checkpoint that `write_checkpoint` wrote.

        They hold what adapters of LoRA have learned, so the model goes on without these.
        """
        best = load_encoder(str(folder))
        remove_adapters(self.encoder.model)
        self.encoder.model.load_state_dict(best.model.state_dict())
        if self.system.head is not None:
            self.system.head.load_state_dict(load_file(folder / HEAD_WEIGHTS))

    def state(self) -> TrainedState:
        """A copy of the weights, but those that are frozen, and of the moments."""
        return TrainedState(
            weights={
                f"{name}/{key}": value.detach().cpu().clone().contiguous()
                for name, module in self._modules().items()
                for key, value in _learned(module).items()
            },
            moments={
                name: {
                    key: torch.as_tensor(value).detach().cpu().contiguous()
                    for key, value in entries.items()
                }
                for name, entries in self.optimizers.moments().items()
            },
        )

    def load_state(self, state: TrainedState) -> None:
        """Go on from what `state` returned."""
        for name, module in self._modules().items():
            prefix = f"{name}/"
            saved = {
                key.removeprefix(prefix): value
                for key, value in state.weights.items()
                if key.startswith(prefix)
            }
            module.load_state_dict({**_frozen(module), **saved})
        self.optimizers.load_moments(state.moments)

    def _modules(self) -> dict[str, nn.Module]:
        """The trained modules by their names in a state."""
        modules = {"encoder": self.accelerator.unwrap_model(self.embedder.module)}
        others = {HEAD: self.system.head, TRAINING_ONLY: self.system.training_only}
        return modules | {name: module for name, module in others.items() if module is not None}

    def _whole_parameters(self) -> Iterator[nn.Parameter]:
        """Those of which every process has the whole gradient: all but the encoder's."""
        for module in (self.system.head, self.system.training_only):
            if module is not None:
                yield from module.parameters()


def _learned(module: nn.Module) -> dict[str, Tensor]:
    """The module's state without the parameters that are frozen, such as those under LoRA."""
    frozen = _frozen(module)
    return {name: value for name, value in module.state_dict().items() if name not in frozen}


def _frozen(module: nn.Module) -> dict[str, Tensor]:
    """The parameters that do not learn: a resumed run loads them with its encoder."""
    return {name: value for name, value in module.named_parameters() if not value.requires_grad}
