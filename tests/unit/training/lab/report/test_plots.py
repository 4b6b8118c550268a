"""Plots are drawn for any names and are reproducible."""

from typing import Any

import pytest

from training.lab.report.plots import Curve, draw, plane

PNG = b"\x89PNG\r\n\x1a\n"


def test_a_picture_is_png_and_the_same_each_time(run: Any, peer: Any) -> None:
    picture = plane([run(), peer])
    assert picture.startswith(PNG)
    assert plane([run(), peer]) == picture


@pytest.mark.parametrize("name", ["_hidden", "$x_$ {", "a" * 200, "<b>&", ""])
def test_any_name_can_be_drawn(name: str) -> None:
    curve = Curve(name=name, points=[(1.0, 2.0), (2.0, 3.0)], spread=[0.0, 1.0])
    assert draw([curve], title=name, x="x", y="y").startswith(PNG)
