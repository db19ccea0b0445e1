"""The data of a report and the file around it: right numbers, safe text, a size in proportion."""

import base64
import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest

from hostile import FORBIDDEN, HOSTILE
from masklens.errors import TargetError
from masklens.evaluation.table import Cell, Table
from masklens.reports.document import embedded, report_html
from masklens.reports.fragment import fragment
from masklens.reports.labels import visible
from masklens.reports.page import (
    MISSING,
    STEPS,
    Chart,
    Cloud,
    Entry,
    Grid,
    evaluation_panels,
    layout_data,
    over,
    panel_data,
    quantised,
    report_data,
)
from masklens.reports.proofs import by_name, proof_panels
from records import make, proved

TEXT = "unbelievably good"
PIECES = replace(
    make(tokens=("[CLS]", "un", "##believably", "good", "[SEP]"), scores=np.zeros((1, 5)), text=TEXT),
    offsets=((0, 0), (0, 2), (2, 12), (13, 17), (17, 17)),
)


def entries(*attributions):
    return [Entry(a, a.method) for a in attributions]


def html_of(*attributions, **more):
    return report_html(report_data(entries(*attributions), **more))


def data_in(html):
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL).group(1))


def decoded(stored):
    parts = np.frombuffer(base64.b64decode(stored["scores"]), "<i2").reshape(len(stored["largest"]), -1)
    return np.where(parts == MISSING, np.nan, parts / STEPS * np.array(stored["largest"])[:, None])


def test_scores_come_back_to_within_a_part_in_65000_of_their_site():
    scores = np.random.default_rng(0).normal(size=(5, 40)) * np.logspace(-6, 6, 5)[:, None]
    error = np.abs(decoded(quantised(scores)) - scores).max(axis=1)
    assert (error <= np.abs(scores).max(axis=1) / STEPS / 2 * 1.01).all()


def test_scores_that_are_not_finite_are_missing_and_zeros_are_zeros():
    back = decoded(quantised(np.array([[np.nan, np.inf, 2.0], [0.0, 0.0, 0.0]])))
    assert np.isnan(back[0, :2]).all() and back[0, 2] == 2.0
    assert (back[1] == 0).all()
    assert quantised(np.zeros((2, 0)))["scores"] == ""


def test_pieces_words_and_gaps():
    layout = layout_data(PIECES)
    assert layout["tokens"] == ["[CLS]", "un", "##believably", "good", "[SEP]"]
    assert layout["pieces"] == [None, None, "believably", None, None]  # None: as the token
    assert (layout["special"], layout["glued"]) == ([0, 4], [2])
    assert layout["words"] == [0, 1, 1, 2, 3]
    assert layout["names"] == ["[CLS]", "unbelievably", "good", "[SEP]"]
    assert "segments" not in layout


BYTES = replace(
    make(tokens=("Ċ", "ĠÃ©t", "Ġ", "ok"), scores=np.array([[1.0, 2.0, 0.0, -1.0]]), text="\n ét  ok"),
    offsets=((0, 1), (1, 4), (4, 5), (6, 8)),
)


def test_tokens_written_in_signs_for_bytes_are_shown_by_their_text():
    layout = layout_data(BYTES)
    assert layout["tokens"] == ["↵", "ét", "␣", "ok"]
    assert layout["raw"] == {0: "Ċ", 1: "ĠÃ©t", 2: "Ġ"}
    assert "raw" not in layout_data(PIECES)
    html = fragment(BYTES)
    assert "Ċ · words: 1" in html and "<bdi>↵</bdi>" in html and "<bdi>Ċ</bdi>" not in html
    drawn = " ".join(text.get_text() for text in BYTES.plot().texts)
    assert "↵" in drawn and "ét" in drawn and "Ġ" not in drawn


def test_a_pair_says_which_text_a_token_is_from():
    pair = replace(PIECES, text=(TEXT, "so good"), segments=(0, 0, 0, 0, 1), special=(True,) + (False,) * 4)
    assert layout_data(pair)["segments"] == [0, 0, 0, 0, 1]
    assert report_data(entries(pair), segments=("question", "passage"))["segments"] == ["question", "passage"]


