"""Builds what a run trains from its recipe: encoder, texts as tokens, system, optimizers.

Shapes: N training instances, L labels, d dimensions.
"""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from rich.console import Console
from torch import Tensor, nn

from service.core.errors import InvalidConfig
from service.core.types import Role, Rows
from training.datasets.dataset import Dataset
from training.loop.embedder import BucketedEncoder, Embedder, Inputs
from training.loop.model import TrainedModel
from training.loop.optimizers import ENCODER, HEAD, TRAINING_ONLY, make_optimizers
from training.loop.training_data import TrainingData, items_to_read
from training.models.checkpoint_settings import require_room
from training.models.lora import add_adapters
from training.models.ngrams import SENTENCE_EMBEDDING, CharacterNgrams, ngrams_of, untrained_ngrams
from training.models.pooled import PooledEncoder
from training.models.precision import supported_precision
from training.models.sharding import Sharding
from training.models.tokens import TokenTable, concatenate, tokenize
from training.models.torch_encoder import TorchEncoder, load_encoder, set_pooling
from training.models.two_heads import TwoHeads, heads_of, untrained_heads
from training.models.vector_cache import VectorCache, cache_of
from training.models.wise_ft import Mixture
from training.progress import status
from training.ranks import leave_run
from training.recipes.recipe import Recipe
from training.systems.guidance import open_guidance
from training.systems.registry import build_system
from training.systems.system import ItemsOfTask, Task

_FROZEN_BUCKETS = 16  # times larger buckets, since no transformer's activations are kept
_DIRECTION_TEXTS = 4_096  # texts whose main directions initialize heads of fewer dimensions


def build_model(
    recipe: Recipe,
    dataset: Dataset,
    data: TrainingData,
    *,
    plain: Dataset,
    source: str,
    console: Console,
) -> TrainedModel:
    """Build the model of a run before its first step.

    `plain` is the data set before metadata was appended; a guiding oracle appends its own. Raises
    `InvalidConfig` if the recipe leaves nothing to train.
    """
    accelerator = make_accelerator(recipe)
    torch.manual_seed(recipe.seed)
    encoder = trainable_encoder(recipe)
    if recipe.heads.encoder:
        _add_heads(encoder, dataset, recipe)
    pretrained = nn.ModuleList(
        module for module in encoder.model if not isinstance(module, CharacterNgrams | TwoHeads)
    )
    mixture = Mixture(pretrained, recipe.validation.mixing)
    items = items_to_read(recipe, dataset, source=source)
    table = token_table(encoder, dataset, recipe, items=items.texts)
    embedder = make_embedder(encoder, table, recipe, accelerator)
    sharding = Sharding(processes=accelerator.num_processes, process=accelerator.process_index)
    task = _task(dataset, encoder, embedder, data, sharding, items=len(items))
    system = build_system(recipe.system, task, source=source)
    if not embedder.learns and system.head is None:
        raise InvalidConfig(
            f"{source}: encoder.frozen leaves nothing to train; set ngrams.buckets, or take a"
            f" system with classifiers"
        )
    if isinstance(embedder, FrozenEmbedder):
        with status(console, f"encoding {len(table):,} texts, once"):
            _ = embedder.transformer_vectors
    guidance = open_guidance(
        recipe.guidance, system, plain, dimension=encoder.dimension, source=source, console=console
    )
    projection = None if guidance is None else guidance.projection
    others = {HEAD: system.head, TRAINING_ONLY: projection}
    whole = {name: module for name, module in others.items() if module is not None}
    optimizers = make_optimizers(
        {ENCODER: embedder.module, **whole} if embedder.learns else whole,
        recipe,
        sharded=system.sharded_parameters,
        sharding=sharding,
    )
    if embedder.learns:
        embedder.module = accelerator.prepare(embedder.module)
    embedder.module.train(embedder.learns)
    for module in whole.values():
        module.to(accelerator.device)
    return TrainedModel(
        encoder=encoder,
        embedder=embedder,
        system=system,
        mixture=mixture,
        guidance=guidance,
        whole=whole,
        optimizers=optimizers,
        accelerator=accelerator,
        instances=data.instances,
        items=len(items),
    )


