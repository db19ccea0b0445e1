"""The knowledge curve of a lens, and the line about what emerged in a text."""

from types import SimpleNamespace

import numpy as np

from masklens.attribution import Attribution
from masklens.diffmask.trainer import Diagnostic, Settings
from masklens.reports.knowledge import knowledge_chart, knowledge_figure, shares
from masklens.reports.labels import emerged

LENS = SimpleNamespace(
    over="inputs",
    settings=Settings(margin=0.1),
    diagnostics=[
        Diagnostic(0, 0.05, 0.6, 0.9, 0.01, True),
        Diagnostic(1, 0.15, 0.5, 0.9, 0.02, False),
        Diagnostic(2, 0.09, 0.1, 0.9, 0.005, True),
    ],
)


def attribution(over="inputs"):
    words = ("[CLS]", "great", "plot", "drowns", "here")
    text = " ".join(words[1:])
    starts = [text.index(word) for word in words[1:]]
    offsets = ((0, 0), *((s, s + len(w)) for s, w in zip(starts, words[1:], strict=True)))
    # great is kept at site 0 only, plot at 0 and 1, drowns to the end, here never
    scores = np.array([[0, 0.9, 0.9, 0.9, 0.1], [0, 0.2, 0.8, 0.9, 0.1], [0, 0.1, 0.2, 0.9, 0.3]], np.float32)
    return Attribution(
        text, words, offsets, (True, *[False] * 4), (0,) * 5, (0, 1, 2), scores, "negative", "negative",
        "diffmask", {"over": over},
    )  # fmt: skip


def test_the_curve_is_the_share_that_can_go_with_its_interval():
    assert shares(LENS)[0] == (0.4, 1.96 * 0.01)
    (chart,) = knowledge_chart([LENS])
    assert chart.series == {"diffmask (inputs)": [0.4, 0.5, 0.9]} and list(chart.x) == [0, 1, 2]
    assert "±3.9% or less" in chart.note and "0.1 nats" in chart.note
    assert knowledge_chart([]) == []


def test_the_figure_marks_sites_over_their_margin():
    ax = knowledge_figure(LENS).axes[0]
    crosses = [line for line in ax.lines if line.get_marker() == "x"]
    assert len(crosses) == 1 and crosses[0].get_xdata().tolist() == [1]


def test_the_line_says_which_words_stay_and_which_go_where():
    line = emerged(attribution())
    assert line == (
        "drowns stays to the end; plot: no longer needed at block 1; great: no longer needed at embeddings"
    )
    assert emerged(attribution("states")) == ""


def test_the_line_leaves_out_words_whose_need_comes_and_goes():
    again = attribution()
    again.scores[0, 2] = 0.1  # plot: dropped, kept, dropped
    again.scores[1, 3] = 0.1  # drowns: kept, dropped, kept
    assert emerged(again) == "great: no longer needed at embeddings"
