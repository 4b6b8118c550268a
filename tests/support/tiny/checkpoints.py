"""Tiny random checkpoints of many architectures, in the layout of real ones."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase, digits
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerFast

MAX_TOKENS = 24  # limit of the encoders that `write_checkpoint` writes
# Ids as in RoBERTa, which numbers positions from the id of padding plus 1.
SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
ABSOLUTE = {"max_position_embeddings": MAX_TOKENS}
COUNTED_FROM_PADDING = {"max_position_embeddings": MAX_TOKENS + 2}  # RoBERTa has 514 for 512 tokens

# family -> name of its class in transformers, and settings of its configuration besides SIZES
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("Bert", ABSOLUTE),
    "distilbert": (
        "DistilBert",
        {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, **ABSOLUTE},
    ),
    "albert": ("Albert", {"embedding_size": 16, **ABSOLUTE}),
    "electra": ("Electra", {"embedding_size": 16, **ABSOLUTE}),
    "deberta-v2": (
        "DebertaV2",
        {
            "relative_attention": True,
            "pos_att_type": ["p2c", "c2p"],
            "max_relative_positions": 16,
            **ABSOLUTE,
        },
    ),
    "roberta": ("Roberta", COUNTED_FROM_PADDING),
    "xlm-roberta": ("XLMRoberta", COUNTED_FROM_PADDING),
    "mpnet": ("MPNet", COUNTED_FROM_PADDING),
    "modernbert": ("ModernBert", {"local_attention": 8, **ABSOLUTE}),
    "t5": ("T5Encoder", {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2}),
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": MAX_TOKENS}),
    "llama": ("Llama", {"num_key_value_heads": 1, **ABSOLUTE}),
}
POOLINGS = ("mean", "cls", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean")


def write_plain(
    folder: Path, *, family: str = "bert", dtype: str = "float32", **tokenizer: Any
) -> Path:
    """Write a plain Hugging Face folder; `tokenizer` holds settings of the tokenizer."""
    import torch

    model = _model(family).to(getattr(torch, dtype))
    model.save_pretrained(folder)
    _tokenizer(**tokenizer).save_pretrained(folder)
    return folder


def write_checkpoint(
    folder: Path,
    *,
    family: str = "bert",
    pooling: str | None = "mean",
    include_prompt: bool = True,
    more: tuple[nn.Module, ...] = (),
    prompts: dict[str, str] | None = None,
    default_prompt_name: str | None = None,
    dtype: str = "float32",
    max_tokens: int | None = MAX_TOKENS,
    **tokenizer: Any,
) -> Path:
    """Write a sentence-transformers folder whose transformer is `family`, pooled by `pooling`.

    If `pooling` is None there is no pooling module; if `max_tokens` is None, no limit is stated.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    plain = write_plain(folder / "plain", family=family, dtype=dtype, **tokenizer)
    transformer = Transformer(str(plain), max_seq_length=max_tokens)
    modules: list[nn.Module] = [transformer]
    if pooling is not None:
        dimension = transformer.get_embedding_dimension()
        modules.append(Pooling(dimension, pooling, include_prompt=include_prompt))
    model = SentenceTransformer(
        modules=[*modules, *more],
        prompts=prompts,
        default_prompt_name=default_prompt_name,
        device="cpu",
    )
    model.save(str(folder / "model"), create_model_card=False)
    return folder / "model"


def _model(family: str) -> Any:
    """Return a network with large random weights, so that the vectors of texts differ."""
    import torch
    import transformers

    torch.manual_seed(0)
    name, own = FAMILIES[family]
    config = getattr(transformers, f"{name.removesuffix('Encoder')}Config")(
        vocab_size=len(_vocabulary()),
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        cls_token_id=0,
        sep_token_id=2,
        **{**({} if "d_model" in own or "dim" in own or "n_embd" in own else SIZES), **own},
    )
    model = getattr(transformers, f"{name}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(3.0)
    return model


def _tokenizer(**settings: Any) -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = _vocabulary()
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        special_tokens=[(token, vocabulary[token]) for token in ("<s>", "</s>")],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<pad>",
        cls_token="<s>",
        sep_token="</s>",
        **settings,
    )


def _vocabulary() -> dict[str, int]:
    signs = ascii_lowercase + digits
    tokens = (*SPECIAL, *signs, *(f"##{sign}" for sign in signs))
    return {token: number for number, token in enumerate(tokens)}
