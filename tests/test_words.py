"""Words by character offsets, for every kind of tokenizer and script."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tiny
from masklens.attribution import Attribution
from masklens.model.batch import FEW_TOKENS, TokenizerEncoder
from masklens.words import best_shared, units, word_groups

KINDS = {
    "wordpiece": tiny.wordpiece,
    "bytes": tiny.byte_bpe,
    "roberta": tiny.roberta_bpe,
    "unigram": tiny.sentencepiece,
}

WORDS = {
    "the plot is dull": ["the", "plot", "is", "dull"],
    "a  funny   movie ": ["a", "funny", "movie"],
    "fun, (really) fun.": ["fun", ",", "(", "really", ")", "fun", "."],
    "don't": ["don", "'", "t"],
    "I ❤️ it 👨‍👩‍👧!": ["I", "❤️", "it", "👨‍👩‍👧", "!"],
    "ok 👍🏽 🇫🇷🇩🇪": ["ok", "👍🏽", "🇫🇷", "🇩🇪"],
    "我喜欢 movie": ["我", "喜", "欢", "movie"],
    "한국어 영화": ["한국어", "영화"],
    "cafe\u0301 e\u0301te\u0301": ["cafe\u0301", "e\u0301te\u0301"],
    "שלום עולם": ["שלום", "עולם"],
    "كِتَاب جديد": ["كِتَاب", "جديد"],
    "हिन्दी फ़िल्म": ["हिन्दी", "फ़िल्म"],
}


def attribution(tokenizer, text):
    batch = TokenizerEncoder(tokenizer, None)([text])
    count = len(batch.tokens[0])
    return Attribution(
        text=text,
        tokens=batch.tokens[0],
        offsets=batch.offsets[0],
        special=tuple(batch.special[0].tolist()),
        segments=tuple(batch.segments[0].tolist()),
        sites=(0, 1),
        scores=np.random.default_rng(0).normal(size=(2, count)),
        prediction="",
        target="",
        method="m",
    )


def plain(words):
    return [token for token, special in zip(words.tokens, words.special, strict=True) if not special]


def test_the_span_that_shares_most():
    spans = [(0, 3), (3, 6), (5, 9), (9, 9), (20, 22)]
    assert best_shared(spans, [(0, 4), (4, 6), (6, 12)]).tolist() == [0, 1, 2, -1, -1]
    assert best_shared(spans, []).tolist() == [-1] * 5 and best_shared([], spans).tolist() == []


@pytest.mark.parametrize("text", WORDS)
def test_units_are_the_words(text):
    numbers = units(text)
    found = [
        "".join(c for c, n in zip(text, numbers, strict=True) if n == k) for k in range(max(numbers) + 1)
    ]
    assert found == WORDS[text]


@pytest.mark.parametrize("text", WORDS)
@pytest.mark.parametrize("kind", ["bytes", "roberta"])
def test_byte_level_tokens_make_exactly_the_words(kind, text):
    """Byte-level pieces cover every character and none of them spans two words here."""
    made = attribution(KINDS[kind](), text)
    assert plain(made.words()) == WORDS[text]


@pytest.mark.parametrize("text", WORDS)
@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_other_tokens_make_words_or_runs_of_them(kind, text):
    """An unknown token may span several words; it is never split, and nothing else is merged."""
    made = attribution(KINDS[kind](), text)
    merged = plain(made.words())
    assert "".join(merged) == "".join(WORDS[text])
    latin = text.isascii()
    assert merged == WORDS[text] if latin else len(merged) <= len(WORDS[text])


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_do_not_run_together(kind):
    batch = TokenizerEncoder(KINDS[kind](), None)([("the plot ", "plot twist")])
    segments, special = batch.segments[0].tolist(), batch.special[0].tolist()
    groups = word_groups(batch.texts[0], batch.tokens[0], batch.offsets[0], segments, special)
    for group in groups:
        assert len({int(batch.segments[0, i]) for i in group}) == 1
    words = [g for g in groups if not batch.special[0, g[0]]]
    assert len(words) == 4


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.text(max_size=30))
def test_any_text_keeps_every_token_once_and_the_sum_of_scores(kind, text):
    tokenizer = KINDS[kind]()
    ids = tokenizer(text)["input_ids"]
    if not ids or ids.count(tokenizer.unk_token_id) >= FEW_TOKENS:
        return  # it may be refused
    made = attribution(tokenizer, text)
    groups = word_groups((text,), made.tokens, made.offsets, made.segments, made.special)
    assert sorted(i for group in groups for i in group) == list(range(len(made.tokens)))
    assert [i for group in groups for i in group] == sorted(i for group in groups for i in group)
    words = made.words()
    assert np.allclose(words.scores.sum(1), made.scores.sum(1), atol=1e-4)
    for start, end in words.offsets:
        assert 0 <= start <= end <= len(text)


def test_merges():
    made = attribution(tiny.wordpiece(), "funny")
    inner = made.scores[:, 1:-1]
    assert inner.shape[1] > 1
    for merge, reduce in [("sum", np.sum), ("max", np.max), ("mean", np.mean)]:
        assert np.allclose(made.words(merge).scores[:, 1], reduce(inner, axis=1))
    assert made.words().words() == made.words()


def test_tokens_without_a_place_in_the_text_stand_alone():
    groups = word_groups(("8 8 3",), ("8", "8", "3"), [(0, 0)] * 3, [0] * 3, [False] * 3)
    assert groups == [[0], [1], [2]]
