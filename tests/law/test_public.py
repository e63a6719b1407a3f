"""Public samplers in the law's forms: the list, what is found in a checkout, and transformers' as installed."""

import re
import subprocess
import sys

import pytest
from tiny import ROOT

from benchmarks import public
from benchmarks.samplers.listed import SAMPLERS, Sampler
from speculative.support.errors import UserError

BLOGS_LOOP = """\
import missing.thing
import numpy as np

def sample(p):
    return np.random.choice(len(p), p=p)

def decode(x, draft_model, target_model, N, K):
    for _ in range(N):
        x = np.append(x, sample(draft_model(x)[-1]))
    return x
"""
ADAPTER = """\
def project():
    from made.loop import decode

    def speculative_sampling(x, draft_model, target_model, N, K):
        # the target drafts
        return decode(x, {}, target_model, N, K)

    return speculative_sampling
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A project in a folder, whose __init__ cannot be run, and a list with it."""
    folder = tmp_path / "somebody" / "project" / "made"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError")
    (folder / "loop.py").write_text(BLOGS_LOOP)
    monkeypatch.setattr(public, "ADAPTERS", tmp_path / "adapters.py")
    sampler = Sampler("somebody/project", "made/loop.py", "decode", "abc1234", ("missing",), "its cause")
    monkeypatch.setattr(public, "SAMPLERS", {"project": sampler})
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(public.following, "MOST_NODES", 1_000, raising=False)
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if name.split(".")[0] in ("made", "missing"):
            del sys.modules[name]


@pytest.mark.parametrize("drafts_with, verdict", [("target_model", "lossless"), ("draft_model", "not lossless")])
def test_a_checkout_is_judged_without_its_init_and_what_it_misses(checkout, drafts_with, verdict):
    public.ADAPTERS.write_text(ADAPTER.format(drafts_with))
    row = public.judge(checkout / "somebody" / "project", "project")
    assert row.verdict == verdict
    assert row.lines == "2"
    assert row.file == "[somebody/project](https://github.com/somebody/project/blob/abc1234/made/loop.py)"
    assert row.cause == ("its cause" if verdict == "not lossless" else "")


def test_a_project_may_be_there_at_several_versions(checkout):
    [sampler] = public.SAMPLERS.values()
    assert public.checkout_of(sampler, checkout) == checkout / "somebody" / "project"
    (checkout / "somebody" / "project@abc1234").mkdir()
    assert public.checkout_of(sampler, checkout) == checkout / "somebody" / "project@abc1234"


def test_the_words_of_texts_that_are_drawn():
    words = "No loss seen in 750 texts of each of 4 cases: a loss above 15.3% would most likely have shown. Why."
    assert public.in_short(public.Verdict(None, 0.15, None, None, words)) == "no loss seen in 750 texts"


def test_pytorch_does_the_lines_of_a_kernel():
    torch = pytest.importorskip("torch")
    from benchmarks.samplers.networks import Kernel
    from benchmarks.samplers.networks import Language as tl

    def kernel(largest_ptr, x_ptr, n, BLOCK_SIZE):
        row = tl.program_id(0)
        places = tl.arange(0, BLOCK_SIZE)
        x = tl.load(x_ptr + row * n + places, mask=places < n, other=0.0)
        _, index = tl.max(x, axis=0, return_indices=True)
        tl.store(largest_ptr + row, tl.minimum(0 + index, n - 1))

    x = torch.tensor([[1.0, 3.0, 2.0], [5.0, 4.0, 0.0]])
    largest = torch.zeros(2, dtype=torch.int64)
    Kernel(kernel)[(2,)](largest, x, 3, BLOCK_SIZE=8192, num_warps=1)
    assert largest.tolist() == [1, 0]


def test_every_sampler_of_the_list_has_its_adapter_and_a_row_of_docs():
    adapters = re.findall(r"^def (\w+)\(", public.ADAPTERS.read_text(encoding="utf-8"), re.MULTILINE)
    assert adapters == [*SAMPLERS]
    assert len(SAMPLERS) >= 45
    kept = [public.row_of(sampler, "", "") for sampler in SAMPLERS.values()]
    assert [row[:2] for row in rows_of_docs()] == [row[:2] for row in kept]


def rows_of_docs() -> list[public.Row]:
    text = (ROOT / "docs" / "law.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)[2:]
    return [public.Row(*line.split("|")) for line in lines]


def test_the_docs_have_the_causes_and_lines_of_what_is_not_lossless():
    for row, (name, sampler) in zip(rows_of_docs(), SAMPLERS.items(), strict=True):
        assert row.cause == (sampler.cause if row.verdict.startswith("not lossless") else "")
        assert row.lines == public.lines_added(name)
        assert row.verdict.startswith("cannot tell") or float(row.distance) >= 0


def test_another_name_and_a_folder_without_checkouts_are_told(tmp_path, capsys):
    with pytest.raises(UserError, match=r"eagl is not a sampler of the list: .*; did you mean eagle"):
        public.main([str(tmp_path), "eagl"])
    public.main([str(tmp_path), "jaymody"])
    assert f"not there: {tmp_path}" in capsys.readouterr().out


@pytest.mark.slow
def test_the_installed_transformers_are_lossless():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    command = [sys.executable, "-m", "benchmarks", "public", str(ROOT), "transformers_installed"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "|lossless|" in run.stdout
