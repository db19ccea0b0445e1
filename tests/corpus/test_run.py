"""Corpus runs on this machine: what they write, bad rows, going on after a stop."""

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import time
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import corpora
import masklens as ml
import tiny
from corpora import content, save_model, slowly, write_corpus
from masklens.corpus import Job, read_back, run, worker
from masklens.corpus.shards import Place
from masklens.corpus.storage import Folder
from masklens.corpus.worker import Chunk, Worker
from masklens.diffmask.networks import Probe, rows_for
from masklens.diffmask.trainer import Settings
from masklens.errors import CorpusError, MasklensError, MethodError
from masklens.files.reading import Row


def attributions(out):
    return [row.attribution for row in read_back(str(out))]


def rejects(out):
    return [json.loads(line) for line in Path(out, "rejects.jsonl").read_text().splitlines()]


def test_a_run_writes_what_explain_and_verify_give(job, tmp_path):
    totals = run(job, str(tmp_path))
    assert totals == (60, 7, 5)
    found = attributions(tmp_path)
    subject = ml.Subject.from_pretrained(job.model)
    expected = ml.explain(subject, [a.text for a in found], job.method)
    proofs = ml.verify(subject, expected, control=False)
    table = pd.read_parquet(tmp_path / "data")
    assert table.row_id.is_unique
    for a, b, proof, verified in zip(found, expected, proofs, table.verification, strict=True):
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)
        assert a.probabilities == pytest.approx(b.probabilities, abs=1e-5)
        assert replace(a, scores=b.scores, verification=None, probabilities=b.probabilities) == b
        assert a.verification.needed == proof.needed and a.verification.verdict is None
        assert verified["divergence"] == pytest.approx(proof.divergence, abs=1e-5)
        assert verified["prediction_kept"] == proof.prediction_kept
        assert verified["share_removed"] == pytest.approx(proof.share_removed)
    assert any(verified["divergence"] > 1e-3 for verified in table.verification)


@pytest.mark.parametrize(
    ("family", "head", "method"),
    [("bert", "classification", "integrated_gradients"), ("gpt2", "causal", "gradient")],
)
def test_the_method_where_none_is_named(tmp_path, family, head, method):
    """It is the one of `explain`, and stands in the manifest: another one is another run."""
    subject = tiny.subject(family, head)
    subject.module.save_pretrained(tmp_path / "model")
    subject.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("the plot is dull\n")
    job = Job(str(tmp_path / "model"), str(tmp_path / "texts.txt"))
    run(job, str(tmp_path / "out"))
    (found,) = attributions(tmp_path / "out")
    assert found.method == ml.explain(subject, ["the plot is dull"])[0].method == method
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["settings"]["method"] == method
    with pytest.raises(CorpusError, match=f"method was '{method}', is 'random'"):
        run(replace(job, method="random"), str(tmp_path / "out"))
    assert replace(job, lens="FOLDER").method_name() == "diffmask"


def test_long_texts_after_short_ones_are_verified_as_they_would_be_alone(tmp_path):
    """The model's attention has a window: what holds for the first shard does not hold for the second."""
    subject, texts = tiny.subject("mistral", "causal"), ["the plot"] * 3 + ["the plot is dull . " * 6]
    subject.module.save_pretrained(tmp_path / "model")
    subject.tokenizer.save_pretrained(tmp_path / "model")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (tmp_path / "texts.jsonl").write_text(lines)
    job = Job(str(tmp_path / "model"), str(tmp_path / "texts.jsonl"), "gradient", shard_rows=3)
    run(job, str(tmp_path / "out"))
    last = attributions(tmp_path / "out")[-1]
    (alone,) = ml.verify(ml.Subject.from_pretrained(job.model), [last], control=False)
    assert last.verification.needed == alone.needed
    assert last.verification.divergence == pytest.approx(alone.divergence, abs=1e-5)


