"""Texts as other systems and shells give them: line ends, encodings, JSON, pipes and special files."""

import codecs
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from tiny import MAIN, ROOT, decoded, refusal, tokens_of

from speculative.cli import modes
from speculative.cli.command import read_words
from speculative.cli.modes import replay
from speculative.run.decode import DECODERS
from speculative.run.options import Options
from speculative.support.files import check_outputs, standard_output, write_text
from speculative.support.texts import read_prompts, read_text

TEXT = "It was a dark night,\nand the wind\n\nwas cold.\n"
CONTENTS = {
    "LF": TEXT.encode(),
    "CRLF": TEXT.replace("\n", "\r\n").encode(),
    "UTF-8 with a mark": codecs.BOM_UTF8 + TEXT.encode(),
    "UTF-16, little": codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
    "UTF-16, big, CRLF": codecs.BOM_UTF16_BE + TEXT.replace("\n", "\r\n").encode("utf-16-be"),
    "UTF-32": codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"),
}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_text_is_the_same_whichever_system_wrote_it(content, tmp_path):
    (tmp_path / "text.txt").write_bytes(content)
    assert read_text(str(tmp_path / "text.txt"), "text") == TEXT


PROMPTS = {
    "prompts.jsonl": '{"prompt": "It"}\n\n{"prompt": "He"}\n',
    "prompts.ndjson": '{"prompt": "It"}\r\n{"prompt": "He"}\r\n',
    "prompts.json": '[{"prompt": "It"},\n {"prompt": "He"}]',
    "lines.json": '{"prompt": "It"}\n{"prompt": "He"}\n',
    "prompts.txt": "It\r\n\r\nHe\r\n",
}


@pytest.mark.parametrize(("name", "text"), PROMPTS.items())
def test_prompts_are_read_in_each_form(name, text, tmp_path):
    (tmp_path / name).write_bytes(text.encode())
    assert read_prompts(str(tmp_path / name)) == ["It", "He"]
    assert read_prompts(str(tmp_path / name), 1) == ["It"]


def test_an_object_is_one_prompt_and_another_value_is_refused(tmp_path):
    (tmp_path / "one.json").write_text('{"prompt": "It"}')
    assert read_prompts(str(tmp_path / "one.json")) == ["It"]
    (tmp_path / "wrong.json").write_text("[]")
    assert 'has no prompts: give objects with "prompt"' in refusal(read_prompts, str(tmp_path / "wrong.json"))
    for text in ('["It"]', "5", '{"text": "It"}', '[{"prompt": ""}]', "It was"):
        (tmp_path / "wrong.json").write_text(text)
        assert 'should be an object with "prompt"' in refusal(read_prompts, str(tmp_path / "wrong.json"))


# ---- Outputs ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_is_written_straight_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_outputs([str(pipe)])
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(str(pipe), "a run")
    reader.join()
    assert read == ["a run"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="this system has no files of open files")
def test_a_pipe_without_a_name_is_written_straight():
    """As a shell gives one: --json >(jq .)"""
    reading, writing = os.pipe()
    check_outputs([f"/dev/fd/{writing}"])
    write_text(f"/dev/fd/{writing}", "a run")
    os.close(writing)
    with open(reading) as f:
        assert f.read() == "a run"


