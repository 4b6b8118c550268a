"""The journal of a run: lines in metrics.jsonl, TensorBoard curves, and a progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from training.checkpoints.choices import Choices
from training.progress import PlainLines

LINES = "metrics.jsonl"
TRIED, SHARED = "tried", "shared"  # choices, and shares of two heads, tried at the end of a run


class Journal:
    """Records what happens in a run; `silent` in all processes but the main one."""

    def __init__(self, folder: Path, *, console: Console, steps: int, step: int, silent: bool):
        self.console = console
        self._silent, self._lines = silent, folder / LINES
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
        self._plain = None if shown else PlainLines()
        self._training = self._progress.add_task("train", total=steps, completed=step, note="")
        self._encoding = self._progress.add_task("encode", total=1, note="", visible=False)
        if not silent:
            from torch.utils.tensorboard import SummaryWriter

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
                self._writer.close()

    def trained(self, step: int, *, loss: float, rate: float, tokens_per_second: float) -> None:
        """Record a step; `step` counts from 1."""
        note = f"loss {loss:.4f}, {tokens_per_second:,.0f} tokens/s"
        self._progress.update(self._training, completed=step, note=note)
        self._say("train", step, self._steps, note)
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
        setting = {
            "tau": choices.tau,
            "depth": choices.depth,
            "memorization": choices.memorization,
        }
        self._write_tried(TRIED, {**setting, **metrics})

    def shared(self, share: float, scores: Mapping[float, Mapping[str, float]]) -> None:
        """Record the metrics of the held-out rows by lambda, with this share of the first head."""
        for memorization, metrics in scores.items():
            setting = {"share": share, "memorization": memorization}
            self._write_tried(SHARED, {**setting, **metrics})

    def _write_tried(self, kind: str, values: Mapping[str, float]) -> None:
        """A line of the end of a run, which a resumed run drops and writes again."""
        if self._silent:
            return
        with self._lines.open("ab") as file:
            file.write(orjson.dumps({"step": 0, "kind": kind, **values}) + b"\n")

    def print(self, message: str) -> None:
        """Print a line above the progress bar."""
        if not self._silent:
            self._progress.console.print(message)

    def _say(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Where there is no terminal for bars: a line on stderr now and then."""
        if self._plain is not None:
            self._plain(stage, done, total, note)

    def _write(self, step: int, kind: str, values: Mapping[str, float], **more: float) -> None:
        if self._silent:
            return
        with self._lines.open("ab") as file:
            file.write(orjson.dumps({"step": step, "kind": kind, **more, **values}) + b"\n")
        for name, value in values.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)

    def _drop_lines_after(self, step: int) -> None:
        """Drop the lines that a resumed run will write again, choices tried at its end included."""
        if not self._lines.exists():
            return
        kept = []
        for line in self._lines.read_bytes().splitlines():
            entry = orjson.loads(line)
            if entry["step"] <= step and entry["kind"] not in (TRIED, SHARED):
                kept.append(line + b"\n")
        self._lines.write_bytes(b"".join(kept))
