"""Which steps of an answer are explained, and what is no target."""

from __future__ import annotations

import pytest
from tests import tiny

import masklens as ml
from masklens.errors import TargetError, TextError
from masklens.methods.steps import check_target

PROMPT, ANSWER = "the plot is dull . and the acting is", " the red car and the end"


@pytest.fixture(scope="module")
def subject():
    return tiny.subject("gpt2", "causal")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere", "not in the answer"),
        ("the", "'the' is more than once in the answer .* a slice of the answer's tokens"),
        (("the", "a"), "more than once"),
        (slice(90, 120), "no tokens"),
        (("red", "red"), "nothing"),
    ],
)
def test_targets_that_are_not_there(subject, target, said):
    with pytest.raises(TargetError, match=said):
        ml.explain_generation(subject, PROMPT, "grad_x_input", continuation=ANSWER, target=target)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (3, "not a target"),
        (["red", "car"], "not a target"),
        (("red", None), "not a target"),
        (slice(0, 4, 2), "has the step 2"),
        (slice(None, None, -1), "has the step -1"),
    ],
)
def test_what_is_no_target_whatever_the_answer_is(target, said):
    with pytest.raises(TargetError, match=said):
        check_target(target)


def test_half_a_surrogate_is_no_target():
    with pytest.raises(TextError, match="not valid Unicode"):
        check_target(("red", "\ud800"))
