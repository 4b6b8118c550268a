"""The learned lambda of an encoder's folder, as the manifest says it."""

from __future__ import annotations

from pathlib import Path

from service.core.adaptive import AdaptiveMemorization
from service.core.errors import InvalidInput
from service.core.manifest import AdaptiveFacts
from training.model_folder import read_learned


def learned_memorization(
    folder: Path, *, tau: float, depth: int, enabled: bool
) -> AdaptiveFacts | None:
    """What `training adapt` wrote, None where it wrote nothing.

    Raises `InvalidInput` where it is to be used and was not learned, or not at this tau and depth:
    the features it looks at depend on both.
    """
    learned = read_learned(folder)
    if learned is None:
        if enabled:
            raise InvalidInput(
                "adaptive-memorization: the encoder has no learned lambda; `python -m training"
                " adapt` learns one"
            )
        return None
    AdaptiveMemorization.named(learned.weights, bias=learned.bias)  # else no service would open it
    if enabled and (learned.tau, learned.depth) != (tau, depth):
        raise InvalidInput(
            f"adaptive-memorization: lambda was learned at tau {learned.tau:g} and depth"
            f" {learned.depth}, not at {tau:g} and {depth}"
        )
    return AdaptiveFacts(weights=learned.weights, bias=learned.bias, enabled=enabled)
