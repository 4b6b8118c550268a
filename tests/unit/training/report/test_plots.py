"""Pictures are the same each time, and are drawn whatever the names are."""

from typing import Any

import pytest

from training.report.panels import Curve, Panel, depth_panels, plane_panels
from training.report.plots import DARK, LIGHT, draw, shortened

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("theme", [LIGHT, DARK])
@pytest.mark.parametrize(
    "panels", [lambda run: depth_panels([run()])[0], lambda run: plane_panels([run(), run("b")])[0]]
)
def test_pictures_are_png_and_the_same_each_time(run: Any, theme: Any, panels: Any) -> None:
    panel = panels(run)
    picture = draw(panel, theme)
    assert picture.startswith(PNG)
    assert draw(panel, theme) == picture


@pytest.mark.parametrize("name", ["_hidden", "$x_$ {", "a" * 200, "<b>&", ""])
def test_any_name_can_be_drawn(name: str) -> None:
    curve = Curve(name=name, points=((1.0, 2.0),), style=0, chosen=0)
    panel = Panel(name="x", title=name, x="x", y="y", curves=(curve,))
    assert draw(panel, LIGHT).startswith(PNG)


def test_long_names_lose_their_middle() -> None:
    assert shortened("rae") == "rae"
    short = shortened("begin" + "x" * 100 + "end")
    assert len(short) == 40
    assert short.startswith("begin")
    assert short.endswith("end")
