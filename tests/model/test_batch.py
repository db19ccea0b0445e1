"""Texts to batches with every kind of tokenizer, and the texts that go wrong."""

from dataclasses import replace

import pytest
import torch

import tiny
from masklens import Subject, explain
from masklens.errors import TextError
from masklens.model.alignment import align
from masklens.model.batch import TokenizerEncoder, marker_ids

TOKENIZERS = {
    "wordpiece": tiny.wordpiece,
    "byte_bpe": tiny.byte_bpe,
    "roberta_bpe": tiny.roberta_bpe,
    "sentencepiece": tiny.sentencepiece,
    "slow": tiny.SlowTokenizer,
}


@pytest.fixture(params=TOKENIZERS)
def encoder(request):
    return TokenizerEncoder(TOKENIZERS[request.param](), max_length=None)


def test_a_batch_is_what_the_tokenizer_gives_padded_on_the_right(encoder):
    batch = encoder(tiny.TEXTS)
    for i, text in enumerate(tiny.TEXTS):
        ids = encoder.tokenizer(text)["input_ids"]
        assert batch.inputs["input_ids"][i, : len(ids)].tolist() == ids
        assert batch.valid[i].tolist() == [t < len(ids) for t in range(batch.shape[1])]
        assert batch.inputs["attention_mask"][i].tolist() == batch.valid[i].long().tolist()
        assert list(batch.tokens[i]) == encoder.tokenizer.convert_ids_to_tokens(ids)
        assert len(batch.offsets[i]) == len(ids)
        special = [
            name for name, mark in zip(batch.tokens[i], batch.special[i].tolist(), strict=False) if mark
        ]
        assert all(name[0] in "[<" for name in special)
    assert batch.special[~batch.valid].all()


def test_offsets_point_at_the_words(encoder):
    text = "the plot is dull and the acting is worse ."
    batch = encoder([text])
    covered = "".join(
        text[a:b] for (a, b), mark in zip(batch.offsets[0], batch.special[0], strict=True) if not mark
    )
    assert covered.replace(" ", "") == text.replace(" ", "")


def test_segments_of_pairs(encoder):
    batch = encoder([("a funny movie", "the plot"), ("Paris", "Paris")])
    for i, pair in enumerate(batch.texts):
        covered: tuple[set, set] = (set(), set())
        for t, span in enumerate(batch.offsets[i]):
            if not batch.special[i, t]:
                covered[int(batch.segments[i, t])].update(range(*span))
        for source, found in zip(pair, covered, strict=True):
            letters = {k for k, char in enumerate(source) if char != " "}
            assert letters <= found <= set(range(len(source)))


def test_take_repeat_and_marks():
    batch = TokenizerEncoder(tiny.wordpiece(), None)(tiny.TEXTS)
    batch = replace(batch, marks={"positions": torch.tensor([[5], [6], [7]])})
    assert batch.take([2, 0]).texts == (tiny.TEXTS[2], tiny.TEXTS[0])
    assert batch.take([2, 0]).marks["positions"].tolist() == [[7], [5]]
    twice = batch.take([i for i in range(len(batch)) for _ in range(2)])
    assert twice.texts == tuple(t for t in tiny.TEXTS for _ in range(2))
    assert torch.equal(twice.inputs["input_ids"][1], batch.inputs["input_ids"][0])
    assert batch.to("cpu").marks["positions"].shape == (3, 1)


def test_markers_in_the_text_are_special_but_masks_and_unknown_words_are_not():
    tokenizer = tiny.wordpiece()
    assert marker_ids(tokenizer) == {0, 2, 3}
    batch = TokenizerEncoder(tokenizer, None)(["[CLS] [MASK] ☃ [SEP]"])
    assert batch.tokens[0] == ("[CLS]", "[CLS]", "[MASK]", "[UNK]", "[SEP]", "[SEP]")
    assert batch.special[0].tolist() == [True, True, False, False, True, True]
    # GPT-2 has one token for the end, the start and the unknown; it is a marker.
    assert marker_ids(tiny.byte_bpe()) == {0}


def test_only_special_tokens_work(bert):
    for text in ("", "[SEP]", "   "):
        (made,) = explain(bert, text, method="gradient")
        assert all(made.special) and made.scores.shape == (1, len(made.tokens))


def test_an_empty_text_without_special_tokens_is_an_error():
    subject = tiny.subject("gpt2")
    with pytest.raises(TextError, match="the text '' has no tokens"):
        explain(subject, ["Paris", ""], method="gradient")
    assert explain(subject, "<|endoftext|>", method="gradient")[0].special == (True,)


@pytest.mark.parametrize("text", [3, None, ("a", "b", "c"), ("a", 1)])
def test_what_is_no_text_is_an_error(bert, text):
    with pytest.raises(TextError, match="a text is a string or a pair of strings"):
        explain(bert, ["fine", text], method="gradient")


