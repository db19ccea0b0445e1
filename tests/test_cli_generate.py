"""`masklens explain --generate` and `--chat`."""

import copy
import json

import numpy as np
import pytest
from tests import tiny
from typer.testing import CliRunner

import masklens as ml
from masklens.cli.generate import gather_prompts
from masklens.cli.main import app

TEMPLATE = (
    "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    "{% if thinking %}{{ 'thinking ' }}{% endif %}{% for tool in tools or [] %}{{ tool.name }}{% endfor %}"
)
CHAT = [{"role": "user", "content": "the plot is dull. who lives ?"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny.model("gpt2", "causal").save_pretrained(folder)
    tokenizer = copy.deepcopy(tiny.byte_bpe())
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


def call(*arguments):
    return CliRunner().invoke(app, ["explain", *(str(argument) for argument in arguments)])


def test_an_answer_as_a_map_and_as_json(model):
    shown = call("--model", model, "--generate", "the plot is", "--max-new-tokens", 3)
    assert shown.exit_code == 0 and "of 3 steps of the answer pass" in shown.stdout
    assert "on top from" in shown.stdout and "needed" in shown.stdout
    done = call("--model", model, "--generate", "the plot is", "--max-new-tokens", 3, "--json")
    (row,) = json.loads(done.stdout)
    subject = ml.Subject.from_pretrained(model)
    made = ml.explain_generation(subject, "the plot is", sites="all", max_new_tokens=3)
    assert row["ids"] == list(made.ids) and row["answer"] == made.answer
    np.testing.assert_allclose(row["scores"], made.scores, atol=1e-6)
    assert len(row["verification"]) == 3
    assert (
        row["settled"] == list(made.settled)
        and row["logit_lens"][0][0]["token"] == made.logit_lens[0][0].token
    )


def test_the_next_token_is_explained_by_gradient_where_no_method_is_named(model, tmp_path):
    common = ("--model", model, "the plot is")
    (row,) = json.loads(call(*common, "--json").stdout)
    assert row["method"] == "gradient"
    for command, ending in (("report", "html"), ("evaluate", "json")):
        out = ["--out", str(tmp_path / f"a.{ending}")] if command == "report" else ["--json"]
        done = CliRunner().invoke(app, [command, *map(str, common), *out])
        assert done.exit_code == 0, done.stderr
        said = (tmp_path / "a.html").read_text() if command == "report" else done.stdout
        assert "gradient" in said and "integrated_gradients" not in said


def test_a_classifier_does_not_generate():
    done = call("--generate", "hi")
    assert done.exit_code == 2 and "not for Classification; leave out --generate" in done.stderr


@pytest.mark.parametrize("several", [False, True])
def test_a_chat_from_a_file(model, tmp_path, several):
    (tmp_path / "chat.json").write_text(json.dumps([CHAT, CHAT] if several else CHAT))
    done = call(
        "--model",
        model,
        "--chat",
        tmp_path / "chat.json",
        "--units",
        "sentences",
        "--max-new-tokens",
        2,
        "--json",
    )
    rows = json.loads(done.stdout)
    assert len(rows) == 1 + several
    assert rows[0]["turns"][0]["role"] == "user" and rows[0]["kind"] == "sentences"
    assert rows[0]["tokens"][1:3] == ["the plot is dull.", "who lives ?"]


@pytest.mark.parametrize("name", ["a.json", "a.parquet", "a.html", "a.png"])
def test_files(model, tmp_path, name):
    done = call("--model", model, "--generate", "the plot", "--max-new-tokens", 2, "--out", tmp_path / name)
    assert done.exit_code == 0 and (tmp_path / name).stat().st_size > 500
    if name.endswith(("json", "parquet")):
        assert isinstance(ml.load(tmp_path / name)[0], ml.Generation)


def test_a_given_answer_and_a_target(model):
    common = ("--model", model, "--generate", "the plot is", "--continuation", " dull and", "--json")
    (row,) = json.loads(call(*common, "--target", "dull").stdout)
    assert row["answer"] == " dull and" and row["steps"] == [" dull"]


def test_one_token_rather_than_another(model):
    common = ("--model", model, "--generate", "the plot is", "--continuation", " dull and", "--json")
    (row,) = json.loads(call(*common, "--target", "dull", "--rather-than", "red").stdout)
    assert row["steps"] == [" dull rather than  red"]
    subject = ml.Subject.from_pretrained(model)
    made = ml.explain_generation(
        subject, "the plot is", sites="all", continuation=" dull and", target=("dull", "red")
    )
    np.testing.assert_allclose(row["scores"], made.scores, atol=1e-6)
    assert row["rather_than"] == list(made.rather_than)
    assert row["verification"][0]["probability_before"] == pytest.approx(made.probabilities[0], abs=1e-5)


def test_options_of_generate(model):
    common = ("--model", model, "--generate", "the plot is", "--max-new-tokens", 3, "--json", "--no-verify")
    options = ("--generation-option", "do_sample=true", "--generation-option", "temperature=0.5")
    (row,) = json.loads(call(*common, *options).stdout)
    assert row["settings"]["do_sample"] is True and row["settings"]["temperature"] == 0.5
    wrong = call(*common, "--generation-option", "bananas=3")
    assert wrong.exit_code == 2 and "called with bananas, says" in wrong.stderr


def short_chat(model, folder):
    """The arguments to answer a chat with one token."""
    chat = folder / "chat.json"
    chat.write_text(json.dumps(CHAT))
    return ("--model", model, "--chat", chat, "--max-new-tokens", 1, "--json", "--no-verify")


def test_options_of_the_chat_template(model, tmp_path):
    common = short_chat(model, tmp_path)
    done = call(
        *common, "--template-option", "thinking=true", "--template-option", 'tools=[{"name": "clock"}]'
    )
    (row,) = json.loads(done.stdout)
    assert row["prompt"].endswith("who lives ?\nthinking clock")
    assert row["settings"]["template_options"] == {"thinking": True, "tools": [{"name": "clock"}]}
    wrong = call(*common, "--template-option", "bananas=3")
    assert wrong.exit_code == 2 and "the chat template has no option 'bananas'" in wrong.stderr


def test_spans_from_a_file(model, tmp_path):
    (tmp_path / "spans.json").write_text('["plot is", [22, 27]]')
    common = short_chat(model, tmp_path)
    (row,) = json.loads(call(*common, "--units", tmp_path / "spans.json").stdout)
    assert row["kind"] == "spans" and {"plot is", ". who"} < set(row["tokens"])
    asked = ("--model", model, "--generate", "a plot is", "a plot is", "--units", tmp_path / "spans.json")
    several = call(*asked)
    assert several.exit_code == 2 and "spans.json are for one prompt; there are 2" in several.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ('"words"', '"words" where'),
        ("[]", "[] where"),
        ("[[1]]", "a list of spans is needed"),
    ],
)
def test_files_that_hold_no_spans(no_model, tmp_path, content, said):
    file = tmp_path / "spans.json"
    file.write_text(content)
    done = call("a", "--generate", "--units", file)
    assert done.exit_code == 2 and str(file) in done.stderr and said in done.stderr


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["a", "--units", "words"], "--generate"),
        (["a", "--template-option", "x=1"], "--template-option needs --chat"),
        (["a", "--generate", "--template-option", "x=1"], "--template-option needs --chat"),
        (["--chat", "missing.json", "--template-option", "x"], "write --template-option NAME=VALUE"),
        (["a", "--generate", "--units", "missing.json"], "cannot read missing.json"),
        (["a", "--rather-than", "b"], "--rather-than needs --generate or --chat"),
        (["a", "--generation-option", "top_k=3"], "--generation-option needs --generate or --chat"),
        (["a", "--generate", "--rather-than", "b"], "--rather-than needs --target"),
        (["a", "--generate", "--generation-option", "top_k"], "write --generation-option NAME=VALUE"),
        (
            ["a", "--generate", "--generation-option", "seed=3"],
            "seed is an option of masklens, not",
        ),
        (
            ["a", "--generate", "--generation-option", "top_k=3", "--continuation", "b"],
            "--generation-option needs an answer without --continuation",
        ),
        (["a", "--continuation", "b"], "--generate"),
        (["a", "--max-new-tokens", "3"], "--max-new-tokens needs --generate or --chat"),
        (["a", "--generate", "--max-new-tokens", "3", "--continuation", "b"], "without --continuation"),
        (["a", "--generate", "--truncate"], "--truncate"),
        (["a", "--generate", "--layer", "block 70", "--method", "attention"], "layer block 70"),
        (["a", "--chat", "chat.json"], "a text needs --generate without --chat"),
        (["--input", "a.txt", "--chat", "chat.json"], "--input needs --generate without --chat"),
        (["a a", "--generate", "--continuation", "b b", "--target", "b"], "more than once"),
        (["a", "--generate", "--guard", "0.1"], "--guard"),
        (["a", "--generate", "--units", "pages"], "no units"),
        (["a", "--generate", "--units", "turns"], "no turns"),
        (["a", "--generate", "--method", "nothing"], "no method"),
        (["--generate"], "no text"),
        (["--chat", "missing.json"], "cannot read"),
        (["a", "--generate", "--continuation", "b", "--target", "c"], "--continuation"),
    ],
)
def test_mistakes_are_one_line(model, more, said):
    done = call("--model", model, *more)
    assert done.exit_code == 2 and said in done.stderr and "Traceback" not in done.stderr


