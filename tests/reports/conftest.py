"""A real Chromium, where there is one: `pip install playwright` and a chromium on the path."""

import shutil

import pytest


@pytest.fixture(scope="session")
def browser():
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no chromium on the path")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def visit(browser):
    """A function that opens an address in a window of its own; `events` has all that it does unasked."""
    contexts = []

    def open_tab(address, width=1440, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(10_000)
        tab.events = []
        tab.on("dialog", lambda dialog: (tab.events.append(dialog.message), dialog.dismiss()))
        tab.on("console", lambda message: tab.events.append(message.text))
        tab.on("pageerror", lambda error: tab.events.append(str(error)))
        tab.on("request", lambda request: tab.events.append(request.url))
        tab.goto(address)
        return tab

    yield open_tab
    for context in contexts:
        context.close()
