"""`masklens serve` with a language model: an answer is explained as in a report."""

import copy
import json
import threading

import pytest
from test_page_in_browser import running
from test_serve import Served

import masklens as ml
import tiny
from masklens.reports.generation import generation_data, proved

TEMPLATE = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
CHAT = [{"role": "user", "content": "the plot is dull. who lives ?"}]


@pytest.fixture(scope="module")
def subject():
    pytest.importorskip("starlette", reason="starlette is not installed")
    tokenizer = copy.deepcopy(tiny.byte_bpe())
    tokenizer.chat_template = TEMPLATE
    return ml.Subject(tiny.model("gpt2", "causal"), tokenizer)


@pytest.fixture(scope="module")
def served(subject):
    made = Served(subject)
    yield made
    made.queue.close()


def ask(served, **body):
    return served.client.post("/jobs", json={"methods": ["gradient"], "new_tokens": 3, **body})


@pytest.mark.parametrize("prompt", [{"text": "the plot is"}, {"messages": CHAT}])
def test_an_answer_is_that_of_the_library(served, subject, prompt):
    status = served.wait(ask(served, **prompt).json()["id"])
    assert status["state"] == "done" and status["problems"] == []
    made = ml.explain_generation(subject, prompt.get("text") or CHAT, sites="all", max_new_tokens=3)
    expected = json.loads(json.dumps(generation_data([proved(made, subject)])))
    for name, value in expected.items():
        assert status["result"][name] == value
    assert [m["proofs"][0][0] is not None for m in expected["maps"]] == [True] * 3


def test_several_methods_stand_together_and_are_exported(served, subject, tmp_path):
    job = ask(served, text="a text to find", methods=["gradient", "occlusion"]).json()["id"]
    found = served.wait(job)["result"]
    assert [m["name"] for m in found["maps"]] == ["gradient"] * 3 + ["occlusion"] * 3
    assert len(found["steps"]) == 3
    rows = served.client.get("/answers.json").json()
    own = [row for row in rows if row["prompt"] == "a text to find"]
    assert [row["method"] for row in own] == ["gradient", "occlusion"]
    assert len(own[0]["verification"]) == 3
    (tmp_path / "answers.json").write_text(json.dumps(rows))
    assert all(isinstance(one, ml.Generation) for one in ml.load(tmp_path / "answers.json"))
    assert "a text to find" in served.client.get("/report.html").text
    assert served.client.get("/attributions.json").json() == []


def test_the_next_token_of_a_text_can_still_be_asked_for(served):
    status = served.wait(served.submit("the plot is").json()["id"])
    assert status["state"] == "done" and "steps" not in status["result"]


def test_a_job_like_a_chat_is_the_same_chat(served):
    first = ask(served, messages=CHAT).json()["id"]
    served.wait(first)
    again = served.client.post("/jobs", json={"like": first, "methods": ["occlusion"]}).json()["id"]
    found = served.wait(again)["result"]
    assert len(found["steps"]) == 3 and found["maps"][0]["name"] == "occlusion"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"text": "a", "new_tokens": 0}, "whole number"),
        ({"text": "a", "new_tokens": True}, "whole number"),
        ({"text": "a", "new_tokens": 2.0}, "whole number"),
        ({"text": "a", "new_tokens": 10**9}, "whole number"),
        ({"text": "a", "target": "b"}, "without a target"),
        ({"text": ["a", "b"]}, "one text"),
        ({"text": " "}, "empty"),
        ({"messages": []}, "list of 1"),
        ({"messages": "a"}, "list of 1"),
        ({"messages": CHAT, "text": "a"}, "without a text"),
        ({"messages": CHAT, "new_tokens": None}, "whole number"),
        ({"messages": [{"role": "root", "content": "a"}]}, "has a role"),
        ({"messages": [{"role": [], "content": "a"}]}, "has a role"),
        ({"messages": [{"role": "user"}]}, "has a role"),
        ({"messages": [{"role": "user", "content": " "}]}, "empty"),
        ({"messages": [{"role": "user", "content": 5}]}, "empty"),
        ({"messages": [5]}, "has a role"),
    ],
)
def test_bad_requests_are_told_why(served, body, said):
    answer = ask(served, **body)
    assert answer.status_code == 400 and said in answer.json()["error"]


def test_long_chats_are_refused(served):
    turn = {"role": "user", "content": "a" * 15_000}
    assert ask(served, messages=[turn, turn]).status_code == 413


def test_too_long_an_answer_is_told(served):
    failed = served.wait(ask(served, text="the plot is " * 40, new_tokens=200).json()["id"])
    assert failed["state"] == "failed" and "max_new_tokens" in failed["problems"][0]


def test_other_models_are_asked_for_no_answers(bert):
    other = Served(bert)
    answer = ask(other, text="a")
    assert answer.status_code == 400 and "new_tokens" not in answer.json()["error"]
    other.queue.close()


def test_a_chat_is_typed_answered_and_looked_at(visit, browser, subject):
    with running(subject, threading.Event()) as address:
        tab = visit(address)
        tab.get_by_label("Turn 1", exact=True).fill("the plot is dull. who lives ?")
        tab.get_by_role("button", name="add a turn").click()
        tab.get_by_label("Role of turn 2").select_option("user")
        tab.get_by_label("Turn 2", exact=True).fill("the acting is worse.")
        tab.get_by_label("Tokens of the answer").fill("3")
        tab.get_by_role("button", name="Explain").click()
        steps = tab.locator(".answer-steps .step")
        steps.nth(2).wait_for()
        assert steps.count() == 3
        assert tab.locator(".fold summary b").all_inner_texts() == ["user", "user", "template"]
        assert tab.locator(".card h2").all_inner_texts() == ["gradient"]
        assert tab.locator(".map .column").count() > 10
        assert tab.locator(".lens-cell").count() == len(subject.sites)
        assert tab.locator(".proof").count() == 1
        first = tab.locator(".map .column").count()
        steps.nth(1).click()
        assert tab.locator(".map .column").count() == first + 1
        tab.reload()
        assert tab.locator(".answer-steps .step").count() == 3
        assert [event for event in tab.events if not event.startswith(address)] == []


def test_a_plain_prompt_and_the_next_token(visit, browser, subject):
    with running(subject, threading.Event()) as address:
        tab = visit(address, width=400)
        tab.get_by_role("button", name="chat", exact=True).click()
        tab.get_by_label("Prompt").fill("<b>the plot</b> is")
        tab.get_by_label("Tokens of the answer").fill("2")
        tab.get_by_role("button", name="Explain").click()
        tab.locator(".answer-steps .step").nth(1).wait_for()
        assert tab.evaluate("document.documentElement.scrollWidth") <= 400
        tab.get_by_role("button", name="answer", exact=True).click()
        tab.get_by_label("Text", exact=True).fill("the acting is")
        tab.get_by_role("button", name="Explain").click()
        tab.locator(".sentence", has_text="the acting is").wait_for()
        assert tab.locator(".answer-steps").count() == 0
        assert [event for event in tab.events if not event.startswith(address)] == []
