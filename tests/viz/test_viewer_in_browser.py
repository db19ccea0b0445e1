"""The page in a real Chromium, where there is one: `pip install playwright` and a chromium on the path."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from hostile import HOSTILE
from masklens.viz.page import LEVELS, page, palette
from records import make

WIDTHS = (360, 820, 1440)
CELL_COLOURS = """() => [...document.querySelectorAll('.column i, .tokens span')].map(
    e => [e.className.split(' ')[0], getComputedStyle(e).backgroundColor, getComputedStyle(e).color])"""
ROWS = """() => [...document.querySelectorAll('.column')].map(e => {
    const label = getComputedStyle(e, '::before'), cells = [...e.querySelectorAll('i')];
    const height = cells.at(-1).getBoundingClientRect().bottom - cells[0].getBoundingClientRect().top;
    const left = e.getBoundingClientRect().left;
    return [parseFloat(label.height), height, parseFloat(label.width) + 8, left]})"""


@pytest.fixture(scope="module")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on the path")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A page with a long map, a line of tokens and hostile text."""
    words = tuple(f"word{i}" for i in range(60))
    long = make(tokens=words, scores=np.linspace(-1, 1, 480).reshape(8, 60), text=" ".join(words))
    bad = make(
        tokens=HOSTILE, scores=np.linspace(0, 1, 2 * len(HOSTILE)).reshape(2, -1), text="".join(HOSTILE)
    )
    line = replace(bad, sites=(0,), scores=bad.scores[:1])
    file = tmp_path_factory.mktemp("page") / "page.html"
    file.write_text(page([long, bad, line], title=HOSTILE[0]), encoding="utf-8")
    return file


def open_page(browser, path, width=820, scheme="light"):
    """The page, with everything that it does besides showing itself."""
    tab, events = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme), []
    tab.on("dialog", lambda dialog: (events.append(dialog.message), dialog.dismiss()))
    tab.on("console", lambda message: events.append(message.text))
    tab.on("pageerror", lambda error: events.append(str(error)))
    tab.on("request", lambda request: events.append(request.url))
    tab.goto(path.as_uri())
    return tab, events


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_runs_nothing_is_fetched_and_nothing_is_wider_than_the_screen(browser, path, width):
    tab, events = open_page(browser, path, width)
    assert events == [path.as_uri()]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.title() == HOSTILE[0]
    assert tab.locator(".column").count() == 60 + len(HOSTILE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_cells_have_the_colours_of_the_scheme(browser, path, scheme):
    tab, _ = open_page(browser, path, scheme=scheme)
    shown = tab.evaluate(CELL_COLOURS)
    expected = palette(scheme)
    assert {name for name, *_ in shown} >= {f"n{LEVELS}", "p0", f"p{LEVELS}", f"q{LEVELS}"}
    for name, background, text in shown:
        assert (css(expected[name][0]), css(expected[name][1])) == (background, text)


def css(colour):
    return f"rgb({int(colour[1:3], 16)}, {int(colour[3:5], 16)}, {int(colour[5:7], 16)})"


@pytest.mark.parametrize("width", WIDTHS)
def test_names_of_sites_stand_beside_their_cells_on_every_line(browser, path, width):
    tab, _ = open_page(browser, path, width)
    for names, cells, right_of_names, left_of_cells in tab.evaluate(ROWS):
        assert names == pytest.approx(cells + 1, abs=1)
        assert right_of_names <= left_of_cells


def test_printing_uses_the_light_colours(browser, path):
    tab, _ = open_page(browser, path, scheme="dark")
    tab.emulate_media(media="print", color_scheme="dark")
    name, background, _ = tab.evaluate(CELL_COLOURS)[0]
    assert background == css(palette("light")[name][0])