def test_every_row_is_explained_or_rejected_under_its_id(job, tmp_path):
    run(job, str(tmp_path))
    lines = Path(job.input).read_text().splitlines()
    explained = {row.row_id: row for row in read_back(str(tmp_path))}
    refused = {row["row_id"]: row["reason"] for row in rejects(tmp_path)}
    assert not explained.keys() & refused.keys()
    assert explained.keys() | refused.keys() == {f"{job.input}:{i + 1}" for i in range(len(lines))}
    for name, row in explained.items():
        line = json.loads(lines[int(name.rsplit(":", 1)[1]) - 1])
        assert (row.attribution.text, row.label) == (line["text"], str(line["label"]))
    assert [row.place[1] for row in read_back(str(tmp_path))] == sorted(
        row.place[1] for row in explained.values()
    )
    for word in ("empty", "null", "holds 3", "no column", "JSON", "UTF-8", "longer than the model takes"):
        assert sum(word in reason for reason in refused.values()) == 1, word


def test_datasets_and_load_read_the_shards(job, tmp_path):
    datasets = pytest.importorskip("datasets")
    run(replace(job, sites=(1, 3), verify=False), str(tmp_path / "out"))
    data = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "out/data/*.parquet"), cache_dir=str(tmp_path / "cache")
    )["train"]
    first = attributions(tmp_path / "out")
    assert data.num_rows == len(first) and data[0]["tokens"] == list(first[0].tokens)
    assert np.shape(data[0]["scores"]) == (2, len(first[0].tokens)) and data[0]["verification"] is None
    assert ml.load(tmp_path / "out/data/part-00000-000000.parquet") == first[: len(first)][:14]


@pytest.mark.parametrize("over", ["inputs", "states"])
def test_a_lens_goes_with_the_run(over, model, corpus, tmp_path):
    subject = ml.Subject.from_pretrained(model)
    with pytest.warns(UserWarning):
        lens = ml.DiffMask.fit(subject, corpora.GOOD * 4, over=over, steps=2, sites=[0, 2])
    lens.save_pretrained(tmp_path / "lens")
    job = Job(model, corpus, "diffmask", lens=str(tmp_path / "lens"), shard_rows=32)
    run(job, str(tmp_path / "out"))
    found = attributions(tmp_path / "out")
    expected = lens.explain([a.text for a in found])
    np.testing.assert_allclose(found[5].scores, expected[5].scores, atol=1e-5)
    table = pd.read_parquet(tmp_path / "out/data")
    for verified, proof in zip(
        table.verification, ml.verify(lens.subject, expected, replace=lens, control=False), strict=True
    ):
        assert verified["divergence"] == pytest.approx(proof.divergence, abs=1e-5)


def test_masks_over_states_are_verified_without_the_blocks_below(model, tmp_path):
    subject, counts = ml.Subject.from_pretrained(model), []
    last = max(subject.sites)
    probe = Probe(rows_for("states", [last]), {last: subject.module.config.hidden_size})
    torch.nn.init.constant_(probe.gate(0).bias, -9.0)  # everything is masked
    ml.DiffMask(subject, probe, "states", Settings()).save_pretrained(tmp_path / "lens")
    for verify in (False, True):
        at_work = Worker(Job(model, "x", "diffmask", lens=str(tmp_path / "lens"), verify=verify))
        rows: list[int] = []
        first = at_work.subject.blocks[2].module.attention
        first.register_forward_hook(lambda module, args, output, rows=rows: rows.append(len(args[0])))
        texts = [Row(i, text) for i, text in enumerate(corpora.GOOD)]
        shard = at_work.explain(at_work.encode(Chunk(Place(0, 0), "x", texts)))
        counts.append(sum(rows))
    assert shard.table["verification"][0]["divergence"].as_py() > 0
    assert counts[1] <= counts[0] + 2  # of two runs of one text it is seen that blocks can be left out


