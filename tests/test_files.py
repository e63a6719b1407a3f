"""What is written appears whole or not at all, under its own name alone, and never over what is read."""

import os
import sys
import threading
from pathlib import Path

import pytest

from plumbing import files
from plumbing.errors import UserError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with a file, and a link of each kind to it."""
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("old")
    Path("dir").mkdir()
    Path("dir/inside").write_text("old")
    Path("link").symlink_to("text")
    os.link("text", "hard")
    os.mkfifo("pipe")
    return tmp_path


def refusal(action, *args):
    with pytest.raises(UserError) as caught:
        action(*args)
    line = str(caught.value)
    assert line.isprintable() and len(line) < 300
    return line


# ---- What the run reads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("written", ["text", "./text", "dir/../text", "link", "hard"])
@pytest.mark.parametrize("read", ["text", "link", "hard"])
def test_what_is_read_is_not_overwritten_by_any_name(written, read, folder):
    assert "would be overwritten" in refusal(files.check_outputs, [None, written], [None, read])
    files.check_outputs([None, "other"], [None, read])


def test_what_lies_in_a_folder_that_is_read_is_not_overwritten(folder):
    assert "would be overwritten" in refusal(files.check_outputs, ["dir/inside"], ["dir"])
    files.check_outputs(["dir/other"], ["dir", "missing"])


def test_the_file_behind_standard_input_is_not_overwritten(folder):
    """As in --prompt_file=- < text."""
    saved = os.dup(0)
    file = os.open("text", os.O_RDONLY)
    try:
        os.dup2(file, 0)
        assert "would be overwritten" in refusal(files.check_outputs, ["text"], ["-"])
    finally:
        os.dup2(saved, 0)
        os.close(saved)
        os.close(file)


@pytest.mark.parametrize("twice", [("a", "a"), ("a", "./a"), ("a", "dir/../a"), ("text", "hard"), ("link", "text")])
def test_nothing_is_written_twice(twice, folder):
    assert "written twice" in refusal(files.check_outputs, twice)
    files.check_outputs((os.devnull, os.devnull))


# ---- What stands beside a file ---------------------------------------------------------------------------------------


def test_a_file_with_the_name_of_a_part_is_let_alone(folder):
    """Whatever it is: a file, what a link leads to, a folder."""
    Path("text.part").write_text("mine")
    Path("run.part").symlink_to("dir/inside")
    Path("page.part").mkdir()
    for name in ("text", "run", "page"):
        files.check_outputs([name])
        files.write_text(name, "new")
        assert Path(name).read_text() == "new"
    assert Path("text.part").read_text() == "mine" and Path("dir/inside").read_text() == "old"
    assert Path("run.part").is_symlink() and Path("page.part").is_dir()
    assert sorted(os.listdir()) == sorted(
        [*("text", "run", "page", "text.part", "run.part", "page.part"), *("dir", "link", "hard", "pipe")]
    )


def test_several_that_write_one_file(folder):
    """A reader finds what one of them wrote, whole."""
    texts = [str(n) * 200_000 for n in range(4)]
    Path("text").write_text(texts[0])

    def write(text):
        for _ in range(20):
            files.write_text("text", text)

    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert Path("text").read_text() in texts
    assert not list(folder.glob("*.part")) and not list(folder.glob(".*.part"))


def test_what_goes_wrong_leaves_the_old_file_and_nothing_else(folder):
    before = sorted(os.listdir())
    with pytest.raises(KeyboardInterrupt), files.replacing("text") as part:
        Path(part).write_text("half")
        raise KeyboardInterrupt
    assert Path("text").read_text() == "old" and sorted(os.listdir()) == before


def test_a_new_file_is_for_whom_other_new_files_are(folder):
    Path("other").touch()
    files.write_text("new", "")
    assert Path("new").stat().st_mode == Path("other").stat().st_mode


def test_a_name_as_long_as_the_system_allows(folder):
    files.check_outputs(["a" * 255])
    files.write_text("a" * 255, "new")
    assert Path("a" * 255).read_text() == "new"
    assert "too long" in refusal(files.check_outputs, ["a" * 256])


# ---- Pipes -----------------------------------------------------------------------------------------------------------


def test_a_pipe_with_a_name_is_refused(folder):
    """Nobody may ever be at its other end."""
    assert "it is a pipe or a device" in refusal(files.check_outputs, ["pipe"])
    with pytest.raises(OSError, match="it is a pipe or a device"):
        files.open_to_read("pipe")


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="needs names for what is open")
def test_what_a_shell_has_opened_is_used_as_it_is():
    """<(command) and >(command)."""
    reader, writer = os.pipe()
    files.check_outputs([f"/dev/fd/{writer}"])
    files.write_text(f"/dev/fd/{writer}", "page")
    os.close(writer)
    with files.open_to_read(f"/dev/fd/{reader}") as f:
        assert f.read() == b"page"
    os.close(reader)


def test_devices(folder):
    files.check_outputs([os.devnull])
    files.write_json(os.devnull, {})
    assert not os.path.isfile(os.devnull) and os.path.exists(os.devnull)
    if sys.platform == "linux":
        assert "it is a pipe or a device" in refusal(files.check_outputs, ["/dev/zero"])
