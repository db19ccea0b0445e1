"""What each layer would predict, against a slow twin that applies norm and head by hand."""

import json
import weakref

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

import tiny
from masklens import Subject, layer_predictions
from masklens.cli.main import app
from masklens.errors import MethodError
from masklens.methods.logit_lens import LayerPredictions, settled_at
from masklens.reports.terminal import layers_line


def by_hand(subject, text):
    """Top token and its probability at sites 1 to 4 of a Llama: final norm and head on the last position."""
    model, batch = subject.module, subject.encode([text])
    with torch.no_grad():
        hidden = model(**batch.inputs, output_hidden_states=True).hidden_states[:-1]
        last = subject.states(batch, [4]).states[4]  # the library's last one is after the norm
        logits = [model.lm_head(model.model.norm(state[:, -1]))[0] for state in (*hidden, last)]
    return [one.softmax(-1) for one in logits]


def test_against_norm_and_head_by_hand():
    subject = tiny.subject("llama", "causal")
    for text, one in zip(tiny.TEXTS, layer_predictions(subject, tiny.TEXTS, batch_size=2), strict=True):
        assert one.sites == (0, 1, 2, 3, 4) and one.text == text
        slow = by_hand(subject, text)
        answer = slow[-1].argmax()
        for k, probabilities in enumerate(slow, 1):
            assert one.predictions[k] == subject.tokenizer.decode(probabilities.argmax())
            assert one.probabilities[k] == pytest.approx(float(probabilities.max()), abs=1e-5)
            assert one.answer_probabilities[k] == pytest.approx(float(probabilities[answer]), abs=1e-5)


@pytest.mark.parametrize(
    ("family", "head"),
    [
        ("gpt2", "causal"),
        ("gemma", "causal"),
        ("opt", "causal"),
        ("bert", "mlm"),
        ("bert", "classification"),
        ("electra", "multi_label"),
        ("t5", "seq2seq"),
    ],
)
def test_the_last_layer_gives_the_models_own_output(family, head, unchanged):
    subject, texts = tiny.subject(family, head), tiny.texts(family, head)
    unchanged(subject.module)
    made = layer_predictions(subject, texts)
    unchanged(subject.module)
    batch = subject.encode(texts)
    output = subject.states(batch).output
    top = subject.task.predict(output, batch)
    assert [one.answer for one in made] == subject.task.describe(top, batch)
    own = subject.task.log_probability(output, top).exp().tolist()
    assert [one.probabilities[-1] for one in made] == pytest.approx(own, abs=1e-5)
    assert all(one.sites[-1] == 4 and one.settled in one.sites for one in made)
    assert any(len(set(one.probabilities)) > 1 for one in made), "the layers must differ"


def test_states_of_another_width_are_left_out():
    """ELECTRA's word embeddings are narrower than what the head reads."""
    (one,) = layer_predictions(tiny.subject("electra"), ["a funny movie"])
    assert one.sites == (1, 2, 3, 4)


def test_the_layer_from_which_the_answer_stays():
    assert settled_at([0, 1, 4], [True, True, True]) == 0
    assert settled_at([0, 1, 4], [True, False, True]) == 4
    assert settled_at([0, 1, 4], [False, True, True]) == 1


def test_a_number_has_no_prediction_at_each_layer():
    for head in ("regression", "qa"):
        with pytest.raises(MethodError, match="neither a class nor a token"):
            layer_predictions(tiny.subject("bert", head), tiny.texts("bert", head))


def test_the_line_below_a_heat_map():
    found = LayerPredictions(
        "x", (0, 1, 2, 3), ("a", "a", "b", "c"), (0.1, 0.2, 0.3, 0.9), "c", (0.0, 0.0, 0.1, 0.9), 3
    )
    console = Console(width=300)
    with console.capture() as seen:
        console.print(layers_line(found))
    assert seen.get().strip() == (
        "each layer's own prediction: words to embeddings a 10% to 20%, block 1 b 30%, block 2 c 90%, "
        "c on top from block 2"
    )
    assert "block 1" in str(found) and "'c', on top from block 2" in str(found)


def line_below(predictions, probabilities):
    sites = tuple(range(len(predictions)))
    found = LayerPredictions(
        "x", sites, predictions, probabilities, predictions[-1], probabilities, sites[-1]
    )
    console = Console(width=500)
    with console.capture() as seen:
        console.print(layers_line(found))
    return seen.get().strip().removeprefix("each layer's own prediction: ")


def test_layers_are_joined_only_where_their_probabilities_are_close():
    said = line_below(("no",) * 4, (0.5, 0.55, 0.53, 0.98))
    assert said == "words to block 1 no 50% to 55%, block 2 no 98%, no on top from block 2"
    said = line_below(("no",) * 3, (0.981, 0.983, 0.979))
    assert said == "words to block 1 no 98%, no on top from block 1"


def test_of_many_changes_the_last_ones_are_named():
    said = line_below(tuple("ab" * 10), (0.5,) * 20)
    assert said.startswith("..., block 11 a 50%, ") and said.count("50%") == 8


def test_the_outputs_of_all_layers_are_not_kept(monkeypatch):
    """With a large vocabulary they would not fit into memory."""
    subject, outputs, alive = tiny.subject("llama", "causal"), [], []
    run = subject.run

    def watched(*arguments, **options):
        made = run(*arguments, **options)
        outputs.append(weakref.ref(made.output))
        alive.append(sum(one() is not None for one in outputs))
        return made

    monkeypatch.setattr(subject, "run", watched)
    layer_predictions(subject, tiny.TEXTS)
    assert len(alive) >= len(subject.sites) and max(alive) <= 3


def test_the_command_line_shows_it_for_language_models(tmp_path):
    built = tiny.subject("gpt2", "causal")
    built.module.save_pretrained(tmp_path)
    built.tokenizer.save_pretrained(tmp_path)
    command = ["explain", "a funny movie", "--model", str(tmp_path), "--method", "gradient"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and result.stdout.count("ach layer's own prediction") == 1
    assert "trained for the last layer only" not in result.stdout


def test_the_command_line_shows_it_for_classifiers_once_for_each_text():
    texts = ["a fine film", "a dull plot"]
    command = ["explain", *texts, "--method", "gradient", "--method", "gradcam", "--no-verify"]
    said = " ".join(CliRunner().invoke(app, command).stdout.split())
    for one in layer_predictions(Subject.default(), texts):
        assert f"{one.answer} {one.since}" in said
    assert said.count("each layer's own prediction") == len(texts)
    assert said.count("trained for the last layer only") == 1
    records = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)
    assert len(records) == 4 and not any("layers" in one for one in records)
