"""Pages in a real browser: nothing is requested, nothing complains, nothing is cut off."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotlap.report.page.writing import write_page
from tests.report.page import documents

pytestmark = [pytest.mark.slow, pytest.mark.browser]
WIDTHS = (1280, 390)
_LONG = "a_rather_long_name_of_something_that_somebody_has_written" * 3

# Texts of pictures that are on the page and reach over their picture.
CUT = """[...document.querySelectorAll('svg text')].filter(text => {
    const s = text.ownerSVGElement.getBoundingClientRect(), t = text.getBoundingClientRect();
    return s.width > 0 && (t.left < s.left - 1 || t.right > s.right + 1 ||
                           t.top < s.top - 1 || t.bottom > s.bottom + 1);
}).map(text => text.textContent)"""
# Elements that reach over the window; pictures that are not shown have no size.
WIDE = """[...document.querySelectorAll('body *')].filter(
    each => each.getBoundingClientRect().right > window.innerWidth + 1
).map(each => each.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium")
    options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, document in documents.all_documents(folder).items():
        found[name] = folder / f"{name}.html"
        write_page(document, found[name])
    long = documents.diagnosis()
    long["findings"][0] |= {"where": _LONG, "evidence": _LONG, "rule": _LONG}
    long["script"] = f"/{_LONG}.py"
    found["long names"] = folder / "long.html"
    write_page(long, found["long names"])
    return found


def opened(browser: Any, path: Path, width: int, **options: Any) -> tuple[Any, list[str]]:
    """Return a page in the browser, and what it requested and what was said of it."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    said: list[str] = []
    page.on("request", lambda request: said.append(request.url))
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(path.as_uri())
    return page, [text for text in said if text != path.as_uri()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_asks_for_nothing_and_is_not_cut_off(
    browser: Any, pages: dict[str, Path], width: int, scheme: str
) -> None:
    for name, path in pages.items():
        page, said = opened(browser, path, width, color_scheme=scheme)
        assert not said, name
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, name
        assert not page.evaluate(WIDE), name
        assert not page.evaluate(CUT), name
        page.context.close()


def test_what_looks_for_faults_finds_them(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.html"
    path.write_text(
        "<!doctype html><body><div style='width:2000px'>x</div>"
        "<svg width='40' height='20' viewBox='0 0 40 20'><text y='12'>a long text</text></svg>"
        "<img src='b.png'><script>console.log('c')</script>"
    )
    page, said = opened(browser, path, 390)
    assert any(text.endswith("b.png") for text in said) and "c" in said
    assert page.evaluate(WIDE) and page.evaluate(CUT)
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") > 0


def test_a_page_is_dark_where_that_is_wanted(browser: Any, pages: dict[str, Path]) -> None:
    papers = set()
    for scheme in ("light", "dark"):
        page, _ = opened(browser, pages["tuning"], 1280, color_scheme=scheme)
        papers.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert papers == {"rgb(255, 255, 255)", "rgb(20, 23, 26)"}


def test_each_width_has_its_own_drawings(browser: Any, pages: dict[str, Path]) -> None:
    for width, shown in zip(WIDTHS, ("screen", "phone"), strict=True):
        page, _ = opened(browser, pages["tuning"], width)
        for kind in ("screen", "phone"):
            sizes = page.evaluate(
                f"[...document.querySelectorAll('.{kind} svg')].map(s => s.clientWidth)"
            )
            assert all((size > 0) == (kind == shown) for size in sizes) and sizes


def test_a_page_prints_on_white_paper_with_all_that_is_folded(
    browser: Any, pages: dict[str, Path]
) -> None:
    page, _ = opened(browser, pages["tuning"], 1280, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    heights = page.evaluate(
        "[...document.querySelectorAll('details table')].map(t => t.clientHeight)"
    )
    assert heights and min(heights) > 0
    assert len(page.pdf()) > 10_000
