"""Makes a whole SVG file of a chart's inline SVG: style, patterns, white background."""

import re
from pathlib import Path

from hotlap.report.page.svg import COLORS

_FOLDER = Path(__file__).parent
_SPACE = "http://www.w3.org/2000/svg"
_MARGIN = 16


def standalone(picture: str) -> str:
    """Return inline SVG as a whole SVG file, on white paper, with its style and its hatchings."""
    match = re.match(r'<svg viewBox="0 0 (\d+) (\d+)"', picture)
    assert match is not None, picture[:80]
    width, height = (int(side) + 2 * _MARGIN for side in match.groups())
    colors = "".join(f".c{k}{{fill:{c}}}.l{k}{{stroke:{c}}}" for k, c in enumerate(COLORS))
    patterns = (_FOLDER / "patterns.svg").read_text(encoding="utf-8")
    style = (_FOLDER / "chart.css").read_text(encoding="utf-8")
    return (
        f'<svg xmlns="{_SPACE}" width="{width}" height="{height}">\n<style>{_INK}{style}{colors}'
        f'</style>\n<defs>{patterns}</defs>\n<rect width="100%" height="100%" fill="white"/>\n'
        f'<g transform="translate({_MARGIN} {_MARGIN})">{picture}</g>\n</svg>\n'
    )


_INK = "svg{--paper:#fff;--ink:#16191d;--soft:#566069;--line:#d5dae0;--hatch:rgba(255,255,255,.75)}"
