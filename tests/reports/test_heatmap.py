"""The heat map drawn by matplotlib."""

import io
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from test_answer_in_browser import answered

from hostile import FORBIDDEN, HOSTILE
from masklens.errors import SiteError
from masklens.reports.heatmap import TALLEST, WIDENED, WIDEST, figure, plot
from records import make, make_pair

pytestmark = pytest.mark.filterwarnings("error")


def numbered(tokens, sites):
    names = tuple(f"token{i}" for i in range(tokens))
    return make(tokens=names, scores=np.arange(1.0, sites * tokens + 1).reshape(sites, tokens))


def drawn_values(ax):
    """The values of all cells, line after line."""
    return np.ma.concatenate([mesh.get_array() for mesh in ax.collections], axis=1)


def written(ax):
    return [text.get_text() for text in ax.texts]


def save(ax, kind="png"):
    file = io.BytesIO()
    ax.figure.savefig(file, format=kind, dpi=40)
    return file.getvalue()


def test_several_sites_are_a_map_with_the_words_at_the_top():
    ax = plot(make())
    np.testing.assert_allclose(drawn_values(ax), [[0, 1, -0.25], [0.25, 1, 0]])
    assert written(ax) == ["[CLS]", "good", "[SEP]", "4", "2"]
    names = {label.get_text(): y for y, label in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)}
    assert list(names) == ["words", "embeddings"]
    high_on_page = {name: ax.transData.transform((0, y))[1] for name, y in names.items()}
    assert high_on_page["words"] > high_on_page["embeddings"]


def test_blocks_have_the_number_of_their_output():
    ax = plot(numbered(3, 5))
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert names == ["words", "embeddings", "block 1", "block 2", "block 3"]


@pytest.mark.parametrize("sites", [1, 3])
def test_a_long_text_goes_on_in_further_lines_and_loses_no_token(sites):
    attribution = numbered(150, sites)
    ax = plot(attribution)
    assert len(ax.collections) > 1
    assert written(ax)[:150] == list(attribution.tokens)
    largest = attribution.scores.max(1, keepdims=True)
    np.testing.assert_allclose(drawn_values(ax), attribution.scores / largest, rtol=1e-6)
    assert ax.figure.get_figwidth() < WIDEST + 3


@pytest.mark.parametrize("scores", [[[0.0, 3.0, -1.0]], [[0.0, 3.0, 1.0]]])
def test_one_site_is_a_line_of_tokens_inside_their_cells(scores):
    ax = plot(make(tokens=("[CLS]", "unquestionably", "a"), scores=np.array(scores)))
    edges = ax.collections[0].get_coordinates()[0, :, 0]
    for text, left, right in zip(ax.texts, edges, edges[1:], strict=False):
        box = text.get_window_extent().transformed(ax.transData.inverted())
        assert left < box.x0 < box.x1 < right


def test_the_lines_of_a_map_are_of_even_length():
    maps = (plot(numbered(tokens, 2)).collections for tokens in range(20, 80))
    first, second = next(meshes for meshes in maps if len(meshes) == 2)  # one token too many for one line
    assert abs(first.get_array().shape[1] - second.get_array().shape[1]) <= 1


def about(ax):
    """What stands beside the colour bar."""
    (bar,) = ax.child_axes
    return bar.texts[0].get_text()


def test_the_last_layer_can_be_read_where_the_first_has_scores_a_thousand_times_as_large():
    small = make(scores=np.array([[0.0, 4000.0, 100.0], [0.0, 1.0, 4.0]]))
    ax = plot(small)
    assert drawn_values(ax).max(axis=1).tolist() == [1, 1]
    assert written(ax)[3:] == ["4e+03", "1"] and "layer's largest score" in about(ax)
    keep = plot(replace(make(scores=np.array([[0.0, 0.9, 0.1], [0.0, 0.01, 0.0]])), merge="max"))
    np.testing.assert_allclose(drawn_values(keep)[1], [0, 0.01, 0], rtol=1e-6)
    assert about(keep) == "keep probability" and written(keep)[3:] == []


def test_what_the_colours_show_fits_into_the_picture_of_a_short_text():
    ax = plot(make())
    ax.figure.canvas.draw()
    (bar,) = ax.child_axes
    assert bar.texts[0].get_window_extent().x1 < ax.figure.bbox.x1


@pytest.mark.parametrize("sites", [1, 32])
def test_of_a_very_long_text_the_strongest_lines_are_drawn_and_the_title_says_so(sites):
    tokens, scores = tuple(f"t{i}" for i in range(4000)), np.full((sites, 4000), 0.01)
    scores[:, [5, 3500]] = [1.0, 2.0]
    ax = plot(make(tokens=tokens, scores=scores))
    assert ax.figure.get_figheight() < TALLEST + 2
    drawn = sum(mesh.get_array().shape[1] for mesh in ax.collections)
    assert 0 < drawn < 4000
    assert f"{drawn:,} of 4,000 tokens: the lines with the strongest scores" in ax.get_title(loc="left")
    assert {"token 1", "t5", "t3500"} <= {*written(ax)}


def test_a_long_answer_goes_on_in_further_lines():
    made = answered(sentences=20, words=8)
    ax = made.plot()
    assert len(ax.collections) > 1 and ax.figure.get_figwidth() < WIDEST + 3
    assert written(ax)[: len(made.tokens) - 1] == list(made.tokens[:-1])


