"""The page of `masklens serve` in a real browser, with a tiny model behind it."""

import re
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hostile import HOSTILE
from masklens.methods.ways import ways
from masklens.reports.queue import Queue
from masklens.reports.serve import application, bound, explainer


@contextmanager
def running(subject, slow):
    """The address of a server in a thread of its own; it works while `slow` is not set."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")
    listening, choices = bound(0), ways()
    quick = replace(choices["integrated_gradients"], options={"n_steps": 2})
    choices["integrated_gradients"] = quick
    port = listening.getsockname()[1]
    work = explainer(subject, choices)

    def wait_and_work(job):
        while slow.is_set():
            job.check()
            time.sleep(0.02)
        work(job)

    app = application(subject, Queue(wait_and_work), choices, port, "masklens")
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(timeout=10)
    assert not thread.is_alive()


WAIT = threading.Event()


@pytest.fixture
def slow():
    """While it is set, jobs do not end."""
    yield WAIT
    WAIT.clear()


@pytest.fixture(scope="module")
def page(bert, browser):
    with running(bert, WAIT) as address:
        yield address


def explain(tab, text):
    tab.get_by_label("Text", exact=True).fill(text)
    tab.get_by_role("button", name="Explain").click()


def shown(tab, text):
    tab.locator(".sentence", has_text=re.compile(f"^{re.escape(text)}$")).wait_for()


def test_a_text_is_typed_explained_and_kept(visit, page):
    tab = visit(page)
    tab.locator(".composer").get_by_role("button", name="gradcam").click()
    explain(tab, "a good film")
    shown(tab, "a good film")
    assert tab.locator(".card h2").all_text_contents() == ["integrated_gradients", "gradcam"]
    assert tab.locator(".proof").count() == 2
    assert tab.locator(".map").count() == 1  # gradcam has every layer by itself
    explain(tab, "a bad film")
    shown(tab, "a bad film")
    assert tab.locator(".item-text").all_text_contents() == ["a bad film", "a good film"]
    tab.reload()
    shown(tab, "a bad film")
    tab.locator(".list button").nth(1).click()
    shown(tab, "a good film")
    tab.get_by_role("button", name="Remove from the history").click()
    assert tab.locator(".item-text").all_text_contents() == ["a bad film"]
    assert all(address.startswith(page) for address in tab.events)


def test_target_is_chosen_and_keys_send(visit, page):
    tab = visit(page)
    tab.get_by_label("Target").select_option(index=1)
    label = tab.get_by_label("Target").input_value()
    box = tab.get_by_label("Text", exact=True)
    box.fill("what of the other")
    box.press("Control+Enter")
    shown(tab, "what of the other")
    told = tab.locator(".badge.other").all_text_contents()
    predicted = tab.locator(".text-line .label").first.inner_text()
    assert told == ([] if predicted == label else [f"target {label}"])


def test_progress_is_shown_and_a_job_is_cancelled(visit, page, slow):
    tab = visit(page)
    before = tab.locator(".item-text").count()
    slow.set()
    explain(tab, "never to be seen")
    explain(tab, "the next in line")
    tab.locator(".job", has_text="never to be seen").get_by_text("0 of 1 method").wait_for()
    tab.locator(".job", has_text="the next in line").get_by_text("waiting").wait_for()
    for _ in range(2):
        tab.get_by_role("button", name="Cancel").last.click()
        tab.wait_for_timeout(400)
    tab.locator(".job").wait_for(state="detached")
    slow.clear()
    assert tab.locator(".item-text").count() == before


def test_what_goes_wrong_is_told(visit, page):
    tab = visit(page)
    explain(tab, " ")
    tab.get_by_role("alert").filter(has_text="empty").wait_for()
    explain(tab, "far " * 900)
    tab.get_by_role("alert").filter(has_text="tokens").wait_for()
    explain(tab, "and on it goes")
    shown(tab, "and on it goes")
    assert tab.get_by_role("alert").count() == 0


def test_hostile_text_does_nothing(visit, page):
    tab = visit(page)
    for text in HOSTILE[:3]:
        explain(tab, text)
        shown(tab, text)
    tab.reload()
    shown(tab, HOSTILE[2])
    assert all(event.startswith(page) for event in tab.events)


def test_the_history_is_exported_and_opens_from_disk(visit, page, tmp_path):
    tab = visit(page)
    explain(tab, "to take away")
    shown(tab, "to take away")
    with tab.expect_download() as download:
        tab.get_by_role("link", name="Report").click()
    path = Path(tmp_path / "report.html")
    download.value.save_as(path)
    report = visit(path.as_uri())
    assert "to take away" in report.locator(".item-text").all_text_contents()
    assert report.locator(".composer").count() == 0
    assert report.events == [path.as_uri()]


@pytest.mark.parametrize("width", [360, 820])
def test_the_page_fits_small_screens(visit, page, width):
    tab = visit(page, width)
    explain(tab, "a small screen")
    shown(tab, "a small screen")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_a_running_job_is_kept_over_a_reload(visit, page, slow):
    tab = visit(page)
    slow.set()
    explain(tab, "kept over a reload")
    tab.locator(".job", has_text="kept over a reload").get_by_text("0 of 1 method").wait_for()
    tab.reload()
    tab.locator(".job", has_text="kept over a reload").get_by_text("0 of 1 method").wait_for()
    slow.clear()
    shown(tab, "kept over a reload")
    assert tab.locator(".job").count() == 0


def test_another_class_is_explained_with_a_click_and_joins_its_text(visit, page):
    tab = visit(page)
    explain(tab, "for the other class")
    shown(tab, "for the other class")
    before = tab.locator(".list li").count()
    other = tab.locator(".class[aria-pressed=false]").first
    name = other.locator("bdi").inner_text()
    other.click()
    tab.locator(".badge.other", has_text=f"target {name}").wait_for()
    assert tab.locator(".list li").count() == before
    tab.reload()
    shown(tab, "for the other class")
    assert tab.locator(".list li").count() == before
    tab.locator(".class", has_text=name).click()
    tab.locator(".badge.other", has_text=f"target {name}").wait_for()
    removed = []
    tab.on("response", lambda answer: removed.append(answer) if answer.request.method == "DELETE" else None)
    tab.get_by_role("button", name="Remove from the history").click()
    while len(removed) < 2:  # the text for both classes
        tab.wait_for_timeout(20)
    tab.reload()
    tab.locator(".composer").wait_for()
    assert tab.locator(".list li").count() == before - 1


def test_a_word_is_changed_and_both_texts_are_compared(visit, page):
    tab = visit(page)
    explain(tab, "a good film <b>")
    shown(tab, "a good film <b>")
    target = tab.locator(".class[aria-pressed=true] bdi").inner_text()
    tab.get_by_role("button", name="Edit and compare").click()
    tab.get_by_label("Edit the text").fill("a bad film <b>")
    tab.get_by_role("button", name="Compare", exact=True).click()
    view = tab.locator(".compare")
    view.wait_for()
    assert view.locator(".sides").first.locator("del").all_inner_texts() == ["good"]
    assert view.locator(".sides").first.locator("ins").all_inner_texts() == ["bad"]
    assert view.get_by_label("before", exact=True).locator(".sentence").inner_text() == "a good film <b>"
    rises = [float(r.replace("−", "-")) for r in view.locator(".class .soft").all_inner_texts()]
    assert sum(rises) == pytest.approx(0, abs=0.021) and len(rises) == 3
    cells = view.locator("tbody tr").evaluate_all("r => r.map(e => [...e.cells].map(c => c.innerText))")
    assert ["good", "bad"] in [row[:2] for row in cells]
    for _, _, change, old, now in ([*row[:2], *(c.replace("−", "-") for c in row[2:])] for row in cells):
        assert float(change) == pytest.approx(float(now) - float(old), rel=1e-2, abs=1e-4)
    assert view.locator(".card .reading").count() == 2
    told = view.locator(".badge.other").all_inner_texts()
    assert told in ([], [f"target {target}"])  # both are explained for the class of the first
    tab.get_by_role("button", name="Close the comparison").click()
    shown(tab, "a bad film <b>")
    tab.reload()
    tab.get_by_role("button", name="Compare with the text before the edit").click()
    view.wait_for()
    tab.locator(".list button", has_text="a good film <b>").click()
    assert tab.get_by_role("button", name="Compare with the text before the edit").count() == 0


def test_the_page_opens_at_the_words_with_every_layer_off(visit, page):
    tab = visit(page)
    assert tab.get_by_role("button", name="every layer").get_attribute("aria-pressed") == "false"
    explain(tab, "at the words")
    shown(tab, "at the words")
    assert tab.locator(".badge.site").all_inner_texts() == ["words"]
    tab.get_by_role("button", name="every layer").click()
    explain(tab, "at every layer")
    shown(tab, "at every layer")
    assert tab.locator(".site-name").inner_text() == "words"
    assert tab.locator(".map").count() == 1


def test_choices_are_kept_over_a_reload(visit, page):
    tab = visit(page)
    for name in ("occlusion", "integrated_gradients", "every layer"):
        tab.get_by_role("button", name=name, exact=True).click()
    pressed = tab.locator(".composer [aria-pressed=true]")
    before = pressed.all_inner_texts()
    assert "occlusion" in before and "every layer" in before and "integrated_gradients" not in before
    tab.reload()
    tab.locator(".composer").wait_for()
    assert pressed.all_inner_texts() == before


def test_a_second_text_is_asked_for_only_on_request(visit, page):
    tab = visit(page)
    assert tab.locator(".composer textarea").count() == 1
    tab.get_by_role("button", name="add a second text").click()
    assert tab.locator(".composer textarea").count() == 2
    tab.get_by_role("button", name="one text").click()
    assert tab.locator(".composer textarea").count() == 1


def test_the_badge_is_that_of_the_site_with_one_layer_or_every(visit, page):
    tab = visit(page)
    explain(tab, "one badge")
    shown(tab, "one badge")
    assert tab.locator(".badge.over").all_inner_texts() == ["over inputs"]
    tab.get_by_role("button", name="every layer", exact=True).click()
    explain(tab, "the same badge")
    shown(tab, "the same badge")
    assert tab.locator(".badge.over").all_inner_texts() == ["over inputs"]
    tab.get_by_role("slider", name="Layer").press("End")
    assert tab.locator(".badge.over").all_inner_texts() == ["over states"]
