"""What must hold for every text, target, shape and option, tried with many that nobody thought of."""

import ast
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import masklens as ml
import tiny
from hostile import FORBIDDEN, HOSTILE
from masklens.attribution import Attribution
from masklens.errors import FileError, MasklensError, TargetError, TextError
from masklens.files.formats import Columns
from masklens.files.reading import read_rows
from masklens.reports.document import report_html
from masklens.reports.page import Entry, report_data

quick = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

words = st.sampled_from(["a", "dull", "funny", "Paris", ".", "x", "好电影", "é", "##ing", "[MASK]"])
texts = (
    st.text(max_size=40) | st.lists(words, min_size=1, max_size=12).map(" ".join) | st.sampled_from(HOSTILE)
)
pairs = st.tuples(texts, texts)
METHODS = ["gradient", "grad_x_input", "gradcam", "attention", "random", "occlusion"]


@quick
@given(st.lists(texts, min_size=1, max_size=4), st.sampled_from(METHODS), st.integers(1, 5), st.data())
def test_explain_gives_a_whole_record_a_text_or_a_typed_error(bert, given, method, batch_size, data):
    sites = data.draw(st.none() | st.lists(st.sampled_from(bert.sites[2:]), min_size=1, unique=True))
    target = data.draw(st.none() | st.sampled_from([0, 1, 2, "neutral", "positive"]))
    try:
        found = ml.explain(bert, given, method, target, batch_size, sites)
    except TextError:
        # of ten characters or more all may be unknown to the tokenizer
        assert any(len(text) >= 10 or not text.isascii() or not text.isprintable() for text in given)
        return
    assert [a.text for a in found] == given
    for a in found:
        assert a.scores.shape == (len(a.sites), len(a.tokens)) and np.isfinite(a.scores).all()
        assert all(0 <= start <= end <= len(a.text) for start, end in a.offsets)
        assert a.target == (
            a.prediction
            if target is None
            else bert.task.labels[target]
            if isinstance(target, int)
            else target
        )


@quick
@given(
    st.lists(st.lists(words, min_size=1, max_size=8).map(" ".join), min_size=2, max_size=4),
    st.sampled_from(METHODS),
)
def test_a_text_is_explained_alike_whatever_it_is_batched_with(bert, given, method):
    together = ml.explain(bert, given, method)
    for text, a in zip(given, together, strict=True):
        np.testing.assert_allclose(a.scores, ml.explain(bert, text, method)[0].scores, atol=1e-4)


@quick
@given(
    st.integers(-5, 9)
    | st.text(max_size=8)
    | st.floats()
    | st.lists(st.integers(), max_size=3)
    | st.booleans()
)
def test_a_target_is_one_of_the_labels_or_a_typed_error(bert, target):
    try:
        (found,) = ml.explain(bert, ["a dull car"], "gradient", target)
    except MasklensError as error:
        assert isinstance(error, TargetError), error
    else:
        assert found.target in bert.task.labels


@pytest.fixture(scope="module")
def answers():
    return tiny.subject("bert", "qa")


@quick
@given(pairs)
def test_pairs_have_offsets_into_their_own_text(answers, pair):
    try:
        (a,) = ml.explain(answers, [pair], "gradient")
    except TextError:
        return
    for (start, end), segment in zip(a.offsets, a.segments, strict=True):
        assert 0 <= start <= end <= len(pair[segment])


@st.composite
def attributions(draw):
    """Records of any shape, with tokens that may or may not cover the text."""
    text = draw(st.text(st.characters(codec="utf-8"), max_size=30))
    count, sites = draw(st.integers(1, 8)), draw(st.integers(1, 3))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), min_size=2 * count, max_size=2 * count)))
    numbers = st.floats(-1e6, 1e6, width=32)
    return Attribution(
        text=text,
        tokens=tuple(
            draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=9), min_size=count, max_size=count))
        ),
        offsets=tuple(zip(cuts[::2], cuts[1::2], strict=True)),
        special=tuple(draw(st.lists(st.booleans(), min_size=count, max_size=count))),
        segments=(0,) * count,
        sites=tuple(range(sites)),
        scores=draw(hnp.arrays(np.float32, (sites, count), elements=numbers)),
        prediction=draw(st.text(st.characters(codec="utf-8"), max_size=9)),
        target="positive",
        method=draw(st.sampled_from(METHODS)),
        settings=draw(st.dictionaries(st.text("abc", min_size=1), st.integers() | st.booleans(), max_size=2)),
        merge=draw(st.sampled_from(["sum", "max"])),
    )


