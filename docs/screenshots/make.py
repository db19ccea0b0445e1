"""Take the pictures in this folder again: the report, the page and an answer, each at three widths, light and
dark.

python docs/screenshots/make.py MODEL TEXTS.csv [--lens LENS ...] [--lm-head MODEL]
python docs/screenshots/make.py CHAT_MODEL                    # the answer of a chat model

Needs playwright and a chromium on the path. TEXTS.csv has the columns text and label.
"""

from __future__ import annotations

import argparse
import io
import shutil
import threading
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

import masklens as ml
from masklens.files.reading import read_texts
from masklens.methods.ways import explain_ways, find_ways, ways
from masklens.reports.queue import Queue
from masklens.reports.serve import application, bound, explainer

HERE = Path(__file__).parent
SIZES = ((1440, 900), (900, 900), (400, 800))
TYPED = "a gorgeous , witty , seductive movie ."
CHAT = [
    {"role": "system", "content": "You answer in one short sentence."},
    {"role": "user", "content": "Anna lives in Paris. Tom lives in Rome. In which city does Tom live?"},
]


def write_report(subject: Any, source: Path, lenses: list[Any], lm_head: str | None, out: Path) -> None:
    texts, labels = (read_texts(str(source), [column], 16) for column in ("text", "label"))
    names = ["decoded_gradcam"] * (lm_head is not None) + ["integrated_gradients", "gradcam"]
    sets = explain_ways(subject, texts, find_ways(names, names[0], lenses, lm_head))
    deep = {name: [a for a in made if len(a.sites) == 1] for name, made in sets.items()}
    table = ml.evaluate(
        subject, {k: v for k, v in deep.items() if v}, metrics=["hiding", "revealing"], random_draws=2
    )
    ml.report(sets, out, "Film reviews", subject, lenses, labels=list(map(str, labels)), evaluation=table)


def write_answer(subject: Any, out: Path) -> None:
    made = ml.explain_generation(subject, CHAT, "occlusion", units="words", max_new_tokens=8)
    ml.report(made, out, subject=subject)


def start_page(subject: Any, lenses: list[Any], lm_head: str | None) -> str:
    """Serve the page in a thread that ends with this program."""
    listening, choices = bound(0), ways(lenses, lm_head)
    port = listening.getsockname()[1]
    app = application(subject, Queue(explainer(subject, choices)), choices, port, "masklens")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True).start()
    return f"http://127.0.0.1:{port}/"


def prepare(tab: Any, name: str) -> None:
    """Bring a freshly opened tab into the state to be shown."""
    if name == "set":
        tab.keyboard.press("s")
    elif name == "report":
        tab.keyboard.press("j")
    elif name == "page" and not tab.locator(".sentence").count():
        tab.fill(".composer textarea", TYPED)
        tab.click("text=Explain")
        tab.locator(".sentence").wait_for(timeout=120_000)
    tab.mouse.move(0, 0)
    tab.wait_for_timeout(400)


def save(picture: bytes, path: Path) -> None:
    """Store a picture with 256 colours: a fraction of its size."""
    Image.open(io.BytesIO(picture)).convert("RGB").quantize(256).save(path, optimize=True)
    print(path.name, path.stat().st_size)


def take(addresses: dict[str, str]) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, address in addresses.items():
            for width, height in SIZES:
                for scheme in ("light", "dark"):
                    size = {"width": width, "height": height}
                    tab = browser.new_page(viewport=size, color_scheme=scheme)
                    tab.goto(address)
                    prepare(tab, name)
                    save(tab.screenshot(), HERE / f"{name}-{width}-{scheme}.png")
                    tab.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("texts", type=Path, nargs="?")
    parser.add_argument("--lens", action="append", default=[])
    parser.add_argument("--lm-head")
    parser.add_argument("--report", type=Path, default=Path("out/report.html"), help="where the report goes")
    given = parser.parse_args()
    given.report.parent.mkdir(parents=True, exist_ok=True)
    subject, report = ml.Subject.from_pretrained(given.model), given.report.resolve()
    if given.texts is None:
        write_answer(subject, report)
        take({"answer": report.as_uri()})
        return
    lenses = [ml.DiffMask.from_pretrained(folder, subject) for folder in given.lens]
    write_report(subject, given.texts, lenses, given.lm_head, report)
    page = start_page(subject, lenses, given.lm_head)
    take({"report": report.as_uri(), "set": report.as_uri(), "page": page})


if __name__ == "__main__":
    main()