def test_a_guard_holds_for_every_row(job, tmp_path):
    run(replace(job, guard=1e-3), str(tmp_path))
    found, table = attributions(tmp_path), pd.read_parquet(tmp_path / "data")
    proofs = ml.verify(ml.Subject.from_pretrained(job.model), found, guard=1e-3, control=False)
    for proof, verified in zip(proofs, table.verification, strict=True):
        assert verified["prediction_kept"] and verified["divergence"] <= 1e-3
        assert verified["share_removed"] == pytest.approx(proof.share_removed)
    with pytest.raises(CorpusError, match="guard is -1"):
        replace(job, guard=-1)


@pytest.mark.slow
def test_several_devices_share_the_work(job, tmp_path):
    run(job, str(tmp_path / "one"))
    run(job, str(tmp_path / "two"), device="cpu,cpu")
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_a_store_is_written_by_url(job, tmp_path):
    run(job, str(tmp_path))
    run(job, "memory://corpus-run")
    folder = Folder("memory://corpus-run")
    assert {name: folder.read(name) for name in content(tmp_path)} == content(tmp_path)
    assert [row.row_id for row in read_back("memory://corpus-run")] == [
        row.row_id for row in read_back(str(tmp_path))
    ]


def test_a_limit_counts_rows_of_the_input(job, tmp_path):
    totals = run(replace(job, limit=10), str(tmp_path))
    assert totals.explained + totals.rejected == 10


def test_strict_stops_at_the_first_bad_row_and_the_run_can_go_on(job, tmp_path):
    with pytest.raises(CorpusError, match=r"texts.jsonl:6 cannot be explained: column 'text' is empty"):
        run(job, str(tmp_path / "a"), strict=True)
    run(job, str(tmp_path / "a"))
    run(job, str(tmp_path / "b"))
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_corpus_without_a_single_text_is_an_error(model, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"body": "x"}\n')
    with pytest.raises(CorpusError, match=r"none of the 1 rows.*no column 'text'"):
        run(Job(model, str(tmp_path / "x.jsonl")), str(tmp_path / "out"))


@pytest.mark.parametrize("method", ["gradient", "attention"])
def test_a_text_whose_output_is_nan_is_set_aside_alone(job, method, tmp_path):
    """A model with one poisoned word."""
    model = tmp_path / "poisoned"
    save_model(model)
    subject = ml.Subject.from_pretrained(model)
    with torch.no_grad():
        word = subject.tokenizer.convert_tokens_to_ids("sold")
        subject.module.get_input_embeddings().weight[word] = float("nan")
    subject.module.save_pretrained(model)
    run(replace(job, model=str(model), method=method), str(tmp_path / "out"))
    bad = [row["row_id"] for row in rejects(tmp_path / "out") if "NaN" in row["reason"]]
    lines = Path(job.input).read_text().splitlines()
    assert bad == [f"{job.input}:{i + 1}" for i, line in enumerate(lines) if "sold" in line]
    assert len(attributions(tmp_path / "out")) == 60 - len(bad)


def test_out_of_memory_halves_the_batch_and_keeps_the_size(job, tmp_path, monkeypatch):
    run(job, str(tmp_path / "a"))
    sizes, launch = [], worker.run_method

    def small_memory(request, *given):
        sizes.append(len(request.batch))
        if len(request.batch) > 3:
            raise torch.OutOfMemoryError("no memory")
        return launch(request, *given)

    monkeypatch.setattr(worker, "run_method", small_memory)
    run(job, str(tmp_path / "b"))
    assert sizes[:3] == [8, 4, 2] and sizes.count(8) == 1 and max(sizes[8:]) == 2
    for a, b in zip(attributions(tmp_path / "a"), attributions(tmp_path / "b"), strict=True):
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)

    def no_memory(*given):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(worker, "run_method", no_memory)
    with pytest.raises(CorpusError, match="none of the 67 rows"):
        run(job, str(tmp_path / "c"))
    assert sum("out of memory" in row["reason"] for row in rejects(tmp_path / "c")) == 60


