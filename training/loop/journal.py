"""The journal of a run: lines in metrics.jsonl, TensorBoard curves, and a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from service.core.files.atomic import disk_refusal, write_file, writing
from training.checkpoints.choices import Choices
from training.progress import PlainLines, say_nothing

LINES = "metrics.jsonl"
TRIED, SHARED = "tried", "shared"  # kinds of lines: choices and head shares tried at the end


class Journal:
    """Records what happens in a run; `silent` in all processes but the main one."""

    def __init__(self, folder: Path, *, console: Console, steps: int, step: int, silent: bool):
        self.console = console
        self._silent, self._folder, self._lines = silent, folder, folder / LINES
        self._writer: Any = None
        self._progress = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=silent or not console.is_terminal,
        )
        self._steps = steps
        shown = console.is_terminal or console.quiet or silent
        # Without a terminal for bars, a line on stderr now and then.
        self._say: Callable[..., None] = say_nothing if shown else PlainLines()
        self._training = self._progress.add_task("train", total=steps, completed=step, note="")
        self._encoding = self._progress.add_task("encode", total=1, note="", visible=False)
        if not silent:
            from torch.utils.tensorboard import SummaryWriter

            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                refusal = disk_refusal(folder)
                if refusal is not None:  # TensorBoard's thread would print a traceback
                    raise refusal
                self._drop_lines_after(step)
                self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress bar while the block runs, then close all files."""
        try:
            with self._progress:
                yield
        finally:
            if self._writer is not None:
                with writing(self._folder):
                    self._writer.close()

    def trained(
        self, step: int, *, place: int, loss: float, rate: float, tokens_per_second: float
    ) -> None:
        """Record a step; `step` counts from 1.

        `place` comes from `Length.place`; the time left is estimated from it.
        """
        note = f"loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s"
        if place > step:
            note = f"step {step:,}, {note}"
        self._progress.update(self._training, completed=place, note=note)
        self._say("train", place, self._steps, note)
        values = {"loss": loss, "learning_rate": rate, "tokens_per_second": tokens_per_second}
        self._write(step, "train", values)

    def encoded(self, done: int, total: int) -> None:
        """Show that `done` of `total` texts are encoded."""
        self._progress.update(
            self._encoding, completed=done, total=total, visible=done < total, note=""
        )
        self._say("encode", done, total)

    def validated(
        self,
        step: int,
        scores: Mapping[float, Mapping[str, float]],
        *,
        seconds: float,
        mixing: float,
    ) -> None:
        """Record the metrics of the held-out rows by lambda, at the best mixing of weights.

        `seconds` is the training time so far.
        """
        for memorization, metrics in scores.items():
            values = {f"{name} at {memorization:g}": value for name, value in metrics.items()}
            self._write(step, "validation", values, seconds=seconds, mixing=mixing)
        shown = ", ".join(
            f"lambda {memorization:g}: P@1 {metrics['P@1']:.2f} R@100 {metrics['R@100']:.2f}"
            for memorization, metrics in scores.items()
        )
        mixed = "" if mixing == 1.0 else f", mixing {mixing:g}"
        self.print(f"step {step}{mixed}: {shown}")

    def tried(self, choices: Choices, metrics: Mapping[str, float]) -> None:
        """Record the metrics of the held-out rows with the best checkpoint and these choices."""
        tried = {name: getattr(choices, name) for name in ("tau", "depth", "memorization")}
        self._append(0, TRIED, **tried, **metrics)

    def shared(self, share: float, scores: Mapping[float, Mapping[str, float]]) -> None:
        """Record the metrics of the held-out rows by lambda, with this share of the head D."""
        for memorization, metrics in scores.items():
            self._append(0, SHARED, share=share, memorization=memorization, **metrics)

    def print(self, message: str) -> None:
        """Print a line above the progress bar."""
        if not self._silent:
            self._progress.console.print(message)

    def _write(self, step: int, kind: str, values: Mapping[str, float], **more: float) -> None:
        self._append(step, kind, **more, **values)
        if self._writer is None:
            return
        with writing(self._folder):  # raises earlier errors of TensorBoard's writing thread
            for name, value in values.items():
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def _append(self, step: int, kind: str, **values: float) -> None:
        if self._silent:
            return
        with writing(self._lines), self._lines.open("ab") as file:
            file.write(orjson.dumps({"step": step, "kind": kind, **values}) + b"\n")

    def _drop_lines_after(self, step: int) -> None:
        """Drop the lines that a resumed run writes again: later steps, and choices of the end."""
        if not self._lines.exists():
            return
        kept = []
        for line in self._lines.read_bytes().splitlines():
            entry = orjson.loads(line)
            if entry["step"] <= step and entry["kind"] not in (TRIED, SHARED):
                kept.append(line + b"\n")
        write_file(self._lines, b"".join(kept))
