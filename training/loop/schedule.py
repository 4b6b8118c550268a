"""The learning rate as a pure function of the step."""

from __future__ import annotations


def learning_rate_factor(step: int, *, steps: int, warmup: float) -> float:
    """Linear warm-up over the share `warmup` of `steps`, then linear decay to zero."""
    rising = max(1, round(warmup * steps))
    if step < rising:
        return (step + 1) / rising
    return max(0.0, (steps - step) / max(1, steps - rising))
