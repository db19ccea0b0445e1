"""Slices and the confusion matrix in a real browser. A slice shows what a report of its texts alone shows."""

from dataclasses import replace

import numpy as np
import pytest

from hostile import HOSTILE
from masklens.errors import TargetError
from masklens.evaluation.table import Cell, Table
from masklens.reports.document import report_html
from masklens.reports.overview import overview
from masklens.reports.page import Chart, Entry, Grid, evaluation_panels, report_data
from masklens.reports.proofs import by_name, proof_panels
from masklens.reports.report import main_sets
from records import make, proved

COUNT = 40
NOUNS = ("film", "plot", "cast", "song")
PREDICTED = ["good" if i % 3 else "bad" for i in range(COUNT)]
LABELS = ["good" if i % 4 else "bad" for i in range(COUNT)]
SOURCES = [("web", "paper", HOSTILE[0])[i % 5 % 3] for i in range(COUNT)]
GIVEN = [Chart("A chart", {"one": [0.2, 0.8]}, [0, 100]), Grid("A table", ["name"], [["a"]])]
HITS = np.random.default_rng(9).integers(0, 2, (COUNT, 11)).astype(float)


def entries_of(number):
    """A lens over inputs and gradients over the states of one text, each verified at every layer."""
    draw = np.random.default_rng(number)
    words = tuple(draw.choice(NOUNS, size=3 + number % 20))
    text = f"{' '.join(words)} {number}"
    more = {"prediction": PREDICTED[number], "probabilities": {PREDICTED[number]: 0.5 + number / 100}}
    for name, scores in (
        ("lens", draw.random((3, len(words)))),
        ("gradient", draw.normal(size=(3, len(words)))),
    ):
        one = replace(
            make(tokens=words, scores=scores, text=text, method=name), **more, target=PREDICTED[number]
        )
        if name == "lens":
            one = replace(one, merge="max", method="diffmask", settings={"over": "inputs"})
        proofs = [
            proved(
                verdict=draw.choice(["sufficient", "not sufficient"]),
                needed=int(n),
                tokens=9,
                divergence=d,
                probability_before=p,
                probability_after=p * d,
            )
            for n, d, p in zip(draw.integers(1, 9, 3), draw.random(3), draw.random(3), strict=True)
        ]
        if number == 0:  # no mean at this layer is finite
            proofs[1] = replace(proofs[1], divergence=float("inf"))
        yield Entry(one, name, proofs)


def written(folder, numbers):
    entries = [entry for number in numbers for entry in entries_of(number)]
    hits = HITS[list(numbers)]
    cell = {"one": {"hiding": Cell(0.5)}}
    curves = {"one": {"hiding": hits.mean(0).tolist()}}
    table = Table(cell, {"hiding": "lower"}, curves=curves, hits={"one": {"hiding": hits}})
    made = [*proof_panels(by_name(entries)), *evaluation_panels(table)]
    data = report_data(
        entries,
        labels=[LABELS[i] for i in numbers],
        panels=[*made, *overview(main_sets(entries)), *GIVEN],
        columns={"source": [SOURCES[i] for i in numbers]},
    )
    folder.mkdir(exist_ok=True)
    (folder / "report.html").write_text(report_html(data), encoding="utf-8")
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return written(tmp_path_factory.mktemp("slices") / "all", range(COUNT))


def slice_by(tab, name, value):
    box = tab.locator(".slice-bar").get_by_label(f"Slice by {name}")
    said = next(o for o in box.locator("option").all_text_contents() if o.startswith(f"{value} ("))
    box.select_option(label=said)


def drawn(tab):
    """The lines of the charts that slices reach, and the words of clouds with their sizes."""
    for card in tab.locator(".part").all():
        card.scroll_into_view_if_needed()
    charts = tab.locator(".part-chart", has_not_text="A chart")
    lines = charts.locator(".plot path.line").evaluate_all("p => p.map(e => e.getAttribute('d'))")
    clouds = tab.locator(".cloud").evaluate_all(
        "c => c.map(e => [...e.children].map(w => [w.innerText, w.style.fontSize]).sort())"
    )
    return lines, clouds