def test_memory_that_is_short_after_the_scores_halves_the_batch_too(job, tmp_path, monkeypatch):
    """Verification needs memory when the next batch is on the device already."""
    run(job, str(tmp_path / "a"))
    sizes, columns = [], worker.columns_of

    def small_memory(batch, *given):
        sizes.append(len(batch))
        if len(batch) > 3:
            raise torch.OutOfMemoryError("no memory")
        return columns(batch, *given)

    monkeypatch.setattr(worker, "columns_of", small_memory)
    run(job, str(tmp_path / "b"))
    assert sizes[:4] == [8, 8, 4, 2] and max(sizes) == 8 and max(sizes[-8:]) == 2
    for a, b in zip(attributions(tmp_path / "a"), attributions(tmp_path / "b"), strict=True):
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-5)


def test_a_text_that_fits_alone_is_explained_alone(job, tmp_path, monkeypatch):
    """While one batch is written, the next one is on the device; a text that then finds no room is tried
    again when it has the device for itself."""
    alive: list[weakref.ref] = []
    most, launch = [0], worker.run_method

    def small_memory(request, *given):
        there = [one for ref in alive if (one := ref()) is not None]
        most[0] = max(most[0], len(there) + 1)
        if sum(len(one.batch) for one in there) + len(request.batch) > 2:
            raise torch.OutOfMemoryError("no memory")
        alive.append(weakref.ref(request))
        return launch(request, *given)

    monkeypatch.setattr(worker, "run_method", small_memory)
    run(job, str(tmp_path / "out"))
    assert len(attributions(tmp_path / "out")) == 60 and most[0] <= 2


@pytest.mark.parametrize("where", ["run_method", "columns_of"])
def test_another_error_of_the_model_stops_the_run(job, tmp_path, monkeypatch, where):
    def broken(*given):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(worker, where, broken)
    with pytest.raises(RuntimeError, match="shapes"):
        run(job, str(tmp_path))


def test_a_changed_run_is_refused_by_name(job, tmp_path):
    out, other = str(tmp_path / "out"), tmp_path / "other"
    run(replace(job, limit=20), out)
    with pytest.raises(CorpusError, match=r"limit was 20, is None"):
        run(job, out)
    with pytest.raises(CorpusError, match=r"method was 'grad_x_input', is 'gradient'; seed was 0, is 1"):
        run(replace(job, limit=20, method="gradient", seed=1), out)
    save_model(other)
    same = replace(job, limit=20, model=str(other))
    run(same, str(tmp_path / "second"))
    save_model(other, seed=1)
    with pytest.raises(CorpusError, match=r"the model is not the same"):
        run(same, str(tmp_path / "second"))


def test_a_changed_input_is_refused(job, tmp_path):
    path = tmp_path / "x.jsonl"
    write_corpus(path, 5)
    same = replace(job, input=str(path))
    run(same, str(tmp_path / "out"))
    with path.open("a") as file:
        file.write('{"text": "one more"}\n')
    with pytest.raises(CorpusError, match=r"the input .*x.jsonl had \d+ bytes"):
        run(same, str(tmp_path / "out"))


def test_a_mistake_does_not_spoil_the_folder(job, tmp_path):
    with pytest.raises(MethodError, match="no method 'typo'"):
        run(replace(job, method="typo"), str(tmp_path))
    with pytest.raises(ml.errors.SiteError):
        run(replace(job, sites=(99,)), str(tmp_path))
    run(job, str(tmp_path))


def test_the_manifest_says_what_the_run_was_made_of(job, tmp_path):
    run(job, str(tmp_path))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["settings"]["method"] == job.method
    assert manifest["versions"]["torch"] and manifest["hashes"]["model"].startswith("sha256 ")
    assert manifest["inputs"][job.input]["bytes"] == os.path.getsize(job.input)
    assert manifest["inputs"][job.input]["content"].startswith("sha256 ") and manifest["shards"] == 5


def test_a_second_run_at_once_is_refused(job, tmp_path):
    with Folder(str(tmp_path)).lock(), pytest.raises(CorpusError, match="another run is writing"):
        run(job, str(tmp_path))