def make_accelerator(recipe: Recipe) -> Accelerator:
    """Return the accelerator of a single process, or of one that `torchrun` started."""
    atexit.register(leave_run)
    return Accelerator(
        cpu=not torch.cuda.is_available(),
        mixed_precision=supported_precision(recipe.optimizer.precision).replace("fp32", "no"),
        # A BERT model has a pooling head that is loaded but never used.
        kwargs_handlers=[
            DistributedDataParallelKwargs(find_unused_parameters=True, broadcast_buffers=False)
        ],
    )


def trainable_encoder(recipe: Recipe) -> TorchEncoder:
    """Load the encoder to train, with the recipe's token limit, prompts, pooling and additions."""
    settings, ngrams = recipe.encoder, recipe.ngrams
    encoder = load_encoder(
        settings.name,
        max_tokens=max(settings.query_tokens, settings.label_tokens),
        limited_by="encoder.query_tokens and encoder.label_tokens",
        query_prompt=settings.query_prompt,
        label_prompt=settings.label_prompt,
        stored_precision=recipe.lora.rank > 0,  # frozen weights need no fp32
    )
    limits = {Role.QUERY: settings.query_tokens, Role.LABEL: settings.label_tokens}
    require_room(encoder, {**dict.fromkeys(Role, encoder.max_tokens), **limits})
    if settings.pooling is not None:
        set_pooling(encoder.model, settings.pooling)
    if settings.dropout is not None:
        for module in encoder.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = settings.dropout
    if recipe.lora.rank:
        add_adapters(encoder.model, recipe.lora)
    if ngrams.buckets and ngrams_of(encoder.model) is None:
        encoder.model.append(untrained_ngrams(encoder.tokenizer, encoder.dimension, ngrams))
    return encoder


def _add_heads(encoder: TorchEncoder, dataset: Dataset, recipe: Recipe) -> None:
    """Append the recipe's heads, unless the checkpoint has some.

    Raises `InvalidConfig` if the checkpoint's heads have other dimensions, or the encoder too few.
    """
    settings, heads = recipe.heads, heads_of(encoder.model)
    if heads is not None:
        wanted = (settings.encoder, settings.classifier)
        if (heads.encoder, heads.classifier) != wanted:
            raise InvalidConfig(
                f"{encoder.name} has heads of {heads.encoder} and {heads.classifier} dimensions,"
                f" the recipe wants {wanted[0]} and {wanted[1]}"
            )
        return
    most = max(settings.encoder, settings.classifier)
    if most > encoder.dimension:
        raise InvalidConfig(
            f"heads.encoder and heads.classifier may be {encoder.dimension}, the encoder's number"
            f" of dimensions, not {most}"
        )
    texts = dataset.train.instances.texts
    drawn = np.random.default_rng([recipe.seed, 12]).permutation(len(texts))[:_DIRECTION_TEXTS]
    vectors = encoder.encode([texts[row] for row in drawn.tolist()], role=Role.QUERY)
    encoder.model.append(untrained_heads(vectors, settings))


def learned_modules(encoder: TorchEncoder, recipe: Recipe) -> list[nn.Module]:
    """Return the modules of a frozen encoder that learn: its n-grams and its heads, if any.

    Heads learn only if the recipe has a table `[heads]`.
    """
    ngrams = None if recipe.ngrams.frozen else ngrams_of(encoder.model)
    heads = heads_of(encoder.model) if recipe.heads.encoder else None
    return [module for module in (ngrams, heads) if module is not None]


def token_table(
    encoder: TorchEncoder, dataset: Dataset, recipe: Recipe, *, items: Sequence[str] = ()
) -> TokenTable:
    """Return the tokens of all training instances, all labels, and metadata `items`."""
    return concatenate(
        [
            tokenize(encoder.tokenizer, texts, prompt=encoder.prompts[role], max_tokens=tokens)
            for texts, role, tokens in (
                (dataset.train.instances.texts, Role.QUERY, recipe.encoder.query_tokens),
                (dataset.labels.texts, Role.LABEL, recipe.encoder.label_tokens),
                (items, Role.LABEL, recipe.encoder.label_tokens),
            )
        ]
    )


