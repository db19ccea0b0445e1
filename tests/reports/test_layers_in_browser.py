"""What each layer would predict, below the maps of a text, in a real browser."""

import threading
from dataclasses import replace

import pytest
from test_page_in_browser import explain, running, shown

import masklens as ml
from hostile import HOSTILE
from masklens.reports.document import report_html
from masklens.reports.page import Entry, report_data

TEXTS = ["a good film", "the plot is bad"]


def cells(tab):
    return tab.locator(".lens-cell bdi").all_inner_texts()


def test_the_row_is_shown_once_for_each_text(visit, bert, tmp_path):
    sets = {name: ml.explain(bert, TEXTS, name) for name in ("gradient", "gradcam")}
    tab = visit(ml.report(sets, tmp_path / "made.html", subject=bert).as_uri())
    for one in ml.layer_predictions(bert, TEXTS):
        assert cells(tab) == list(one.predictions)
        names = tab.locator(".lens-cell small").all_inner_texts()
        shares = [float(name.split()[-1].rstrip("%")) for name in names]
        assert shares == pytest.approx([100 * share for share in one.probabilities], abs=0.51)
        said = tab.locator(".lens").inner_text()
        assert f"{one.answer}, {one.since}" in said and "trained for the last layer only" in said
        assert tab.locator(".lens-cell.stays").count() == sum(site >= one.settled for site in one.sites)
        tab.keyboard.press("j")
    assert [event for event in tab.events if not event.startswith("file:")] == []


def test_no_row_without_a_model(visit, bert, tmp_path):
    tab = visit(ml.report(ml.explain(bert, TEXTS, "gradient"), tmp_path / "made.html").as_uri())
    tab.locator(".card").first.wait_for()
    assert tab.locator(".lens").count() == 0


def test_the_page_shows_it(visit, browser, bert):
    with running(bert, threading.Event()) as address:
        tab = visit(address)
        explain(tab, TEXTS[0])
        shown(tab, TEXTS[0])
        (expected,) = ml.layer_predictions(bert, TEXTS[:1])
        assert cells(tab) == list(expected.predictions)


@pytest.mark.parametrize("width", [400, 900, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_hostile_labels_do_nothing_and_nothing_sticks_out(visit, bert, tmp_path, width, scheme):
    (made,), (found,) = ml.explain(bert, TEXTS[:1], "gradient"), ml.layer_predictions(bert, TEXTS[:1])
    names = [text for text in HOSTILE if text != "\ud800"]
    chances, sites = (0.5,) * len(names), tuple(range(len(names)))
    found = replace(found, sites=sites, predictions=tuple(names), probabilities=chances, answer=names[0])
    data = report_data([Entry(made, "gradient")], layers={made.text: found})
    path = tmp_path / "made.html"
    path.write_text(report_html(data), encoding="utf-8")
    tab = visit(path.as_uri(), width=width, scheme=scheme)
    assert len(cells(tab)) == len(names) and cells(tab)[0] == names[0]
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert [event for event in tab.events if not event.startswith("file:")] == []
