"""`masklens serve`: the viewer on this machine, with a field for texts.

The server listens on 127.0.0.1 only. It answers only requests for its own address (Host) from its own page
(Origin), and accepts only short bodies that arrive in time. Explanations are made one at a time (see
queue.py).
"""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from ..attribution import record
from ..errors import MasklensError, MethodError
from ..evaluation.verify import Verifier
from ..methods.explain import explain
from ..methods.generation import explain_generation
from ..methods.usual import USUAL, usual_method
from ..methods.ways import Way, ways
from ..model.subject import Subject
from ..model.tap import watch
from ..records.generation import row
from ..records.layers import in_layers
from ..tasks.lm import CausalLM
from ..tasks.spans import QuestionAnswering
from .document import content_policy, report_html
from .generation import Answer, generation_data, proved
from .layers import read_layers
from .page import Entry, report_data, text_data
from .queue import ENDED, Queue, Submission
from .report import prove
from .requests import LONGEST_TEXT, MOST_NEW_TOKENS, ROLES, BadRequest, completed, read_body, read_submission

HOST = "127.0.0.1"
ANSWERS = "/answers.json"
OVERLAP = 128
"""the overlap in tokens of windows over a context that is too long for the model"""
PATIENCE = 20.0
"""seconds within which a complete request must arrive"""
POLICY = "Content-Security-Policy"
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def explainer(subject: Subject, choices: Mapping[str, Way], seed: int = 0) -> Callable[[Submission], None]:
    """The function that does a submission: explain its text, or the model's answer to it, in every requested
    way, and verify the explanations."""

    def work(submission: Submission) -> None:
        explain_one = explain_text if submission.new_tokens is None else explain_answer
        found: list[Any] = []
        with watch(subject.module, submission.check):
            for name in submission.methods:
                try:
                    found += explain_one(subject, submission, name, choices[name], seed)
                except MasklensError as error:
                    submission.problems.append(f"{name}: {in_layers(str(error))}")
                submission.done += 1
            submission.result = result_data(subject, submission, found) if found else None

    return work


def result_data(subject: Subject, submission: Submission, found: Sequence[Any]) -> dict[str, Any]:
    """What was found, as the viewer shows it; below a text also what each layer would predict."""
    about = {"job": submission.id, "like": submission.like}
    if submission.new_tokens is not None:
        return {**generation_data(found), **about}
    first = found[0].attribution
    return {**text_data(found, read_layers(subject, [first]).get(first.text)), **about}


def explain_text(subject: Subject, submission: Submission, name: str, way: Way, seed: int) -> list[Entry]:
    windows = OVERLAP if isinstance(subject.task, QuestionAnswering) else None
    options = {**way.options, "seed": seed, "windows": windows, "sites": _sites(way, submission)}
    made = explain(subject, [submission.text], way.method.name, submission.target, **options)
    shown = list(prove(made, name, Verifier(subject, [a.text for a in made]), way.lenses))
    submission.records += [
        record(replace(entry.attribution, verification=entry.proofs[-1])) for entry in shown
    ]
    return shown


def explain_answer(subject: Subject, submission: Submission, name: str, way: Way, seed: int) -> list[Answer]:
    sites = "all" if way.method.all_sites_at_once else _sites(way, submission)
    prompt: Any = submission.messages or submission.text
    made = explain_generation(
        subject,
        prompt,
        way.method.name,
        submission.new_tokens or 1,
        sites=sites,
        seed=seed,
        method_options=way.options,
    )
    shown = proved(made, subject, replaced=(*way.lenses, "mask")[0], name=name)
    submission.records.append(row(shown.generation))
    return [shown]


def _sites(way: Way, submission: Submission) -> str | None:
    """The sites to explain: "all" if the user wants it and the method has one site by default, else None."""
    return "all" if submission.every_site and way.method.sites == "inputs" and not way.lenses else None


