"""Related runs are found by their settings, not by their names."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.core.errors import InvalidConfig, InvalidInput
from training.lab.report.mogic.relations import (
    families,
    is_of_mogic,
    oracles,
    reads_metadata_of,
    same_recipe,
)
from training.lab.report.runs import Run

Make = Callable[..., Run]


def changed(run: Run, table: str, **settings: Any) -> Run:
    known = {**run.results.settings, table: {**run.results.settings[table], **settings}}
    return replace(run, results=replace(run.results, settings=known))


def test_a_family_are_runs_that_differ_in_guidance_alone(runs: list[Run]) -> None:
    ngame, oak, linked = families(runs)
    assert ngame.alone is not None and ngame.alone.name == "ngame"
    assert [one.run.name for one in ngame.disciples] == [
        *("guided", "aligned", "matched", "guidance-alone", "projected", "strong"),
        "guided-without-metadata",
    ]
    assert (oak.alone, linked.alone) == (None, None), "OAK was not run without guidance"
    assert [[one.run.name for one in group] for group in ngame.by_oracle()] == [
        ["guided", "aligned", "matched", "guidance-alone", "projected", "strong"],
        ["guided-without-metadata"],
    ]
    assert [one.as_in_the_paper for one in ngame.disciples] == [True] + 5 * [False] + [True]


def test_oracles_guide_or_read_metadata(runs: list[Run], make: Make, peer: Run) -> None:
    spare = make("spare", append="queries")
    assert [run.name for run in oracles([*runs, spare, peer])] == ["oracle", "rae", "spare"]
    assert reads_metadata_of(spare) == "queries"
    assert [is_of_mogic(run) for run in (spare, runs[1], runs[2], peer)] == [
        *(True, False, True, False)
    ]


def test_an_oracle_that_is_not_there_is_named(runs: list[Run]) -> None:
    with pytest.raises(InvalidInput, match="guided was guided by 'oracle', which is not among"):
        families(runs[1:])


def test_wrong_settings_name_their_file(make: Make) -> None:
    wrong = make("wrong", oracle="oracle", alpha=-1.0)
    with pytest.raises(InvalidConfig, match=r"wrong/results\.json: alpha"):
        families([make("oracle"), wrong])


def test_a_setting_that_one_version_lacked_does_not_part_runs(make: Make) -> None:
    run = make("ngame")
    assert same_recipe(run, changed(run, "encoder", pooling="mean"))
    assert not same_recipe(run, changed(run, "encoder", query_tokens=32))
    assert not same_recipe(run, changed(run, "system", loss="contrast"))
    assert same_recipe(run, changed(run, "system", metadata="linked"), but="metadata")
    scored = replace(run.results, settings={**run.results.settings, "items": "linked"})
    assert not same_recipe(run, replace(run, results=scored)), "scored with other items"
