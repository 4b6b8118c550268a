"""The learned lambda of an encoder, as a bundle's manifest says it."""

from __future__ import annotations

from service.core.adaptive import AdaptiveMemorization
from service.core.bundle.manifest import AdaptiveFacts
from service.core.errors import InvalidInput
from training.checkpoints.choices import LearnedMemorization


def learned_memorization(
    learned: LearnedMemorization | None, *, tau: float, depth: int, enabled: bool
) -> AdaptiveFacts | None:
    """What `training adapt` wrote, None where it wrote nothing.

    Raises `InvalidInput` where it is to be used and was not learned, or not at this tau and depth:
    the features it looks at depend on both.
    """
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
