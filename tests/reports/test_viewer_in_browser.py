"""The report in a real browser: every control does what it says, and hostile text does nothing."""

import re
import time
from dataclasses import replace

import numpy as np
import pytest

from hostile import HOSTILE
from masklens.reports.document import report_html
from masklens.reports.fragment import palette
from masklens.reports.page import Chart, Cloud, Entry, Grid, report_data
from records import make, proved

WIDTHS = (360, 820, 1440)
WORDS = ("[CLS]", "a", "fast", "fun", "##ny", "film", "[SEP]")
TEXT = "a fast funny film"
OFFSETS = ((0, 0), (0, 1), (2, 6), (7, 10), (10, 12), (13, 17), (17, 17))
SCORES = np.round(np.random.default_rng(1).normal(size=(4, 7)), 3)
PARTS = [
    Chart("A game", {"one": [0.2, 0.8], "two": [0.5, 0.6]}, [0, 100], "% of tokens", "accuracy"),
    Grid("A table", ["name", "value"], [["b", 2.0], ["a", 3.0], ["c", 1.0]], heat=[1]),
    Cloud("Words", [("heavy", 2.0), ("light", 1.0)]),
]


def film(number=0, method="gradient", scores=SCORES, **more):
    text = f"{TEXT} {number}" if number else TEXT
    record = replace(make(tokens=WORDS, scores=scores, text=text, method=method), offsets=OFFSETS)
    return replace(record, **more)


def proofs(kept=True):
    verdict = "sufficient" if kept else "no better than random"
    return [
        proved(verdict=verdict, needed=5 - i, tokens=5, removed=tuple(range(1, 1 + i)), opened=i)
        for i in range(4)
    ]


