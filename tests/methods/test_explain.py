"""How `explain` goes about many texts: order, batches, tokenising ahead, memory."""

import numpy as np
import pytest
import torch

import tiny
from masklens import explain, explain_generation, load, save
from masklens.errors import SiteError, TextError
from masklens.methods import explain as source
from masklens.model.subject import Subject

TEXTS = ["a fast funny movie", "dull", "the plot is dull and the movie is slow", "funny", "a dull car"]


@pytest.fixture(scope="module")
def subject():
    return tiny.subject("bert")


def same(found, expected):
    assert [a.text for a in found] == [a.text for a in expected]
    for a, b in zip(found, expected, strict=True):
        assert (a.tokens, a.special, a.segments, a.prediction) == (
            b.tokens,
            b.special,
            b.segments,
            b.prediction,
        )
        np.testing.assert_allclose(a.scores, b.scores, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["grad_x_input", "integrated_gradients", "occlusion"])
@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_results_come_in_the_order_of_the_texts_whatever_the_batches(
    subject, method, batch_size, monkeypatch
):
    alone = [explain(subject, text, method)[0] for text in TEXTS]
    monkeypatch.setattr(source, "TOKENISED", 2)  # several parts, tokenised ahead
    same(explain(subject, TEXTS, method, batch_size=batch_size), alone)


def test_a_text_that_cannot_be_encoded_is_an_error_wherever_it_stands(subject, monkeypatch):
    monkeypatch.setattr(source, "TOKENISED", 1)
    for place in range(3):
        texts = [*TEXTS[:place], "", *TEXTS[place:]]
        short = Subject(subject.module, subject.tokenizer, max_length=4)
        with pytest.raises(TextError, match="longer than the model takes"):
            explain(short, texts, "grad_x_input")


def test_layers_are_chosen_by_number_or_by_name(subject):
    def sites(given):
        return explain(subject, "dull", "gradcam", sites=given)[0].sites

    assert sites(["block 3", "words", 1]) == (4, 0, 1) and sites(np.array([2])) == (2,)
    assert sites("block 2") == (3,) and sites(4) == (4,) and sites("all") == subject.sites
    for wrong, hint in ((["blok 3"], "'block 3'"), ([2.5], "'block 3'"), (["block 9"], "has sites")):
        with pytest.raises(SiteError, match=hint):
            sites(wrong)
    assert sites([3, 3, "words", 3, 0]) == (3, 0) and sites(np.array([2, 1])) == (2, 1)
    decoder = tiny.subject("gpt2", "causal")
    assert explain_generation(decoder, "a", sites=["block 1"], max_new_tokens=1).sites == (2,)


@pytest.mark.parametrize(
    ("family", "head", "method"),
    [
        ("bert", "classification", "integrated_gradients"),
        ("bert", "mlm", "integrated_gradients"),
        ("gpt2", "causal", "gradient"),
        ("t5", "seq2seq", "gradient"),
    ],
)
def test_the_method_where_none_is_named(family, head, method):
    text = tiny.texts(family, head)[0]
    (found,) = explain(tiny.subject(family, head), text)
    assert found.method == method


def test_all_layers_are_those_that_the_method_has(subject):
    assert explain(subject, "dull", "attention", sites="all")[0].sites == tuple(subject.blocks)
    with pytest.raises(SiteError, match=r"attention has no site 0; it has sites \(2, 3, 4\)"):
        explain(subject, "dull", "attention", sites=[2, 0])


def test_without_texts_nothing_is_tokenised(subject):
    assert explain(subject, []) == []


def test_batches_are_halved_until_they_fit(subject, monkeypatch):
    """More than two texts at once fail, as if memory was short."""
    expected, sizes, run = explain(subject, TEXTS, "grad_x_input"), [], Subject.run

    def limited(self, batch, *args, **options):
        sizes.append(len(batch))
        if len(batch) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(self, batch, *args, **options)

    monkeypatch.setattr(Subject, "run", limited)
    same(explain(subject, TEXTS, "grad_x_input"), expected)
    assert sizes[0] == len(TEXTS)


@pytest.mark.parametrize("method", ["random", "grad_x_input"])
def test_the_device_is_read_by_the_batch_not_by_the_text(subject, monkeypatch, method):
    """However many texts there are, their records are cut from the same few arrays."""
    reads = []

    def counted(name):
        read = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, *a, **k: reads.append(name) or read(self, *a, **k)
        )

    for name in ("cpu", "item", "tolist", "__int__", "__float__", "__bool__", "__index__"):
        counted(name)
    explain(subject, TEXTS[:1] * 2, method)
    few = sorted(reads)
    reads.clear()
    explain(subject, TEXTS[:1] * 20, method)
    assert sorted(reads) == few


def padded_on_the_left(subject):
    """The same subject with an encoder that pads on the left."""
    encode, made = subject._encode, Subject(subject.module, subject.tokenizer)

    def moved(batch):
        more = (~batch.valid).sum(1).tolist()
        return batch._mapped(
            lambda value: torch.stack([row.roll(count) for row, count in zip(value, more, strict=True)])
        )

    made._encode = lambda texts: moved(encode(texts))
    return made


MIXED = [*TEXTS, "a dull [SEP] movie", ("is it dull", "the movie is slow"), ("a", "it is not funny [CLS]")]


def test_records_are_the_same_wherever_the_padding_is(subject):
    left = padded_on_the_left(subject)
    assert not left.encode(MIXED).valid[:, 0].all() and subject.encode(MIXED).valid[:, 0].all()
    alone = [explain(subject, text, "random", sites="all")[0] for text in MIXED]
    for found in (
        explain(left, MIXED, "random", sites="all"),
        explain(subject, MIXED, "random", sites="all"),
    ):
        for a, b in zip(found, alone, strict=True):
            assert (a.tokens, a.offsets, a.special, a.segments) == (
                b.tokens,
                b.offsets,
                b.special,
                b.segments,
            )
            assert np.array_equal(a.scores, b.scores)


def test_a_record_holds_no_more_than_its_own_scores(subject):
    for one in (subject, padded_on_the_left(subject)):
        for made in explain(one, MIXED, "random", sites="all"):
            owner = made.scores if made.scores.base is None else made.scores.base
            assert owner.size == made.scores.size == len(made.sites) * len(made.tokens)


def test_records_of_a_batch_survive_a_file(subject, tmp_path):
    made = explain(subject, MIXED, "random", sites="all")
    for name in ("x.parquet", "x.json"):
        assert load(save(made, tmp_path / name)) == made
    types = [(type(a.special[0]), type(a.segments[0]), type(a.offsets[0])) for a in made]
    assert set(types) == {(bool, int, tuple)}