def test_methods_of_one_text_stand_together_and_a_repeated_text_is_a_text_of_its_own():
    made = [make(text=text, method=m) for m in ("lime", "guan") for text in ("one", "two", "one")]
    texts = report_data(entries(*made))["texts"]
    assert [text["text"] for text in texts] == [["one"], ["two"], ["one"]]
    assert all([m["name"] for m in text["maps"]] == ["lime", "guan"] for text in texts)


def test_settings_are_kept_once():
    made = [make(text=str(i), settings={"n_steps": 50}) for i in range(5)]
    data = report_data(entries(*made))
    assert data["settings"] == [{"n_steps": "50"}]
    assert all(text["maps"][0]["settings"] == 0 for text in data["texts"])


def test_what_was_scored():
    assert over(make(scores=np.zeros((1, 3)))) == "inputs"
    assert over(make()) == "states"
    assert over(make(settings={"over": "inputs"})) == "inputs"


def test_labels_must_fit():
    assert report_data(entries(make()), labels=["good"])["texts"][0]["label"] == "good"
    with pytest.raises(TargetError, match="2 gold labels for 1 texts"):
        report_data(entries(make()), labels=["good", "bad"])


def test_proofs_go_with_their_map_and_over_the_set():
    lost = proved(verdict="not sufficient", divergence=float("inf"), prediction_kept=False, needed=0)
    shown = [Entry(make(text=text), "gradient", [proved(), lost]) for text in ("one", "two")]
    panels = proof_panels(by_name(shown), [proved(verdict="no better than random", needed=2)] * 2)
    data = report_data(shown, panels=panels)
    first = [0, 1, 1, 2, 0.97, 0.95, 0.25, 0.08, 2.0, None, None, [1], 0]
    assert data["texts"][0]["maps"][0]["proofs"] == [
        first,
        [2, 0, 0, 2, 0.97, 0.95, None, 0.08, 2.0, None, None, [1], 0],
    ]
    ranking, *charts, table = data["parts"]
    assert ranking["lead"] and ranking["rows"] == [
        ["gradient", "words", 1, 0.5, None],
        ["random order", "", 0, 1, None],
        ["reversed", "", 0, None, None],
    ]
    assert "of 2 texts: this method passes 2, random orders 0, reversed 0" in ranking["note"]
    assert table["rows"][0] == ["gradient", "words", 2, 1, 0.5, 0.97, 0.95, 0.25]
    assert table["rows"][1] == ["gradient", "embeddings", 2, 0, 0, 0.97, 0.95, None]
    assert [chart["series"] for chart in charts][:2] == [[["gradient", [1, 0]]], [["gradient", [0.5, 0]]]]
    assert proof_panels(by_name(shown[:1])) == []


def test_curves_of_the_games_show_the_best_site():
    cells = {"a@1": 0.4, "a@2": 0.2, "random": 0.6}
    table = Table(
        rows={row: {"hiding": Cell(value)} for row, value in cells.items()},
        better={"hiding": "lower"},
        curves={row: {"hiding": [1.0, value]} for row, value in cells.items()},
    )
    chart, grid = evaluation_panels(table)
    assert chart.series == {"a, block 1": [1.0, 0.2], "random": [1.0, 0.6]}
    assert (chart.x, chart.x_name) == ([0.0, 100.0], "% of tokens hidden")
    assert grid.rows == [["a, embeddings", 0.4], ["a, block 1", 0.2], ["random", 0.6]]


def test_the_games_come_first_in_every_report():
    values = {"hiding": Cell(0.5, 0.4, 0.6), "divergence": Cell(0.0123), "revealing": Cell(0.8)}
    for names in (list(values), list(values)[::-1]):
        table = Table(
            rows={"gradient": {name: values[name] for name in names}},
            better={"hiding": "lower", "revealing": "higher", "divergence": "lower"},
            curves={"gradient": {name: [1.0, 0.5] for name in names if name != "divergence"}},
        )
        *charts, grid = evaluation_panels(table)
        assert [chart.title for chart in charts] == ["The revealing game", "The hiding game"]
        assert grid.columns == ["", "revealing ↑", "hiding ↓", "divergence ↓"]
        shown = [Entry(make(text=text), "gradient", [proved()]) for text in ("one", "two")]
        ranking = proof_panels(by_name(shown), table=table)[0]
        assert ranking.columns[5:] == ["revealing ↑", "hiding ↓", "divergence ↓"]
        assert ranking.rows[0][5:] == ["0.80", "0.50 [0.40, 0.60]", "0.012"]


