"""Owns all that a run trains: the encoder, the system's head, and their optimizers.

The texts are numbered as in the embedder's table: all training instances, then all labels, then the
metadata items if the system reads them.

Shapes: N training instances, L labels, M items, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from training.loop.optimizers import Moments, Optimizers
from training.models.lora import remove_adapters
from training.models.tokens import tokenize
from training.models.torch_encoder import TorchEncoder, load_encoder
from training.models.wise_ft import Mixture
from training.systems.guidance import Guidance
from training.systems.system import EncodedBatch, System


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedState:
    """Weights and optimizers' moments by name, on the CPU."""

    weights: dict[str, Tensor]
    moments: Moments


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
    guidance: Guidance | None
    whole: Mapping[str, nn.Module]  # head and projection; each process has their whole gradient
    optimizers: Optimizers
    accelerator: Accelerator
    instances: int  # N
    items: int = 0  # M, 0 if the system reads none

    def texts_of(self, batch: Batch) -> Rows:
        """Return the texts that a batch encodes: its instances, its pool, its instances' items."""
        if not self.system.encodes_labels:
            return batch.rows
        items = len(self.embedder.table) - self.items + self.system.items_of(batch.rows)
        return np.concatenate([batch.rows, self.instances + batch.pool, items])

    def loss_of(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """Return the batch's loss as a function of the vectors of its texts."""

        def loss(vectors: Tensor) -> Tensor:
            encoded = EncodedBatch.from_vectors(batch, vectors)
            if self.guidance is None:
                return self.system.loss(encoded)
            return self.guidance.loss(self.system, encoded)

        return loss

    def backward(self, batch: Batch, *, accumulation: int, gradient_cache: bool) -> Tensor:
        """Add a batch's gradient to those of a step's `accumulation` batches; return its loss."""
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

    def step(self, *, loss: Tensor, learning_rate_factor: float, clip: float) -> bool:
        """Update all parameters by their gradients, then clear the gradients.

        If the `loss` or a gradient is not finite in any process, all processes return False and
        update nothing.
        """
        for group in self.optimizers.param_groups:
            group["lr"] = learning_rate_factor * group["base_learning_rate"]
        for module in self.whole.values():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.grad /= self.accelerator.num_processes
        norms = self.optimizers.clip(largest_norm=clip, accelerator=self.accelerator)
        finite = loss.isfinite().all()
        if self.accelerator.scaler is None:  # fp16's scaler handles infinite gradients itself
            finite = finite & norms.isfinite().all()
        if not self.accelerator.gather(finite.reshape(1).int()).all():
            self.optimizers.zero_grad()
            return False
        self.optimizers.step(accelerator=self.accelerator)
        self.optimizers.zero_grad()
        return True

    def vectors(self, progress: Callable[[int, int], None]) -> tuple[Floats, Floats]:
        """Return the keys of all instances [N, d], and the encoder's vectors of labels [L, d]."""
        instances, labels, items = self._encoded(progress)
        return self.system.instance_keys(instances, items), labels

    def _encoded(self, progress: Callable[[int, int], None]) -> tuple[Floats, Floats, Floats]:
        """Return the encoder's vectors of all instances [N, d], labels [L, d], items [M, d]."""
        texts = len(self.embedder.table)
        vectors = self.embedder.vectors(
            np.arange(texts), progress=lambda done: progress(done, texts)
        )
        items = texts - self.items
        return vectors[: self.instances], vectors[self.instances : items], vectors[items:]

    def query_vectors(self, queries: Sequence[str], *, max_tokens: int) -> Floats:
        """Return the encoder's vectors of other queries, [n, d]; all processes must call it."""
        table = tokenize(
            self.encoder.tokenizer,
            queries,
            prompt=self.encoder.prompts[Role.QUERY],
            max_tokens=max_tokens,
        )
        return self.embedder.over(table).vectors(np.arange(len(table)))

    def neighbours(self, progress: Callable[[int, int], None]) -> tuple[Floats, Floats]:
        """Predict the instances' items again; return the vectors for mining and clustering.

        These are [N, d'] of instances and [L, d'] of labels.
        """
        instances, labels, items = self._encoded(progress)
        self.system.look_up(instances, items)
        instances = self.system.instance_keys(instances, items)
        return self.system.neighbour_vectors(instances), self.system.neighbour_vectors(labels)

    def memory_keys(self, progress: Callable[[int, int], None]) -> tuple[Floats, Floats]:
        """Return the memory's current keys: X of instances [N, d] and Z of labels [L, d]."""
        instances, labels = self.vectors(progress)
        return instances, self.system.label_keys(labels)

    def sampled_keys(
        self, texts: Rows, progress: Callable[[int, int], None]
    ) -> tuple[Floats, Floats]:
        """Return `memory_keys` [N, d] and [L, d] for only some `texts`; for systems without a head.

        The rows of all other texts are zero, so a query finds them after all similar texts.
        """
        encoded = self.embedder.vectors(texts, progress=lambda done: progress(done, len(texts)))
        vectors = np.zeros((len(self.embedder.table), encoded.shape[1]), np.float32)
        vectors[texts] = encoded
        return vectors[: self.instances], vectors[self.instances :]

    def head_weights(self) -> dict[str, Tensor] | None:
        """Return the head's parameters by name, with all rows of tables; None without a head."""
        return None if self.system.head is None else self.system.head.state_dict()

    def write_checkpoint(
        self,
        folder: Path,
        *,
        mixing: float,
        head_weights: dict[str, Tensor] | None,
        label_keys: Floats | None,
    ) -> None:
        """Write the model, its weights mixed by `mixing`, in place of `folder`."""
        with self.mixture.mixed(mixing):
            write_model(self.encoder, folder, head_weights=head_weights, label_keys=label_keys)

    def load_checkpoint(self, folder: Path) -> None:
        """Load the weights of a checkpoint that `write_checkpoint` wrote.

        LoRA's adapters are merged into these weights, so the model's adapters are removed.
        """
        best = load_encoder(str(folder), stored_precision=True)
        remove_adapters(self.encoder.model)
        self.encoder.model.load_state_dict(best.model.state_dict())
        if self.system.head is not None:
            self.system.head.load_state_dict(load_file(folder / HEAD_WEIGHTS))

    def state(self) -> TrainedState:
        """Return copies of the weights that are not frozen, and of the optimizers' moments."""
        return TrainedState(
            weights={
                f"{name}/{key}": value.detach().cpu().clone().contiguous()
                for name, module in self._modules().items()
                for key, value in _learned(module).items()
            },
            moments=self.optimizers.moments(),
        )

    def load_state(self, state: TrainedState) -> None:
        """Load what `state` returned."""
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
        """Return the trained modules by their names in a saved state."""
        return {"encoder": self.accelerator.unwrap_model(self.embedder.module), **self.whole}


def _learned(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's state without frozen parameters, such as those that LoRA adapts."""
    frozen = _frozen(module)
    return {name: value for name, value in module.state_dict().items() if name not in frozen}


def _frozen(module: nn.Module) -> dict[str, Tensor]:
    """Return the frozen parameters, which a resumed run loads with its encoder."""
    return {name: value for name, value in module.named_parameters() if not value.requires_grad}