def written(folder, entries, **more):
    path = folder / "report.html"
    path.write_text(report_html(report_data(entries, **more)), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Three texts with two methods each: the masks over inputs, the gradient over states."""
    entries = []
    for i in range(3):
        masks = film(i, "diffmask", np.abs(SCORES) / 4, merge="max", settings={"over": "inputs", "n": i})
        masks = replace(masks, prediction="negative" if i == 1 else "positive")
        entries += [
            Entry(replace(film(i), prediction=masks.prediction), "gradient", proofs(kept=i != 2)),
            Entry(masks, "lens", proofs()),
        ]
    labels = ["positive", "positive", "positive"]
    return written(tmp_path_factory.mktemp("report"), entries, panels=PARTS, labels=labels, title="Films")


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory):
    tokens = (*HOSTILE, "__proto__", "constructor", "7", "5")
    scores = np.linspace(-1, 1, 3 * len(tokens)).reshape(3, -1)
    bad = make(tokens=tokens, scores=scores, text=("".join(tokens), "\n".join(tokens)), method=HOSTILE[1])
    bad = replace(
        bad,
        prediction=HOSTILE[0],
        target=HOSTILE[2],
        settings={t: t for t in tokens},
        segments=(0, 1) * 9 + (1,),
    )
    parts = [
        part
        for text in HOSTILE
        for part in (
            Grid(text, [text], [[text]], text),
            Cloud(text, [(text, 1.0)]),
            Chart(text, {text: [1]}, [0]),
        )
    ]
    proof = [proved(removed=(0, 3))] * 3
    entries = [Entry(bad, HOSTILE[1], proof), Entry(make(text=HOSTILE[0]), "b")]
    folder = tmp_path_factory.mktemp("hostile")
    return written(folder, entries, panels=parts, title=HOSTILE[0], labels=[HOSTILE[1]] * 2)


def texts(tab, selector):
    """What is there, also where it is not drawn yet."""
    return tab.locator(selector).all_text_contents()


def css(colour):
    return f"rgb({int(colour[1:3], 16)}, {int(colour[3:5], 16)}, {int(colour[5:7], 16)})"


@pytest.mark.parametrize("width", WIDTHS)
def test_hostile_text_runs_nothing_fetches_nothing_and_breaks_nothing(visit, hostile_report, width):
    tab = visit(hostile_report, width)
    for key in ("w", "p", "n", "w", "s", "s", "j", "k"):
        tab.keyboard.press(key)
    for unit in (15, 16, 17):
        tab.locator(f'.reading [data-unit="{unit}"]').click()
    tab.locator(".map i").first.hover(force=True)
    assert tab.events == [hostile_report]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.title() == HOSTILE[0]
    assert tab.locator("img, b[onclick], script").count() == 2
    assert texts(tab, ".column b")[0] == HOSTILE[0]
    assert "⟨U+202E⟩evil" in tab.locator(".sentence").first.inner_text()


def test_the_slider_moves_the_line_the_row_and_the_proof(visit, report):
    tab = visit(report)
    slider = tab.get_by_label("Layer", exact=True)
    card = tab.locator(".card", has_text="lens").first
    for row in (0, 2):
        slider.fill(str(row))
        name = ("words", "embeddings", "block 1")[row]
        assert tab.locator(".site-name").inner_text() == name
        assert card.locator(".badge.site").inner_text() == name
        assert set(card.locator(".chosen").evaluate_all("c => c.map(e => e.dataset.row)")) == {str(row)}
        said = (
            "In this order all 5 tokens are needed",
            "",
            "These 3 of 5 tokens suffice (0.95). Random orders need 2.",
        )[row]
        assert said in card.locator(".proof").inner_text()
        assert (f"{row} more" in card.locator(".proof").inner_text()) == (row > 0)
        assert card.locator(".gone").all_inner_texts() == list(WORDS[1 : 1 + row])
    tab.keyboard.press("]")
    assert tab.locator(".site-name").inner_text() == "block 2"


def test_hover_tells_the_exact_value_and_the_rank(visit, report):
    tab = visit(report)
    tab.locator('.card >> nth=0 >> .map i[data-row="1"][data-unit="2"]').hover()
    told = tab.locator(".tip").inner_text()
    value = float(re.search(r"embeddings (.*)", told).group(1).replace("−", "-"))
    assert told.startswith("fast")
    assert value == pytest.approx(SCORES[1, 2], abs=1e-4)
    assert f"rank {1 + int((SCORES[1] > SCORES[1, 2]).sum())} of 7" in told


def test_words_merge_what_tokens_tell_apart(visit, report):
    tab = visit(report)
    card = tab.locator(".card").first
    assert card.locator(".column b").all_inner_texts() == list(WORDS)
    tab.get_by_role("button", name="words", exact=True).click()
    assert card.locator(".column b").all_inner_texts() == ["[CLS]", "a", "fast", "funny", "film", "[SEP]"]
    card.locator('.map i[data-row="0"][data-unit="3"]').hover()
    value = float(re.search(r"words (.*)", tab.locator(".tip").inner_text()).group(1).replace("−", "-"))
    assert value == pytest.approx(SCORES[0, 3] + SCORES[0, 4], abs=1e-3)


def test_inputs_or_states_and_methods_are_chosen(visit, report):
    tab = visit(report)
    assert texts(tab, ".card h2") == ["gradient", "lens"]
    tab.get_by_role("button", name="states", exact=True).click()
    assert texts(tab, ".card h2") == ["gradient"]
    tab.get_by_role("button", name="all", exact=True).click()
    tab.locator(".pills").get_by_role("button", name="gradient").click()
    assert texts(tab, ".card h2") == ["lens"]


def test_two_tokens_are_compared_over_the_layers(visit, report):
    tab = visit(report)
    for unit in (2, 5, 3):  # the third takes the place of the first
        tab.locator(f'.card >> nth=0 >> .map i[data-row="0"][data-unit="{unit}"]').click()
    card = tab.locator(".card").first
    assert card.locator(".key").all_inner_texts() == ["film", "fun"]
    assert card.locator(".plot .line").count() == 2
    plot = card.locator(".plot").bounding_box()
    tab.mouse.move(plot["x"] + plot["width"] - 3, plot["y"] + 20)
    told = tab.locator(".tip").inner_text().replace("−", "-").split()
    assert float(told[told.index("film") + 1]) == pytest.approx(SCORES[3, 5], abs=1e-4)
    assert tab.locator(".card >> nth=1 >> .key").count() == 2
    tab.keyboard.press("Escape")
    assert tab.locator(".plot").count() == 0


def test_search_filter_and_sort(visit, report):
    tab = visit(report)
    tab.keyboard.press("/")
    tab.keyboard.type("FILM 2")
    assert texts(tab, ".item-text") == [f"{TEXT} 2"]
    tab.keyboard.press("Enter")
    assert f"{TEXT} 2" in tab.locator(".sentence").inner_text()
    assert "1 of 3 texts" in tab.locator(".count").inner_text()
    tab.locator(".search").fill("nothing like it")
    assert texts(tab, ".item-text") == []
    tab.locator(".search").fill("")
    tab.get_by_label("Filter").select_option("wrong")
    assert texts(tab, ".item-text") == [f"{TEXT} 1"]
    tab.get_by_label("Filter").select_option("failed")
    assert texts(tab, ".item-text") == [f"{TEXT} 2"]
    tab.get_by_label("Filter").select_option("all")
    tab.get_by_label("Sort").select_option("prediction")
    assert texts(tab, ".item-text") == [f"{TEXT} 1", TEXT, f"{TEXT} 2"]


def test_the_keyboard_does_all(visit, report):
    tab = visit(report)
    tab.keyboard.press("j")
    assert f"{TEXT} 1" in tab.locator(".sentence").inner_text()
    assert tab.evaluate("location.hash") == "#2"
    tab.keyboard.press("k")
    tab.locator(".map").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowUp", "Enter"):
        tab.keyboard.press(key)
    assert tab.locator(".cursor").get_attribute("data-unit") == "1"
    assert tab.locator(".tip").inner_text().startswith("a")
    assert texts(tab, ".card >> nth=0 >> .key") == ["a"]
    tab.keyboard.press("n")
    assert tab.evaluate("document.body.classList.contains('with-numbers')")
    tab.keyboard.press("?")
    assert tab.get_by_role("dialog").is_visible()
    tab.keyboard.press("Escape")
    assert not tab.get_by_role("dialog").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_cells_have_the_colours_of_the_scheme_and_t_turns_it(visit, report, scheme):
    other = {"light": "dark", "dark": "light"}[scheme]
    tab = visit(report, scheme=scheme)
    look = "e => [e.className.split(' ')[0], getComputedStyle(e).backgroundColor, getComputedStyle(e).color]"
    for theme in (scheme, other):
        cells = tab.locator(".map i").evaluate_all(f"c => c.map({look})")
        assert {name[0] for name, *_ in cells} == {"n", "p", "q"}
        for name, background, ink in cells:
            assert [css(colour) for colour in palette(theme)[name]] == [background, ink]
        tab.keyboard.press("t")


def test_the_set_has_its_curves_tables_and_clouds(visit, report):
    tab = visit(report)
    tab.keyboard.press("s")
    tab.locator(".part-grid table").last.scroll_into_view_if_needed()
    assert tab.locator(".part-chart").count() == 1
    assert sorted(texts(tab, ".cloud span bdi")) == ["heavy", "light"]
    table = tab.locator(".part-grid", has_text="A table")
    table.get_by_role("button", name="value").click()
    assert table.locator("tbody td:first-child").all_inner_texts() == ["a", "b", "c"]
    table.get_by_role("button", name="value").click()
    assert table.locator("tbody td:first-child").all_inner_texts() == ["c", "b", "a"]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_screen_and_sites_stand_beside_their_cells(visit, report, width):
    tab = visit(report, width)
    for key in ("", "s"):
        if key:
            tab.keyboard.press(key)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tab.keyboard.press("s")
    measure = """columns => columns.map(e => {
        const label = getComputedStyle(e, '::before'), cells = [...e.querySelectorAll('i')];
        const map = e.closest('.map').getBoundingClientRect();
        const height = cells.at(-1).getBoundingClientRect().bottom - cells[0].getBoundingClientRect().top;
        const left = e.getBoundingClientRect().left - map.left;
        return [parseFloat(label.height), height, parseFloat(label.width), left]})"""
    for names, cells, right_of_names, left_of_cells in tab.locator(".column").evaluate_all(measure):
        assert names == pytest.approx(cells + 1, abs=1)
        assert right_of_names <= left_of_cells


def test_a_phone_has_the_list_behind_a_button(visit, report):
    tab = visit(report, 400)
    assert not tab.locator(".panel").is_visible()
    tab.get_by_role("button", name="List of texts").click()
    tab.locator(".list button").nth(2).click()
    assert f"{TEXT} 2" in tab.locator(".sentence").inner_text()
    assert not tab.locator(".panel").is_visible()


def test_the_list_counts_the_explanations_that_pass(visit, report):
    tab = visit(report)
    marks = tab.locator(".list .marks")
    assert marks.all_inner_texts() == ["2/2", "2/2", "1/2"]
    title = marks.nth(2).locator("span").get_attribute("title")
    assert title.startswith("1 of 2 explanations pass") and "gradient: no better than random" in title
    tab.locator(".pill", has_text="gradient").click()
    assert marks.all_inner_texts() == ["1/1", "1/1", "1/1"]


def test_numbers_are_explained_in_the_legend(visit, report):
    tab = visit(report)
    assert "numbers" not in tab.locator(".legend").first.inner_text()
    tab.keyboard.press("n")
    assert "numbers: hundredths of each layer's largest" in tab.locator(".legend").first.inner_text()
    tab.keyboard.press("p")
    top = abs(SCORES[:, 1:-1]).max()
    assert f"numbers: hundredths of {top:.4g}" in tab.locator(".legend").first.inner_text()
    assert "numbers: percent" in tab.locator(".legend").nth(1).inner_text()


def test_the_set_has_one_look_a_method_and_is_drawn_without_scrolling(visit, tmp_path):
    parts = [
        Chart("Layers", {"gradient": [0.2, 0.8], "lens": [0.1, 0.2]}, [0, 1]),
        Chart("A game", {"lens, block 1": [0.5, 0.6], "random": [0, 1], "gradient": [0, 1]}, [0, 1]),
        Grid("Shares", ["name", "share", "size"], [["a", 0.58333, 0.0123], ["b", 0, 3.5]], percent=[1]),
        *(Cloud("good", [("heavy", 2.0)] * 30, name="lens") for _ in range(9)),
    ]
    entries = [Entry(film(), "gradient"), Entry(film(), "lens")]
    tab = visit(written(tmp_path, [*entries, Entry(film(2), "lens")], panels=parts))
    tab.keyboard.press("s")
    tab.wait_for_function("[...document.querySelectorAll('.part-slot')].every((s) => s.children.length)")
    looks = {}
    for key in tab.locator(".key").all():
        name = key.inner_text().split(",")[0]
        looks.setdefault(name, set()).add(key.locator("path").first.get_attribute("class"))
    assert {name: len(found) for name, found in looks.items()} == {"gradient": 1, "lens": 1, "random": 1}
    assert len(set.union(*looks.values())) == 3
    assert tab.locator(".part-grid td").all_inner_texts() == ["a", "58%", "0.01", "b", "0%", "3.50"]
    assert tab.locator(".part-cloud h2").first.inner_text() == "lens: good"


def test_text_from_right_to_left_and_pairs(visit, tmp_path):
    words = ("שלום", "עולם", "טוב")
    hebrew = replace(make(tokens=words, scores=np.ones((2, 3)), text="שלום עולם טוב"), special=(False,) * 3)
    pair = replace(film(), text=("a fast", "funny film"), segments=(0, 0, 0, 1, 1, 1, 1))
    pair = replace(pair, offsets=((0, 0), (0, 1), (2, 6), (0, 3), (3, 5), (6, 10), (10, 10)))
    address = written(tmp_path, [Entry(hebrew, "a"), Entry(pair, "b")], segments=("question", "passage"))
    tab = visit(address)
    lefts = tab.locator(".column").evaluate_all("c => c.map(e => e.getBoundingClientRect().left)")
    assert lefts == sorted(lefts, reverse=True)
    tab.keyboard.press("j")
    parts = tab.locator(".columns").evaluate_all(
        "c => c.map(e => [e.dataset.segment, e.innerText.split('\\n')])"
    )
    assert parts == [["question", list(WORDS[:3])], ["passage", list(WORDS[3:])]]


def test_print_shows_every_text_in_light_colours(visit, report):
    tab = visit(report, scheme="dark")
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator(".text-view").count() == 3
    assert not tab.locator(".top, .panel, .bar").first.is_visible()
    name, background = tab.locator(".map i").first.evaluate(
        "e => [e.className.split(' ')[0], getComputedStyle(e).backgroundColor]"
    )
    assert background == css(palette("light")[name][0])
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.locator(".text-view").count() == 1


def test_large_maps_are_drawn_when_they_come_near(visit, tmp_path):
    words = tuple(f"word{i}" for i in range(500))
    made = [
        Entry(make(tokens=words, scores=np.ones((13, 500)), text=" ".join(words)), name) for name in "abcd"
    ]
    tab = visit(written(tmp_path, made), width=820)
    assert 0 < tab.locator(".map").count() < 4
    tab.locator(".card").last.locator(".legend").scroll_into_view_if_needed()
    tab.locator(".card").last.locator('.map i[data-row="12"].chosen').first.wait_for()


def test_five_hundred_texts_stay_smooth(visit, tmp_path):
    generator = np.random.default_rng(0)
    words = tuple(f"word{i}" for i in range(30))
    made = [
        Entry(
            make(tokens=words, scores=generator.normal(size=(8, 30)), text=f"{i} {' '.join(words)}"), method
        )
        for i in range(500)
        for method in ("a", "b", "c")
    ]
    started = time.perf_counter()
    tab = visit(written(tmp_path, made))
    tab.locator(".card").first.wait_for()
    assert time.perf_counter() - started < 8  # on a busy machine
    assert tab.locator(".list li").count() == 500
    assert tab.locator(".strip i").count() < 100 * 30  # strips are drawn when they are near the screen
    press = """key => { const start = performance.now();
        document.dispatchEvent(new KeyboardEvent('keydown', {key})); return performance.now() - start }"""
    for key in ("j", "j", "w", "]", "["):
        assert tab.evaluate(press, key) < 1000
    tab.locator(".search").fill("499 word")
    assert texts(tab, ".item-text")[0].startswith("499")
