"""A module of Keymatch's own within a sentence-transformers model: how it is written and read."""

from __future__ import annotations

from typing import Any, Self

from sentence_transformers.base.modules import Module

_LOAD_OPTIONS = ("subfolder", "token", "cache_folder", "revision", "local_files_only")


class SavedModule(Module):  # type: ignore[misc]
    """Writes its `config_keys` and its weights, and is built from them."""

    def save(self, output_path: str, *_: Any, safe_serialization: bool = True, **__: Any) -> None:
        """Write config and weights, as `Module.save` of sentence-transformers does."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=safe_serialization)

    @classmethod
    def load(cls, model_name_or_path: str, **where: Any) -> Self:
        """Read what `save` wrote, as `Module.load` of sentence-transformers does."""
        where = {key: where[key] for key in _LOAD_OPTIONS if key in where}
        module = cls(**cls.load_config(model_name_or_path, **where))
        loaded: Self = cls.load_torch_weights(model_name_or_path, model=module, **where)
        return loaded
