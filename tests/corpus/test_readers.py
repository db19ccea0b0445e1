"""Reading a corpus: every format, by path and URL, with rows that are no texts."""

import json

import datasets
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from masklens.corpus.storage import Folder
from masklens.errors import FileError
from masklens.files.formats import Columns
from masklens.files.reading import Row, chunks, find_files, limits, read_rows

TEXTS = ["a fast , funny movie", 'commas, "quotes"', "ünï çödé"]
LABELLED = Columns(("text",), "label")


TEXT = Columns()


def rows_of(path, columns=TEXT):
    return [row for file in find_files(str(path)) for row in read_rows(file, columns)]


def write_all(folder):
    """The same rows in every format."""
    rows = [{"text": text, "label": i} for i, text in enumerate(TEXTS)]
    (folder / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
    quoted = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
    lines = [f"{text},{i}" for i, text in enumerate(quoted)]
    (folder / "x.csv").write_text("\ufeff" + "\n".join(["text,label", *lines]), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), folder / "x.parquet")
    datasets.Dataset.from_list(rows).save_to_disk(folder / "saved")
    return [folder / "x.jsonl", folder / "x.csv", folder / "x.parquet", folder / "saved"]


def test_the_formats_agree(tmp_path):
    expected = [Row(i + 1, text, str(i)) for i, text in enumerate(TEXTS)]
    for path in write_all(tmp_path):
        assert rows_of(path, LABELLED) == expected, path
        assert rows_of(f"file://{path}", LABELLED) == expected, path


def test_the_splits_of_a_data_set_are_read_in_turn(tmp_path):
    some = {name: datasets.Dataset.from_list([{"text": name}]) for name in ("train", "test")}
    datasets.DatasetDict(some).save_to_disk(tmp_path / "saved")
    assert [row.text for row in rows_of(tmp_path / "saved")] == ["train", "test"]


def test_a_data_set_cannot_name_files_elsewhere(tmp_path):
    datasets.Dataset.from_list([{"text": "x"}]).save_to_disk(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").write_text('{"_data_files": [{"filename": "../secret.arrow"}]}')
    with pytest.raises(FileError, match="secret"):
        rows_of(tmp_path / "saved")
    (tmp_path / "saved" / "state.json").unlink()
    (tmp_path / "saved" / "dataset_dict.json").write_text('{"splits": ["../../etc"]}')
    with pytest.raises(FileError, match="etc"):
        rows_of(tmp_path / "saved")


def test_files_come_in_order_and_a_limit_spans_them(tmp_path):
    for name in "cab":
        (tmp_path / f"{name}.txt").write_text(f"{name}1\n\n{name}3\n")
    files = find_files(str(tmp_path / "*.txt"))
    assert [row.text for row in rows_of(tmp_path / "*.txt")] == ["a1", "a3", "b1", "b3", "c1", "c3"]
    assert [row.number for row in read_rows(files[0], Columns())] == [1, 3]  # the lines of the file
    assert limits(files, Columns(), 3) == [2, 1, 0]
    assert limits(files, Columns(), None) == [None] * 3


def test_chunks_hold_all_rows_once(tmp_path):
    (tmp_path / "x.txt").write_text("\n".join(map(str, range(10))))
    found = list(chunks(str(tmp_path / "x.txt"), Columns(), 4))
    assert [[row.text for row in some] for some in found] == [list("0123"), list("4567"), list("89")]


def test_objects_in_a_store_are_read_by_url():
    with fsspec.open("memory://texts/x.jsonl", "w") as file:
        file.write('{"text": "far away"}\n')
    assert [row.text for row in rows_of("memory://texts/*.jsonl")] == ["far away"]


def reasons(path, columns=None):
    return [row.reason for row in rows_of(path, columns or Columns())]


def test_bad_lines_of_json_come_with_the_reason(tmp_path):
    lines = [b'{"text": "ok"}', b'{"text": "\xff"}', b"{", b"[1]", b'{"text": null}', b'{"text": 3}']
    lines += [b'{"text": "  "}', b'{"body": "x"}', b'{"text": "\\ud800"}', b"[" * 100_000]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    found = reasons(tmp_path / "x.jsonl")
    words = [
        "UTF-8",
        "JSON",
        "not an object",
        "null",
        "holds 3",
        "empty",
        "no column 'text'",
        "UTF-8",
        "JSON",
    ]
    assert found[0] is None and len(found) == len(lines)
    for reason, word in zip(found[1:], words, strict=True):
        assert word in reason


def test_bad_records_of_csv_come_with_the_reason(tmp_path):
    (tmp_path / "x.csv").write_bytes(
        b"id,text\n1,ok\n2\n3,\xff\n4,\n5,a,b\n6," + b"x" * 200_000 + b"\n7,ok,\n"
    )
    found = reasons(tmp_path / "x.csv")
    assert found[0] is found[5] is found[6] is None
    for reason, word in zip(found[1:5], ["null", "UTF-8", "empty", "more cells"], strict=True):
        assert word in reason


def test_bad_cells_of_parquet_come_with_the_reason(tmp_path):
    raw = pa.array([b"ok", b"\xff\xfe", None, b""], pa.binary())
    column = pa.Array.from_buffers(pa.string(), 4, raw.buffers())  # strings that are not UTF-8
    pq.write_table(pa.table({"text": column}), tmp_path / "x.parquet")
    found = reasons(tmp_path / "x.parquet")
    assert found[0] is None
    for reason, word in zip(found[1:], ["UTF-8", "null", "empty"], strict=True):
        assert word in reason
    assert all("no column 'body'" in reason for reason in reasons(tmp_path / "x.parquet", Columns(("body",))))
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "y.parquet")
    assert all("holds" in reason for reason in reasons(tmp_path / "y.parquet"))


def test_pairs_need_both_texts(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"a": "x", "b": "y"}\n{"a": "x", "b": ""}\n')
    first, second = rows_of(tmp_path / "x.jsonl", Columns(("a", "b")))
    assert first.text == ("x", "y") and "'b' is empty" in second.reason


@pytest.mark.parametrize("name", ["missing.jsonl", "x.pkl", "folder"])
def test_what_cannot_be_read_is_an_error(tmp_path, name):
    (tmp_path / "x.pkl").write_bytes(b"\x80\x04N.")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match=name):
        find_files(str(tmp_path / name))


def test_an_unknown_kind_of_url_is_an_error():
    for action in (find_files, Folder):
        with pytest.raises(FileError, match="nothing://x cannot be reached"):
            action("nothing://x")


def test_a_broken_file_is_an_error_that_names_it(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(FileError, match="x.parquet"):
        rows_of(tmp_path / "x.parquet")
