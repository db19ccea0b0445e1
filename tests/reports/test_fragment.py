"""The HTML of one attribution in a notebook: right numbers, nothing injected."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from hostile import FORBIDDEN, HOSTILE
from masklens.reports.fragment import LONGEST_TOKEN, fragment, palette, picture
from masklens.reports.labels import printable, shortened
from records import make, make_pair


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


@pytest.mark.parametrize("sites", [1, 3])
def test_hostile_text_injects_nothing(sites):
    html = fragment(hostile(sites))
    tame = replace(
        hostile(sites),
        tokens=("a",) * len(HOSTILE),
        text=("a", "b"),
        method="m",
        prediction="p",
        target="t",
        settings={"a": "b", "n": "c"},
    )
    expected, found = Reader(fragment(tame)), Reader(html)
    assert found.tags == expected.tags
    assert found.attributes == expected.attributes
    assert not set(html) & set(FORBIDDEN)
    html.encode("utf-8")


@pytest.mark.parametrize("sites", [1, 3])
def test_every_token_is_shown_as_it_is(sites):
    shown = Reader(fragment(hostile(sites))).isolated
    wanted = [shortened(printable(token), LONGEST_TOKEN) for token in HOSTILE]
    start = shown.index(wanted[0])
    assert shown[start : start + len(wanted)] == wanted


def test_numbers_and_exact_values():
    html = fragment(make(), per_site=False)
    assert re.findall(r">(−?\d+)</td>", html) == ["100", "−25", "12", "50"]
    exact = {"words: 0", "words: 4", "words: −1", "embeddings: 0.5", "embeddings: 2", "embeddings: 0"}
    assert set(Reader(html).titles) == exact


def test_numbers_per_site_and_of_probabilities():
    html = fragment(make())
    assert re.findall(r">(−?\d+)</td>", html) == ["100", "−25", "25", "100"]
    assert "each layer&#39;s largest" in html
    keep = replace(make(scores=np.array([[0.0, 0.5, 0.25], [0.1, 0.0, 0.0]])), merge="max")
    assert re.findall(r">(\d+)</td>", fragment(keep)) == ["50", "25", "10"]


def test_strongest_cells_have_the_colours_of_their_sign():
    made = picture(make(scores=np.array([[1.0, -1.0, np.nan], [0.0, 0.5, 0.0]])))
    assert [[cell.colour for cell in column.cells] for column in made.segments[0].columns] == [
        ["p40", "p0"],
        ["n40", "p40"],
        ["x", "p0"],
    ]


def test_prediction_and_target_are_told():
    html = fragment(replace(make(), prediction="bad", target="good"))
    assert "<bdi>bad</bdi>" in html and "<bdi>good</bdi>" in html


def test_the_fragment_styles_nothing_but_itself():
    html = fragment(make())
    found = Reader(html)
    assert not {"script", "link"} & set(found.tags) and "id" not in found.attributes
    rules = re.search("<style>(.*)</style>", html, re.DOTALL)[1].split("\n")
    assert all(" .masklens .c-" in rule for rule in rules if rule.strip())


def test_in_the_dark_every_colour_that_is_used_is_another():
    html = fragment(make())
    used = set(re.findall('class="c-(\\w+)"', html))
    dark = dict(re.findall(r"\.c-(\w+)\{background:(#\w+)!important", html))
    assert used == set(dark) and all(dark[name] == palette("dark")[name][0] for name in used)
    assert dark["p0"] != palette("light")["p0"][0]


def test_no_tokens():
    for sites in (1, 2):
        empty = make(tokens=(), scores=np.zeros((sites, 0)), text="")
        assert "positive" in fragment(empty)


def test_a_notebook_shows_the_fragment():
    assert make()._repr_html_() == fragment(make())


@pytest.mark.parametrize("sites", [1, 3])
def test_the_texts_of_a_pair_are_told_apart(sites):
    html = fragment(make_pair(sites))
    order = [html.index(f">{word}<") for word in ("question", "who", "passage", "she")]
    if sites == 1:
        assert order == sorted(order)
    else:
        assert 'colspan="3"' in html and 'colspan="4"' in html and order[0] < order[2] < order[1] < order[3]
    assert "question" not in fragment(make())


def test_classes_and_their_probabilities_are_told():
    told = replace(make(), probabilities={"negative": 0.03, HOSTILE[1]: 0.97})
    shown = Reader(fragment(told)).isolated
    assert shown[2:4] == [f"{printable(HOSTILE[1])} 0.97", "negative 0.03"]
    assert "0.97" not in fragment(make())


@pytest.mark.parametrize("sites", [1, 2])
def test_the_answer_of_a_question_is_marked(sites):
    """She: 0 to 3, won: 4 to 7, it: 8 to 10."""
    pair = make_pair(sites)
    offsets = ((0, 0), (0, 3), (3, 3), (0, 3), (4, 7), (8, 10), (10, 10))
    html = fragment(replace(pair, offsets=offsets, answer=(4, 10)))
    assert re.findall(r"<bdi style=.text-decoration:underline[^>]*>([^<]+)<", html) == ["won", "it"]
    assert "underlined: the answer" in html
    assert "underline" not in fragment(pair)


def test_the_scale_says_what_its_ends_and_the_numbers_mean():
    assert "against · for the target · numbers: hundredths of 4" in fragment(make(), per_site=False)
    made = make(scores=np.array([[0.0, 4.0, 1.0], [0.5, -2.0, 0.0]]))
    said = "numbers: hundredths of each layer&#39;s largest score, 2 (embeddings) to 4 (words)"
    assert said in fragment(made)
    assert "against" not in fragment(make(scores=np.array([[0.0, 4.0, 1.0], [0.5, 2.0, 0.0]])))