@pytest.fixture
def no_model(monkeypatch):
    monkeypatch.setattr("masklens.cli.explain.load_subject", lambda *a: pytest.fail("a model is loaded"))


@pytest.mark.parametrize("content", ["{", "[]", "3", '"hi"', json.dumps(CHAT[0]), '{"messages": []}'])
def test_files_that_hold_no_chat(no_model, tmp_path, content):
    (tmp_path / "chat.json").write_text(content)
    done = call("--chat", tmp_path / "chat.json")
    assert done.exit_code == 2 and done.stderr.startswith(f"masklens: {tmp_path / 'chat.json'} ")
    assert content == "{" or '[{"role": "user", "content": "..."}]' in done.stderr


def test_a_message_that_is_none_is_shown_with_its_file(no_model, tmp_path):
    (tmp_path / "chat.json").write_text('[{"role": "user"}]')
    done = call("--chat", tmp_path / "chat.json")
    assert done.exit_code == 2 and "chat.json: message 0 is {'role': 'user'}; give" in done.stderr


def test_chats_as_objects_with_messages(tmp_path):
    file, chat = tmp_path / "chat.json", {"messages": CHAT}
    for content, count in ((chat, 1), ([chat, chat], 2), ([CHAT, chat], 2)):
        file.write_text(json.dumps(content))
        assert gather_prompts(file, None, None, None, None) == [CHAT] * count