def test_a_torn_shard_is_made_again(job, tmp_path):
    run(job, str(tmp_path / "a"))
    run(job, str(tmp_path / "b"))
    shard = tmp_path / "b/data/part-00000-000002.parquet"
    shard.write_bytes(shard.read_bytes()[:-100])
    (tmp_path / "b/data/part-00000-000003.parquet").unlink()
    said = []
    run(job, str(tmp_path / "b"), report=said.append)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert [line.split(":")[0] for line in said[1:]] == ["part-00000-000002", "part-00000-000003"]


@pytest.fixture
def killed(monkeypatch):
    """A function that starts a run in processes of their own, ends them with SIGKILL after random times, and
    then finishes it. It returns how many shards each process found.

    The processes are forked from one that has everything imported.
    """
    folders = [str(Path(__file__).parent), str(Path(tiny.__file__).parent), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["corpora", "masklens.corpus.worker", "transformers.models.bert.modeling_bert"]
    )

    def run_and_kill(job, out, kills, seed=0):
        generator, found, begun = random.Random(seed), [], Path(f"{out}.begun")
        while len(found) < kills:
            before = len(Folder(out).names("data"))
            process = context.Process(target=slowly, args=(job, out))
            process.start()
            while not begun.exists() and process.is_alive():
                time.sleep(0.005)
            while len(found) % 2 and process.is_alive() and len(Folder(out).names("data")) == before:
                time.sleep(0.005)  # every other one gets to write a shard, however busy the machine is
            process.join(generator.uniform(0.0, 0.6))
            process.kill()  # nothing happens to one that has come to its end
            process.join()
            begun.unlink()
            if process.exitcode == -signal.SIGKILL:
                found.append(before)
            else:
                shutil.rmtree(out)  # it was too quick: from the beginning
        run(job, out)
        return found

    return run_and_kill


def no_row_twice(out):
    names = [row.row_id for row in read_back(str(out))] + [row["row_id"] for row in rejects(out)]
    return len(names) == len(set(names))


def test_a_killed_run_goes_on(job, tmp_path, killed):
    run(job, str(tmp_path / "whole"))
    killed(job, str(tmp_path / "killed"), kills=2)
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert no_row_twice(tmp_path / "killed")


@pytest.mark.slow
def test_a_run_killed_twenty_times_goes_on(job, tmp_path, killed):
    path = tmp_path / "many.jsonl"
    write_corpus(path, 600)
    long = replace(job, input=str(path), shard_rows=7)
    run(long, str(tmp_path / "whole"))
    found = killed(long, str(tmp_path / "killed"), kills=20)
    assert len(found) == 20 and len(set(found)) > 5  # it was killed at many different places
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert no_row_twice(tmp_path / "killed")


def on_two_devices(job, out):
    """For a process of its own."""
    run(job, out, device="cpu,cpu", report=lambda message: time.sleep(0.1))


