"""A tokenizer that is missing, empty, another model's or broken is told before anything is computed."""

import json
import sys
import warnings

import pytest
import tokenizers as tk
import transformers as hf

import masklens as ml
import tiny
from masklens.errors import ModelError, TextError
from masklens.model.batch import FEW_TOKENS
from masklens.model.tokenizer import add_start_token

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def word_level(words, lower=False):
    """A tokenizer that knows these words alone."""
    made = tk.Tokenizer(tk.models.WordLevel({w: i for i, w in enumerate([*SPECIAL, *words])}, "[UNK]"))
    made.normalizer = tk.normalizers.Lowercase() if lower else None
    made.pre_tokenizer = tk.pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", pad_token="[PAD]")


@pytest.fixture
def never_run(monkeypatch):
    monkeypatch.setattr(ml.Subject, "run", lambda *a, **k: pytest.fail("the model is run"))


@pytest.mark.parametrize("family", ["bert", "gpt2", "roberta", "t5"])
def test_a_checkpoint_without_its_tokenizer(family, tmp_path, never_run):
    """transformers makes an empty one up, for which every word is unknown."""
    tiny.model(family).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="the tokenizer knows no word.*Put tokenizer.json beside the model"):
        ml.Subject.from_pretrained(tmp_path)


def test_a_tokenizer_whose_file_is_missing_or_damaged(tmp_path, never_run):
    tiny.model("bert").save_pretrained(tmp_path)
    tiny.FAMILIES["bert"].tokenizer().save_pretrained(tmp_path)
    whole = json.loads((tmp_path / "tokenizer.json").read_text())
    for content in (None, "{", json.dumps(whole | {"model": {"type": "none"}})):
        (tmp_path / "tokenizer.json").unlink()
        if content is not None:
            (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ModelError) as error:
            ml.Subject.from_pretrained(tmp_path)
        assert "\n" not in str(error.value) and "tokenizer" in str(error.value)
        (tmp_path / "tokenizer.json").touch()


def test_no_tokenizer_at_all(never_run):
    with pytest.raises(ModelError, match="there is no tokenizer; use the tokenizer that the model was"):
        ml.Subject(tiny.model("bert"), None)


def test_more_tokens_than_word_embeddings(never_run):
    model = tiny.model("bert")
    rows = model.get_input_embeddings().num_embeddings
    words = [f"word{i}" for i in range(rows)]
    with pytest.raises(ModelError, match=f"ids up to {rows + 4}, the model {rows} word embeddings"):
        ml.Subject(model, word_level(words))
    added = word_level(words[: rows - 5])
    ml.Subject(model, added)
    added.add_tokens(["one more"])
    with pytest.raises(ModelError, match="resize the model's embeddings if tokens were added"):
        ml.Subject(model, added)


def test_far_fewer_tokens_than_word_embeddings():
    model = tiny.model("bert")
    rows = model.get_input_embeddings().num_embeddings
    with pytest.warns(UserWarning, match="do they belong together"):
        ml.Subject(model, word_level([f"word{i}" for i in range(rows // 2)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ml.Subject(model, word_level([f"word{i}" for i in range(rows - 8)]))


@pytest.mark.filterwarnings("ignore:.*belong together")
def test_a_tokenizer_that_does_not_know_its_own_words(never_run):
    """Its words are in capitals, its texts are not: every word is unknown."""
    capitals = [word.upper() for word in tiny.WHOLE if word.isalpha() and len(word) > 2]
    with pytest.raises(ModelError, match="words of its own vocabulary into unknown tokens, such as"):
        ml.Subject(tiny.model("bert"), word_level(capitals, lower=True))
    ml.Subject(tiny.model("bert"), word_level(capitals))


@pytest.mark.filterwarnings("ignore:.*belong together")
def test_a_text_of_which_nearly_everything_is_unknown(never_run):
    subject = ml.Subject(tiny.model("bert"), word_level(["dull", "plot"]))
    foreign = " ".join(["unbekannt"] * FEW_TOKENS)
    for text in (foreign, ("dull", foreign)):
        with pytest.raises(TextError, match="does not know 10 of the 1[01] tokens of the text that starts"):
            ml.explain(subject, [text])
    with pytest.raises(TextError, match="does it belong to this model"):
        ml.DiffMask.fit(subject, [foreign] * 20, held_out=["dull plot"])
    half = " ".join(["unbekannt", "dull"] * FEW_TOKENS)
    short = " ".join(["unbekannt"] * (FEW_TOKENS - 1))
    assert len(subject.encode([half, short])) == 2


@pytest.mark.parametrize(
    "family", sorted({tiny.FAMILIES[name].tokenizer: name for name in tiny.FAMILIES}.values())
)
def test_tokenizers_that_work_are_let_in(family):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny.subject(family)


@pytest.mark.parametrize(
    ("asked", "about", "starts"),
    [
        (True, {}, True),
        (False, {"model": "llama"}, False),
        (None, {}, False),
        (None, {"model": "llama"}, True),  # as llama.cpp does where the file says nothing
        (None, {"model": "gpt2", "pre": "llama-bpe"}, True),
        (None, {"model": "gpt2", "pre": "smollm"}, False),
    ],
)
@pytest.mark.parametrize("own_reader", [True, False])
def test_the_start_token_that_a_gguf_file_asks_for(asked, about, starts, own_reader, tmp_path, monkeypatch):
    """transformers does not read this entry; without the token Gemma predicts nonsense."""
    gguf = pytest.importorskip("gguf")
    if not own_reader:
        monkeypatch.setitem(sys.modules, "transformers.integrations.gguf.reader", None)
    file = tmp_path / "one.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in about.items():
        writer.add_string(f"tokenizer.ggml.{name}", value)
    if asked is not None:
        writer.add_add_bos_token(asked)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "a": 4, "▁a": 5}
    tokenizer = hf.LlamaTokenizer(vocab=vocabulary, merges=[("▁", "a")])
    tokenizer.add_bos_token = False
    add_start_token(tokenizer, file)
    assert (tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id) == starts
    if starts:  # a tokenizer that cannot add one says so, and is as it was
        plain = word_level(["a", "film"])
        before = plain("a film")["input_ids"]
        with pytest.warns(UserWarning, match="asks for a start token"):
            add_start_token(plain, file)
        assert plain("a film")["input_ids"] == before


def test_a_tokenizer_that_adds_its_start_token_is_left_as_it_is(tmp_path, monkeypatch):
    """Setting `add_bos_token` would take away the rest of its template."""
    monkeypatch.setattr("masklens.model.tokenizer._asks_for_start", lambda *_: True)
    tokenizer = tiny.subject("roberta").tokenizer
    before = tokenizer("a film")["input_ids"]
    add_start_token(tokenizer, tmp_path / "one.gguf")
    assert tokenizer("a film")["input_ids"] == before
    assert before[0] == tokenizer.bos_token_id and before[-1] == tokenizer.eos_token_id