def test_parts_are_plain_and_rounded():
    chart = panel_data(Chart("c", {"2": [0.123456789, float("nan")], "1": [1, 2]}, [0, 1]))
    assert chart["series"] == [["2", [0.12346, None]], ["1", [1, 2]]]
    assert panel_data(Cloud("w", [("a\u202e", 1.0)]))["words"] == [["a⟨U+202E⟩", 1.0]]
    assert panel_data(Grid("g", ["a"], [[np.float32(1.5), np.int64(2), None]]))["rows"] == [[1.5, 2, None]]


def hostile(sites=2):
    scores = np.linspace(-1, 1, sites * len(HOSTILE)).reshape(sites, -1)
    record = make(tokens=HOSTILE, scores=scores, text=("".join(HOSTILE), "\n".join(HOSTILE)))
    bad = HOSTILE[1] + "\u2028</script><!--"
    return replace(
        record, method=bad, prediction=bad, target="\u202e" + bad, settings={bad: bad, "n": "\x00"}
    )


def test_hostile_text_cannot_leave_the_data():
    parts = [Grid(bad, [bad], [[bad]], bad) for bad in HOSTILE] + [Cloud(HOSTILE[0], [(HOSTILE[0], 1.0)])]
    html = html_of(hostile(), title=HOSTILE[0], labels=[HOSTILE[0]], panels=parts)
    tame = html_of(make(), title="title")
    assert html.lower().count("<script") == tame.lower().count("<script") == 2
    assert html.lower().count("</script") == 2
    assert html.count("<") == tame.count("<")
    assert not set(html) & set(FORBIDDEN + "\u2028\u2029")
    html.encode("utf-8")
    texts = data_in(html)["texts"]
    assert texts[0]["text"] == [visible(part, lines=True) for part in hostile().text]
    assert texts[0]["layouts"][0]["tokens"][0] == HOSTILE[0]


def test_embedded_json_says_the_same():
    said = {"a": "</script><!-- & \u2028 \u2029 \ud800 '\""}
    assert json.loads(embedded(said)) == said
    assert not set("<>&\u2028\u2029\ud800") & set(embedded(said))


def test_unprintable_characters_are_shown():
    assert visible("a\x00b\x1b") == "a⟨U+0000⟩b⟨U+001B⟩"
    assert visible("\u202e\ud800\ufeff") == "⟨U+202E⟩⟨U+D800⟩⟨U+FEFF⟩"
    assert visible("می\u200cخواهم 👩\u200d💻\u00a0") == "می\u200cخواهم 👩\u200d💻\u00a0"
    assert visible("a\r\nb\tc") == "a⟨U+000D⟩↵b⇥c"
    assert visible("a\r\nb\tc", lines=True) == "a\nb\tc"


@pytest.mark.parametrize("live", [None, {"methods": []}])
def test_the_policy_allows_the_script_inside_and_nothing_else(live):
    html = report_html(report_data(entries(make())), live)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html).group(1).replace("&#39;", "'")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert ("connect-src 'self'" in policy) == (live is not None)
    assert "unsafe" not in policy
    for tag in ("script", "style"):
        inside = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL).group(1)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|url\(|@import|<link|src=|innerHTML", html)


def test_the_size_is_in_proportion():
    """500 texts x 8 sites x 4 methods x 25 tokens are 400,000 scores: under 5 bytes each, with all else."""
    words = tuple(f"word{i}" for i in range(25))
    generator = np.random.default_rng(0)
    made = [
        make(
            tokens=words, scores=generator.normal(size=(8, 25)), text=f"{i} {' '.join(words)}", method=method
        )
        for i in range(500)
        for method in ("a", "b", "c", "d")
    ]
    assert len(html_of(*made)) - len(html_of()) < 5 * 400_000
