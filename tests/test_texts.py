"""Reading texts from files."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from masklens.errors import FileError
from masklens.texts import read_texts

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
        ("x.csv", "review\ngood", ["text"], "row 1 of .* has no column 'text'; it has 'review'"),
        ("x.jsonl", '{"text": 5}', ["text"], "row 1 of .* holds 5 in column 'text'"),
        ("x.jsonl", '{"text": ', ["text"], "cannot be read as jsonl"),
        ("x.jsonl", '["a"]', ["text"], "must be an object"),
        ("x.parquet", "not parquet", ["text"], "cannot be read as parquet"),
        ("x.doc", "a", ["text"], "'.doc'; texts are read from .txt, .csv, .jsonl, .parquet"),
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
