"""Question answering as a user meets it: contexts that are too long, answers that were cut off, no answer."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import tiny
from masklens import Subject, evaluate, explain, verify
from masklens.cli.main import app
from masklens.errors import TargetError, TextError
from masklens.reports.page import Entry, report_data
from records import make_pair

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


def saved(tmp_path):
    subject = tiny.subject("bert", "qa")
    subject.module.save_pretrained(tmp_path / "model")
    subject.tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def call(*arguments):
    done = CliRunner().invoke(app, [str(one) for one in arguments])
    assert done.exit_code in (0, 2), done.exception
    return done


def test_gold_answers_are_texts_and_any_of_them_is_right():
    subject = tiny.subject("bert", "qa")
    made = explain(subject, [("who ?", "John Smith lives in Paris")] * 4, "gradient")
    said = made[0].prediction
    golds = [[f"the {said} !", "Rome"], "Rome", {"text": ["Rome", said.upper()]}, None]
    table = evaluate(subject, {"gradient": made}, golds, ["hiding"], random_draws=0)
    assert table.settings["exact_match"] == 0.5 and 0.5 <= table.settings["f1"] < 1
    assert table.curves["gradient"]["hiding"][0] == 0.5, "nothing hidden: accuracy is exact match"
    assert any("exact_match 0.500" in note for note in table.notes)
    plain = evaluate(subject, {"gradient": made}, None, ["hiding"], random_draws=0)
    assert "exact_match" not in plain.settings and plain.curves["gradient"]["hiding"][0] == 1
    with pytest.raises(TargetError, match="is not a gold answer"):
        evaluate(subject, {"gradient": made}, [[["x"]]] * 4, ["hiding"], random_draws=0)


def test_a_gold_answer_that_was_cut_off_is_missed_not_an_error():
    subject = cutting(max_length=40)
    made = explain(subject, [("who lives there ?", LONG)], "gradient")
    table = evaluate(subject, {"gradient": made}, ["John Smith"], ["hiding"], random_draws=0)
    assert table.settings["exact_match"] == 0


def test_the_command_line_takes_pairs_windows_and_gold_answers(tmp_path):
    model, rows = saved(tmp_path), tmp_path / "rows.jsonl"
    asked = [
        {"question": q, "context": c, "answers": ["1999", "Rome"]}
        for q, c in [tiny.QUESTION, ("who ?", LONG)]
    ]
    rows.write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
    columns = ["--input", rows, "--column", "question", "--column", "context", "--method", "gradient"]
    (one,) = json.loads(call("explain", "--model", model, "--pair", *tiny.QUESTION, "--json").stdout)
    assert one["text"] == list(tiny.QUESTION) and one["parts"] == ["question", "passage"]
    short, long = json.loads(call("explain", "--model", model, *columns, "--windows", 9, "--json").stdout)
    assert "window" not in short["settings"] and long["settings"]["window"].endswith("of 2")
    cut = json.loads(
        call("explain", "--model", model, *columns, "--truncate", "--max-length", 40, "--json").stdout
    )
    assert [len(row["tokens"]) for row in cut] == [len(short["tokens"]), 40]
    scored = call(
        "evaluate", "--model", model, *columns, "--windows", 9, "--label-column", "answers", "--json"
    )
    assert json.loads(scored.stdout)["settings"]["exact_match"] == 0
    out = tmp_path / "x.html"
    made = call(
        "report", "--model", model, *columns, "--windows", 9, "--label-column", "answers", "--out", out
    )
    assert made.exit_code == 0 and "1999 / Rome" in out.read_text(encoding="utf-8")
    assert "--pair" in call("explain", "--model", model, "a", "b").stderr
    assert "two texts for each pair" in call("explain", "--model", model, "--pair", "a").stderr


def test_a_report_says_whether_an_answer_is_right():
    made = replace(make_pair(), prediction="She!")
    data = [
        report_data([Entry(made, "x")], labels=[label])
        for label in (["it", "the she"], ["it"], "She!", "she")
    ]
    assert [one["texts"][0]["wrong"] for one in data] == [False, True, False, True]
    assert data[0]["texts"][0]["label"] == "it / the she" and data[0]["segments"] == ["question", "passage"]
