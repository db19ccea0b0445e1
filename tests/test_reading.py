"""Reading texts from files."""

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from masklens.errors import FileError
from masklens.files.formats import standard_input
from masklens.files.reading import read_labels, read_texts

TEXTS = ["a fast , funny movie", 'commas, "quotes"', "ünï çödé"]


def test_txt_has_one_text_a_line_and_skips_empty_lines(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("\ufeff" + "\n\n".join(TEXTS) + "\n", encoding="utf-8")
    assert read_texts(str(path)) == TEXTS
    assert read_texts(str(path), limit=2) == TEXTS[:2]


def test_the_table_formats_agree(tmp_path):
    rows = [{"label": i, "text": text, "other": text.upper()} for i, text in enumerate(TEXTS)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    quoted = [text.replace('"', '""') for text in TEXTS]
    lines = [f'{i},"{text}","{text.upper()}"' for i, text in enumerate(quoted)]
    (tmp_path / "x.csv").write_text("\n".join(["label,text,other", *lines]), encoding="utf-8")
    for ending in ("parquet", "jsonl", "csv"):
        path = str(tmp_path / f"x.{ending}")
        assert read_texts(path) == TEXTS
        assert read_texts(path, ["other", "text"]) == [(text.upper(), text) for text in TEXTS]


def test_a_pattern_reads_the_files_in_order(tmp_path):
    for name in "ba":
        (tmp_path / f"{name}.txt").write_text(name)
    assert read_texts(str(tmp_path / "*.txt")) == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "content", "columns", "message"),
    [
        (
            "x.csv",
            "review\ngood",
            ["text"],
            "row 1 of .* no column 'text'; there are 'review': name one with --column$",
        ),
        ("x.jsonl", '{"text": 5}', ["text"], "row 1 of .* column 'text' holds 5"),
        ("x.jsonl", '{"text": ', ["text"], "row 1 of .* not JSON: .* Fix or remove it"),
        ("x.jsonl", '["a"]', ["text"], "not an object"),
        ("x.parquet", "not parquet", ["text"], "x.parquet cannot be read: Parquet"),
        (
            "x.doc",
            "a",
            ["text"],
            "x.doc cannot be read: texts are read from .txt, .csv, .tsv, .json, .jsonl",
        ),
        ("x.txt", "\n", ["text"], "there is no text"),
        ("x.txt", "a", ["a", "b", "c"], "3 columns"),
    ],
)
def test_errors_say_what_is_wrong(tmp_path, name, content, columns, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(FileError, match=message):
        read_texts(str(path), columns)


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileError, match="nothing.txt"):
        read_texts(str(tmp_path / "nothing.txt"))


ROWS = [{"text": text, "label": i} for i, text in enumerate(TEXTS)]


def written(folder, name):
    """The same rows under a name of any ending."""
    kind = name.lower().removesuffix(".gz").rsplit(".", 1)[1]
    content = {
        "txt": "\n".join(TEXTS),
        "tsv": "\n".join(["label\ttext", *(f"{i}\t{text}" for i, text in enumerate(TEXTS))]),
        "json": json.dumps(ROWS),
        "jsonl": "\n".join(map(json.dumps, ROWS)),
    }[kind].encode()
    (folder / name).write_bytes(gzip.compress(content) if name.lower().endswith(".gz") else content)
    return str(folder / name)


@pytest.mark.parametrize(
    "name", ["x.tsv", "x.json", "x.txt.gz", "x.tsv.gz", "x.json.gz", "x.jsonl.gz", "X.TSV", "X.JSON.GZ"]
)
def test_further_endings(name, tmp_path):
    path = written(tmp_path, name)
    assert read_texts(path) == TEXTS
    if "txt" not in name:
        assert list(map(int, read_labels(path, "label"))) == [0, 1, 2]


