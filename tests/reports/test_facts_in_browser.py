"""Answers, long texts, classes, sums and scales as the viewer shows them, in a real browser."""

from dataclasses import replace

import numpy as np
import pytest

from hostile import HOSTILE
from masklens.reports.document import report_html
from masklens.reports.page import Entry, report_data
from records import make, make_pair

WORDS = tuple(f"w{i}" for i in range(200))
PASSAGE = " ".join(WORDS)
LABELS = {"positive": 0.7, "negative": 0.25, HOSTILE[0]: 0.05}


def written(folder, attributions, **more):
    path = folder / "report.html"
    entries = [Entry(a, a.method) for a in attributions]
    path.write_text(report_html(report_data(entries, **more)), encoding="utf-8")
    return path.as_uri()


def question(words=WORDS, answer=150):
    """The answer is the word of that number, and the one after it."""
    tokens = ("[CLS]", "who", "[SEP]", *words, "[SEP]")
    passage = " ".join(words)
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    spans = [(start, start + len(word)) for start, word in zip(starts, words, strict=False)]
    one = make(tokens=tokens, scores=np.linspace(-1, 1, len(tokens))[None], text=("who", passage))
    return replace(
        one,
        offsets=((0, 0), (0, 3), (3, 3), *spans, (len(passage),) * 2),
        segments=(0, 0, 0, *(1 for _ in words), 1),
        parts=("question", "passage"),
        answer=(spans[answer][0], spans[answer + 1][1]),
    )


def test_the_answer_is_marked_in_a_passage_that_is_shown_once(visit, tmp_path):
    tab = visit(written(tmp_path, [question()]))
    assert tab.locator(".in-answer:visible").all_inner_texts() == ["w150", "w151"]
    assert tab.locator(".sentence").all_inner_texts() == ["who"]
    assert PASSAGE not in tab.locator("main").inner_text()
    assert tab.locator(".reading .unit", has_text="w100").count() == 0  # far from the answer
    tab.get_by_role("button", name="more").click()
    assert tab.locator(".reading .unit").count() == 204
    tab.get_by_role("button", name="words", exact=True).click()
    assert tab.locator(".reading .in-answer").all_inner_texts() == ["w150", "w151"]
    tab.get_by_role("button", name="less").click()
    assert tab.locator(".reading .unit").count() == 3 + 80
    assert "underlined: the answer" in tab.locator(".legend").inner_text()


def test_a_short_passage_needs_no_more(visit, tmp_path):
    tab = visit(written(tmp_path, [question(WORDS[:9], 3)]))
    assert tab.locator(".in-answer").all_inner_texts() == ["w3", "w4"]
    assert tab.get_by_role("button", name="more").count() == 0


def test_a_long_text_has_more_in_its_heading(visit, tmp_path):
    tab = visit(written(tmp_path, [make(tokens=WORDS, scores=np.ones((1, 200)), text=PASSAGE)]))
    assert len(tab.locator(".sentence").inner_text()) < 240
    tab.locator(".sentence").get_by_role("button", name="more").click()
    assert PASSAGE in tab.locator(".sentence").inner_text()


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    """Two texts, each explained for two of three classes; the scores of one are the other's turned round."""
    made = []
    for sign, target in ((-1, "negative"), (1, "positive")):
        for text in ("good", "better"):
            one = make(scores=sign * np.array([[9.0, 2.0, 1.25]]), text=text)
            made.append(replace(one, target=target, probabilities=LABELS, expected=(sign * 12.0,)))
    return written(tmp_path_factory.mktemp("targets"), made)


