"""The server of the page: what it refuses, in which order it works, and that it lives on."""

import asyncio
import contextlib
import html
import json
import re
import socket
import threading
import time

import pytest

import tiny
from masklens import layer_predictions
from masklens.errors import MethodError
from masklens.methods.registry import METHODS
from masklens.methods.ways import COMMON, Way, ways
from masklens.reports.queue import Cancelled, Queue, QueueFull, Submission
from masklens.reports.requests import LONGEST_BODY, LONGEST_TEXT
from masklens.reports.serve import (
    application,
    bound,
    explainer,
    foreign,
    server_config,
)
from restored import snapshot

PORT = 8765
HOME = f"http://127.0.0.1:{PORT}"


class Served:
    """An application with a tiny model, and a client of it."""

    def __init__(self, subject, work=None, **limits):
        from starlette.testclient import TestClient

        self.choices = ways()
        self.queue = Queue(work or explainer(subject, self.choices), **limits)
        self.client = TestClient(application(subject, self.queue, self.choices, PORT, "title"), base_url=HOME)

    def submit(self, text="a good film", methods=("gradient",), **more):
        return self.client.post("/jobs", json={"text": text, "methods": list(methods), **more})

    def wait(self, name, states=("done", "failed", "cancelled")):
        for _ in range(400):
            status = self.client.get(f"/jobs/{name}").json()
            if status["state"] in states:
                return status
            time.sleep(0.02)
        raise AssertionError(f"still {status['state']}")


@pytest.fixture(scope="module", autouse=True)
def _starlette():
    pytest.importorskip("starlette", reason="starlette is not installed")


@pytest.fixture(scope="module")
def served(bert):
    made = Served(bert)
    yield made
    made.queue.close()


class Gate:
    """Work that goes on when it is told to."""

    def __init__(self):
        self.order, self.open = [], threading.Event()

    def __call__(self, job):
        self.order.append(job.text)
        while not self.open.wait(0.01):
            job.check()
        job.result = {"text": [job.text], "maps": []}


@pytest.fixture
def gated(bert):
    gate = Gate()
    made = Served(bert, gate, waiting=3, history=4)
    yield made, gate
    made.queue.close()


def test_a_text_is_explained_and_verified(served):
    answer = served.submit(methods=["gradient", "attention"])
    assert answer.status_code == 202
    status = served.wait(answer.json()["id"])
    assert (status["state"], status["done"], status["total"], status["problems"]) == ("done", 2, 2, [])
    assert status["passes"] > 2
    maps = status["result"]["maps"]
    assert [m["name"] for m in maps] == ["gradient", "attention"]
    assert all(len(m["proofs"]) == len(m["sites"]) for m in maps)


def test_what_each_layer_would_predict_is_in_the_answer_once(served, bert, monkeypatch):
    read = []

    def counted(subject, texts, **options):
        read.extend(texts)
        return layer_predictions(subject, texts, **options)

    monkeypatch.setattr("masklens.methods.logit_lens.layer_predictions", counted)
    job = served.submit("a fine film", methods=["gradient", "attention"]).json()["id"]
    result = served.wait(job)["result"]
    (expected,) = layer_predictions(bert, ["a fine film"])
    assert read == ["a fine film"]
    assert result["logit_lens_sites"] == list(expected.sites)
    assert [name for name, _ in result["layers"]["lens"]] == list(expected.predictions)


def test_every_site_on_demand(served, bert):
    one, every = (served.submit(every_site=wanted).json()["id"] for wanted in (False, True))
    assert served.wait(one)["result"]["maps"][0]["sites"] == [0]
    assert served.wait(every)["result"]["maps"][0]["sites"] == list(bert.sites)


