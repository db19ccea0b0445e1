"""Prompts: a chat template is filled once, a start mark is written once, and the turns are found."""

from __future__ import annotations

import pytest
import tokenizers as tk
from tests import tiny

import masklens as ml
from masklens.errors import ModelError, TextError
from masklens.model.prompt import Chat, read_prompt

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


TRIMMED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("content", ["user\n", "start ", " user", "\n im_start", "Is it?\n", "\n"])
def test_a_stripped_content_is_never_sought_in_the_words_of_the_template(content):
    """Neither in the role's name nor in a mark; the second message has the same content."""
    tokenizer = with_start_mark(TRIMMED)
    subject = ml.Subject(tiny.model("llama", "causal", vocab_size=len(tokenizer)), tokenizer)
    prompt = read_prompt(subject, [{"role": role, "content": content} for role in ("system", "user")])
    first, second = prompt.turns
    head = "<|im_start|>system\n"
    assert first[1:] == (len(head), len(head + content.strip()))
    start = len(head + content.strip() + "<|im_end|>\n<|im_start|>user\n")
    assert second[1:] == (start, start + len(content.strip()))


def test_a_template_that_changes_one_message_and_keeps_white_space_in_others():
    changing = CHATML.replace("m.content +", "(m.content | upper if m.role == 'system' else m.content) +")
    tokenizer = with_start_mark(changing)
    system, user = {"role": "system", "content": "IT"}, {"role": "user", "content": " user\n"}
    chat = Chat(tokenizer)
    turns, whole = chat.find_turns([system, user]), chat.fill([system, user])
    assert [whole[turn.start : turn.end] for turn in turns] == ["IT", " user\n"]
    with pytest.raises(TextError, match="changes the message 'user'"):
        chat.find_turns([{**system, "content": "user"}, user])


def test_a_template_that_adds_to_a_content():
    added = CHATML.replace("m.content +", "(m.content + ' (' + m.content + ')') +")
    chat = Chat(with_start_mark(added))
    turns, whole = chat.find_turns(MESSAGES), chat.fill(MESSAGES)
    assert [whole[turn.start : turn.end + 2] for turn in turns] == [f"{m['content']} (" for m in MESSAGES]


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


def test_a_chat_that_ends_with_the_assistant_is_continued(subject):
    """As in the pipeline of transformers: the last message is the beginning of the answer."""
    messages = [*MESSAGES, {"role": "assistant", "content": "the capital"}]
    prompt = read_prompt(subject, messages)
    assert prompt.text.endswith("<|im_start|>assistant\nthe capital")
    own = subject.tokenizer.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    assert prompt.text == own and not prompt.special[-1]
    assert prompt.text[slice(*prompt.turns[-1][1:])] == "the capital" and prompt.turns[-1].role == "assistant"
    made = ml.explain_generation(subject, messages, "occlusion", continuation=" of France", units="turns")
    assert made.tokens[-2:] == ("the capital", "of France") and not made.special[-2]


def test_a_beginning_of_the_answer_that_a_template_strips():
    tokenizer = with_start_mark(TRIMMED)
    subject = ml.Subject(tiny.model("llama", "causal", vocab_size=len(tokenizer)), tokenizer)
    prompt = read_prompt(subject, [*MESSAGES, {"role": "assistant", "content": " the "}])
    assert prompt.text.endswith("<|im_start|>assistant\nthe")
    assert prompt.text[slice(*prompt.turns[-1][1:])] == "the"


OPTIONS = (
    "{% if not enable_thinking %}{{ 'no thinking ' }}{% endif %}"
    "{% for tool in tools or [] %}{{ tool.name }}{% endfor %}"
)


def test_options_of_the_chat_template(tmp_path):
    tokenizer = with_start_mark(CHATML + OPTIONS)
    subject = ml.Subject(tiny.model("llama", "causal", vocab_size=len(tokenizer)), tokenizer)
    options = {"enable_thinking": True, "tools": [{"name": "clock", "default": None}]}
    made = ml.explain_generation(subject, MESSAGES, max_new_tokens=1, template_options=options)
    assert made.prompt.endswith("assistant\nclock") and made.settings["template_options"] == options
    assert ml.load(ml.save(made, tmp_path / "a.parquet")) == [made]
    plain = ml.explain_generation(subject, MESSAGES, max_new_tokens=1)
    assert plain.prompt.endswith("assistant\nno thinking ") and "template_options" not in plain.settings
    given = ml.explain_generation(
        subject, MESSAGES, continuation=" the", template_options={"enable_thinking": True}
    )
    assert given.settings["template_options"] == {"enable_thinking": True}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enable_thinkin": True}, "no option 'enable_thinkin'"),
        ({"tools": []}, "no option 'tools'"),
        ({"tokenize": True}, "tokenize follows from the messages"),
        ({"add_generation_prompt": False}, "add_generation_prompt follows from the messages"),
        (["tools"], "template_options is"),
    ],
)
def test_options_that_the_chat_template_has_not(subject, options, said):
    with pytest.raises(TextError, match=said):
        ml.explain_generation(subject, MESSAGES, template_options=options)


def test_options_of_a_template_that_is_not_used(subject):
    with pytest.raises(TextError, match="a string is read without the chat template"):
        ml.explain_generation(subject, "the plot", template_options={"tools": []})


def test_a_module_without_a_tokenizer_takes_no_prompt(subject):
    bare = ml.Subject.from_module(subject.module, subject.points, subject.task, lambda texts: None)
    with pytest.raises(ModelError, match="tokenizer"):
        ml.explain_generation(bare, "a")
