"""Prompts: a chat template is filled once, a start mark is written once, and the turns are found."""

from __future__ import annotations

import pytest
import tokenizers as tk
from tests import tiny

import masklens as ml
from masklens.errors import ModelError, TextError
from masklens.model.prompt import read_prompt

CHATML = (
    "{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "the plot is dull ."},
    {"role": "user", "content": "user"},
    {"role": "user", "content": "who lives in Paris ?"},
]


def with_start_mark(template: str | None = CHATML):
    """A tokenizer that writes <s> before every text, as Llama's does."""
    special = ["<s>", "<|im_start|>", "<|im_end|>", "<unk>"]
    made = tiny._byte_bpe(special)
    made.post_processor = tk.processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B:1", special_tokens=[("<s>", 0)]
    )
    names = {"bos": "<s>", "eos": "<|im_end|>", "unk": "<unk>", "pad": "<|im_end|>"}
    tokenizer = tiny._fast(made, names, extra_special_tokens=["<|im_start|>"])
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def subject():
    tokenizer = with_start_mark()
    return ml.Subject(tiny.model("llama", "causal", vocab_size=len(tokenizer)), tokenizer)


def test_a_plain_string_has_one_start_mark(subject):
    prompt = read_prompt(subject, "the plot")
    assert prompt.ids[0] == 0 and prompt.ids.count(0) == 1 and prompt.special[0]
    assert prompt.turns == () and not any(prompt.special[1:])


def test_a_string_that_has_a_start_mark_gets_no_second(subject):
    plain, marked = read_prompt(subject, "the plot"), read_prompt(subject, "<s>the plot")
    assert plain.ids == marked.ids
    assert marked.text[slice(*marked.offsets[-1])].strip() == "plot"
    batch = subject.encode(["<s>the plot", "the plot", "the plot is"])
    assert (batch.inputs["input_ids"][0] == batch.inputs["input_ids"][1]).all()
    assert batch.tokens[0] == batch.tokens[1]


def test_a_chat_is_filled_once_and_the_same_as_the_filled_string(subject):
    prompt = read_prompt(subject, MESSAGES)
    filled = subject.tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert prompt.text == filled and prompt.ids.count(0) == 1
    own = subject.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True)
    assert list(prompt.ids) == list(own["input_ids"] if hasattr(own, "keys") else own)
    assert read_prompt(subject, filled).ids == prompt.ids


def test_turns_are_found_also_where_a_content_is_a_word_of_the_template(subject):
    prompt = read_prompt(subject, MESSAGES)
    assert [prompt.text[turn.start : turn.end] for turn in prompt.turns] == [m["content"] for m in MESSAGES]
    assert [turn.role for turn in prompt.turns] == ["system", "user", "user"]
    second = prompt.turns[1]
    assert prompt.text[: second.start].endswith("<|im_start|>user\n")


def test_what_the_template_adds_is_never_taken_away(subject):
    prompt = read_prompt(subject, MESSAGES)
    free = [
        prompt.text[a:b]
        for (a, b), special in zip(prompt.offsets, prompt.special, strict=True)
        if not special
    ]
    assert "".join(free).replace(" ", "") == "".join(m["content"] for m in MESSAGES).replace(" ", "")
    made = ml.explain_generation(subject, MESSAGES, "occlusion", max_new_tokens=2, units="turns")
    kept = [token for token, special in zip(made.tokens, made.special, strict=True) if not special]
    assert kept[:3] == [m["content"] for m in MESSAGES]
    assert (made.scores[:, :, [i for i, special in enumerate(made.special) if special]] == 0).all()
    assert all(
        not made.special[unit] for proof in ml.verify_generation(subject, made) for unit in proof.removed
    )


def test_a_template_that_trims_contents():
    tokenizer = with_start_mark("{% for m in messages %}{{ '<|im_start|>' + m.content | trim }}{% endfor %}")
    subject = ml.Subject(tiny.model("llama", "causal", vocab_size=len(tokenizer)), tokenizer)
    prompt = read_prompt(subject, [{"role": "user", "content": "  the plot  "}])
    (turn,) = prompt.turns
    assert prompt.text[turn.start : turn.end] == "the plot" and 0 not in prompt.ids


def test_an_end_mark_that_the_tokenizer_adds_is_left_out():
    subject = tiny.subject("llama", "causal")  # its tokenizer writes </s> after a text
    end = subject.tokenizer.eos_token_id
    assert subject.tokenizer("the plot")["input_ids"][-1] == end
    assert end not in read_prompt(subject, "the plot").ids


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "not a prompt"),
        (3, "not a prompt"),
        ([{"role": "user"}], "message 0"),
        ([{"role": "user", "content": "a"}, "b"], "message 1"),
        ([{"role": "user", "content": None}], "message 0"),
    ],
)
def test_what_is_no_prompt(subject, given, said):
    with pytest.raises(TextError, match=said):
        ml.explain_generation(subject, given)


def test_half_a_surrogate_is_no_character(subject):
    for given in ("ab\ud800c", [{"role": "user", "content": "ab\ud800c"}]):
        with pytest.raises(TextError, match="not valid Unicode"):
            read_prompt(subject, given)


def test_a_tokenizer_without_a_template():
    with pytest.raises(TextError, match="no chat template"):
        ml.explain_generation(tiny.subject("gpt2", "causal"), MESSAGES)


def test_a_template_that_refuses_says_why():
    tokenizer = with_start_mark("{{ raise_exception('roles must alternate') }}")
    subject = ml.Subject(tiny.model("llama", "causal", vocab_size=len(tokenizer)), tokenizer)
    with pytest.raises(TextError, match="roles must alternate"):
        ml.explain_generation(subject, MESSAGES)


def test_a_module_without_a_tokenizer_takes_no_prompt(subject):
    bare = ml.Subject.from_module(subject.module, subject.points, subject.task, lambda texts: None)
    with pytest.raises(ModelError, match="tokenizer"):
        ml.explain_generation(bare, "a")