def test_the_history_is_in_the_page_and_in_the_exports(served):
    name = served.submit("a text to find again").json()["id"]
    served.wait(name)
    assert "a text to find again" in served.client.get("/").text
    exported = served.client.get("/report.html")
    assert "a text to find again" in exported.text and "connect-src" not in exported.text
    assert "attachment" in exported.headers["content-disposition"]
    rows = served.client.get("/attributions.json").json()
    assert "a text to find again" in [row["text"] for row in rows]
    served.client.delete(f"/jobs/{name}")
    assert served.client.get(f"/jobs/{name}").status_code == 404
    assert "a text to find again" not in served.client.get("/").text


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "", "localhost.evil:8765"])
def test_another_host_is_refused(served, host):
    answer = served.client.get("/", headers={"Host": host})
    assert answer.status_code == 403
    assert "<html" not in answer.text


@pytest.mark.parametrize("path", ["/", "/jobs/x", "/report.html", "/attributions.json"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_page_is_refused(served, path, headers):
    assert served.client.get(path, headers=headers).status_code == 403
    assert served.client.post("/jobs", headers=headers, json={}).status_code == 403


def test_our_own_page_is_let_in():
    hosts = {"127.0.0.1:1", "localhost:1"}
    for name in hosts:
        own = {"host": name, "origin": f"http://{name}", "sec-fetch-site": "same-origin"}
        assert foreign(own, hosts) is None
    assert foreign({"host": "localhost:1"}, hosts) is None
    assert foreign({}, hosts)


def test_answers_forbid_frames_sniffing_and_keeping(served):
    for path in ("/", "/jobs/none", "/nothing"):
        headers = served.client.get(path).headers
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["permissions-policy"].startswith("camera=()")
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert not [name for name in headers if name.startswith("access-control")]


def test_the_header_allows_what_the_page_allows_itself(served):
    """The script and style of the page by their hashes, and its own server."""
    answer = served.client.get("/")
    (said,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', answer.text)
    rules = html.unescape(said)
    assert answer.headers["content-security-policy"] == f"{rules}; frame-ancestors 'none'"
    assert "script-src 'sha256-" in rules and "connect-src 'self'" in rules
    assert "sha256" not in served.client.get("/report.html").headers["content-security-policy"]


@pytest.fixture
def port():
    """Of a server that waits for half a second."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")

    async def app(scope, receive, send):
        if scope["type"] == "http" and scope["method"] == "POST":
            while (message := await receive()).get("more_body"):
                pass
            if message["type"] == "http.disconnect":
                return
        elif scope["type"] == "http":
            await asyncio.sleep(1.5)  # an answer may take longer than a request
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    config = server_config(app, patience=0.5)
    config.lifespan = "off"
    server, listening = uvicorn.Server(config), bound(0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join(10)


HALF = {
    "nothing": [b""],
    "half a line": [b"GET / HT"],
    "half a header": [b"GET / HTTP/1.1\r\nHost: x\r\n"],
    "half a body": [b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf"],
    "a drip": [b"G", b"E", b"T", *[b" "] * 30],
}


@pytest.mark.parametrize("parts", HALF.values(), ids=HALF)
def test_idle_and_half_sent_requests_time_out(port, parts):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        start = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for part in parts:
                client.sendall(part)
                time.sleep(0.05 if len(parts) > 1 else 0)
            assert client.recv(100) in (b"", b"HTTP/1.1 400 Bad Request\r\n")
        assert 0.3 < time.monotonic() - start < 8


def test_a_whole_request_is_answered_however_long_it_takes(port):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        for _ in range(2):
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"ok"):
                answer += client.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"[]", 400, "send an object"),
        (b'{"text": "a", "methods": ["gradient"], "more": 1}', 400, "send an object"),
        (b'{"text": "a", "methods": []}', 400, "methods is a list"),
        (b'{"text": "a", "methods": "gradient"}', 400, "methods is a list"),
        (b'{"text": "a", "methods": [{}]}', 400, "no method"),
        (b'{"text": "a", "methods": ["rm -rf"]}', 400, "no method"),
        (b'{"text": " ", "methods": ["gradient"]}', 400, "empty"),
        (b'{"text": 5, "methods": ["gradient"]}', 400, "text is a string"),
        (b'{"text": ["a", "b", "c"], "methods": ["gradient"]}', 400, "text is a string"),
        (b'{"methods": ["gradient"]}', 400, "text is a string"),
        (b'{"text": "a", "methods": ["gradient"], "target": [1]}', 400, "target is"),
        (b'{"text": "a", "methods": ["gradient"], "every_site": 1}', 400, "every_site is"),
    ],
)
def test_bad_requests_are_told_why(served, body, status, message):
    answer = served.client.post("/jobs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_long_texts_and_bodies_are_refused(served):
    assert served.submit("a" * (LONGEST_TEXT + 1)).status_code == 413
    assert served.submit("a" * (LONGEST_BODY + 1)).status_code == 413
    chunks = (b"a" * 65536 for _ in range(20))
    answer = served.client.post("/jobs", content=chunks, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413


def test_only_json_and_only_the_methods_of_a_route(served):
    form = served.client.post("/jobs", data={"text": "a"})
    assert form.status_code == 415
    assert served.client.put("/jobs").status_code == 405
    assert served.client.get("/../../etc/passwd").status_code == 404


def test_what_the_model_refuses_is_told_and_the_next_job_runs(served):
    bad = served.wait(served.submit("a " * 900, ["gradient", "attention"]).json()["id"])
    assert bad["state"] == "failed" and bad["result"] is None
    assert len(bad["problems"]) == 2 and "tokens" in bad["problems"][0]
    wrong = served.wait(served.submit(target="no such label").json()["id"])
    assert wrong["state"] == "failed"
    assert served.wait(served.submit().json()["id"])["state"] == "done"


def test_text_that_is_no_text_is_shown_or_refused_and_nothing_breaks(served, bert):
    for body in ('{"text": "\\ud800 good", %s}', '{"text": "good", "target": "\\ud800", %s}'):
        sent = (body % '"methods": ["gradient"]').encode()
        answer = served.client.post("/jobs", content=sent, headers={"Content-Type": "application/json"})
        if answer.status_code == 202:
            assert served.wait(answer.json()["id"])["state"] in ("done", "failed")
        assert answer.status_code in (202, 400)
    for path in ("/", "/report.html", "/attributions.json"):
        assert served.client.get(path).status_code == 200


def test_jobs_run_in_order_and_say_how_many_are_before_them(gated):
    served, gate = gated
    names = [served.submit(text).json() for text in "abc"]
    served.wait(names[0]["id"], ("running",))
    assert served.client.get(f"/jobs/{names[2]['id']}").json()["before"] == 1
    gate.open.set()
    assert [served.wait(name["id"])["state"] for name in names] == ["done"] * 3
    assert gate.order == ["a", "b", "c"]


def test_a_running_and_a_waiting_job_are_cancelled(gated):
    served, gate = gated
    first, second, third = (served.submit(text).json()["id"] for text in "abc")
    served.wait(first, ("running",))
    assert served.client.delete(f"/jobs/{second}").json()["state"] == "cancelled"
    served.client.delete(f"/jobs/{first}")
    assert served.wait(first)["state"] == "cancelled"
    gate.open.set()
    assert served.wait(third)["state"] == "done"
    assert gate.order == ["a", "c"]


def test_the_queue_and_the_history_are_bounded(gated):
    served, gate = gated
    first = served.submit("a").json()["id"]
    served.wait(first, ("running",))
    assert [served.submit(text).status_code for text in "bcde"] == [202, 202, 202, 429]
    gate.open.set()
    while any(job.state in ("queued", "running") for job in served.queue.submissions()):
        time.sleep(0.01)
    for text in "fgh":
        served.wait(served.submit(text).json()["id"])
    assert [job.text for job in served.queue.submissions()] == ["d", "f", "g", "h"]
    assert served.client.get(f"/jobs/{first}").status_code == 404


def test_the_worker_lives_on_after_a_crash(bert, capsys):
    def crash(job):
        raise RuntimeError("inside")

    served = Served(bert, crash)
    status = served.wait(served.submit().json()["id"])
    assert status["state"] == "failed" and status["problems"] == ["RuntimeError: inside"]
    assert served.wait(served.submit().json()["id"])["state"] == "failed"
    served.queue.close()
    assert "inside" in capsys.readouterr().err


def test_cancelling_stops_a_method_between_passes_and_leaves_the_model_as_it_was(bert):
    before = snapshot(bert.module)
    job = Submission("a good film", ["shapley"], every_site=False)
    count = job.check

    def check():
        job.unwanted = job.passes >= 3
        count()

    job.check = check
    with pytest.raises(Cancelled):
        explainer(bert, ways())(job)
    assert job.passes == 4 and job.result is None
    assert snapshot(bert.module) == before


def test_a_full_queue_is_an_error():
    stop = threading.Event()
    queue = Queue(lambda job: stop.wait(5), waiting=0)
    with pytest.raises(QueueFull, match="0 jobs are waiting"):
        queue.submit(Submission("a", ["gradient"]))
    stop.set()
    queue.close()


def test_what_is_offered():
    names = list(ways())
    assert names[0] == "integrated_gradients" and len(names) == len(set(names))
    costs = [METHODS[name].passes for name in names if name not in COMMON]
    assert names[-1] == "random" and costs[:-1] == sorted(costs[:-1])
    assert not {"diffmask", "decoded_gradcam"} & set(names)
    assert not [name for name in names if name.startswith("thermostat")]

    class Lens:
        over = "states"

    some = ways([Lens()], "head")
    assert list(some)[0] == "diffmask (states)" and some["diffmask (states)"].lenses
    assert some["decoded_gradcam"].options == {"lm_head": "head"}
    assert [name for name, way in some.items() if way.chosen] == [
        "diffmask (states)",
        "integrated_gradients",
        "decoded_gradcam",
    ]
    assert Way(METHODS["lime"]).lenses == []


def test_a_taken_port_is_told():
    listening = bound(0)
    listening.listen()
    taken = listening.getsockname()
    assert taken[0] == "127.0.0.1"
    with pytest.raises(MethodError, match="--port"):
        bound(taken[1])
    listening.close()


def test_the_page_of_a_pair_task_asks_for_two_texts():
    served = Served(tiny.subject("bert", "qa"))
    data = json.loads(re.search(r'id="data">(.*?)</script>', served.client.get("/").text, re.DOTALL).group(1))
    assert data["live"]["pair"] and data["segments"] == ["question", "passage"]
    status = served.wait(served.submit(["who was good ?", "the film was good"]).json()["id"])
    assert status["state"] == "done" and set(status["result"]["layouts"][0]["segments"]) == {0, 1}
    served.queue.close()


def test_a_job_like_another_takes_what_it_does_not_say(served):
    first = served.wait(served.submit("a good film", every_site=True).json()["id"])
    other = served.client.post("/jobs", json={"like": first["id"], "target": 0}).json()
    edited = served.client.post("/jobs", json={"like": first["id"], "text": "a bad film"}).json()
    assert (other["text"], edited["text"]) == ("a good film", "a bad film")
    for made in (served.wait(one["id"]) for one in (other, edited)):
        assert made["result"]["like"] == first["id"]
        assert [m["sites"] for m in made["result"]["maps"]] == [m["sites"] for m in first["result"]["maps"]]


@pytest.mark.parametrize("like", ["0" * 16, 7, ["x"], {}, True])
def test_a_job_like_none_that_is_known_is_refused(served, like):
    assert served.client.post("/jobs", json={"like": like, "target": 0}).status_code == 404
