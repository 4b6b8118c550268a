"""The steps of `fit`: facts of the data, the first encoder, the candidates, keeping the best.

Everything ends at one deadline. A trial that is still running then is dropped.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

from rich.console import Console

from service.command_line import Interrupted
from service.core.errors import Diverged
from training.checkpoints import trained_texts
from training.checkpoints.reranker_folder import is_reranker
from training.checkpoints.run_json import BEST
from training.datasets.dataset import Dataset
from training.datasets.pair_weights import with_relevance
from training.evaluation.known_queries import FIRST
from training.fitting import reranker
from training.fitting.candidates import CANDIDATES, Candidate, Proposal, Situation
from training.fitting.facts import DataFacts, Transformer, data_facts, free_bytes, hardware_line
from training.fitting.reranker import missing_parts
from training.fitting.runs import first_trial, keep, trained
from training.fitting.time_left import Cost, OutOfTime, deadline, training_seconds
from training.fitting.trial import (
    PARENT,
    UNTRAINED,
    Trial,
    as_facts,
    best_of,
    reasons,
    table_of,
    verdict,
    weight_lines,
)
from training.loop.interruption import Interruption
from training.models.torch_encoder import TorchEncoder
from training.models.two_heads import heads_of
from training.models.vector_cache import vectors_kept_in
from training.progress import stages, status
from training.reranking.learning import FOLDS, LearnedReranker

NO_TIME = "no time is left for it"
FINISHING = 2.0  # seconds for printing the table and writing the kept run's files
TRIED, VECTORS = "tried", "vectors"  # folders that exist while `fit` runs


@dataclass(kw_only=True, eq=False)
class Fitting:
    """One call of `fit`. `trials` grows; the first trial is the encoder that `fit` starts from."""

    dataset: Dataset
    encoder: TorchEncoder
    parent: Path | None  # the earlier run's checkpoint, if the encoder comes from one
    folder: Path
    seconds: float  # the total time, counted from `started`
    seed: int
    console: Console
    interruption: Interruption = field(default_factory=Interruption)
    started: float = field(default_factory=perf_counter)
    trials: list[Trial] = field(default_factory=list)
    learned: LearnedReranker | None = None  # the kept trial's reranker, if learning one was tried
    inherited: bool = False  # whether the parent's reranker was kept with its checkpoint
    lost: list[str] = field(default_factory=list)  # parts of the parent that the kept run lacks
    interrupted: Interrupted | None = None  # the signal that ended the trials early

    def run(self) -> Trial:
        """Try everything that the time allows; return the kept trial, whose run is in `folder`."""
        given, facts = self.dataset, data_facts(self.dataset, self.encoder)
        for line in (*facts.lines(), hardware_line(free_bytes())):
            self.say(line)
        if self.parent is not None and trained_texts.read(self.parent) is None:
            self.say(
                f"{self.parent} has no {trained_texts.FILE}, as an earlier version wrote it: if it"
                " has trained on rows that are held out now, its figures are too good"
            )
        with vectors_kept_in(self.folder / TRIED / VECTORS):  # vectors of the first encoder
            cost = self._measure_first(facts)
            try:
                cost = self._try_candidates(facts, cost)
                self._learn_reranker(given, facts, cost)
            except Interrupted as end:
                self.interrupted = end
                self.say(f"{end}: what was being tried is dropped; the best of the others is kept")
        with self.interruption.noted():  # a signal must not leave this short step half done
            return self._finish()

    def _try_candidates(self, facts: DataFacts, cost: Cost) -> Cost:
        """Try each candidate that there is time for; return the newest cost estimate."""
        for propose in CANDIDATES.values():
            timed = self._timed(propose, facts, cost)
            if timed is None:
                continue
            candidate, seconds = timed
            self.say(f"{candidate.name}: {candidate.summary}, {seconds:,.0f} s of training")
            try:
                with deadline(self.left - self._reserved(facts, cost)):
                    trial, cost = trained(
                        candidate,
                        self.dataset,
                        self.folder / TRIED / candidate.name,
                        splits=[self.seed + split for split in range(facts.splits)],
                        seconds=seconds,
                        available=self.left - self._reserved(facts, cost),
                        cost=cost,
                        relevance=self.trials[0].choices.relevance,
                        console=self.console,
                    )
            except OutOfTime:
                self.say(f"{candidate.name}: it was not done in time, and is dropped")
            except Diverged as end:
                self.say(f"{candidate.name}: {end.reason}, so it is dropped")
            else:
                self.add(trial)
        return cost

    def _learn_reranker(self, given: Dataset, facts: DataFacts, cost: Cost) -> None:
        """Learn to rerank the labels that the best trial's memory ranks, if there is time.

        `given` is the data set with its original pair weights.
        """
        # Time that the candidates have not used may be enough, too.
        needed = reranker.seconds_needed(facts, cost, of=self.left, share=1.0)
        if not self._reserved(facts, cost) and not needed:
            few = facts.held_out < FOLDS
            self.say(f"a reranker: {'too few rows are held out' if few else NO_TIME}")
            return
        self.say("a reranker: trees learn on the held-out rows")
        kept = best_of(self.trials)
        try:
            with deadline(self.left), stages(self.console) as report:
                self.learned = reranker.learn(kept, given, seed=self.seed, report=report)
        except OutOfTime:
            self.say(f"a reranker: {NO_TIME}")
            return
        for line in reranker.lines(self.learned):
            self.say(line)

    def _reserved(self, facts: DataFacts, cost: Cost) -> float:
        """Return the seconds that candidates must leave for the reranker; 0 if it is left out."""
        has_one = self.parent is not None and is_reranker(self.parent)
        share = reranker.LARGEST_SHARE_OF_PARENT if has_one else reranker.LARGEST_SHARE
        return reranker.seconds_needed(facts, cost, of=self.seconds, share=share)

    def _measure_first(self, facts: DataFacts) -> Cost:
        """Measure the encoder before any training; a signal during this leaves no files behind."""
        self.folder.mkdir(parents=True)
        name = UNTRAINED if self.parent is None else PARENT
        try:
            with status(self.console, "measuring the encoder as it is"):
                first, cost, weights = first_trial(
                    self.encoder,
                    self.dataset,
                    facts,
                    self.folder / TRIED / name,
                    name=name,
                    seed=self.seed,
                )
        except Interrupted:
            shutil.rmtree(self.folder)
            raise
        self.add(first)
        for line in weight_lines(weights):
            self.say(line)
        # From here on every candidate's memory uses the chosen relevance scale.
        self.dataset = with_relevance(self.dataset, first.choices.relevance)
        return cost

    def add(self, trial: Trial) -> None:
        """Add a trial to the table and print its figures."""
        self.trials.append(trial)
        self.say(
            f"{trial.name}: mean {trial.score:.1f}, P@1 {trial.metrics['P@1']:.1f},"
            f" known queries {trial.metrics[FIRST]:.1f}, {trial.seconds:,.0f} s"
        )

    def say(self, line: str) -> None:
        """Print a line."""
        self.console.print(line, soft_wrap=True)

    @property
    def left(self) -> float:
        """Seconds until the kept run must be moved to its folder."""
        return self.seconds - FINISHING - (perf_counter() - self.started)

    def _timed(
        self, propose: Proposal, facts: DataFacts, cost: Cost
    ) -> tuple[Candidate, float] | None:
        """Return a candidate with the seconds that its steps may take on each split.

        None if the candidate does not suit the data, or if there is no time left for it.
        """
        situation = self._situation(facts, cost)
        candidate = propose(situation)
        if candidate is None:
            return None
        seconds = self.left - self._reserved(facts, cost)
        seconds = training_seconds(candidate, seconds / facts.splits, cost)
        if not seconds:
            self.say(f"{candidate.name}: {NO_TIME}")
            return None
        # The batch size depends on the time, which depends on what the candidate encodes.
        timed = propose(replace(situation, seconds=seconds))
        assert timed is not None
        return timed, seconds

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

    def _finish(self) -> Trial:
        kept = best_of(self.trials)
        self.console.print(table_of(self.trials, kept=kept))
        self.console.print(*reasons(self.trials, kept=kept), sep="\n", soft_wrap=True)
        self.say(verdict(self.trials, kept))
        facts: dict[str, object] = {"fit": as_facts(self.trials, kept=kept)}
        if self.learned is not None:
            facts["second_ranking"] = reranker.as_facts(self.learned)
        keep(kept, self.folder, first=self.trials[0], facts=facts)
        shutil.rmtree(self.folder / TRIED, ignore_errors=True)
        if self.parent is None:
            return kept
        if self.learned is None:
            choices = reranker.inherit(self.parent, self.folder)
            self.inherited = choices is not None
            kept = replace(kept, choices=choices or kept.choices)
        self.lost = missing_parts(self.folder / BEST, of=self.parent)
        return kept
