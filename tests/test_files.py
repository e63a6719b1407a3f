"""Files appear whole or not at all, under their own names, and never over files that are read."""

import os
import stat
import sys
import threading
from pathlib import Path

import pytest
from tiny import refusal

from speculative.measure.run import Run
from speculative.support import files


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


def test_what_is_read_is_not_overwritten_by_any_name(folder):
    for read in ("text", "link", "hard"):
        for written in ("text", "./text", "dir/../text", "link", "hard"):
            assert "would be overwritten" in refusal(files.check_outputs, [None, written], [None, read])
        files.check_outputs([None, "other"], [None, read])
    assert "would be overwritten" in refusal(files.check_outputs, ["dir/inside"], ["dir"])
    files.check_outputs(["dir/other"], ["dir", "missing"])
    for twice in (("a", "a"), ("a", "./a"), ("a", "dir/../a"), ("text", "hard"), ("link", "text")):
        assert "written twice" in refusal(files.check_outputs, twice)
    files.check_outputs((os.devnull, os.devnull))


def test_what_is_no_name_of_a_file(folder, run_json):
    _, document = run_json(details=True)
    before = sorted(folder.iterdir())
    run = Run(document)
    for path in ("", "a\0b", "a\0/b", "\ud800", None, 5, b"page"):
        for write in (run.page, run.json):
            assert refusal(write, path) == f"{path!r} is not the name of a file"
    assert len(refusal(run.json, "a" * 100_000)) < 300
    assert sorted(folder.iterdir()) == before


def test_the_file_behind_standard_input_is_not_overwritten(folder):
    """The command is --prompt_file=- < text."""
    saved = os.dup(0)
    with open("text") as file:
        os.dup2(file.fileno(), 0)
        try:
            assert "would be overwritten" in refusal(files.check_outputs, ["text"], ["-"])
        finally:
            os.dup2(saved, 0)
            os.close(saved)


def test_a_file_with_the_name_of_a_part_is_let_alone(folder):
    """It may be a file, a link or a folder."""
    Path("text.part").write_text("mine")
    Path("run.part").symlink_to("dir/inside")
    Path("page.part").mkdir()
    before = {*os.listdir()}
    for name in ("text", "run", "page", "link"):
        files.check_outputs([name])
        files.write_text(name, "new")
        assert Path(name).read_text() == "new"
    assert Path("text.part").read_text() == "mine"
    assert Path("dir/inside").read_text() == "old"
    assert Path("run.part").is_symlink()
    assert Path("link").is_symlink()
    assert {*os.listdir()} == before | {"run", "page"}
    assert Path("run").stat().st_mode == Path("text.part").stat().st_mode  # it is for whom other new files are


def test_several_that_write_one_file(folder):
    """A reader finds the whole text of one of them."""
    contents = [str(n) * 200_000 for n in range(4)]
    files.write_text("text", contents[0])

    def write(content):
        for _ in range(20):
            files.write_text("text", content)

    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert Path("text").read_text() in contents
    assert not list(folder.glob("*.part"))
    assert not list(folder.glob(".*.part"))


def test_what_goes_wrong_leaves_the_old_file_and_nothing_else(folder):
    before = sorted(os.listdir())
    with pytest.raises(KeyboardInterrupt), files.replacing("text") as part:
        Path(part).write_text("half")
        raise KeyboardInterrupt
    assert Path("text").read_text() == "old"
    assert sorted(os.listdir()) == before


def test_a_name_as_long_as_the_system_allows(folder):
    files.check_outputs(["a" * 255])
    files.write_text("a" * 255, "new")
    assert Path("a" * 255).read_text() == "new"
    assert "too long" in refusal(files.check_outputs, ["a" * 256])


def test_pipes_and_devices(folder):
    """A named pipe could wait for ever for its other end."""
    assert "it is a pipe or a device" in refusal(files.check_outputs, ["pipe"])
    with pytest.raises(OSError, match="it is a pipe or a device"):
        files.open_to_read("pipe")
    with pytest.raises(OSError, match="it is there, and no file"), files.replacing("pipe"):
        pass
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    files.check_outputs([os.devnull])
    files.write_json(os.devnull, {})
    assert not os.path.isfile(os.devnull)
    assert os.path.exists(os.devnull)
    if sys.platform == "linux":
        assert "it is a pipe or a device" in refusal(files.check_outputs, ["/dev/zero"])


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="needs names for what is open")
def test_what_a_shell_has_opened_is_used_as_it_is():
    """The shell makes them for <(command) and >(command)."""
    reader, writer = os.pipe()
    files.check_outputs([f"/dev/fd/{writer}"])
    files.write_text(f"/dev/fd/{writer}", "page")
    os.close(writer)
    with files.open_to_read(f"/dev/fd/{reader}") as f:
        assert f.read() == b"page"
    os.close(reader)