def test_a_text_that_is_too_long_is_an_error_or_is_cut(bert):
    long = "the plot " * 40
    with pytest.raises(TextError, match=r"a text of 82 tokens starting with 'the.*\(64\).*truncate=True"):
        explain(bert, ["Paris", long], method="gradient")
    subject = Subject(bert.module, bert.tokenizer, truncate=True)
    short, cut = explain(subject, ["Paris", long], method="gradient")
    assert cut.settings["truncated"] is True and "truncated" not in short.settings
    assert len(cut.tokens) == 64 and cut.tokens[-1] == "[SEP]" and cut.text == long
    pair = explain(subject, ("the plot " * 10, long), method="gradient")[0]
    assert len(pair.tokens) == 64 and pair.tokens.count("[SEP]") == 2
    assert Subject(bert.module, bert.tokenizer, max_length=9, truncate=True).encode([long]).shape == (1, 9)


def test_a_tokenizer_without_padding_or_mask_token():
    subject = tiny.subject("gpt2", "causal")
    assert subject.tokenizer.pad_token_id is None and subject.tokenizer.mask_token_id is None
    together = subject.states(subject.encode(tiny.TEXTS)).output
    for text, output in zip(tiny.TEXTS, together, strict=True):
        assert torch.allclose(subject.states(subject.encode([text])).output[0], output, atol=1e-5)


def test_a_slow_tokenizer_explains_like_a_fast_one():
    tokenizer = tiny.SlowTokenizer()
    assert not tokenizer.is_fast
    model = tiny.model("bert", vocab_size=len(tokenizer))
    subject = Subject(model, tokenizer)
    (made,) = explain(subject, "The plot of ABBA is ☃ dull", method="gradient")
    words = made.words()
    assert words.tokens == ("[CLS]", "The", "plot", "of", "ABBA", "is", "☃", "dull", "[SEP]")
    (pair,) = explain(subject, ("the plot", "Paris is dull"), method="gradient")
    assert pair.words().tokens == ("[CLS]", "the", "plot", "[SEP]", "Paris", "is", "dull", "[SEP]")


def test_align():
    text = "Ünder the  café, ok"
    pieces = ["under", "the", "ca", "##fe", ",", "ok"]
    assert [text[a:b] for a, b in align(text, pieces)] == ["Ünder", "the", "ca", "fé", ",", "ok"]
    assert [text[a:b] for a, b in align(text, [None, "the", None, None, ",", "ok"])] == [
        "Ünder", "the", "café", "café", ",", "ok",
    ]  # fmt: skip
    assert align("", [None]) == [(0, 0)]
    assert align("ab", ["a", "x", "b"]) == [(0, 1), (0, 0), (1, 2)]
    assert [("re\u0301e")[a:b] for a, b in align("re\u0301e", ["▁re", "e"])] == ["re", "e"]


def test_token_types_reach_only_models_that_have_them():
    from masklens.model.families import accepted_inputs

    given = [family for family in tiny.FAMILIES if accepted_inputs(tiny.model(family))("token_type_ids")]
    assert given == ["bert", "electra", "albert"]


def test_offsets_are_those_of_the_tokenizer(encoder):
    if not encoder.tokenizer.is_fast:
        pytest.skip("the tokenizer gives none")
    for texts in (tiny.SENTENCES, [("a dull plot", text) for text in tiny.SENTENCES]):
        batch = encoder(texts)
        for i, text in enumerate(texts):
            given = (text,) if isinstance(text, str) else text
            own = encoder.tokenizer(*given, return_offsets_mapping=True)["offset_mapping"]
            assert batch.offsets[i] == tuple(map(tuple, own))


def test_of_some_texts_those_that_are_too_long_are_cut():
    long = "the plot is dull " * 5
    for texts in (["Paris", long, "the plot"], [("Paris", long), ("the", "plot"), (long, long)]):
        batch = TokenizerEncoder(tiny.wordpiece(), 12, truncate=True)(texts)
        alone = [TokenizerEncoder(tiny.wordpiece(), 12, truncate=True)([text]) for text in texts]
        assert batch.truncated == tuple(one.truncated[0] for one in alone)
        assert set(batch.truncated) == {True, False}
        assert batch.tokens == tuple(one.tokens[0] for one in alone)
        assert batch.offsets == tuple(one.offsets[0] for one in alone)
        assert max(map(len, batch.tokens)) == 12


def test_a_text_that_begins_with_the_start_mark_gets_no_second_one():
    tokenizer = tiny.roberta_bpe()
    texts = [f"{tokenizer.bos_token}Paris is", "the plot"]
    first, second = TokenizerEncoder(tokenizer, None)(texts).tokens
    assert first.count(tokenizer.bos_token) == second.count(tokenizer.bos_token) == 1


def test_texts_are_encoded_together_as_alone(encoder):
    pairs = [("a dull plot", text) for text in tiny.SENTENCES]
    marked = [f"{encoder.tokenizer.bos_token or '[CLS]'}{text}" for text in tiny.SENTENCES]
    for texts in (tiny.SENTENCES, pairs, [*tiny.SENTENCES, *pairs], [*marked, "Paris"]):
        together = encoder(texts)
        for i, text in enumerate(texts):
            alone = encoder([text])
            valid = together.valid[i]
            assert (together.tokens[i], together.offsets[i]) == (alone.tokens[0], alone.offsets[0])
            assert together.inputs["input_ids"][i, valid].tolist() == alone.inputs["input_ids"][0].tolist()
            assert together.segments[i, valid].tolist() == alone.segments[0].tolist()
            assert together.special[i, valid].tolist() == alone.special[0].tolist()