def test_a_file_that_is_written_over_keeps_its_mode(tmp_path):
    path = tmp_path / "run.json"
    path.write_text("old")
    path.chmod(0o600)
    write_text(str(path), "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o600)


@pytest.mark.parametrize(
    ("name", "said"), [("", "it is a folder"), ("a" * 300, "name too long"), ("socket", "cannot write")]
)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(name, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        assert said in refusal(check_outputs, [str(tmp_path / name)])
    assert [*tmp_path.iterdir()] == [tmp_path / "socket"]


def test_without_a_standard_output_it_cannot_be_written(monkeypatch):
    monkeypatch.setattr(sys, "__stdout__", None)
    assert refusal(standard_output) == "there is no standard output to write to: give a file in place of -"
    assert "there is no standard output" in refusal(check_outputs, ["-"])


# ---- The command -----------------------------------------------------------------------------------------------------

RUN = [sys.executable, *MAIN, "--demo", "--target_model_size=tiny-target", "-n=4", "--quiet", "--only=speculative"]


def run(*words, text=None):
    done = subprocess.run([*RUN, *words], cwd=ROOT, input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_text_in_a_pipe_is_the_prompt_unless_one_is_typed():
    assert "Text = It was a dark night" in run(text="It was a dark night")
    assert "Text = Holmes" in run("--prompt=Holmes", text="It was a dark night")
    assert 'Text = "From the first' in run(text="")
    for prompts in ('{"prompt": "Holmes"}\n{"prompt": "It was"}\n', '[{"prompt": "Holmes"}, {"prompt": "It was"}]'):
        assert "Text = Holmes" in run(text=prompts)
    assert "Text = {" in run(text='{"text": 5}')


def test_dev_stdout_is_standard_output():
    assert json.loads(run("--json=/dev/stdout", text=""))["speculative"]


@pytest.mark.parametrize("name", DECODERS)
def test_with_text_nothing_but_the_generated_text_is_printed(name, command, pair):
    text = "".join(step.text for step in pair.decode(name, ["It was"], 20))
    assert command("--demo", "--text", f"--only={name}", "-n=20", "It was") == (0, text, "")


def test_a_text_for_a_pipe_has_its_characters_as_they_are(monkeypatch, capsys):
    session = SimpleNamespace(prompts=[""], decode=lambda *given: [SimpleNamespace(text="a\x0cb\x1b")])
    monkeypatch.setattr(modes, "Session", lambda o, **given: session)
    modes.print_text(Options(), print)
    assert capsys.readouterr().out == "a\x0cb\x1b"


def test_a_quoted_prompt_may_follow_a_stop_text():
    assert read_words(["--stop", ".", "It was"]) == {"stop": ["."], "prompt": "It was"}
    assert "a stop text is given as" in refusal(read_words, ["--stop", "It", "was"])


def test_a_seed_that_was_drawn_is_printed_and_written_and_gives_the_text_again(command, tmp_path):
    words = ("--demo", "-n=12", "--temperature=1", "--quiet", f"--json={tmp_path / 'run.json'}")
    status, _, said = command(*words, "--seed=random")
    document = json.loads((tmp_path / "run.json").read_text())
    seed = document["options"]["seed"]
    assert (status, said) == (0, f"drawn: --seed {seed}, with which the run can be repeated\n")
    command(*words, f"--seed={seed}")
    again = json.loads((tmp_path / "run.json").read_text())
    assert tokens_of(again) == tokens_of(document)
    command(*words, "--seed=random")
    assert tokens_of(json.loads((tmp_path / "run.json").read_text())) != tokens_of(document)


def test_a_file_jsonl_gets_a_line_for_each_text_in_the_order_of_the_prompts(command, pair, tmp_path):
    prompts = ["It was", "Holmes\u2028", "The man \u2014 \n"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    words = ("--demo", "--batch=2", "-n=12", "--temperature=1", "--quiet")
    assert command(*words, f"--prompt_file={tmp_path / 'a.jsonl'}", f"--json={tmp_path / 'b.jsonl'}")[0] == 0
    assert read_prompts(str(tmp_path / "b.jsonl")) == prompts
    session = pair.changed(temperature=1)
    for sample, line in enumerate((tmp_path / "b.jsonl").read_text("utf-8").split("\n")[:-1]):
        text = json.loads(line)
        steps = [*session.speculative(prompts[sample], 12, sample=sample)]
        assert text == {
            "prompt": prompts[sample],
            "text": "".join(step.text for step in steps),
            "tokens": decoded(steps),
            "iterations": len(steps),
            "drafted": sum(step.drafted for step in steps),
            "accepted": sum(step.accepted for step in steps),
            "autoregressive": "".join(step.text for step in session.autoregressive(prompts[sample], 12, sample=sample)),
        }
    line = refusal(replay, [str(tmp_path / "b.jsonl")])
    assert "has texts without their times: decode again with --json FILE.json" in line


def test_the_autoregressive_decode_alone_is_written_as_json(command, tmp_path):
    path = tmp_path / "run.json"
    words = ("--demo", "--target_model_size=tiny-target", "-n=4", "--only=autoregressive")
    assert command(*words, f"--json={path}")[0] == 0
    document = json.loads(path.read_text())
    assert document["speculative"] is None
    assert len(document["autoregressive"]["samples"][0]["tokens"]) == 4
