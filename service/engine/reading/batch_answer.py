"""Answers one batch: encodes all of its queries together, then searches and votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np

from service.core.errors import KeymatchError
from service.core.prediction.predictor import (
    AttendedItems,
    Searched,
    Stopwatch,
    explained_items,
)
from service.core.types import Answer, Floats, Prediction, PredictOptions
from service.engine.loaded_bundle import LoadedBundle
from service.engine.reading.query_request import QueryRequest, QueryTask
from service.engine.reading.task_queue import Batch
from service.telemetry import Telemetry

Encoded = tuple[QueryTask, Floats]  # a task and the vectors of its queries, [B, d]
Results = tuple[tuple[Prediction, ...], tuple[bytes, ...]]  # as `Answer` holds them


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a task ended: with an answer, or with an error that ends its whole request."""

    request: QueryRequest
    task: QueryTask | None = None
    answer: Answer | None = None
    error: BaseException | None = None

    def complete(self) -> None:
        """Tell the request; called in its event loop."""
        if self.error is not None:
            self.request.fail(self.error)
        elif self.task is not None and self.answer is not None:
            self.request.add(self.task, self.answer)


def failure(request: QueryRequest, error: BaseException) -> Outcome:
    """The outcome of a task or of a whole request that failed."""
    return Outcome(request=request, error=error)


def answer_batch(batch: Batch, telemetry: Telemetry, outcomes: list[Outcome]) -> None:
    """Append an outcome for every task, and for every request that the queue has dropped."""
    outcomes += [failure(request, error) for request, error in batch.dropped]
    if not batch.tasks:
        return
    taken = monotonic()
    telemetry.batch_size.labels("predict").observe(len(batch))
    by_bundle: dict[int, list[QueryTask]] = {}  # two while a reload is under way
    for task in batch.tasks:
        telemetry.observe_stages({"queue": taken - task.request.queued})
        by_bundle.setdefault(id(task.request.loaded), []).append(task)
    for tasks in by_bundle.values():
        try:
            outcomes += _answer(tasks, taken, telemetry)
        except Exception as error:
            if len(tasks) == 1:
                outcomes.append(failure(tasks[0].request, error))
                continue
            # What is wrong with one request must not fail those that happen to share its batch.
            for task in tasks:
                outcomes += _answer_alone(task, taken, telemetry)


def _answer_alone(task: QueryTask, taken: float, telemetry: Telemetry) -> list[Outcome]:
    try:
        return _answer([task], taken, telemetry)
    except Exception as error:
        return [failure(task.request, error)]


def _answer(tasks: Sequence[QueryTask], taken: float, telemetry: Telemetry) -> list[Outcome]:
    """Outcomes of tasks of one bundle; what expires while it is encoded is not searched."""
    loaded, watch = tasks[0].request.loaded, Stopwatch()
    vectors = loaded.predictor.encode([query for task in tasks for query in task.queries], watch)
    telemetry.observe_stages(watch.seconds)
    outcomes: list[Outcome] = []
    groups: dict[tuple[int, PredictOptions], list[Encoded]] = {}
    now, start = monotonic(), 0
    for task in tasks:
        rows = vectors[start : start + len(task)]
        start += len(task)
        error = task.request.useless(now)
        if error is not None:
            outcomes.append(failure(task.request, error))
        else:
            groups.setdefault((id(task.view), task.request.options), []).append((task, rows))
    for group in groups.values():
        outcomes += _search(loaded, group, dict(watch.seconds), taken, telemetry)
    return outcomes


def _search(
    loaded: LoadedBundle,
    group: Sequence[Encoded],
    encoding: dict[str, float],
    taken: float,
    telemetry: Telemetry,
) -> list[Outcome]:
    """Outcomes of tasks of one view and equal options, of which the encoding took `encoding`.

    A task's seconds are those of its whole batch: so long has it waited for each stage.
    """
    watch, first = Stopwatch(), group[0][0]
    vectors = group[0][1] if len(group) == 1 else np.concatenate([rows for _, rows in group])
    options = first.request.options
    fused = loaded.predictor.fuse(first.view, vectors, options, watch)
    queries = [query for task, _ in group for query in task.queries]
    with watch.stage("retrieve"):
        searched = loaded.predictor.search(first.view, queries, fused.vectors, options)
    with watch.stage("score"):
        items = explained_items(first.view, fused, options)
        scored = _score(loaded, group, searched, items, watch)
    telemetry.observe_stages(watch.seconds)
    outcomes = []
    for task, result in scored:
        if isinstance(result, KeymatchError):
            outcomes.append(failure(task.request, result))
            continue
        predictions, serialized = result
        part = Answer(
            version=task.view.version,
            predictions=predictions,
            seconds={"queue": taken - task.request.queued, **encoding, **watch.seconds},
            serialized=serialized,
        )
        outcomes.append(Outcome(request=task.request, task=task, answer=part))
    return outcomes


def _score(
    loaded: LoadedBundle,
    group: Sequence[Encoded],
    searched: Searched,
    items: Sequence[AttendedItems],
    watch: Stopwatch,
) -> list[tuple[QueryTask, Results | KeymatchError]]:
    """The results of each task of a group with items [B]; of none that has expired."""
    scored: list[tuple[QueryTask, Results | KeymatchError]] = []
    start = 0
    for task, _ in group:
        own = slice(start, start := start + len(task))
        try:
            error = task.request.useless(monotonic())
            scored.append(
                (task, error or _results(loaded, task, searched.part(own), items[own], watch))
            )
        except KeymatchError as error:  # the answer would be too large
            scored.append((task, error))
    return scored


def _results(
    loaded: LoadedBundle,
    task: QueryTask,
    searched: Searched,
    items: Sequence[AttendedItems],
    watch: Stopwatch,
) -> Results:
    """The predictions of a task, serialised where its request asks for that."""
    request = task.request
    predictions = loaded.predictor.predictions(task.view, searched, request.options, items, watch)
    if request.serialize is None:
        return predictions, ()
    return (), tuple(map(request.serialize, predictions))