@pytest.mark.parametrize(
    ("units", "said"),
    [
        (
            "paragraphs",
            "no units 'paragraphs'; give tokens, words, sentences, turns, or a json file of spans\n",
        ),
        ("turns", "a string has no turns; they are for --chat\n"),
    ],
)
def test_units_are_checked_before_the_model_is_loaded(no_model, units, said):
    done = call("a", "--generate", "--units", units)
    assert done.exit_code == 2 and done.stderr.endswith(said)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--option", "norm=l1"], "occlusion has no option 'norm'"),
        (["--layer", "words", "--method", "attention"], "attention has no"),
    ],
)
def test_every_method_is_checked_before_the_first_one_works(model, monkeypatch, more, said):
    monkeypatch.setattr("masklens.explain_generation", lambda *a, **k: pytest.fail("a method works"))
    done = call("--model", model, "a", "--generate", "--method", "gradient", "--method", "occlusion", *more)
    assert done.exit_code == 2 and said in done.stderr


def test_layers_of_an_answer(model):
    common = ("--model", model, "--generate", "the plot", "--max-new-tokens", 1, "--json")
    (row,) = json.loads(call(*common, "--layer", "block 1", "--layer", "words").stdout)
    assert row["sites"] == [2, 0]
    (row,) = json.loads(call(*common, "--method", "attention").stdout)
    assert row["sites"] == [2, 3, 4]


def test_help_says_which_method_explains_a_language_model():
    text = " ".join(call("--help").stdout.replace("│", " ").split())
    assert "for the next token of a language model gradient" in text
