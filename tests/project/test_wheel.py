"""pip install . into an empty folder: the wheel holds all that the commands, the page and the workbench need."""

import os
import subprocess
import sys

import pytest
from tiny import ROOT

pytestmark = pytest.mark.slow  # builds, installs, compiles

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "install", "--no-deps", "--no-build-isolation"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder with the project alone; the libraries are those of this environment."""
    pytest.importorskip("setuptools", "77")
    if not (ROOT / ".git").exists():
        pytest.skip("git lists the files to build")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # the build leaves files beside its sources
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            (source / name).symlink_to(ROOT / name)
    subprocess.run([*PIP, "--target", str(folder / "installed"), str(source)], check=True)
    return folder / "installed"


def test_the_demo_and_its_page(installed, tmp_path):
    def out_of(*words):
        environment = os.environ | {"PYTHONPATH": str(installed)}
        return subprocess.check_output(words, cwd=tmp_path, env=environment, text=True)

    for hides_nothing in ("main.py", "utils.py", "gpt2.py", "encoder.py"):
        (tmp_path / hides_nothing).write_text("raise SystemExit('the user's')")
    by_name = [str(installed / "bin" / "speculative-sampling")]
    by_module = [sys.executable, "-m", "speculative"]
    for command, name in ((by_name, "speculative-sampling"), (by_module, "python -m speculative")):
        out = out_of(*command, "--demo", "--n_tokens_to_generate", "8", "--html", f"{name}.html")
        assert "Autoregressive Decode" in out
        assert "Speculative Decode" in out
        assert "<html" in (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert f"usage: {name} [PROMPT] [--OPTION" in out_of(*command, "--help")


def test_it_installs_one_name_with_all_its_files(installed):
    assert {path.name for path in installed.iterdir() if ".dist-info" not in path.name} == {"bin", "speculative"}
    files = [path.relative_to(ROOT) for path in (ROOT / "speculative").rglob("*.*") if path.suffix != ".pyc"]
    missing = [path for path in files if not (installed / path).exists()]
    assert {str(path.parent) for path in missing} == {"speculative/blog"}  # of a wheel it has the four files at the top