def application(subject: Subject, queue: Queue, choices: Mapping[str, Way], port: int, title: str) -> Any:
    """The server's routes."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, Response
    from starlette.routing import Route

    def done() -> list[Submission]:
        return [one for one in queue.submissions() if one.state == "done"]

    def data() -> dict[str, Any]:
        made = report_data([], title, segments=subject.task.parts)
        return {**made, "texts": [one.result for one in done()]}

    def told(submission: Submission) -> dict[str, Any]:
        return {**submission.status(), "before": queue.place(submission)}

    def find(request: Request) -> Submission:
        submission = queue.get(request.path_params["id"])
        if submission is None:
            raise BadRequest(404, "no such job; the history keeps the newest ones only")
        return submission

    async def page(request: Request) -> Response:
        waiting = [told(one) for one in queue.submissions() if one.state not in ENDED]
        html = report_html(data(), {**about(subject, choices), "waiting": waiting})
        rules = f"{content_policy(live=True)}; frame-ancestors 'none'"
        return HTMLResponse(html, headers={POLICY: rules})

    async def submit(request: Request) -> Response:
        body = await read_body(request)
        asked = read_submission(completed(body, queue), choices, isinstance(subject.task, CausalLM))
        return JSONResponse(told(queue.submit(asked)), 202)

    async def status(request: Request) -> Response:
        return JSONResponse(told(find(request)))

    async def cancel(request: Request) -> Response:
        submission = find(request)
        (queue.remove if submission.state in ENDED else queue.cancel)(submission)
        return JSONResponse(submission.status())

    async def export_report(request: Request) -> Response:
        return _download(HTMLResponse(report_html(data())), "report.html")

    async def export_json(request: Request) -> Response:
        answers = request.url.path == ANSWERS
        some = [one for one in done() if (one.new_tokens is not None) is answers]
        rows = [one for submission in some for one in submission.records]
        text = json.dumps(rows, ensure_ascii=True, default=str)
        name = request.url.path.removeprefix("/")
        return _download(Response(text, media_type="application/json"), name)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        queue.close()

    async def refuse(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, getattr(error, "status", 400))

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/jobs", submit, methods=["POST"]),
            Route("/jobs/{id}", status),
            Route("/jobs/{id}", cancel, methods=["DELETE"]),
            Route("/report.html", export_report),
            Route("/attributions.json", export_json),
            Route(ANSWERS, export_json),
        ],
        exception_handlers={BadRequest: refuse, MasklensError: refuse},
        lifespan=lifespan,
    )
    return guarded(app, {f"{name}:{port}" for name in (HOST, "localhost")})


def _download(response: Any, name: str) -> Any:
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def guarded(app: Any, hosts: set[str]) -> Any:
    """The application, protected against requests for other hosts and from other pages.

    Otherwise a foreign page could reach it through the user's browser, by a host name that resolves to this
    machine (Host) or by a form (Origin).
    """
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.responses import PlainTextResponse

    async def guard(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault(POLICY, "default-src 'none'; frame-ancestors 'none'")
            await send(message)

        reason = foreign(Headers(scope=scope), hosts)
        answer = PlainTextResponse(reason, 403) if reason else app
        await answer(scope, receive, send_with_headers)

    return guard


def foreign(headers: Mapping[str, str], hosts: set[str]) -> str | None:
    """Why a request is not one of our own page's, or None."""
    if headers.get("host", "").lower() not in hosts:
        return "This server answers under its own address only."
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in {f"http://{host}" for host in hosts}:
        return "This server answers its own page only."
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "This server answers its own page only."
    return None


def about(subject: Subject, choices: Mapping[str, Way]) -> dict[str, Any]:
    """The facts about the model that the page needs."""
    task, answers, usual = subject.task, isinstance(subject.task, CausalLM), usual_method(subject)
    return {
        "methods": [
            {
                "name": name,
                "summary": way.method.summary,
                "cost": way.cost,
                "chosen": way.chosen if usual == USUAL else name == usual,
            }
            for name, way in choices.items()
        ],
        "answers": answers,
        "roles": list(ROLES) if getattr(subject.tokenizer, "chat_template", None) else [],
        "most_new_tokens": MOST_NEW_TOKENS,
        "labels": list(getattr(task, "labels", ())),
        "pair": isinstance(task, QuestionAnswering),
        "longest": LONGEST_TEXT,
    }


def serve(
    subject: Subject,
    lenses: Sequence[Any] = (),
    lm_head: Any = None,
    port: int = 8765,
    seed: int = 0,
    title: str = "masklens",
    ready: Callable[[str], None] = print,
) -> None:
    """Serve the page until interrupted; `ready` is called with its address. Port 0 takes any free one."""
    check_installed()
    import uvicorn

    listening = bound(port)
    port = listening.getsockname()[1]
    choices = ways(lenses, lm_head)
    queue = Queue(explainer(subject, choices, seed))
    app = application(subject, queue, choices, port, title)
    listening.listen()  # from here on an early browser waits instead of being refused
    ready(f"http://{HOST}:{port}/")
    uvicorn.Server(server_config(app)).run(sockets=[listening])


def server_config(app: Any, patience: float = PATIENCE) -> Any:
    """The uvicorn configuration: no log, and connections without a request are closed after a while."""
    import uvicorn

    return uvicorn.Config(
        app,
        http=impatient(patience),
        log_level="warning",
        timeout_graceful_shutdown=3,
        server_header=False,
    )


def impatient(patience: float) -> type:
    """A protocol that closes a connection if no complete request arrives in time, even if parts of it do."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        timer: Any = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop()
            super().connection_lost(exc)

        def watch(self) -> None:
            """Start the clock for the next request, unless a complete one is being answered."""
            cycle = self.cycle
            if cycle is not None and not cycle.more_body and not cycle.response_complete:
                self.stop()
            elif self.timer is None:
                self.timer = self.loop.call_later(patience, self.transport.close)

        def stop(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
            self.timer = None

    return Impatient


def check_installed() -> None:
    """Raise a MethodError if the packages that serve the page are not installed."""
    if any(find_spec(name) is None for name in ("uvicorn", "starlette")):
        raise MethodError("masklens serve needs more packages: pip install 'masklens[serve]'")


def bound(port: int) -> socket.socket:
    """A socket on this machine's own address."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise MethodError(f"cannot listen on port {port} ({error}); give another with --port") from error
    return listening
