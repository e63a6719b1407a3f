"""A file that we write is whole or absent, and never one of the run's inputs."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from tiny import ROOT, python, refusal

from speculative import UserError
from speculative.checkpoints.disk import leave, note_of
from speculative.cli.command import choose_prompts
from speculative.cli.interactive import history_file
from speculative.run.options import Options
from speculative.support import files
from speculative.support.terminal import PRINTABLE


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a file, a link to it, a folder and a pipe."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("old")
    Path("dir").mkdir()
    Path("dir/inside").write_text("old")
    Path("link").symlink_to("text")
    os.mkfifo("pipe")
    return tmp_path


def test_an_input_is_not_overwritten_by_any_name(folder):
    for read in ("text", "link"):
        for written in ("text", "./text", "dir/../text", "link"):
            assert ": choose another file" in refusal(files.check_outputs, [None, written], [None, read])
        files.check_outputs([None, "other"], [None, read])
    Path("dir/sub").mkdir()
    Path("dir/away").symlink_to("..")
    for path in ("dir/inside", "dir/new", "dir/sub/new", "dir/away/new"):
        assert ": choose another file" in refusal(files.check_outputs, [path], ["dir", "missing"])
    assert ": choose another file" in refusal(files.check_outputs, ["link", "text"], [])


def test_the_files_behind_the_standard_streams_are_not_overwritten(folder):
    """The command is --prompt_file=- --json text < text, or > text."""
    code = "from speculative.support.files import check_outputs; check_outputs(['text'], ['-'])"
    for stream in ("< text", ">> text"):
        env = os.environ | {"PYTHONPATH": str(ROOT)}
        assert ": choose another file" in python("-c", code, shell=f'"$@" {stream}', cwd=folder, env=env).stderr


@pytest.mark.parametrize("path", ["dir", "missing/file", "text/file"])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(path, folder):
    assert refusal(files.check_outputs, [path], []).startswith(f"cannot write to {path}: ")


def test_a_link_is_followed_only_if_the_user_named_it(folder):
    files.write_text("link", "new")
    assert (Path("text").read_text(), Path("link").is_symlink()) == ("new", True)
    with files.replacing("link") as part:
        Path(part).write_text("newer")
    assert (Path("text").read_text(), Path("link").is_symlink()) == ("new", False)
    assert Path("text").stat().st_mode == Path("dir/inside").stat().st_mode  # it is for whom other new files are


def test_json_holds_no_control_character(tmp_path, monkeypatch):
    """A file, here in the home folder, that may be looked at in a terminal."""
    monkeypatch.setenv("HOME", str(tmp_path))
    text = {"text": "".join(map(chr, PRINTABLE)) + "é東\n\t"}
    files.write_json("~/run.json", text)
    written = (tmp_path / "run.json").read_text(encoding="utf-8")
    assert json.loads(written) == text
    assert "é東" in written
    assert not {*written} & {*map(chr, PRINTABLE)}


BAR = """
import io, sys
from speculative.support.progress import tqdm, working
sys.stderr = io.StringIO()
sys.stderr.isatty = lambda: True
with working("work", 3, "unit") as bar:
    bar.update(2)
    bar.refresh()
print("67%" in sys.stderr.getvalue())
"""


def test_nonsense_in_tqdms_variables_does_no_harm():
    nonsense = {"TQDM_ASCII": "1", "TQDM_NCOLS": "x", "TQDM_MININTERVAL": "", "TQDM_BAR_FORMAT": "{x}"}
    done = python("-c", BAR, env=os.environ | nonsense)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_user_without_a_home_or_with_another_users_has_no_cache(monkeypatch):
    """docker run --user gives such a one."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", Mock(side_effect=PermissionError))
        assert not os.path.exists(note_of("files"))
        leave(note_of("files"))
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    assert note_of("files") is None
    assert history_file() is None
    pytest.importorskip("jax")
    from speculative.engines.jax import compilation

    before = compilation.jax.config.jax_compilation_cache_dir
    compilation.keep_compiled()
    assert compilation.jax.config.jax_compilation_cache_dir is None
    compilation.jax.config.update("jax_compilation_cache_dir", before)
    monkeypatch.setattr(compilation, "cache_home", lambda: Path(__file__) / "cache")  # a folder that cannot be made
    assert compilation.users_folder() is None


def test_the_first_of_several_prompts_is_decoded_with_a_line(tmp_path, capsys):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("one", "two", "three")))
    assert choose_prompts(Options(prompt_file=str(path))) == ["one"]
    line = f"only the first of 3 prompts in {path} is decoded: --batch 3 decodes all of them\n"
    assert capsys.readouterr().err == line
    path.write_text('{"prompt": "one"}\n{"prompt": ""}\n')
    with pytest.raises(UserError, match="prompt 2 should be an object"):
        choose_prompts(Options(prompt_file=str(path), batch=2))
    path.write_text(json.dumps({"prompt": "one"}))
    assert choose_prompts(Options(prompt_file=str(path))) == ["one"]
    assert capsys.readouterr().err == ""
