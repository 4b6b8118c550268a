"""A label log of a tiny bundle, and the data set that is made of both."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.core.bundle.bundle import Bundle
from service.core.changes import Change
from service.core.label_log import LabelLog, open_log
from tests.support.changes import ENCODER
from training.datasets.dataset import Dataset
from training.datasets.learned.build import LearnedOptions, learned_dataset
from training.datasets.learned.history import History, Moment, read_history

Learn = Callable[..., Dataset]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LabelLog]:
    with closing(open_log(tmp_path / "state")) as opened:
        yield opened


@pytest.fixture
def history(log: LabelLog, trigram_bundle: Bundle) -> Callable[..., History]:
    """`history(*changes, bundle=...)` appends changes to the log and reads it for a bundle."""

    def read(*changes: Change, bundle: Bundle = trigram_bundle, **options: Any) -> History:
        with log.exclusive() as appending:
            appending.append(changes, encoder=ENCODER.fingerprint)
        given = {"held": None, "since": Moment(), "recent_from": None}
        return read_history(bundle, log, **{**given, **options})

    return read


@pytest.fixture
def learn(history: Callable[..., History], trigram_bundle: Bundle) -> Learn:
    """`learn(*changes, data=..., since=...)` logs changes and returns the data set of the log.

    The bundle was made from `data`, unless its manifest says otherwise.
    """

    def learned(
        *changes: Change,
        bundle: Bundle = trigram_bundle,
        data: Dataset | None = None,
        since: Moment | None = None,
        recent_from: Moment | None = None,
        test_fraction: float = 0.0,
        **options: Any,
    ) -> Dataset:
        held = options.pop("held", data.learned if data is not None else None)
        if data is not None and bundle.manifest.data is None:
            bundle = replace(bundle, manifest=replace(bundle.manifest, data=data.digest()))
        options |= {"held": held, "since": since or Moment(), "recent_from": recent_from}
        read = history(*changes, bundle=bundle, **options)
        chosen = LearnedOptions(
            everything=since is None,
            recent_is_test=recent_from is not None,
            test_fraction=test_fraction,
        )
        return learned_dataset(read, data, options=chosen, name="learned")

    return learned
