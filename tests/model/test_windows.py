"""Windows over contexts that are too long: nothing is lost, and the best answer is found where it is."""

from dataclasses import replace

import pytest
import torch

import masklens as ml
import tiny
from masklens.errors import MethodError, TargetError, TextError
from masklens.model.subject import Run
from masklens.model.windows import best_windows

QUESTION = "who lives in the capital ?"
WORDS = ("the", "plot", "is", "dull", "and", "acting", "Paris", "funny", ",", "unbelievable", "tokenization")
LONG = " ".join(WORDS[i % len(WORDS)] for i in range(120)) + "\nJohn Smith lives there ."
FAMILIES = ["bert", "roberta", "albert", "gpt2"]


class Pointing(ml.Subject):
    """A subject whose best answer is the first place of a word; its start has the given logit, less one for
    each token before it, and so the window matters."""

    def __init__(self, word, **options):
        super().__init__(tiny.model("bert", "qa"), tiny.wordpiece(), **options)
        self.word, self.runs = word, 0

    def run(self, batch, replace=None, record=()):
        self.runs += len(batch)
        output = torch.zeros(len(batch), 2, batch.shape[1]).masked_fill(~batch.valid[:, None], -torch.inf)
        for i, tokens in enumerate(batch.tokens):
            for t, token in enumerate(tokens):
                if token == self.word and batch.segments[i, t] == 1:
                    output[i, :, t] = 1000.0 - t
        return Run(output, {})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("overlap", [0, 5, 20])
