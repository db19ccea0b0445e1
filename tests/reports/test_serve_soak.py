"""The page's server under a mob: concurrent, slow, oversized and malformed requests, all at once."""

import contextlib
import http.client
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tiny

pytestmark = pytest.mark.slow

SECONDS, CLIENTS = 25, 8
HISTORY = 200
"""jobs that the server remembers: its memory grows until there are so many"""


class Server:
    """`masklens serve` in a process of its own."""

    def __init__(self, folder):
        tiny.model("bert").save_pretrained(folder)
        tiny.FAMILIES["bert"].tokenizer().save_pretrained(folder)
        command = [
            sys.executable,
            "-m",
            "masklens",
            "serve",
            "--model",
            str(folder),
            "--port",
            "0",
            "--no-open",
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.said: list[str] = []
        for line in self.process.stderr:
            self.said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        threading.Thread(target=lambda: self.said.extend(self.process.stderr), daemon=True).start()

    def ask(self, method, path, body=None, timeout=20.0, **headers):
        """Status and content of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def submit(self, text):
        body = json.dumps({"text": text, "methods": ["gradient"]})
        status, content = self.ask("POST", "/jobs", body, **{"Content-Type": "application/json"})
        return status, json.loads(content)

    def state(self, name):
        return json.loads(self.ask("GET", f"/jobs/{name}")[1])

    def raw(self, parts, rest=0.0):
        """Send bytes, some at a time, and go without waiting for an answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(rest)

    def memory(self):
        """Kilobytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1])

    def handles(self):
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    if not Path("/proc/self/fd").exists():
        pytest.skip("memory and open files are read from /proc")
    made = Server(tmp_path_factory.mktemp("served"))
    yield made
    made.process.terminate()
    made.process.wait(timeout=20)


def wait_for(server, name):
    for _ in range(2000):
        status = server.state(name)
        if status.get("state") in ("done", "failed", "cancelled"):
            return status
        time.sleep(0.01)
    raise AssertionError(f"job {name} never ended")


def good(server, random):
    """A text of its own must come back in the answer."""
    text = f"a dull car {random.randrange(10**9)}"
    status, job = server.submit(text)
    assert status in (202, 429), status
    if status == 202:
        ended = wait_for(server, job["id"])
        assert ended["state"] == "done" and text in json.dumps(ended["result"])


def oversized(server, random):
    body = json.dumps({"text": "x" * 400_000, "methods": ["gradient"]})
    try:
        status, _ = server.ask("POST", "/jobs", body, **{"Content-Type": "application/json"})
    except (ConnectionError, http.client.HTTPException):
        return  # the server may hang up while the body is still on its way
    assert status == 413


def malformed(server, random):
    body = random.choice(
        [
            b"",
            b"{",
            b"[1]",
            b"\xff\xfe",
            b'{"text": 1}',
            b'{"text":"\\ud800","methods":["gradient"]}',
            b"[" * 5000,
        ]
    )
    status, _ = server.ask(
        "POST", "/jobs", body, **{"Content-Type": random.choice(["application/json", "text/plain"])}
    )
    assert status in (202, 400, 413, 415, 429), (body, status)
    assert server.ask("GET", f"/{random.randbytes(4).hex()}")[0] == 404


def garbage(server, random):
    with contextlib.suppress(ConnectionError):  # hung up on, as it should be
        server.raw([random.randbytes(200), b"\r\n\r\n"])


def slow(server, random):
    """A request that drips in; half of them end in the middle."""
    body = json.dumps({"text": "a slow car", "methods": ["gradient"]}).encode()
    head = f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Type: application/json\r\n"
    pieces = [
        head.encode(),
        f"Content-Length: {len(body)}\r\n\r\n".encode(),
        *(body[i : i + 8] for i in range(0, 48, 8)),
    ]
    server.raw(pieces[: random.choice([3, len(pieces)])], rest=0.1)


def mob(server, seconds, seed):
    """One client after another thing until the time is over; returns what went wrong."""
    generator, wrong, end = random.Random(seed), [], time.monotonic() + seconds
    while time.monotonic() < end:
        act = generator.choice([good, good, good, oversized, malformed, garbage, slow])
        try:
            act(server, generator)
        except Exception as error:
            wrong.append(f"{act.__name__}: {error!r}")
    return wrong


def all_at_once(server, seconds):
    wrong = []
    threads = [
        threading.Thread(target=lambda i=i: wrong.extend(mob(server, seconds, i))) for i in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_the_server_stands_a_mob_and_keeps_its_size(server):
    for i in range(HISTORY + 20):
        wait_for(server, server.submit(f"a dull car {i}")[1]["id"])
    assert all_at_once(server, 5) == []
    memory, handles = server.memory(), server.handles()
    assert all_at_once(server, SECONDS) == []
    time.sleep(6)  # connections that were left open are closed
    assert server.process.poll() is None and server.ask("GET", "/")[0] == 200
    assert server.handles() <= handles + 3
    assert server.memory() < 1.1 * memory
    assert "Traceback" not in "".join(server.said), "".join(server.said)[-3000:]


def test_answers_come_in_order(server):
    names = [server.submit(f"a funny car {i}")[1]["id"] for i in range(12)]
    while True:
        ended = [server.state(name)["state"] == "done" for name in reversed(names)][::-1]
        assert ended == sorted(ended, reverse=True)  # none before the one that came first
        if all(ended):
            return