@pytest.mark.parametrize(("sentences", "steps"), [(5, 64), (24, 64)])
def test_an_answer_of_the_default_length_is_drawn_whole(sentences, steps):
    made = answered(sentences=sentences, words=8, steps=steps)
    ax = made.plot()
    assert written(ax)[: len(made.tokens) - 1] == list(made.tokens[:-1])
    assert ax.figure.get_figwidth() < WIDENED * WIDEST + 3 and ax.figure.get_figheight() < 60


def test_the_steps_of_an_answer_have_a_scale_each_and_tokens_after_them_are_blank():
    made = answered()
    drawn, scores = drawn_values(made.plot(site=1)), made.scores[:, 1]
    for i, row in enumerate(drawn):
        seen, usual = made.seen(i), ~np.array(made.special[: made.seen(i)])
        assert row.mask[seen:].all() and not row.mask[:seen].any()
        np.testing.assert_allclose(
            row[:seen][usual], (scores[i, :seen] / abs(scores[i, :seen][usual]).max())[usual]
        )


def test_a_layer_of_an_answer_is_given_by_its_name_too_and_another_is_refused():
    made = answered()
    assert drawn_values(made.plot(site="block 1")).tolist() == drawn_values(made.plot(site=2)).tolist()
    assert (made.step(0).at("block 1") == made.step(0).at(2)).all()
    for wrong in (99, "block 3", -1):
        with pytest.raises(SiteError, match=r"no scores at .*; this record has words \(0\), embeddings"):
            made.plot(site=wrong)


def test_scripts_without_a_font_do_not_flood_the_console():
    made, swap = answered(), str.maketrans("123", "\U0001f31e\u6771\U00012000")
    made = replace(
        made, prompt=made.prompt.translate(swap), tokens=tuple(token.translate(swap) for token in made.tokens)
    )
    save(made.plot())
    assert "w□" in written(made.plot())


def test_ends_of_the_colour_bar():
    def ticks(attribution, **options):
        (bar,) = plot(attribution, **options).child_axes
        return [label.get_text() for label in bar.get_xticklabels()]

    assert ticks(make()) == ["-1", "0", "1"]
    assert ticks(make(), per_site=False) == ["-4", "0", "4"]
    assert ticks(make(scores=np.array([[0.0, 0.5, 0.25]]))) == ["0", "0.5"]
    assert ticks(replace(make(scores=np.array([[0.0, 0.5, 0.25]])), merge="max")) == ["0", "1"]


def test_given_axes_are_drawn_on_and_the_font_shrinks_to_fit():
    axes = Figure(figsize=(8, 4)).subplots(1, 2)
    short, long = plot(make(), axes[0]), plot(numbered(120, 6), axes[1])
    assert short is axes[0]
    sizes = [ax.texts[0].get_fontsize() for ax in axes]
    assert sizes[1] < sizes[0] == 10
    assert written(long)[:120] == [f"token{i}" for i in range(120)]


@pytest.mark.parametrize("sites", [1, 2])
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_hostile_text_is_drawn_as_text(sites, kind):
    scores = np.linspace(-1, 1, sites * len(HOSTILE)).reshape(sites, -1)
    attribution = make(tokens=HOSTILE, scores=scores, method="$\\frac{$", settings={})
    attribution = replace(attribution, prediction="<b>\x00$", target="\u202e" + "y" * 300)
    ax = plot(attribution)
    picture = save(ax, kind)
    assert len(picture) > 1000
    assert written(ax)[4] == HOSTILE[4]
    shown = "".join(written(ax)) + ax.get_title(loc="left")
    assert not set(shown) & set(FORBIDDEN)
    if kind == "svg":
        assert not [e for e in ElementTree.fromstring(picture).iter() if e.tag.endswith("script")]


def test_characters_without_a_glyph_become_boxes():
    assert written(plot(make(tokens=("a", "b", "c\U00012000"))))[2] == "c□"


def test_scores_that_are_not_finite_and_no_tokens_at_all():
    save(plot(make(scores=np.array([[np.nan, 1.0, np.inf], [0.0, 0.0, 0.0]]))))
    for sites in (1, 2):
        save(plot(make(tokens=(), scores=np.zeros((sites, 0)))))


def test_a_figure_of_several_is_as_tall_as_they_need_and_keeps_them_apart():
    result = figure([make(), numbered(80, 4), make(scores=np.array([[1.0, -1.0, 0.5]]))])
    boxes = [ax.get_position() for ax in result.axes]
    assert len(boxes) == 3
    assert all(above.y0 > below.y1 for above, below in zip(boxes, boxes[1:], strict=False))
    assert 0 < boxes[-1].y0 < boxes[0].y1 < 1


def test_words_and_the_method_of_the_record():
    ax = make().plot(words=True, per_site=True)
    assert drawn_values(ax).max() == 1.0
    assert "gradient" in ax.get_title(loc="left")


def test_pyplot_is_left_alone():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from records import make; make().plot();"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(__file__).rsplit("/", 2)[0]]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip() == "False"


@pytest.mark.parametrize("sites", [1, 3])
def test_the_texts_of_a_pair_stand_on_lines_of_their_own_with_their_names(sites):
    ax = make_pair(sites).plot()
    ax.figure.canvas.draw()
    assert [mesh.get_array().shape[1] for mesh in ax.collections] == [3, 4]
    names = {text.get_text(): text.get_position() for text in ax.texts}
    assert names["question"][0] < 0 and names["question"][1] < names["passage"][1]
    assert "question" not in written(make().plot())
