"""The candidates depend on the data, the memory and earlier trials."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.training.fitting.test_trial import HALF, trial
from training.fitting.candidates import (
    CANDIDATES,
    LONGER,
    QUICK,
    QUICK_ANCE,
    QUICK_LONGER,
    QUICK_UNIDEC,
    RAE,
    SUPCON,
    UNIDEC,
    WHOLE,
    Candidate,
    Situation,
)
from training.fitting.facts import DataFacts, Lengths, Transformer, step_memory
from training.fitting.trial import Trial
from training.recipes import recipe as recipes
from training.recipes.recipe import Recipe

MINILM = Transformer(layers=6, heads=12, hidden=384)
FACTS = DataFacts(
    rows=70_000,
    labelled=65_813,
    labels=9_000,
    pairs=200_000,
    seen_once=0.3,
    known=0.1,
    queries=Lengths(mean=20.0, limit=64),
    keywords=Lengths(mean=20.0, limit=40),
    unseen=65_813,
    held_out=2_000,
)
GOOD = np.where(np.arange(100) < 30, 1.0, HALF)
BETTER = np.where(np.arange(100) < 60, 1.0, HALF)


def situation(*trials: Trial, facts: DataFacts = FACTS, free: int = 24 << 30) -> Situation:
    tried: Sequence[Trial] = (trial("untrained", HALF), *trials)
    return Situation(
        facts=facts,
        transformer=MINILM,
        width=384,
        free=free,
        encoder="some/encoder",
        seed=3,
        trials=tried,
    )


def loaded(candidate: Candidate | None) -> Recipe:
    assert candidate is not None
    return recipes.load(candidate.recipe, candidate.settings)


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_is_a_recipe(name: str) -> None:
    candidate = CANDIDATES[name](situation(trial(QUICK, BETTER), trial(WHOLE, GOOD)))
    recipe = recipes.load(candidate.recipe, candidate.settings)
    assert recipe.encoder.name == "some/encoder"
    assert (recipe.encoder.query_tokens, recipe.encoder.label_tokens) == (64, 40)
    assert (recipe.validation.rows, recipe.seed, recipe.batch.instances) == (2_000, 3, 1_024)
    assert recipe.validation.checks == 1 and not recipe.validation.untrained
    assert recipe.validation.drawn == "texts"
    assert len(recipe.validation.mixing) == 1 or 1.0 < candidate.encodings <= 3.0


@pytest.mark.parametrize(("labelled", "batch"), [(10, 16), (600, 32), (5_976, 512), (10**6, 1024)])
def test_small_data_has_small_batches_and_a_small_rate(labelled: int, batch: int) -> None:
    facts = replace(FACTS, labelled=labelled, held_out=labelled // 5)
    here = situation(facts=facts)
    assert here.instances() == batch
    recipe = loaded(CANDIDATES[WHOLE](here))
    assert recipe.batch.instances == batch
    assert recipe.optimizer.learning_rate == pytest.approx(6e-4 * (batch / 1024) ** 0.5, rel=0.01)


def test_slow_hardware_has_smaller_batches_of_the_whole_encoder() -> None:
    """At 500 texts per second, 300 s are 40 steps of 1,024 pairs or 320 steps of 128."""
    slow = replace(situation(trial(QUICK, GOOD)), seconds_per_text=0.002, seconds=300.0)
    for name, batch in ((WHOLE, 128), (SUPCON, 32)):
        tried = replace(slow, trials=(*slow.trials, trial(WHOLE, GOOD)))
        recipe = loaded(CANDIDATES[name](tried))
        assert recipe.batch.instances == batch
        assert recipe.optimizer.learning_rate == pytest.approx(6e-4 * (batch / 1024) ** 0.5, 0.01)
    assert loaded(CANDIDATES[QUICK](slow)).batch.instances == 1_024, "only the encoder is slow"
    fast = replace(slow, seconds_per_text=0.0001)
    assert loaded(CANDIDATES[WHOLE](fast)).batch.instances == 1_024
    assert loaded(CANDIDATES[WHOLE](replace(slow, seconds=0.1))).batch.instances == 16


def test_ngrams_get_the_time_that_the_whole_encoder_did_not_have() -> None:
    assert CANDIDATES[LONGER](situation(trial(QUICK, HALF))) is None
    candidate = CANDIDATES[LONGER](situation(trial(QUICK, GOOD)))
    assert loaded(candidate).encoder.frozen and candidate.name == LONGER


def test_mined_labels_are_kept_where_they_help() -> None:
    for without, rows, mined, recipe in (
        (GOOD, BETTER, 6, QUICK_ANCE),
        (GOOD, GOOD, 6, QUICK),
        (BETTER, GOOD, 0, QUICK),
    ):
        here = situation(trial(QUICK, without), trial(QUICK_ANCE, rows))
        assert loaded(CANDIDATES[QUICK_UNIDEC](here)).batch.hard_negatives == mined
        assert CANDIDATES[LONGER](here).recipe == recipe
        unidec = replace(here, trials=(*here.trials, trial(QUICK_UNIDEC, BETTER)))
        above_both = without is GOOD and rows is GOOD
        assert unidec.classifiers_help is above_both
    few = replace(FACTS, labels=1_500)
    assert CANDIDATES[QUICK_ANCE](situation(facts=few)) is None, "a batch has most of them"


def test_the_best_beside_the_frozen_encoder_gets_more_time_where_it_leads() -> None:
    leads = [trial(QUICK, GOOD), trial(QUICK_ANCE, BETTER), trial(WHOLE, GOOD)]
    candidate = CANDIDATES[QUICK_LONGER](situation(*leads))
    recipe = loaded(candidate)
    assert (candidate.name, candidate.recipe) == (QUICK_LONGER, QUICK_ANCE)
    assert recipe.encoder.frozen and recipe.batch.hard_negatives == 6
    assert CANDIDATES[LONGER](situation(*leads)).recipe == RAE, "and the whole encoder the rest"
    trails = [trial(QUICK, GOOD), trial(WHOLE, BETTER)]
    assert CANDIDATES[QUICK_LONGER](situation(*trails)) is None
    assert CANDIDATES[QUICK_LONGER](situation(trial(QUICK, GOOD))) is None, "`longer` does it"


def test_ngrams_that_gained_nothing_are_left_out() -> None:
    for rows, buckets in ((HALF, 0), (GOOD, 65_536)):
        recipe = loaded(CANDIDATES[WHOLE](situation(trial(QUICK, rows))))
        assert recipe.ngrams.buckets == buckets


@pytest.mark.parametrize(
    ("rows", "mixing", "factor"), [(GOOD, 1.0, 1.0), (GOOD, 0.5, 0.5), (HALF, 1.0, 0.2)]
)
def test_the_last_rate_follows_from_the_trials(
    rows: np.ndarray, mixing: float, factor: float
) -> None:
    here = situation(replace(trial(WHOLE, rows), mixing=mixing))
    recipe = loaded(CANDIDATES[LONGER](here))
    assert recipe.optimizer.learning_rate == pytest.approx(factor * 6e-4, rel=0.01)


def test_the_better_loss_gets_the_rest_of_the_time() -> None:
    for rae, supcon, expected in ((GOOD, BETTER, SUPCON), (BETTER, GOOD, RAE)):
        candidate = CANDIDATES[LONGER](situation(trial(WHOLE, rae), trial(SUPCON, supcon)))
        assert candidate.recipe == expected
    assert CANDIDATES[LONGER](situation()) is None


def test_unidec_gets_the_time_where_its_classifiers_help() -> None:
    tried = [trial(QUICK, GOOD), trial(QUICK_UNIDEC, BETTER), trial(WHOLE, GOOD)]
    assert CANDIDATES[SUPCON](situation(*tried)) is None
    recipe = loaded(CANDIDATES[LONGER](situation(*tried)))
    assert recipe.system["name"] == UNIDEC
    assert (recipe.heads.encoder, recipe.ngrams.buckets) == (384, 65_536)
    tried[1] = trial(QUICK_UNIDEC, GOOD)
    assert CANDIDATES[LONGER](situation(*tried)).recipe == RAE
    few = replace(FACTS, labels=150_000)
    assert CANDIDATES[QUICK_UNIDEC](situation(facts=few)) is None, "too few clicks a label"


def test_supcon_is_tried_where_rows_have_several_labels_and_first_where_many() -> None:
    single = replace(FACTS, pairs=FACTS.labelled)
    assert CANDIDATES[SUPCON](situation(trial(WHOLE, GOOD), facts=single)) is None
    assert CANDIDATES[SUPCON](situation(trial(WHOLE, HALF))) is None
    many = replace(FACTS, pairs=20 * FACTS.labelled)
    here = situation(trial(WHOLE, GOOD), facts=many)
    assert CANDIDATES[WHOLE](here).recipe == SUPCON
    assert CANDIDATES[SUPCON](here) is None
    assert CANDIDATES[LONGER](here).recipe == SUPCON
    assert CANDIDATES[WHOLE](situation()).recipe == RAE
    slow = replace(here, seconds_per_text=0.002, seconds=400.0)  # the first clusters take 158 s
    assert CANDIDATES[WHOLE](slow).recipe == RAE
    assert CANDIDATES[SUPCON](slow).recipe == SUPCON


def test_a_step_takes_at_most_half_of_the_free_memory() -> None:
    """With twenty tokens per text, a step took 16.9 GB uncached: more than half of 24 GiB."""
    roomy = step_memory(FACTS, MINILM, instances=1_024, positives=1, free=64 << 30)
    assert not roomy.gradient_cache
    assert step_memory(FACTS, MINILM, instances=1_024, positives=8, free=64 << 30).gradient_cache
    for free in (24 << 30, 4 << 30, 1 << 30):
        tight = step_memory(FACTS, MINILM, instances=1_024, positives=1, free=free)
        assert tight.gradient_cache
        taken = tight.bucket_tokens * MINILM.bytes_per_token(64)
        assert taken <= free / 2