@pytest.mark.parametrize(
    "name, value, holds",
    [
        ("prediction", "bad", lambda i: PREDICTED[i] == "bad"),
        ("label", "good", lambda i: LABELS[i] == "good"),
        ("right or wrong", "wrong", lambda i: LABELS[i] != PREDICTED[i]),
        ("confidence", "0.6 to 0.9", lambda i: 0.6 <= 0.5 + i / 100 < 0.9),
        ("length", "16 to 63 tokens", lambda i: 3 + i % 20 >= 16),
        ("source", HOSTILE[0], lambda i: SOURCES[i] == HOSTILE[0]),
    ],
)
def test_a_slice_draws_what_a_report_of_its_texts_draws(visit, report, tmp_path, name, value, holds):
    inside = [i for i in range(COUNT) if holds(i)]
    assert 8 <= len(inside) < COUNT
    tab, alone = visit(report), visit(written(tmp_path / "some", inside))
    tab.keyboard.press("s")
    everything = drawn(tab)
    slice_by(tab, name, value)
    assert f"{len(inside)} of {COUNT} texts" in tab.locator(".slice-bar").inner_text()
    alone.keyboard.press("s")
    (lines, clouds), (own_lines, own_clouds) = drawn(tab), drawn(alone)
    assert lines != everything[0]
    assert len(lines) == len(own_lines) > 6
    for here, there in zip(lines, own_lines, strict=True):
        assert numbers_in(here) == pytest.approx(numbers_in(there), abs=0.5)  # of 250 pixels
    for cloud in own_clouds:
        assert cloud in clouds
    assert tab.locator(".list li").count() == len(inside)
    assert tab.events == [report]


def table_of(tab, title):
    card = tab.locator(".part-grid", has=tab.get_by_role("heading", name=title, exact=True))
    card.scroll_into_view_if_needed()
    card.locator("tbody tr").first.wait_for()  # drawn when it comes near the screen
    exact = "r => r.map(e => [...e.cells].map(c => c.title || c.innerText))"  # a tooltip has all digits
    rows = card.locator("tbody tr").evaluate_all(exact)
    return [(name, layer, *(float(value or "inf") for value in values)) for name, layer, *values in rows]


def test_the_table_of_a_slice_is_that_of_a_report_of_its_texts(visit, report, tmp_path):
    inside = [i for i in range(COUNT) if PREDICTED[i] == "bad"]
    tab, alone = visit(report), visit(written(tmp_path / "some", inside))
    tab.keyboard.press("s")
    alone.keyboard.press("s")
    everything = table_of(tab, "Verification")
    slice_by(tab, "prediction", "bad")
    found, own = table_of(tab, "Verification"), table_of(alone, "Verification")
    assert len(found) == len(own) == 6 and len(found[0]) == 8
    for here, there in zip(found, own, strict=True):
        assert here[:3] == there[:3] and here[2] == len(inside)
        assert here[3:] == pytest.approx(there[3:], abs=2e-4)  # both are rounded
    assert found != everything
    assert [row[-1] == float("inf") for row in found] == 2 * [False, True, False]
    assert tab.events == [report]


def numbers_in(path):
    return [float(number) for number in path.replace("M", " ").replace("L", " ").split()]


def test_what_slices_do_not_reach_says_so(visit, report):
    tab = visit(report)
    tab.keyboard.press("s")
    assert tab.locator(".badge", has_text="all texts").count() == 0
    slice_by(tab, "prediction", "bad")
    assert tab.locator(".part-chart", has_text="A chart").locator(".badge").inner_text() == "all texts"
    assert tab.locator(".part-chart", has_text="tokens needed").locator(".badge").count() == 0
    tables = {card.locator("h2").inner_text(): card for card in tab.locator(".part-grid").all()}
    marked = {title for title, card in tables.items() if card.locator(".badge").count()}
    assert marked == {"Which method?", "Faithfulness", "A table"} == tables.keys() - {"Verification"}
    tab.get_by_role("button", name="all texts").click()
    assert tab.locator(".list li").count() == COUNT


def test_a_cell_of_the_confusion_matrix_lists_its_texts(visit, report):
    tab = visit(report)
    tab.keyboard.press("s")
    cells = tab.locator(".matrix button")
    pairs = [(label, said) for label in ("bad", "good") for said in ("bad", "good")]
    counted = [list(zip(LABELS, PREDICTED, strict=True)).count(pair) for pair in pairs]
    assert [int(text) for text in cells.all_inner_texts()] == counted
    tab.get_by_role("button", name="gold bad, predicted good").click()
    wrong = [i for i in range(COUNT) if (LABELS[i], PREDICTED[i]) == ("bad", "good")]
    assert tab.locator(".list [data-text]").evaluate_all("b => b.map(e => +e.dataset.text)") == wrong
    assert tab.locator(".text-view").get_attribute("data-text") == str(wrong[0])
    tab.locator(".search").fill("nothing like it")
    tab.get_by_role("button", name="Show all texts").click()
    assert tab.locator(".list li").count() == COUNT


@pytest.mark.parametrize("width", [400, 900, 1400])
def test_slices_fit_the_screen(visit, report, width):
    tab = visit(report, width)
    tab.keyboard.press("s")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_a_column_has_a_value_for_each_text():
    with pytest.raises(TargetError, match="1 values"):
        report_data([Entry(make(), "a"), Entry(make(text="b"), "a")], columns={"source": ["web"]})
