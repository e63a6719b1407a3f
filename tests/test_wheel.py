"""pip install . in a fresh environment: the wheel holds all that the commands, the page and the API need."""

import os
import subprocess
import sys
import sysconfig

import pytest
from tiny import ROOT

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
API = """
from speculative import load_pair
pair = load_pair(demo=True)
run = pair.compare("It was a dark night, and", 12)
run.page("run.html")
print("same" if run.text == "".join(step.text for step in pair.autoregressive("It was a dark night, and", 12)) else "")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of a fresh environment's programs: it has the wheel, and the libraries of this one."""
    pytest.importorskip("setuptools", "77")
    if not (ROOT / ".git").exists():
        pytest.skip("git lists what is built")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            (source / name).symlink_to(ROOT / name)
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(build, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "fresh")], check=True)
    bin_folder = folder / "fresh" / ("Scripts" if os.name == "nt" else "bin")
    python = str(bin_folder / "python")
    [wheel] = folder.glob("*.whl")
    subprocess.run([*PIP, "--python", python, "install", "--no-deps", "--no-index", str(wheel)], check=True)
    find = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.strip()
    with open(os.path.join(site, "libraries.pth"), "w", encoding="utf-8") as f:
        f.write(sysconfig.get_path("purelib") + "\n")
    return bin_folder


def out_of(command, folder):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow  # builds, installs, compiles
def test_the_demo_and_its_page(installed, tmp_path):
    for hides_nothing in ("main.py", "utils.py", "gpt2.py", "encoder.py"):
        (tmp_path / hides_nothing).write_text("raise SystemExit('the user's')")
    demo = ["--demo", "--n_tokens_to_generate", "8"]
    by_name = out_of([str(installed / "speculative-sampling"), *demo, "--html", "page.html"], tmp_path)
    by_module = out_of([str(installed / "python"), "-m", "speculative", *demo], tmp_path)
    for out in (by_name, by_module):
        assert "Autoregressive Decode" in out
        assert "Speculative Decode" in out
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8")
    for command in (["speculative-sampling"], ["python", "-m", "speculative"]):
        words = [str(installed / command[0]), *command[1:], "--help"]
        assert f"usage: {' '.join(command)} [--OPTION" in out_of(words, tmp_path)


@pytest.mark.slow
def test_it_installs_one_name_with_the_workbench(installed, tmp_path):
    find = "import importlib.metadata as m; print(*m.files('speculative-sampling'))"
    names = out_of([str(installed / "python"), "-c", find], tmp_path).split()
    tops = {name.split("/")[0] for name in names}
    assert {name for name in tops if ".dist-info" not in name and name != ".."} == {"speculative"}
    assert "speculative/cli/web/workbench.html" in names


@pytest.mark.slow
def test_the_api_from_another_folder(installed, tmp_path):
    (tmp_path / "script.py").write_text(API)
    assert out_of([str(installed / "python"), "script.py"], tmp_path) == "same\n"
    assert "<html" in (tmp_path / "run.html").read_text(encoding="utf-8")
