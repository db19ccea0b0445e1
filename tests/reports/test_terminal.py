"""The heat map in the terminal."""

import io
from dataclasses import replace

import numpy as np
from rich.console import Console
from test_answer_in_browser import answered

from masklens.records.generation import Guess
from masklens.reports.colours import colours
from masklens.reports.labels import printable
from masklens.reports.terminal import HeatMap, answer_proof_line, answer_table, blocks
from records import make, make_pair, proved


def render(attribution, width=80, colour=False):
    file = io.StringIO()
    system = "truecolor" if colour else None
    Console(file=file, width=width, force_terminal=colour, color_system=system).print(HeatMap(attribution))
    return file.getvalue()


def test_numbers_are_relative_to_the_largest():
    lines = render(make()).splitlines()
    assert lines[0].split() == ["prediction", "positive", "target", "positive", "method", "gradient"]
    assert lines[1].split() == ["[CLS]", "good", "[SEP]"]
    assert lines[2].split() == ["words", "0.00", "1.00", "-0.25"]
    assert lines[3].split() == ["embeddings", "0.25", "1.00", "0.00"]
    said = "1.00 is the layer's largest score, 2 (embeddings) to 4 (words)"
    assert " ".join(" ".join(lines[4:]).split()) == said + "; below 0 speaks against positive"
    assert render(make(scores=np.abs(make().scores))).splitlines()[4] == said
    assert render(make(scores=np.abs(make().scores[:1]))).splitlines()[3] == "1.00 is a score of 4"
    assert "0.00: it can be replaced" in render(replace(make(), merge="max"))


def test_strongest_cells_have_the_end_colours():
    drawn = render(make(scores=np.array([[1.0, -1.0, 0.0]])), colour=True)
    for colour in colours(np.array([1.0, -1.0, 0.0]), signed=True):
        assert "48;2;" + ";".join(str(round(part * 255)) for part in colour.tolist()) in drawn


def test_long_texts_go_on_in_further_blocks_and_lose_no_token():
    tokens = tuple(f"token{i}" for i in range(40))
    drawn = render(make(tokens=tokens, scores=np.ones((1, 40))), width=60)
    assert all(len(line) <= 60 for line in drawn.splitlines())
    assert [word for word in drawn.split() if word.startswith("token")] == list(tokens)


def test_blocks_cover_all_columns_even_when_one_is_too_wide():
    cut = list(blocks([5, 5, 90, 5], room=12))
    assert [list(columns) for columns in cut] == [[0, 1], [2], [3]]
    assert list(blocks([], room=12)) == []


def test_scores_that_are_zero_or_not_finite():
    assert "1.00 is a score of 1" in render(make(scores=np.zeros((1, 3))))
    assert "1.00 is a score of 2" in render(make(scores=np.array([[np.nan, 2.0, -3.0]])))
    assert "-" in render(make(scores=np.array([[np.nan, 1.0, 0.0]]))).splitlines()[2].split()


def test_escape_sequences_and_bidi_marks_do_not_reach_the_terminal():
    hostile = "\x1b[31mred\u202eab\n"
    assert printable(hostile) == "·[31mred·ab·"
    assert "\x1b" not in render(make(tokens=("[CLS]", hostile, "[bold]x[/bold]")))


def test_markup_in_tokens_is_shown_as_it_is():
    assert "[bold]x[/bold]" in render(make(tokens=("[CLS]", "[bold]x[/bold]", "[SEP]")))


def test_the_texts_of_a_pair_are_told_apart():
    lines = [line.split() for line in render(make_pair(), width=100).splitlines()]
    assert lines[1] == ["question"] and lines[2] == ["[CLS]", "who", "[SEP]"]
    assert lines[4] == ["passage"] and lines[5] == ["she", "won", "it", "[SEP]"]
    unnamed = render(make_pair(parts=()), width=100)
    assert "first text" in unnamed and "second text" in unnamed
    narrow = [line for line in render(make_pair(), width=20).splitlines() if line in ("question", "passage")]
    assert narrow == ["question", "passage"], "each name once, however many blocks there are"


def test_a_window_says_where_it_is():
    said = {"window": "2 of 3", "window_start": 40, "answer_start": 44, "answer_end": 47}
    drawn = render(replace(make_pair(), settings=said), width=100)
    assert "window 2 of 3: characters 40-50, the answer at 44-47" in drawn.splitlines()
    assert "window" not in render(make_pair())


def test_a_row_of_an_answer_fits_and_says_all_that_is_known():
    made = replace(answered(), pieces=("antidisestablishmentarianism", "a1", "a2"))
    kept = proved(verdict="sufficient", tokens=30, needed=12, random_needed=21.4, probability_after=0.61)
    lost = replace(kept, verdict="no better than random")
    lens = {"logit_lens_sites": (1, 30), "settled": (1, 30, None)}
    guesses = ((Guess("x", 0.5),) * 2,) * 3
    made = replace(
        made, **lens, logit_lens=guesses, verification=(kept, lost, replace(kept, random_needed=None))
    )
    lines = (_shown(answer_table(made)) + _shown(answer_proof_line(made))).splitlines()
    assert lines[0].split() == ["prob.", "on", "top", "from", "needed", "random", "left", "verdict"]
    assert lines[1].split()[1:] == ["0.50", "embeddings", "12", "of", "30", "22", "0.61", "sufficient"]
    assert lines[2].split()[:4] == ["a1", "0.25", "block", "29"] and "no better than random" in lines[2]
    assert lines[3].split() == ["a2", "0.75", "-", "12", "of", "30", "-", "0.61", "sufficient"]
    assert lines[4].startswith("verified: 2 of 3 steps")
    assert "verdict" not in _shown(answer_table(replace(made, verification=())))


def _shown(renderable):
    file = io.StringIO()
    Console(file=file, width=80).print(renderable)
    return file.getvalue()
