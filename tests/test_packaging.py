"""The wheel works in an environment of its own, away from the source tree."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE")


def run(*command, cwd):
    """The output of a command that sees neither the source tree nor the caller's Python settings."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(part) for part in command]
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_of_a_release_links_to_the_files_of_its_tag():
    sys.path.insert(0, str(ROOT / "recipes"))
    try:
        from absolute_links import LINK, absolute
    finally:
        sys.path.pop(0)
    before = (ROOT / "README.md").read_text(encoding="utf-8")
    paths = [path for _, _, path in LINK.findall(before)]
    assert "docs/quickstart.md" in paths and all((ROOT / path).exists() for path in paths)
    made = absolute(before, "someone/masklens", "v9")
    assert not LINK.search(made)
    assert "(https://raw.githubusercontent.com/someone/masklens/v9/docs/screenshots/" in made
    assert "](https://github.com/someone/masklens/blob/v9/docs/quickstart.md)" in made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy: a build leaves files behind, and could pick up those of an older one."""
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "src" / "masklens", folder / "src" / "masklens")
    for name in ("experiments", "benchmarks"):  # as in a clone: what is beside src must not get in
        shutil.copytree(ROOT / name, folder / name)
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", folder, cwd=folder)
    return next((folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def binaries(wheel, tmp_path_factory):
    """The scripts folder of a new environment with the wheel in it.

    Its dependencies are those of the environment that runs the tests, reached through a .pth file
    (its entries come after the new environment's own packages); installing torch again would take minutes.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    scripts = folder / ("Scripts" if sys.platform == "win32" else "bin")
    site = Path(
        run(
            scripts / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder
        ).strip()
    )
    run(
        sys.executable, "-m", "pip", "--python", scripts / "python", "install", "--no-deps", wheel, cwd=folder
    )
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return scripts


def test_the_wheel_has_the_package_and_nothing_else(wheel):
    """Neither the laboratory nor benchmarks, tests or results, though they are beside the package here."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert tops == {"masklens", f"masklens-{wheel.name.split('-')[1]}.dist-info"}


def test_the_wheel_is_small(wheel):
    with zipfile.ZipFile(wheel) as archive:
        code = [one for one in archive.infolist() if not one.filename.startswith("masklens/assets/")]
    assert sum(one.compress_size for one in code) <= 1_000_000
    assert wheel.stat().st_size <= 17_000_000


def test_the_wheel_is_what_is_imported(binaries, tmp_path):
    where = run(binaries / "python", "-c", "import masklens; print(masklens.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(binaries.parent)
    assert (Path(where.strip()).parent / "py.typed").exists()


def test_the_command_runs(binaries, tmp_path):
    import masklens

    assert run(binaries / "masklens", "--version", cwd=tmp_path).split() == ["masklens", masklens.__version__]
    listed = json.loads(run(binaries / "masklens", "methods", "--json", cwd=tmp_path))
    assert [method["name"] for method in listed]


def test_the_viewer_is_in_the_wheel(binaries, tmp_path):
    code = (
        "from masklens.reports.document import report_html; from masklens.reports.page import report_data; "
        "print(report_html(report_data([]), {}))"
    )
    assert "</html>" in run(binaries / "python", "-c", code, cwd=tmp_path)