def test_classes_have_probabilities_and_a_click_switches_the_target(visit, targets):
    tab = visit(targets)
    shown = tab.locator(".classes .class")
    assert shown.all_inner_texts() == ["positive\n0.70", "negative\n0.25", f"{HOSTILE[0]}\n0.05"]
    assert tab.locator(".list li").count() == 2
    assert tab.locator(".badge.other").count() == 0
    assert (
        "sum to 12.25; score of the text minus score of the baseline is 12.00"
        in tab.locator(".sum").inner_text()
    )
    tab.locator(".class", has_text="negative").click()
    assert tab.locator(".badge.other").inner_text() == "target negative"
    assert tab.locator(".class[aria-pressed=true]").inner_text() == "negative\n0.25"
    assert "sum to −12.25" in tab.locator(".sum").inner_text()
    tab.keyboard.press("j")
    assert tab.locator(".badge.other").inner_text() == "target negative"
    assert shown.nth(2).is_disabled()  # nobody asked for it
    assert tab.events == [targets]


def test_the_scale_leaves_special_tokens_out(visit, targets):
    tab = visit(targets)
    assert tab.locator(".legend span").nth(2).inner_text() == "2"
    colours = tab.locator(".reading .unit").evaluate_all("u => u.map(e => e.className.split(' ')[1])")
    assert colours == ["q40", "q40", "q25"]


def test_an_empty_search_says_so(visit, targets):
    tab = visit(targets)
    tab.locator(".search").fill("<b>zebra")
    # Not the inner text: that is empty until the browser has drawn the line.
    assert "No text has “<b>zebra”." in tab.locator(".nothing").text_content()
    tab.get_by_role("button", name="Show all texts").click()
    assert tab.locator(".list li").count() == 2
    assert tab.locator(".search").input_value() == ""


@pytest.mark.parametrize("width", [400, 1400])
def test_cards_have_no_holes_beside_them(visit, tmp_path, width):
    """Whatever stands in a row reaches to the same right edge and has the same height."""
    several = [make(method=name) for name in "abc"] + [
        make(method=name, scores=np.ones((1, 3))) for name in "def"
    ]
    tab = visit(written(tmp_path, several), width)
    boxes = tab.locator(".cards > .card").evaluate_all(
        "c => c.map(e => e.getBoundingClientRect()).map(b => [b.top, b.right, b.height])"
    )
    rows = {top: [box for box in boxes if box[0] == top] for top, *_ in boxes}
    assert len({max(box[1] for box in row) for row in rows.values()}) == 1
    assert all(len({round(box[2]) for box in row}) == 1 for row in rows.values())


def test_hostile_pairs_do_nothing(visit, tmp_path):
    bad = replace(
        make_pair(), text=(HOSTILE[0], HOSTILE[1] * 40), answer=(0, 3), probabilities={HOSTILE[2]: 1.0}
    )
    address = written(tmp_path, [bad])
    tab = visit(address)
    assert tab.events == [address]


def test_an_edit_of_a_long_text_is_shown_around_what_changed(visit, tmp_path):
    """Also in a report: the page writes one of its history."""
    before = [make(tokens=WORDS, scores=np.ones((1, 200)), text=PASSAGE)]
    words = (*WORDS[:120], "<b>new", *WORDS[121:])
    after = [make(tokens=words, scores=2 * np.ones((1, 200)), text=" ".join(words))]
    data = report_data([Entry(a, a.method) for a in before + after])
    data["texts"][0]["job"], data["texts"][1]["like"] = "1", "1"
    (tmp_path / "x.html").write_text(report_html(data), encoding="utf-8")
    tab = visit((tmp_path / "x.html").as_uri())
    tab.keyboard.press("j")
    tab.get_by_role("button", name="Compare with the text before the edit").click()
    lines = tab.locator(".compare .sentence")
    for i, (other, word) in enumerate((("del", "w120"), ("ins", "<b>new"))):
        assert lines.nth(i).locator(other).all_inner_texts() == [word]
        said = lines.nth(i).inner_text()
        assert "w119" in said and "w121" in said and "w50" not in said and "w190" not in said
    lines.first.get_by_role("button", name="more").click()
    assert "w50" in lines.first.inner_text() and "w190" in lines.first.inner_text()
