"""The paper's orderings of methods, in results that confirm them and in results that do not."""

from typing import Any

import pytest

from training.lab.report import orderings


def settings(*, hard_negatives: int = 2, seed: int = 0, **system: Any) -> dict[str, Any]:
    return {
        "system": {"name": "rae", **system},
        "batch": {"hard_negatives": hard_negatives},
        "refresh": {"every": 400 if hard_negatives else 0},
        "seed": seed,
    }


def test_joint_against_separate_where_equal_is_no_worse(run: Any, peer: Any, result: Any) -> None:
    ordering = orderings.joint([run(), peer])
    assert ordering.holds == {"rae, λ 0.5": [True, True, False]}  # R@100: 80 < 81
    assert ordering.verdict == "does not hold in 1 of 3"
    ways = (
        result((5, 5, 5), memorization=0.5, depth=9, chosen=True),
        result((5, 5, 5), memorization=0.5, depth=9, method="separate"),
    )
    assert orderings.joint([run(ways=ways)]).verdict == "holds in all 3"


def test_with_the_memory_against_without(run: Any, peer: Any, result: Any) -> None:
    assert orderings.memory([run(), peer]).holds == {"rae": [True, True, True]}
    chosen_0 = (result((5, 5, 5), memorization=0.0, depth=9, chosen=True),)
    assert orderings.memory([run(ways=chosen_0)]).holds == {}


@pytest.mark.parametrize(
    ("lambdas", "holds"),
    [((0.0, 0.5, 1.0), {"rae": [False, False]}), ((0.0, 0.5), {})],
    ids=["it must be better than both ends", "it needs both ends"],
)
def test_inner_lambda(
    run: Any, peer: Any, result: Any, lambdas: tuple[float, ...], holds: dict[str, list[bool]]
) -> None:
    # P@5 is 30 at lambda 0.5 and 31 at lambda 1.
    assert orderings.inner_memorization([run(), peer]).holds == {"rae": [True, False]}
    ways = tuple(result((5, 5, 5), memorization=value, depth=9) for value in lambdas)
    assert orderings.inner_memorization([run(ways=ways)]).holds == holds


def test_ablations_are_found_by_their_settings(run: Any, result: Any) -> None:
    def at(figure: float) -> Any:
        return (result((figure, 5, 5), memorization=0.5, depth=200, chosen=True),)

    full = run("full", settings=settings(), ways=at(48.04))
    no_instances = run("a", settings=settings(in_batch_instances=False), ways=at(46.51))
    no_negatives = run("b", settings=settings(hard_negatives=0), ways=at(48.84))
    runs = [no_instances, full, no_negatives]
    assert orderings.in_batch_instances(runs).holds == {"full against a": [True, True, True]}
    assert orderings.hard_negatives(runs).holds == {"full against b": [False, True, True]}
    assert [one.source for one in orderings.orderings(runs)][:2] == ["Table 3", "Table 3"]


def test_what_is_no_ablation_is_not_compared(run: Any, peer: Any) -> None:
    full = run("full", settings=settings())
    differs_in_more = run("bare", settings=settings(in_batch_instances=False, seed=1))
    assert orderings.in_batch_instances([full, differs_in_more]).holds == {}
    other_system = run("supcon", system="supcon-de", settings=settings(hard_negatives=0))
    assert orderings.hard_negatives([full, other_system]).holds == {}
    assert orderings.orderings([peer]) == []


def test_a_dual_encoder_is_the_objective_without_instances(run: Any) -> None:
    same = {"batch": {"hard_negatives": 2}, "refresh": {"every": 400}, "seed": 0}
    full = run("rae", settings={**same, "system": {"name": "rae", "tau": 0.04}})
    bare = {**same, "system": {"name": "dual-encoder", "tau": 0.04}}
    ance = run("ance", settings=bare, system="dual-encoder")
    ngame = run("ngame", settings=same, system="ngame")

    ordering = orderings.in_batch_instances([full, ance, ngame])
    assert list(ordering.holds) == ["rae against ance"]