def make_embedder(
    encoder: TorchEncoder, table: TokenTable, recipe: Recipe, accelerator: Accelerator
) -> Embedder:
    """Return an embedder of the texts; if the encoder is frozen, it encodes each text only once."""
    if recipe.ngrams.frozen and not recipe.encoder.frozen:
        raise InvalidConfig("ngrams.frozen requires encoder.frozen = true")
    bucket_tokens = recipe.optimizer.bucket_tokens
    options = {
        "table": table,
        "accelerator": accelerator,
        "padding": int(encoder.tokenizer.pad_token_id or 0),
    }

    def whole(model: nn.Module) -> Embedder:
        module = BucketedEncoder(PooledEncoder(model)).to(accelerator.device)
        return Embedder(module, **options, bucket_tokens=bucket_tokens)

    if not recipe.encoder.frozen:
        return whole(encoder.model)
    modules, learned = list(encoder.model), learned_modules(encoder, recipe)
    first = modules.index(learned[0]) if learned else len(modules)
    for module in modules[first:]:  # from the first one that learns on, modules run in each step
        module.requires_grad_(module in learned)
    frozen = nn.Sequential(*modules[:first]) if learned else encoder.model
    # Several processes share the encoding, so none of them has all vectors that a cache lacks.
    alone = accelerator.num_processes == 1
    precision = supported_precision(recipe.optimizer.precision)
    return FrozenEmbedder(
        # Move it now: a system may encode with it before the first step.
        nn.Sequential(*modules[first:]).to(accelerator.device),
        whole(frozen),
        cache=cache_of(frozen, precision=precision) if alone else None,
        **options,
        bucket_tokens=_FROZEN_BUCKETS * bucket_tokens,
    )


def _task(
    dataset: Dataset,
    encoder: TorchEncoder,
    embedder: Embedder,
    data: TrainingData,
    sharding: Sharding,
    *,
    items: int,
) -> Task:
    """Return what the system is built from; `items` is M, 0 if the system reads none."""
    texts = np.arange(len(embedder.table))  # all texts, by their place in the embedder's table
    before = len(texts) - items
    labels = texts[data.instances : before]
    of_items = None
    if items:
        assert dataset.train.metadata_of is not None
        of_items = ItemsOfTask(
            count=items,
            vectors=partial(embedder.vectors, texts[before:]),
            linked=dataset.train.metadata_of,
            rows=data.rows,
        )
    return Task(
        labels=len(labels),
        dimension=encoder.dimension,
        label_vectors=partial(embedder.vectors, labels),
        instance_vectors=partial(embedder.vectors, data.rows),
        labels_of=data.pairs.drawable[data.rows],
        heads=heads_of(encoder.model),
        items=of_items,
        sharding=sharding,
    )


class FrozenEncoder(nn.Module):  # type: ignore[misc]
    """A `BucketedEncoder` without the transformer, whose vectors are part of each bucket."""

    def __init__(self, added: nn.Sequential) -> None:
        super().__init__()
        self.added = added  # n-grams and heads; nothing if all is frozen

    def forward(self, inputs: Inputs) -> Tensor:
        """Return vectors [k, d] in float32, bucket after bucket."""
        vectors = [self.added(bucket)[SENTENCE_EMBEDDING] for bucket in inputs]
        return torch.cat(vectors).float()


class FrozenEmbedder(Embedder):
    """An embedder that encodes the whole table with `transformer` once and keeps the vectors.

    With a `cache`, texts that an earlier run encoded are not encoded again.
    """

    def __init__(
        self,
        added: nn.Sequential,
        transformer: Embedder,
        *,
        cache: VectorCache | None = None,
        **options: Any,
    ) -> None:
        super().__init__(FrozenEncoder(added), **options)
        self._transformer, self._cache = transformer, cache

    def over(self, table: TokenTable) -> Self:
        """Return this encoder over other texts, which are encoded once as well."""
        other = super().over(table)
        other._transformer = self._transformer.over(table)
        other.__dict__.pop("transformer_vectors", None)  # those of this embedder's texts
        return other

    @cached_property
    def transformer_vectors(self) -> Tensor:
        """The transformer's vectors [n, d]."""
        encode = self._transformer.vectors
        if self._cache is None:
            return torch.from_numpy(encode(np.arange(len(self.table))))
        return torch.from_numpy(self._cache.vectors(self.table, encode))

    def _bucket(self, texts: Rows) -> dict[str, Tensor]:
        inputs = super()._bucket(texts)
        vectors = self.transformer_vectors[torch.from_numpy(texts)]
        return {**inputs, SENTENCE_EMBEDDING: vectors.to(inputs["input_ids"].device)}
