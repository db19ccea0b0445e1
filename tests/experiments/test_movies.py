"""The movie reviews of ERASER are read as they are."""

import json
import tarfile
from pathlib import Path

import pytest
from experiments.movies import read_movies

from masklens.errors import FileError


def test_movies_are_read(tmp_path):
    row = {
        "annotation_id": "neg_1.txt",
        "classification": "NEG",
        "evidences": [
            [{"start_token": 2, "end_token": 4, "text": "dull plot"}],
            [{"start_token": 3, "end_token": 3, "text": ""}],
        ],
    }
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "neg_1.txt").write_text("a  very\ndull plot .\n")
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    with tarfile.open(tmp_path / "m.tar.xz", "w:xz") as tar:
        for name in ("test.jsonl", "docs"):
            tar.add(tmp_path / name, name)
    (found,) = read_movies(tmp_path / "m.tar.xz")
    assert found.label == "NEG"
    assert [found.text[s:e] for s, e in found.spans] == ["dull plot"]
    with pytest.raises(FileError, match="no val.jsonl"):
        read_movies(tmp_path / "m.tar.xz", "val")


def test_the_real_movie_reviews_are_read():
    archive = Path(__file__).parents[3] / "shared" / "data" / "movies_rationales" / "movies.tar.xz"
    if not archive.exists():
        pytest.skip("the ERASER movie reviews are not beside the repository")
    found = read_movies(archive, "test")
    assert len(found) == 199 and {one.label for one in found} == {"NEG", "POS"}
    marked_parts = [one.text[a:b] for one in found for a, b in one.spans]
    assert len(marked_parts) > 199 and all(part.strip() == part and part for part in marked_parts)
