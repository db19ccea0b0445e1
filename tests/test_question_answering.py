"""Question answering as a user meets it: contexts that are too long, answers that were cut off, no answer."""

import pytest
import torch

import tiny
from masklens import Subject, explain, verify
from masklens.errors import TargetError, TextError

LONG = "the plot is dull . " * 12 + "John Smith lives in Paris ."
"""60 words and six more; a tiny model takes 64 tokens"""


def cutting(family="bert", **options):
    tokenizer = tiny.FAMILIES[family].tokenizer()
    return Subject(tiny.model(family, "qa"), tokenizer, truncate=True, **options)


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "gpt2"])
def test_the_context_is_cut_and_the_question_is_not(family):
    question = ("who lives in the capital of France ? " * 3).strip()  # more than half of the 40
    for subject in (cutting(family), cutting(family, max_length=40)):
        (made,) = explain(subject, (question, LONG), "gradient")
        asked = [made.offsets[i] for i, s in enumerate(made.segments) if s == 0 and not made.special[i]]
        assert max(end for _, end in asked) == len(question)
        assert made.settings["truncated"] and made.text == (question, LONG)
        assert made.prediction in LONG


def test_a_question_longer_than_the_context():
    question, context = "who lives in the capital of France ? " * 5, "John Smith"
    (made,) = explain(tiny.subject("bert", "qa"), (question, context), "gradient")
    assert made.prediction in context and "truncated" not in made.settings
    assert verify(tiny.subject("bert", "qa"), [made])[0].share_removed > 0


def test_a_question_without_room_for_the_context():
    slow = tiny.SlowTokenizer()
    subjects = [cutting(), Subject(tiny.model("bert", "qa", vocab_size=len(slow)), slow, truncate=True)]
    for subject in subjects:
        with pytest.raises(TextError, match=r"'who lives.*markers have 76 tokens; the model takes 64"):
            explain(subject, ("who lives in the capital of France ? " * 9 + "who", LONG), "gradient")


def test_an_answer_in_the_part_that_was_cut_off():
    subject = cutting(max_length=40)
    with pytest.raises(TargetError, match="'John Smith' is not in the part of the context"):
        explain(subject, ("who lives there ?", LONG), "gradient", target="John Smith")
    with pytest.raises(TargetError, match="'Rome' is not in the context"):
        explain(subject, ("who lives there ?", LONG), "gradient", target="Rome")


def test_no_answer_is_a_target_but_never_the_prediction():
    subject = tiny.subject("bert", "qa")
    batch = subject.encode([tiny.QUESTION])
    output = subject.states(batch).output.clone()
    output[0, :, 0] = 100.0  # the model says: no answer
    start, end = subject.task.predict(output, batch)[0].tolist()
    assert batch.segments[0, start] == 1 and subject.task.resolve((0, 0), output, batch).tolist() == [[0, 0]]
    assert subject.task.score(output, torch.tensor([[0, 0]])).tolist() == [200.0]
    (made,) = explain(subject, tiny.QUESTION, "gradient", target=[(0, 0)])
    assert made.target == "[CLS]" and made.prediction in tiny.QUESTION[1]
