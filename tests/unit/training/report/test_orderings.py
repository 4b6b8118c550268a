"""The paper's orderings, in results that follow it and in results that do not."""

from typing import Any

from training.report import orderings
from training.report.orderings import Ordering


def falls(ordering: Ordering) -> dict[str, list[bool]]:
    """Whether each metric of each line falls as in the paper."""
    return {line.subject: [finding.holds for finding in line.findings] for line in ordering.lines}


def settings(*, hard_negatives: int = 2, seed: int = 0, **system: Any) -> dict[str, Any]:
    return {
        "system": {"name": "rae", **system},
        "batch": {"hard_negatives": hard_negatives},
        "refresh": {"every": 400 if hard_negatives else 0},
        "seed": seed,
    }


def test_joint_against_separate(run: Any, peer: Any) -> None:
    ordering = orderings.joint([run(), peer])
    assert falls(ordering) == {"rae, λ 0.5": [True, True, False]}  # R@100: 80 against 81
    assert ordering.verdict == "does not hold in 1 of 3"
    assert (ordering.findings[2].better.value, ordering.findings[2].worse.value) == (80, 81)


def test_equal_is_no_worse(run: Any, result: Any) -> None:
    ways = (
        result((5, 5, 5), memorization=0.5, depth=9, chosen=True),
        result((5, 5, 5), memorization=0.5, depth=9, method="separate"),
    )
    assert orderings.joint([run(ways=ways)]).verdict == "holds in all 3"


def test_with_the_memory_against_without(run: Any, peer: Any) -> None:
    ordering = orderings.memory([run(), peer])
    assert falls(ordering) == {"rae, λ 0.5 and 0": [True, True, True]}
    assert ordering.holds


def test_lambda_0_as_chosen_is_no_comparison(run: Any, result: Any) -> None:
    ways = (result((5, 5, 5), memorization=0.0, depth=9, chosen=True),)
    ordering = orderings.memory([run(ways=ways)])
    assert ordering.lines == ()
    assert ordering.missing == ("rae: λ 0 was chosen, which is no memory",)
    assert ordering.verdict == "not compared"


def test_inner_lambda(run: Any, peer: Any) -> None:
    ordering = orderings.inner_memorization([run(), peer])
    assert falls(ordering) == {"rae": [True, False]}  # P@5: 30 at 0.5, 31 at 1
    p1, p5 = ordering.findings
    assert (p1.better.value, p1.better.memorization) == (50, 0.5)
    assert (p1.worse.value, p1.worse.memorization) == (45, 1.0)
    assert (p5.worse.value, p5.worse.memorization) == (31, 1.0)


def test_inner_lambda_must_be_better_than_both(run: Any, result: Any) -> None:
    ways = tuple(result((5, 5, 5), memorization=value, depth=9) for value in (0.0, 0.5, 1.0))
    assert falls(orderings.inner_memorization([run(ways=ways)])) == {"rae": [False, False]}


def test_inner_lambda_needs_both_ends(run: Any, result: Any) -> None:
    ways = tuple(result((5, 5, 5), memorization=value, depth=9) for value in (0.0, 0.5))
    assert orderings.inner_memorization([run(ways=ways)]).lines == ()


def test_ablations_are_found_by_their_settings(run: Any, result: Any) -> None:
    def at(figure: float) -> Any:
        return (result((figure, 5, 5), memorization=0.5, depth=200, chosen=True),)

    full = run("full", settings=settings(), ways=at(48.04))
    no_instances = run("a", settings=settings(in_batch_instances=False), ways=at(46.51))
    no_negatives = run("b", settings=settings(hard_negatives=0), ways=at(48.84))
    runs = [no_instances, full, no_negatives]
    assert falls(orderings.in_batch_instances(runs)) == {"full against a": [True, True, True]}
    assert falls(orderings.hard_negatives(runs)) == {"full against b": [False, True, True]}
    assert [one.source for one in orderings.orderings(runs)][:2] == ["Table 3", "Table 3"]


def test_an_ablation_that_differs_in_more_is_not_compared(run: Any) -> None:
    full = run("full", settings=settings())
    bare = run("bare", settings=settings(in_batch_instances=False, seed=1))
    ordering = orderings.in_batch_instances([full, bare])
    assert ordering.lines == ()
    assert ordering.missing == ("bare: no other run differs from it in this alone",)


def test_other_systems_are_no_ablations(run: Any) -> None:
    other = run("supcon", system="supcon-de", settings=settings(hard_negatives=0))
    assert orderings.hard_negatives([run(settings=settings()), other]).missing == ()


def test_nothing_is_said_of_peers(peer: Any) -> None:
    assert orderings.orderings([peer]) == []


def test_a_dual_encoder_is_the_objective_without_instances(run: Any) -> None:
    same = {"batch": {"hard_negatives": 2}, "refresh": {"every": 400}, "seed": 0}
    full = run("rae", settings={**same, "system": {"name": "rae", "tau": 0.04}})
    bare = {**same, "system": {"name": "dual-encoder", "tau": 0.04}}
    ance = run("ance", settings=bare, system="dual-encoder")
    ngame = run("ngame", settings=same, system="ngame")

    ordering = orderings.in_batch_instances([full, ance, ngame])
    assert list(falls(ordering)) == ["rae against ance"]
