"""The course of `fit`: facts of the data, the encoder as it is, candidates, the best is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from rich.console import Console

from service.command_line import Interrupted
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import with_relevance
from training.fitting import second_ranking
from training.fitting.candidate import Candidate
from training.fitting.candidates import CANDIDATES
from training.fitting.facts import DataFacts, data_facts, hardware_line
from training.fitting.free_memory import free_bytes
from training.fitting.memory_need import Transformer
from training.fitting.runs import keep, trained, untrained
from training.fitting.situation import Situation
from training.fitting.table import as_facts, table_of, verdict
from training.fitting.time_left import Cost, TimeLeft
from training.fitting.trial import UNTRAINED, Trial, best_of
from training.fitting.weights import weight_lines
from training.loop.interruption import Interruption
from training.models.torch_encoder import TorchEncoder, load_encoder
from training.models.two_heads import heads_of
from training.models.vector_cache import vectors_kept_in
from training.progress import stages, status
from training.reranking.learning import SecondRanking

TRIED, VECTORS = "tried", "vectors"  # folders of the candidates' runs, while `fit` runs


@dataclass(kw_only=True, eq=False)
class Fitting:
    """One call of `fit`; `trials` grows, the untrained encoder first."""

    dataset: Dataset
    encoder: TorchEncoder
    folder: Path
    seconds: float  # in all
    seed: int
    console: Console
    interruption: Interruption = field(default_factory=Interruption)
    started: float = field(default_factory=perf_counter)
    trials: list[Trial] = field(default_factory=list)
    second: SecondRanking | None = None  # of the trial that is kept, if it was tried
    interrupted: Interrupted | None = None  # the signal that ended the trials early

    def run(self) -> Trial:
        """Try everything that the time allows; returns the trial that is kept in `folder`."""
        given, facts = self.dataset, data_facts(self.dataset, self.encoder)
        for line in (*facts.lines(), hardware_line(free_bytes())):
            self.say(line)
        with vectors_kept_in(self.folder / TRIED / VECTORS):  # of the encoder as it is
            cost = self._measure_untrained(facts)
            try:
                self._try_candidates(facts, cost)
                self._rank_again(given, facts, cost)
            except Interrupted as end:
                self.interrupted = end
                self.say(f"{end}: what was being tried is dropped; the best of the others is kept")
        with self.interruption.noted():  # it takes a moment, and must not be left half done
            return self._finish()

    def _try_candidates(self, facts: DataFacts, cost: Cost) -> None:
        for candidate, seconds in self._candidates(facts, cost):
            self.say(f"{candidate.name}: {candidate.summary}, {seconds:,.0f} s of training")
            self.add(self._trial(candidate, facts, seconds))

    def _rank_again(self, given: Dataset, facts: DataFacts, cost: Cost) -> None:
        """Learn a second ranking of what the best trial's memory ranks, if there is time.

        `given` is the data set with the weights of its pairs as they were given.
        """
        if not self._reserved(facts, cost):
            self.say("a second ranking: no time is left for it")
            return
        self.say("a second ranking: trees learn on the held-out rows")
        with stages(self.console) as report:
            kept = best_of(self.trials)
            self.second = second_ranking.learn(kept, given, seed=self.seed, report=report)
        for line in second_ranking.lines(self.second):
            self.say(line)

    def _reserved(self, facts: DataFacts, cost: Cost) -> float:
        """Seconds that candidates leave to the second ranking, 0 where it is left out."""
        return second_ranking.seconds_needed(facts, cost, of=self.seconds)

    def _measure_untrained(self, facts: DataFacts) -> Cost:
        """Measure the encoder as it is; after a signal meanwhile nothing is left behind."""
        self.folder.mkdir(parents=True)
        folder = self.folder / TRIED / UNTRAINED
        try:
            with status(self.console, "measuring the encoder as it is"):
                first, cost, weights = untrained(
                    self.encoder, self.dataset, facts, folder, seed=self.seed
                )
        except Interrupted:
            shutil.rmtree(self.folder)
            raise
        self.add(first)
        for line in weight_lines(weights):
            self.say(line)
        # From here on the memory of every candidate votes with the relevance that was chosen.
        self.dataset = with_relevance(self.dataset, first.choices.relevance)
        return cost

    def add(self, trial: Trial) -> None:
        """Take a trial into the table, and say what it reached."""
        self.trials.append(trial)
        self.say(
            f"{trial.name}: mean {trial.score:.1f}, P@1 {trial.metrics['P@1']:.1f},"
            f" {trial.seconds:,.0f} s"
        )

    def say(self, line: str) -> None:
        """Print a line."""
        self.console.print(line, soft_wrap=True)

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.seconds - (perf_counter() - self.started)

    def _candidates(self, facts: DataFacts, cost: Cost) -> Iterator[tuple[Candidate, float]]:
        """Each candidate with the seconds that its steps may take, as long as there is time."""
        for propose in CANDIDATES.values():
            situation = self._situation(facts, cost)
            candidate = propose(situation)
            if candidate is None:
                continue
            seconds = self.left - self._reserved(facts, cost)
            left = TimeLeft(seconds=seconds / facts.splits, cost=cost)
            seconds = left.of(candidate)
            if not seconds:
                self.say(f"{candidate.name}: no time is left for it")
                continue
            # The batch follows from the time, and the time from what the candidate encodes.
            timed = propose(replace(situation, seconds=seconds))
            assert timed is not None
            yield timed, seconds

    def _situation(self, facts: DataFacts, cost: Cost) -> Situation:
        config = self.encoder.model[0].auto_model.config
        heads = heads_of(self.encoder.model)
        return Situation(
            facts=facts,
            transformer=Transformer(
                layers=int(config.num_hidden_layers),
                heads=int(config.num_attention_heads),
                hidden=int(config.hidden_size),
            ),
            width=self.encoder.dimension if heads is None else heads.encoder,
            free=free_bytes(),
            encoder=self.encoder.name,
            seed=self.seed,
            trials=self.trials,
            seconds_per_text=cost.encode / facts.texts,
        )

    def _trial(self, candidate: Candidate, facts: DataFacts, seconds: float) -> Trial:
        return trained(
            candidate,
            self.dataset,
            self.folder / TRIED / candidate.name,
            splits=[self.seed + split for split in range(facts.splits)],
            seconds=seconds,
            relevance=self.trials[0].choices.relevance,
            console=self.console,
        )

    def _finish(self) -> Trial:
        kept = best_of(self.trials)
        self.console.print(table_of(self.trials, kept=kept))
        self.say(verdict(self.trials, kept))
        facts: dict[str, object] = {"fit": as_facts(self.trials, kept=kept)}
        if self.second is not None:
            facts["second_ranking"] = second_ranking.as_facts(self.second)
        keep(kept, self.folder, untrained=self.trials[0], facts=facts)
        shutil.rmtree(self.folder / TRIED, ignore_errors=True)
        return kept


def open_fitting(
    dataset: Dataset,
    *,
    start: str,
    folder: Path,
    minutes: float,
    seed: int,
    console: Console,
    interruption: Interruption,
) -> Fitting:
    """A fitting that starts from the encoder `start`, as `export bundle --encoder` takes it."""
    started = perf_counter()
    return Fitting(
        dataset=dataset,
        encoder=load_encoder(start),
        folder=folder,
        seconds=60.0 * minutes,
        seed=seed,
        console=console,
        interruption=interruption,
        started=started,
    )