def children(pid):
    """Processes that a process started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rsplit(")", 1)[1].split()[:2]
            if int(parent) == pid and state != "Z":
                found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read from /proc")
def test_no_process_outlives_a_killed_run(job, tmp_path):
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=on_two_devices, args=(job, str(tmp_path / "out")))
    process.start()
    while not Folder(str(tmp_path / "out")).names("data"):
        time.sleep(0.05)
    started = children(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert len(started) >= 2
    end = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
    run(job, str(tmp_path / "out"))
    run(job, str(tmp_path / "whole"))
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_a_bad_label_is_a_reject(job, tmp_path):
    lines = [b'{"text": "a dull plot", "label": "\\ud800"}', b'{"text": "a car", "label": "\xff"}']
    lines += [b'{"text": "a car"}', b'{"text": "a fast car", "label": "ok"}']
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    (tmp_path / "x.csv").write_bytes(b"text,label\na dull plot,\xff\na fast car,ok\n")
    for name, bad in (("x.jsonl", 3), ("x.csv", 1)):
        out = tmp_path / f"out-{name}"
        assert run(replace(job, input=str(tmp_path / name)), str(out)) == (1, bad, 1)
        assert [row.label for row in read_back(str(out))] == ["ok"]
        assert "UTF-8" in rejects(out)[0]["reason"]


def test_a_missing_label_column_is_an_error(job, tmp_path):
    (tmp_path / "x.csv").write_text("text,label\na dull plot,1\n")
    with pytest.raises(CorpusError, match=r"no column 'gold'; there are 'text', 'label'"):
        run(replace(job, input=str(tmp_path / "x.csv"), label_column="gold"), str(tmp_path / "out"))


def test_input_that_changed_at_the_same_size_is_refused(job, tmp_path):
    path = tmp_path / "x.jsonl"
    write_corpus(path, 5)
    same = replace(job, input=str(path))
    run(same, str(tmp_path / "out"))
    path.write_text(path.read_text().replace("dull", "fast"))
    with pytest.raises(CorpusError, match=r"x.jsonl has the same size but other content"):
        run(same, str(tmp_path / "out"))


@pytest.mark.parametrize("removed", ["all", "data"])
def test_a_folder_that_is_removed_in_mid_run_is_told(job, tmp_path, removed):
    out = tmp_path / "out"

    def remove(message):
        if "000002" in message:
            gone = out if removed == "all" else out / "data"
            gone.rename(tmp_path / "elsewhere")  # at once, though a shard is being written

    with pytest.raises(MasklensError, match="was removed|are missing|No such file"):
        run(job, str(out), report=remove)
    shutil.rmtree(out, ignore_errors=True)
    run(job, str(out))


def test_shards_without_a_manifest_are_not_taken_for_ours(job, tmp_path):
    run(job, str(tmp_path))
    (tmp_path / "manifest.json").unlink()
    for action in (lambda: run(job, str(tmp_path)), lambda: list(read_back(str(tmp_path)))):
        with pytest.raises(CorpusError, match="manifest.json"):
            action()


def test_shards_that_are_missing_or_too_many_are_told(job, tmp_path):
    run(job, str(tmp_path))
    shard = tmp_path / "data/part-00000-000001.parquet"
    shutil.copy(shard, tmp_path / "data/part-00009-000001.parquet")
    with pytest.raises(CorpusError, match="1 of 5 shards are there that are not of this run"):
        run(job, str(tmp_path))
    (tmp_path / "data/part-00009-000001.parquet").unlink()
    shard.unlink()
    with pytest.raises(CorpusError, match="holds 4 shards, and 5 were written"):
        list(read_back(str(tmp_path)))


def test_a_run_that_has_not_ended_is_read_with_a_warning(job, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(job, str(tmp_path), report=interrupt)
    with pytest.warns(UserWarning, match="has not ended"):
        list(read_back(str(tmp_path)))


def interrupt(message):
    if "000002" in message:
        raise KeyboardInterrupt


def test_what_killed_runs_left_is_removed(job, tmp_path):
    left = [".manifest.json.1.part", "data/.part-00000-000000.parquet.1.part", "rejects/.x.1.part"]
    left.append("rejects/part-00007-000000.jsonl")  # of a run that wrote no shard
    for name in left:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("half")
    run(job, str(tmp_path))
    assert not [name for name in left if (tmp_path / name).exists()]
    assert len(rejects(tmp_path)) == 7


def test_an_input_without_rows_is_an_error(job, tmp_path):
    (tmp_path / "x.txt").write_text("\n\n")
    with pytest.raises(CorpusError, match="the input has no rows"):
        run(replace(job, input=str(tmp_path / "x.txt"), label_column=None), str(tmp_path / "out"))


@pytest.mark.slow
def test_a_failure_on_one_device_ends_the_run_on_all(job, tmp_path):
    with pytest.raises(CorpusError, match=r"texts.jsonl:\d+ cannot be explained"):
        run(job, str(tmp_path), device="cpu,cpu", strict=True)
