"""The HTML of attributions: right numbers, nothing injected, nothing fetched."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from hostile import FORBIDDEN, HOSTILE
from masklens.viz.labels import printable, shortened
from masklens.viz.page import LONGEST_TOKEN, fragment, page
from records import make


class Reader(HTMLParser):
    """Collects the tags, the attributes and the text inside <bdi> of a document."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.isolated, self.titles, self.inside = [], set(), [], [], 0
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attributes}
        self.titles += [value for name, value in attributes if name == "title"]
        if tag == "bdi":
            self.inside += 1
            self.isolated.append("")

    def handle_endtag(self, tag):
        self.inside -= tag == "bdi"

    def handle_data(self, data):
        if self.inside:
            self.isolated[-1] += data


def hostile(sites):
    scores = np.linspace(-1, 1, sites * len(HOSTILE)).reshape(sites, -1)
    record = make(tokens=HOSTILE, scores=scores, text=("".join(HOSTILE), "\n".join(HOSTILE)))
    bad = HOSTILE[1]
    return replace(
        record, method=bad, prediction=bad, target="\u202e" + bad, settings={bad: bad, "n": "\x00"}
    )


def show(kind, attribution, title=HOSTILE[1] + "\u202e"):
    return fragment(attribution) if kind == "fragment" else page([attribution], title=title)


@pytest.mark.parametrize("kind", ["fragment", "page"])
@pytest.mark.parametrize("sites", [1, 3])
def test_hostile_text_injects_nothing(kind, sites):
    html = show(kind, hostile(sites))
    tame = replace(
        hostile(sites),
        tokens=("a",) * len(HOSTILE),
        text=("a", "b"),
        method="m",
        prediction="p",
        target="t",
        settings={"a": "b", "n": "c"},
    )
    expected, found = Reader(show(kind, tame, "title")), Reader(html)
    assert found.tags == expected.tags
    assert found.attributes == expected.attributes
    assert not set(html) & set(FORBIDDEN)
    html.encode("utf-8")


@pytest.mark.parametrize("kind", ["fragment", "page"])
@pytest.mark.parametrize("sites", [1, 3])
def test_every_token_is_shown_as_it_is(kind, sites):
    shown = Reader(show(kind, hostile(sites))).isolated
    wanted = [shortened(printable(token), LONGEST_TOKEN) for token in HOSTILE]
    start = shown.index(wanted[0])
    assert shown[start : start + len(wanted)] == wanted


@pytest.mark.parametrize("kind", ["fragment", "page"])
def test_numbers_and_exact_values(kind):
    html = show(kind, make())
    assert re.findall(r">(−?\d+)</(?:td|i)>", html) == (
        ["100", "−25", "12", "50"] if kind == "fragment" else ["12", "100", "50", "−25"]
    )
    exact = {"words: 0", "words: 4", "words: −1", "embeddings: 0.5", "embeddings: 2", "embeddings: 0"}
    assert set(Reader(html).titles) == exact


def test_numbers_per_site_and_of_probabilities():
    html = page([make()], per_site=True)
    assert re.findall(r">(−?\d+)</i>", html) == ["25", "100", "100", "−25"]
    assert "each site&#39;s largest" in html
    keep = replace(make(scores=np.array([[0.0, 0.5, 0.25], [0.1, 0.0, 0.0]])), merge="max")
    assert re.findall(r">(\d+)</i>", page([keep])) == ["10", "50", "25"]


def test_strongest_cells_have_the_colours_of_their_sign():
    html = page([make(scores=np.array([[1.0, -1.0, np.nan], [0.0, 0.5, 0.0]]))])
    cells = re.findall(r'<i class="(\w+)" title', html)
    assert cells == ["p40", "p0", "n40", "p20", "x", "p0"]


def test_methods_of_one_text_stand_together():
    records = [make(text=text, method=method) for text in ("one", "two") for method in ("lime", "guan")]
    tags = Reader(page(records)).tags
    assert (tags.count("article"), tags.count("section")) == (2, 4)


def test_settings_prediction_and_target_are_told():
    html = page([replace(make(settings={"n_steps": 50}), prediction="bad", target="good")])
    for told in ("n_steps=<bdi>50</bdi>", "<bdi>bad</bdi>", "<bdi>good</bdi>"):
        assert told in html


def test_the_page_needs_nothing_from_elsewhere():
    html = page([make()])
    assert not re.search(r"https?:|url\(|@import|<script|<link|src=", html)
    assert "default-src &#39;none&#39;" in html or "default-src 'none'" in html


def test_the_fragment_styles_nothing_but_itself():
    found = Reader(fragment(make()))
    assert not {"style", "script", "link"} & set(found.tags)
    assert not {"class", "id"} & found.attributes


def test_no_attributions_and_no_tokens():
    assert "0 texts" in page([])
    for sites in (1, 2):
        empty = make(tokens=(), scores=np.zeros((sites, 0)), text="")
        assert "positive" in page([empty])
        assert "positive" in fragment(empty)


def test_a_notebook_shows_the_fragment():
    assert make()._repr_html_() == fragment(make())