@pytest.mark.parametrize("space", [" ", " \n "])
def test_windows_cover_every_token_and_fit(family, overlap, space):
    subject, text = tiny.subject(family, "qa"), LONG.replace(" ", space)
    found = ml.windows(subject, (QUESTION, text), overlap)
    assert len(found) > 2 and found[0].start == 0 and found[-1].end == len(text)
    for window in found:
        assert window.pair == (QUESTION, text[window.start : window.end])
        assert subject.encode([window.pair]).shape[1] <= 64, "without truncation"
    for before, after in zip(found, found[1:], strict=False):
        assert before.start < after.start and not text[before.end : after.start].strip()
    words = {word for window in found for word in window.pair[1].split()}
    assert words == set(text.split()), "no word is cut in two"


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("overlap", [5, 20])
def test_neighbours_share_as_many_tokens_as_they_should(family, overlap):
    subject = tiny.subject(family, "qa")
    tokens = subject.tokenizer(LONG, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    found = ml.windows(subject, (QUESTION, LONG), overlap)
    for before, after in zip(found, found[1:], strict=False):
        shared = sum(a < b and after.start <= a and b <= before.end for a, b in tokens)
        assert overlap <= shared <= overlap + 15, "up to a word more"


def test_a_text_without_spaces_is_cut_between_tokens():
    subject = tiny.subject("bert", "qa")
    text = "a" * 90
    found = ml.windows(subject, ("who ?", text), overlap=10)
    assert {i for window in found for i in range(window.start, window.end)} == set(range(90))
    assert all(after.start < before.end for before, after in zip(found, found[1:], strict=False))


def test_a_slow_tokenizer_has_windows_too():
    tokenizer = tiny.SlowTokenizer()
    subject = ml.Subject(tiny.model("bert", "qa", vocab_size=len(tokenizer)), tokenizer)
    found = ml.windows(subject, (QUESTION, LONG), overlap=10)
    assert found[-1].end == len(LONG) and all(subject.encode([w.pair]).shape[1] <= 64 for w in found)


def test_one_window_is_the_whole_context():
    subject = tiny.subject("bert", "qa")
    assert ml.windows(subject, tiny.QUESTION) == [(tiny.QUESTION, 0)]
    (plain,), (same,) = (ml.explain(subject, tiny.QUESTION, "gradient", windows=w) for w in (None, 16))
    assert same == plain and same.prediction == plain.prediction


def test_the_answer_of_all_windows_is_the_answer_of_the_whole_context():
    """A model that can take the whole context, and the same model with less room: a word far behind."""
    whole, cut = Pointing("john", max_length=400), Pointing("john")
    (all_at_once,) = ml.explain(whole, (QUESTION, LONG), "random")
    (made,) = ml.explain(cut, (QUESTION, LONG), "random", windows=16)
    assert made.prediction == all_at_once.prediction == "John"
    assert LONG[made.settings["answer_start"] : made.settings["answer_end"]] == "John"
    assert made.text[1] == LONG[made.settings["window_start"] :], "the last window"
    assert made.settings["window"] == "4 of 4" and "truncated" not in made.settings


def test_windows_are_compared_by_logits():
    """The word is in every window; the score is highest where it comes soonest after the window's start."""
    subject = Pointing("dull")
    found = ml.windows(subject, (QUESTION, LONG), 16)
    (chosen,), (note,) = best_windows(subject, [(QUESTION, LONG)], 16)
    first = [window.pair[1].split().index("dull") for window in found]
    best = first.index(min(first))
    assert chosen == found[best].pair and note["window"] == f"{best + 1} of {len(found)}"
    assert note["answer_start"] == note["window_start"] + chosen[1].index("dull")


def test_the_best_score_is_that_of_a_slow_search():
    subject = tiny.subject("bert", "qa")
    (made,) = ml.explain(subject, (QUESTION, LONG), "gradient", windows=16)
    scores, answers = [], []
    for window in ml.windows(subject, (QUESTION, LONG), 16):
        batch = subject.encode([window.pair])
        with torch.no_grad():
            output = subject.run(batch).output
        start, end = output[0]
        inside = [t for t in range(batch.shape[1]) if batch.segments[0, t] == 1 and not batch.special[0, t]]
        spans = [(a, b) for a in inside for b in inside if a <= b < a + 30]
        best = max(spans, key=lambda s: float(start[s[0]] + end[s[1]]))
        scores.append(float(start[best[0]] + end[best[1]]))
        answers.append(window.start + batch.offsets[0][best[0]][0])
    assert made.settings["answer_start"] == answers[scores.index(max(scores))]
    assert ml.verify(subject, [made])[0].share_removed > 0


def test_a_target_chooses_among_the_windows_that_have_it():
    subject = tiny.subject("bert", "qa")
    (made,) = ml.explain(subject, (QUESTION, LONG), "gradient", target="John Smith", windows=16)
    assert made.target == "John Smith" and "John Smith" in made.text[1]
    assert LONG[made.settings["answer_start"] : made.settings["answer_end"]] == "John Smith"
    with pytest.raises(TargetError, match="'Rome' is in none of the 4 windows"):
        ml.explain(subject, (QUESTION, LONG), "gradient", target="Rome", windows=16)
    with pytest.raises(TargetError, match="give the answer's text"):
        ml.explain(subject, (QUESTION, LONG), "gradient", target=[(1, 2)], windows=16)


def test_what_cannot_be_cut_into_windows():
    subject = tiny.subject("bert", "qa")
    with pytest.raises(MethodError, match="overlap by 128 tokens: beside the question the model takes 55"):
        ml.windows(subject, (QUESTION, LONG))
    with pytest.raises(TextError, match="nothing is left of the second"):
        ml.windows(subject, (QUESTION * 12, LONG), 5)
    with pytest.raises(TextError, match="a pair"):
        ml.windows(subject, LONG)
    with pytest.raises(MethodError, match="for question answering .* Classification"):
        ml.explain(tiny.subject("bert", "pairs"), (QUESTION, LONG), "gradient", windows=5)
    with pytest.raises(TextError, match="windows=128"):
        ml.explain(subject, (QUESTION, LONG), "gradient")


def test_results_stay_in_the_order_of_the_texts():
    subject = tiny.subject("bert", "qa")
    texts = [(QUESTION, LONG), tiny.QUESTION, (QUESTION, LONG[40:])]
    made = ml.explain(subject, texts, "gradient", windows=16, batch_size=2)
    alone = [ml.explain(subject, [text], "gradient", windows=16)[0] for text in texts]
    assert [a.text for a in made] == [a.text for a in alone]
    assert [dict(a.settings) for a in made] == [dict(a.settings) for a in alone]
    assert "window" not in made[1].settings and replace(made[1], settings={}).text == tiny.QUESTION
