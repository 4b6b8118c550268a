"""Confidences for tiny bundles: by the share of the best score alone, so tests can tell them."""

from dataclasses import replace
from pathlib import Path

from service.core.bundle import manifest
from service.core.bundle.manifest import ConfidenceFacts
from service.core.prediction.confidence import FEATURES

BEST = 0.7310585786300049  # the confidence of the first keyword: the sigmoid of 1


def confidence_facts(slope: float = 1.0) -> ConfidenceFacts:
    """One unit that reads the log of the score's share of the best one."""
    return ConfidenceFacts(
        features=list(FEATURES),
        means=[0.0] * len(FEATURES),
        scales=[1.0] * len(FEATURES),
        hidden=[[slope, *[0.0] * len(FEATURES)]],
        output=[1.0, 1.0],
    )


def with_confidence(folder: Path, slope: float = 1.0) -> Path:
    """Give a bundle's folder confidences for votes and probabilities; returns the folder."""
    facts, own = manifest.read(folder), confidence_facts(slope)
    manifest.write(replace(facts, confidence={"votes": own, "probability": own}), folder)
    return folder