@quick
@given(attributions())
def test_merging_words_loses_no_score_and_no_token(a):
    merged = a.words("sum")
    np.testing.assert_allclose(
        merged.scores.sum(1, dtype=np.float64), a.scores.sum(1, dtype=np.float64), rtol=1e-4, atol=1.0
    )
    assert 1 <= len(merged.tokens) <= len(a.tokens) and merged.text == a.text
    assert (a.words("max").scores.max(1) == a.scores.max(1)).all()
    assert set(merged.special) <= set(a.special)


@quick
@given(st.lists(attributions(), max_size=3), st.sampled_from([".parquet", ".json"]))
def test_what_is_saved_is_loaded(some, ending):
    with tempfile.TemporaryDirectory() as folder:
        path = ml.save(some, Path(folder) / f"x{ending}")
        assert ml.load(path) == some


@quick
@given(st.binary(max_size=60), st.sampled_from([".json", ".parquet"]))
def test_a_file_of_anything_is_a_typed_error(content, ending):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x{ending}"
        path.write_bytes(content)
        try:
            ml.load(path)
        except MasklensError as error:
            assert path.name in str(error)
        else:
            assert content.strip() == b"[]"


@quick
@given(st.lists(attributions(), min_size=1, max_size=3), st.lists(texts, min_size=3, max_size=3))
def test_nothing_in_a_record_becomes_part_of_the_page(some, names):
    entries = [Entry(a, name) for a, name in zip(some, names, strict=False)]
    page = report_html(report_data(entries, title=names[0]))
    plain = report_html(report_data([], title="x"))
    for tag in ("<script", "</script", "<img", "<b ", "<style", "</title", "<iframe"):
        assert page.lower().count(tag) == plain.lower().count(tag), tag
    assert not set(FORBIDDEN) & set(page)
    page.encode("utf-8")


@quick
@given(
    st.lists(
        st.binary(max_size=30) | st.sampled_from([b'{"text": "a"}', b"text", b'"x', b"a,b"]), max_size=6
    ),
    st.sampled_from([".jsonl", ".csv", ".txt"]),
)
def test_any_bytes_are_rows_with_a_text_or_a_reason(lines, ending):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"x{ending}"
        path.write_bytes(b"\n".join(lines))
        if path.read_bytes().startswith((b"\xff\xfe", b"\xfe\xff")):
            with pytest.raises(FileError, match="UTF-16"):
                list(read_rows(str(path), Columns()))
            return
        rows = list(read_rows(str(path), Columns()))
    assert all((row.text is None) != (row.reason is None) for row in rows)
    assert [row.number for row in rows] == sorted({row.number for row in rows})
    for row in rows:
        if row.text is not None:
            assert row.text.strip() and json.dumps(row.text).encode()
            row.text.encode("utf-8")


PICKLES = {"pickle", "cloudpickle", "joblib", "dill", "shelve", "marshal"}


def unsafe(tree):
    """Imports and calls that can run code from a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            yield from (name for name in names if name.split(".")[0] in PICKLES)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "pandas.read_pickle"):
            yield ast.unparse(node)
        elif isinstance(node, ast.keyword) and node.arg in ("allow_pickle", "trust_remote_code"):
            if ast.unparse(node.value) == "True":
                yield node.arg
        elif isinstance(node, ast.arguments):
            every = [*node.args[len(node.args) - len(node.defaults) :], *node.kwonlyargs]
            defaults = zip(every, [*node.defaults, *node.kw_defaults], strict=True)
            yield from (
                a.arg for a, d in defaults if a.arg == "trust_remote_code" and ast.unparse(d) != "False"
            )


def test_the_package_reads_no_pickle_and_trusts_no_code():
    for path in Path(ml.__file__).parent.rglob("*.py"):
        assert not list(unsafe(ast.parse(path.read_text(encoding="utf-8")))), path


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from torch import nn, load\nimport dill.x",
        "torch.load(x)",
        "f(trust_remote_code=True)",
        "def f(*, trust_remote_code=True): pass",
        "np.load(x, allow_pickle=True)",
    ],
)
def test_unsafe_code_would_be_seen(code):
    assert list(unsafe(ast.parse(code)))
