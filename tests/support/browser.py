"""Open pages in a real browser, Debian's chromium, headless: what scripts say, and the layout."""

import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any, NamedTuple

import pytest

# If a word is broken into two lines, its column is too narrow. Only short words are tested,
# because words of the data may be longer than a screen.
MEASURE = """
<script>
addEventListener("load", () => {
  document.querySelectorAll("details").forEach(one => one.open = true);
  const broken = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const parent = node.parentElement;
    if (["SCRIPT", "STYLE"].includes(parent.tagName) || parent.offsetWidth === 1) continue;
    for (const word of node.data.matchAll(/(?<![^\\s-])[^\\s-]{2,14}(?![^\\s-])/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map(one => Math.round(one.top)));
      if (lines.size > 1) broken.push(word[0]);
    }
  }
  const measured = document.createElement("pre");
  measured.id = "measured";
  measured.textContent = JSON.stringify({
    width: innerWidth, needed: document.documentElement.scrollWidth, broken,
    scrolled: [...document.querySelectorAll(".wide")]
      .filter(one => one.scrollWidth > one.clientWidth)
      .map(one => one.querySelector("table").className),
    terms: [...document.querySelectorAll("dl.words dt")].map(term => {
      const [one, other] = [term, term.nextElementSibling].map(e => e.getBoundingClientRect());
      return [one.left, one.top, other.left, other.top];
    }),
  });
  parent.document.body.append(measured);
});
</script>
"""


class Layout(NamedTuple):
    """A browser's measurements: widths in CSS pixels, and words that are broken into lines."""

    width: int
    needed: int
    broken: list[str]
    scrolled: list[str]  # classes of tables that are wider than their containers
    terms: list[list[float]]  # in a glossary: left and top of each term and of its meaning


def layout(page: str, *, width: int, folder: Path) -> Layout:
    """Open a page in a frame of this width, because a window has at least 500 pixels.

    The opened copy of the page has no content security policy, because that would forbid the
    measuring script.
    """
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    assert policy.search(page)
    opened = folder / "page.html"
    measured = policy.sub("", page).replace("</body>", f"{MEASURE}</body>")
    frame = f'width="{width}" height="844" style="border: 0" srcdoc="{escape(measured)}"'
    opened.write_text(
        f'<!doctype html><meta charset="utf-8"><body><iframe {frame}></iframe></body>'
    )
    facts = measured_by(opened.as_uri(), folder=folder)
    assert facts["width"] == width
    return Layout(**facts)


def measured_by(url: str, *, folder: Path, seconds: int = 0) -> Any:
    """Open a page; return the JSON that its script puts into an element with the id `measured`.

    The script may wait for answers for up to some `seconds`. Without chromium the test is skipped;
    in CI it fails.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        reason = "NOT TESTED: there is no chromium; apt-get install chromium"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    ended = subprocess.run(
        [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *("--window-size=1600,1000", f"--user-data-dir={folder / 'profile'}"),
            *([f"--virtual-time-budget={1000 * seconds}"] if seconds else []),
            url,
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = re.search(r'<pre id="measured">(.*?)</pre>', ended.stdout, re.DOTALL)
    assert found, ended.stderr[-2_000:]
    return json.loads(unescape(found[1]))