def test_a_json_file_may_be_a_list_of_texts(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps(TEXTS))
    assert read_texts(str(tmp_path / "x.json")) == TEXTS
    (tmp_path / "x.json").write_text("\n".join(map(json.dumps, ROWS)))  # as data sets write it
    assert read_texts(str(tmp_path / "x.json")) == TEXTS
    (tmp_path / "x.json").write_text('{"text": "a"}')
    with pytest.raises(FileError, match="must hold a list"):
        read_texts(str(tmp_path / "x.json"))


@pytest.mark.parametrize(
    "content",
    [
        "\n".join(TEXTS),
        "\n".join(map(json.dumps, ROWS)),
        "text;label\n" + "\n".join(f"{json.dumps(text, ensure_ascii=False)};0" for text in ("a", "b; c")),
    ],
)
def teststandard_input(content, monkeypatch):
    standard_input.cache_clear()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    assert read_texts("-") == (["a", "b; c"] if content.startswith("text;") else TEXTS)
    if content.startswith("{"):
        assert read_labels("-", "label") == [0, 1, 2]
    standard_input.cache_clear()


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_the_separator_of_csv_is_found(separator, tmp_path):
    lines = [separator.join(["label", "text"]), *(separator.join([str(i), "a, b"]) for i in range(2))]
    (tmp_path / "x.csv").write_text("\r\n".join(lines))
    assert read_texts(str(tmp_path / "x.csv")) == ["a, b", "a, b"]
    assert read_labels(str(tmp_path / "x.csv"), "label") == ["0", "1"]
    with pytest.raises(FileError, match="no column 'lable'; there are 'label', 'text'"):
        read_labels(str(tmp_path / "x.csv"), "lable")


def test_long_fields_of_csv_are_read(tmp_path):
    (tmp_path / "x.csv").write_text("text\n" + "long " * 100_000)
    assert len(read_texts(str(tmp_path / "x.csv"))[0]) == 500_000


def test_another_encoding_comes_with_a_hint(tmp_path):
    for name, content in (("x.txt", "café"), ("x.csv", "text\ncafé"), ("x.jsonl", '{"text": "café"}')):
        (tmp_path / name).write_bytes(content.encode("latin-1"))
        with pytest.raises(FileError, match=f"row 1 of .*{name} .*not valid UTF-8 .*iconv -f LATIN1"):
            read_texts(str(tmp_path / name))
    (tmp_path / "x.json").write_bytes('["café"]'.encode("latin-1"))
    with pytest.raises(FileError, match="x.json cannot be read: it is not valid UTF-8 .*iconv -f LATIN1"):
        read_texts(str(tmp_path / "x.json"))


@pytest.mark.parametrize("name", ["x.txt", "x.csv", "x.jsonl", "x.json"])
def test_utf_16_is_recognised(name, tmp_path):
    (tmp_path / name).write_text('{"text": "good"}', encoding="utf-16")
    with pytest.raises(FileError, match=f"{name} cannot be read: .* but UTF-16; .*iconv -f UTF-16"):
        read_texts(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", 'text\n""\n'),
        ("x.jsonl", '{"text": ""}'),
        ("x.json", '[" "]'),
        ("x.tsv", "id\ttext\n1\t \n"),
    ],
)
def test_an_empty_text_is_refused_in_every_format(name, content, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(FileError, match="row 1 of .* column 'text' is empty. Fix or remove it"):
        read_texts(str(tmp_path / name))


def test_labels_are_there_or_told(tmp_path):
    (tmp_path / "x.csv").write_text("text,label\na,1\nb\n")
    with pytest.raises(FileError, match="row 2 of .*column 'label' is null"):
        read_labels(str(tmp_path / "x.csv"), "label")
    with pytest.raises(FileError, match="no column 'lable'; there are 'text', 'label': name one with --"):
        read_labels(str(tmp_path / "x.csv"), "lable")


def test_broken_compression_and_folders_are_one_line(tmp_path):
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"text " * 1000)[:-9])
    (tmp_path / "y.txt.gz").write_bytes(b"plain")
    (tmp_path / "z.txt").mkdir()
    for name in ("x.txt.gz", "y.txt.gz", "z.txt"):
        with pytest.raises(FileError, match=f"{name} cannot be read"):
            read_texts(str(tmp_path / name))
