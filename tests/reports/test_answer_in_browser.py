"""An explained answer in a real browser: tokens are buttons, the prompt folds, no step shows the future."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import masklens as ml
from hostile import HOSTILE
from masklens.records.generation import Generation, Guess
from masklens.records.units import Turn
from masklens.reports.generation import Answer, folds, generation_data


def answered(sentences: int = 2, words: int = 4, steps: int = 3) -> Generation:
    """A chat of one turn, "w0 w1 w2 w3. w4 ...", framed by marks, and its answer "a0 a1 a2"."""
    turn = " ".join(
        " ".join(f"w{words * s + i}" for i in range(words)) + "." for s in range(sentences)
    ).replace("  ", " ")
    pieces, offsets, special, at = [], [], [], 0
    for piece, marked in [("<u>", True), *((p, False) for p in turn.split(" ")), ("<a>", True)]:
        start = at + (bool(pieces) and not marked and not special[-1])
        pieces.append(piece)
        offsets.append((start, start + len(piece)))
        special.append(marked)
        at = start + len(piece)
    prompt = "<u>" + turn + "<a>"
    first = len(pieces)
    for i in range(steps):
        pieces.append(f"a{i}")
        offsets.append((at + (i > 0), at + (i > 0) + 2))
        special.append(False)
        at = offsets[-1][1]
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(steps, 3, len(pieces)))
    for i in range(steps):
        scores[i, :, first + i :] = 0
    return Generation(
        prompt=prompt,
        answer=" ".join(f"a{i}" for i in range(steps)),
        ids=tuple(range(len(pieces))),
        units=tuple(range(len(pieces))),
        tokens=tuple(pieces),
        offsets=tuple(offsets),
        special=tuple(special),
        turns=(Turn("user", 3, 3 + len(turn)),),
        steps=tuple(pieces[first:]),
        pieces=tuple(pieces[first:]),
        places=tuple(range(first, first + steps)),
        targets=tuple((first + i,) for i in range(steps)),
        rather_than=(None,) * steps,
        ends=tuple(max(end for _, end in offsets[: first + i]) for i in range(steps)),
        sites=(0, 1, 2),
        scores=scores,
        probabilities=tuple((0.5, 0.25, 0.75)[i % 3] for i in range(steps)),
        runners_up=((Guess("b", 0.3), Guess("c", 0.1)),) * steps,
        method="grad_x_input",
    )


@pytest.fixture
def open_answer(visit, tmp_path):
    return lambda made: visit(ml.report(made, tmp_path / "answer.html").as_uri())


def test_the_answers_tokens_are_buttons_and_the_map_is_that_of_the_chosen_one(open_answer):
    made = answered()
    tab = open_answer(made)
    buttons = tab.locator(".answer-steps .step")
    assert buttons.all_inner_texts() == ["a0", "a1", "a2"]
    for i in (0, 2, 1):
        buttons.nth(i).click()
        assert tab.locator(".step[aria-pressed=true]").inner_text() == f"a{i}"
        assert tab.locator(".map .column").count() == made.places[i]
        assert f"{made.probabilities[i]:.0%}" in tab.locator(".step-facts").inner_text()
        assert tab.locator(".reading .unit").last.inner_text() == made.tokens[made.places[i] - 1]
    assert [event for event in tab.events if not event.startswith("file:")] == []


def test_the_first_layer_is_shown_first_as_the_verdict_is_about_it(open_answer):
    tab = open_answer(answered())
    assert tab.locator(".site-name").inner_text() == "words"


def test_the_colours_are_those_of_the_scores(open_answer):
    made = answered()
    tab = open_answer(made)
    tab.locator(".step").nth(1).click()
    scores, cells = made.scores[1, :, : made.places[1]], tab.locator(".map .column")
    strongest = np.abs(scores).max(1)  # of each layer
    for unit in (1, 4, made.places[1] - 1):
        classes = [cell.get_attribute("class") for cell in cells.nth(unit).locator("i").all()]
        for score, top, said in zip(scores[:, unit], strongest, classes, strict=True):
            letter = "n" if score < 0 else "p"
            assert said.split()[0] == f"{letter}{round(abs(score) / top * 40)}"


def test_a_part_is_counted_in_the_units_that_are_shown(open_answer):
    tab = open_answer(answered())
    head = tab.locator(".fold > summary").first
    assert "9 tokens ·" in head.inner_text()
    tab.locator(".controls button", has_text="words").click()
    assert " words ·" in tab.locator(".fold > summary").first.inner_text()


def test_a_long_prompt_starts_with_sentences_and_can_be_opened_to_tokens(open_answer):
    made = answered(sentences=20, words=8)
    tab = open_answer(made)
    assert tab.locator(".choice [aria-pressed=true]", has_text="sentences").count() == 1
    assert 20 <= tab.locator(".map .column").count() <= 24
    tab.locator(".controls button", has_text="tokens").click()
    folded = tab.locator(".fold", has_text="user").first
    assert folded.get_attribute("open") is None
    folded.locator("summary").first.click()
    sentences = folded.locator(".sentences > .fold")
    assert sentences.count() == 20 and not sentences.first.locator("p .unit").first.is_visible()
    sentences.first.locator("summary").click()
    assert sentences.first.locator("p .unit").first.is_visible()
    tab.locator(".step").nth(1).click()  # what was opened stays open
    assert tab.locator(".sentences > .fold").first.get_attribute("open") is not None


def test_the_score_of_a_sentence_is_that_of_its_tokens(open_answer):
    made = answered(sentences=20, words=8)
    tab = open_answer(made)
    column = tab.locator(".map .column", has_text="w8 ").first
    column.locator("i").first.hover()
    shown = tab.locator(".tip b").first.inner_text().replace("\u2212", "-")
    assert float(shown) == pytest.approx(made.scores[0, 0, 9:17].sum(), abs=2e-3)


def test_what_each_layer_reads_has_a_row_where_it_is_known(open_answer):
    made = answered()
    assert open_answer(made).locator(".lens").count() == 0
    lens = tuple(tuple(Guess(f"{step}-{site}", 0.5) for site in range(3)) for step in range(3))
    read = replace(made, logit_lens_sites=(0, 3, 4), logit_lens=lens, settled=(None, 0, 3))
    tab = open_answer(read)  # the layers that were read need not be those that have scores
    assert "it is never the likeliest" in tab.locator(".lens summary").inner_text()
    assert tab.locator(".lens-cell.stays").count() == 0
    tab.locator(".step").nth(2).click()
    assert tab.locator(".lens-cell bdi").all_inner_texts() == ["2-0", "2-1", "2-2"]
    names = ["words 50%", "block 2 50%", "block 3 50%"]
    assert tab.locator(".lens-cell small").all_inner_texts() == names
    assert tab.locator(".lens-cell.stays bdi").all_inner_texts() == ["2-1", "2-2"]
    assert "a2, on top from block 2" in tab.locator(".lens summary").inner_text()


def test_hostile_answers_do_nothing(open_answer):
    nasty = [text for text in HOSTILE if text and text != "\ud800"]
    names = tuple((nasty * 3)[: len(answered().tokens)])
    made = replace(answered(), tokens=names, pieces=tuple(nasty[:3]), turns=(Turn(nasty[0], 3, 20),))
    tab = open_answer(made)
    tab.locator(".step").nth(2).click()
    assert [event for event in tab.events if not event.startswith("file:")] == []


@pytest.mark.parametrize("width", [360, 820])
def test_nothing_sticks_out_of_a_narrow_window(visit, tmp_path, width):
    tab = visit(ml.report(answered(sentences=20, words=8), tmp_path / "a.html").as_uri(), width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_folds_are_the_turns_the_end_of_the_template_and_the_answer():
    made = answered()
    assert folds(made) == [("user", 0, 9), ("template", 9, 10), ("answer", 10, 13)]
    assert folds(replace(made, turns=())) == [("prompt", 0, 10), ("answer", 10, 13)]
    data = generation_data([Answer(made, made.method)])
    assert data["sentences"] == [0, 1, 5, 9, 10]
    assert "proofs" not in data["maps"][0]


def test_the_verification_is_on_the_page(visit, tmp_path):
    from tests import tiny

    subject = tiny.subject("gpt2", "causal")
    made = ml.explain_generation(subject, "the plot is dull .", max_new_tokens=3)
    tab = visit(ml.report(made, tmp_path / "a.html", subject=subject).as_uri())
    for i, proof in enumerate(ml.verify_generation(subject, made)):
        tab.locator(".step").nth(i).click()
        said = tab.locator(".proof").inner_text()
        assert proof.verdict in said and f"p = {proof.p_value:.2f}" in said
        some = f"{proof.needed} of {proof.tokens} tokens" in said
        assert some or (
            proof.needed == proof.tokens and f"In this order all {proof.tokens} tokens are needed" in said
        )
        assert f"Random orders need {proof.random_need}." in said
        assert tab.locator(".left .gone").count() == len(proof.removed)
