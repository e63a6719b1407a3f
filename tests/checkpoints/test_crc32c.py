"""The checksum of OpenAI's tensors, where google-crc32c has only Python: engine.c computes it, or a line says how long
it takes."""

import google_crc32c
import pytest

from speculative.checkpoints import openai
from speculative.engines.c.library import c_crc32c, compiles


@pytest.fixture
def in_python(monkeypatch):
    """The calls of google-crc32c, which has no C."""
    calls = []
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    monkeypatch.setattr(google_crc32c, "value", lambda content: calls.append(len(content)) or 0)
    monkeypatch.setattr(openai, "in_c", None)
    return calls


def test_engine_c_computes_it(in_python, monkeypatch):
    if not compiles():
        pytest.skip("there is no compiler")
    assert openai.is_slow()
    monkeypatch.setattr(openai, "in_c", c_crc32c)
    assert not openai.is_slow()
    assert openai.crc32c(b"123456789") == 0xE3069283  # the check value of this sum
    assert in_python == []


@pytest.mark.parametrize(("n_bytes", "minutes"), [(6_230_444_800, "30 min"), (10**6, None)])
def test_without_it_a_line_says_how_long_it_takes(n_bytes, minutes, in_python, capsys):
    openai.warn_about.cache_clear()
    openai.warn_about("data", n_bytes)
    said = capsys.readouterr().err
    assert said.startswith(f"checking the weights takes about {minutes}, once: ") if minutes else said == ""


def test_with_c_of_its_own_nothing_is_said(capsys):
    openai.warn_about("data", 10**12)
    assert capsys.readouterr().err == ""
