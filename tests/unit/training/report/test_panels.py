"""What is drawn, from results made by hand."""

from dataclasses import replace
from typing import Any

from training.report.panels import (
    Curve,
    depth_panels,
    memorization_panels,
    plane_panels,
    time_panels,
)


def test_lambdas_stand_at_equal_distances(run: Any, peer: Any) -> None:
    p1, p5 = memorization_panels([peer, run()])
    assert (p1.name, p5.name) == ("lambda-P1", "lambda-P5")
    assert p1.ticks == ((0.0, "0"), (1.0, "0.5"), (2.0, "1"))
    (curve,) = p1.curves
    assert curve == Curve(name="rae", points=((0.0, 40), (1.0, 50), (2.0, 45)), style=0, chosen=1)


def test_depths(run: Any, peer: Any) -> None:
    panels = depth_panels([run(), peer])
    assert [panel.name for panel in panels] == ["b-P1", "b-P5", "b-R100"]
    (curve,) = panels[2].curves
    assert (curve.points, curve.chosen) == (((50.0, 75), (200.0, 80)), 1)


def test_training_time_of_all_runs_and_of_each(run: Any, peer: Any) -> None:
    together, first, second = time_panels([run("a"), peer, run("b")])
    assert [curve.name for curve in together.curves] == ["a, λ 0.5", "b, λ 0.5"]
    assert [curve.style for curve in together.curves] == [0, 1]
    assert together.curves[0].points == ((30.0, 41.0), (60.0, 49.0))
    assert (first.title, second.title) == ("a", "b")
    assert [curve.name for curve in first.curves] == ["λ 0", "λ 0.5"]
    assert first.limits == second.limits == together.limits
    assert together.x == "seconds of training"


def test_one_run_needs_no_panel_of_all(run: Any) -> None:
    assert [panel.name for panel in time_panels([run()])] == ["time-1"]


def test_the_plane_has_a_point_for_each_run_as_chosen(run: Any, peer: Any, result: Any) -> None:
    one = result((52, 31, 81), memorization=0.3, depth=200, chosen=True)
    rare = dict(one.metrics) | {"PSP@1": 25.0, "PSP@5": 60.0}
    other = run("unidec", ways=(replace(one, metrics=rare),))
    first, fifth = plane_panels([peer, run(), other])
    assert [panel.name for panel in (first, fifth)] == ["plane-PSP1", "plane-PSP5"]
    points = {curve.name: curve.points for curve in fifth.curves}
    assert points == {"bm25": ((37, 1.0),), "rae": ((50, 1.0),), "unidec": ((52, 60.0),)}
    assert first.curves[1].points == ((52, 25.0),)
    assert (fifth.x, fifth.y) == ("P@1, percent", "PSP@5, percent")


def test_a_run_has_the_same_style_in_the_plane_and_elsewhere(run: Any, peer: Any) -> None:
    runs = [peer, run("a"), run("b")]
    plane = {curve.name: curve.style for curve in plane_panels(runs)[0].curves}
    assert plane == {"a": 0, "b": 1, "bm25": 2}
    assert {c.name: c.style for c in depth_panels(runs)[0].curves} == {"a": 0, "b": 1}


def test_one_run_has_no_plane(run: Any) -> None:
    assert plane_panels([run()]) == []


def test_nothing_to_draw(peer: Any) -> None:
    assert memorization_panels([peer]) == depth_panels([peer]) == time_panels([peer]) == []
