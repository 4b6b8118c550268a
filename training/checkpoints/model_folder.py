"""A trained encoder on disk: a sentence-transformers folder with a few files of Keymatch.

| file                         | content                                                         |
|------------------------------|-----------------------------------------------------------------|
| all of sentence-transformers | weights, tokenizer, pooling; `SentenceTransformer(folder)` loads |
| `keymatch.json` and others   | inference settings, see `training.checkpoints.choices`          |
| `trained_texts.npz`          | hashes of the queries that it has trained on                    |
| `own.safetensors`            | the head's parameters, such as one-versus-all classifiers       |
| `fusion.json` and others     | OAK's item memory, see `training.systems.oak.memory`            |
| `label_keys.npy`             | Z, fp16 [L, d], if a system replaces the label vectors          |
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.torch import save_file
from torch import Tensor

from service.core.files.atomic import new_folder, writing
from service.core.types import Floats, Role
from training.checkpoints.label_keys import LABEL_KEYS
from training.models.lora import merged
from training.models.torch_encoder import TorchEncoder, without_progress_bars

HEAD_WEIGHTS = "own.safetensors"


def write_model(
    encoder: TorchEncoder,
    folder: Path,
    *,
    head_weights: Mapping[str, Tensor] | None = None,
    label_keys: Floats | None = None,
) -> None:
    """Write the encoder in place of `folder`; LoRA's adapters are merged into its weights.

    `head_weights` are the head's parameters by name, `label_keys` are unit vectors [L, d].
    """
    model = encoder.model
    model.prompts = {"query": encoder.prompts[Role.QUERY], "document": encoder.prompts[Role.LABEL]}
    model.default_prompt_name = None  # it may name a prompt that was just replaced
    new = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    with writing(folder, new), new_folder(new) as partial:
        with without_progress_bars(), merged(model):
            model.save(str(partial), create_model_card=False)
        if head_weights is not None:
            weights = {name: value.detach().cpu() for name, value in head_weights.items()}
            save_file(weights, partial / HEAD_WEIGHTS)
        if label_keys is not None:
            np.save(partial / LABEL_KEYS, label_keys.astype(np.float16))
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
