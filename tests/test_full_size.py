"""Grown models compute what the small ones do, in files that any reader of these formats takes."""

import shutil

import numpy as np
import pytest
from conftest import MODELS, hugging_face_name, write_safetensors, write_small_files
from safetensors import safe_open
from test_bundled import held_out_prompts
from tiny import refusal

pytest.importorskip("jax")

from benchmarks import full_size
from encoder import END_OF_TEXT, get_encoder
from gpt2 import gpt2
from speculative.checkpoints.config import load_hparams
from speculative.checkpoints.loading import load_params
from speculative.checkpoints.official import WEIGHT_BYTES
from speculative.checkpoints.tensors import checkpoint_shapes, nested, parameter_count
from speculative.drafters.heads import check_heads, head_model, load_heads
from speculative.engines.models import create_model_fn
from speculative.filters import GREEDY
from speculative.support.errors import UserError
from utils import load_encoder_hparams_and_params


@pytest.mark.parametrize("n_embd", [40, 64, 72, 104])  # repeated once and 8 or 32 left over, twice and 8, thrice and 8
def test_a_grown_model_gives_the_same_logits(tiny_hparams, tiny_arrays, n_embd):
    new = {"n_vocab": 300, "n_ctx": 24, "n_embd": n_embd, "n_head": n_embd // 8, "n_layer": 4}
    tensors = dict(full_size.grow(tiny_arrays, tiny_hparams, new))
    assert {name: array.shape for name, array in tensors.items()} == checkpoint_shapes(new)
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float32)}
    assert (tensors["wpe"][16:] == tensors["wpe"][15]).all()  # positions beyond the small context

    x = np.random.default_rng(0).integers(0, 260, 16)
    small = nested(tiny_arrays)
    grown = nested(tensors)
    small = gpt2(x, **small, n_head=4)
    grown = gpt2(x, **grown, n_head=new["n_head"])
    np.testing.assert_allclose(grown[:, :260], small, rtol=0, atol=1e-5 * np.abs(small).max())
    np.testing.assert_allclose(grown[:, 260:], -200, rtol=1e-5)


@pytest.fixture(scope="module")
def grown_target(tmp_path_factory):
    """The bundled target, twice as wide and more, as full_size writes it."""
    models_dir = tmp_path_factory.mktemp("grown")
    shape = {"n_vocab": 2500, "n_ctx": 300, "n_embd": 448, "n_head": 7, "n_layer": 13}
    full_size.grow_model(MODELS / "tiny-target", models_dir / "target", shape, full_size.write_safetensors)
    return models_dir


def test_the_grown_target_guesses_the_same_and_its_heads_nearly(grown_target):
    """A head's first guess is the same nine times in ten."""
    guesses = []
    own = []
    for name, models_dir in (("tiny-target", MODELS), ("target", grown_target)):
        encoder, hparams, params = load_encoder_hparams_and_params(name, str(models_dir))
        model = create_model_fn(params, hparams, GREEDY)
        heads = check_heads(load_heads(str(models_dir / name), hparams), hparams, params["ln_f"])
        guess = head_model(model, heads, GREEDY)
        for prompt in held_out_prompts():
            x = encoder.encode(prompt)
            own.append(model(x)[0].argmax())
            guesses.append(guess(np.append(x, own[-1])).argmax(-1))
    assert own[:20] == own[20:]
    small, grown = np.reshape(guesses, (2, -1))
    assert np.mean(small == grown) > 0.9


def test_the_vocabulary_keeps_its_ids_and_its_way_with_any_text(grown_target):
    small, grown = get_encoder("tiny-target", MODELS), get_encoder("target", grown_target)
    assert (grown.n_vocab, grown.eot) == (2500, small.eot)
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x3000 * 9, 7), 0x1F600, 0x10FFFF]))
    for text in [*held_out_prompts(), every, " naïve café — “quoted” 中文 🙂\n\n\tdef f(x):", "ÀÁõöÿ" * 3]:
        assert grown.encode(text) == small.encode(text)
        assert grown.decode(grown.encode(text)) == text
    assert grown.encode(END_OF_TEXT, allowed_special=True) == [small.eot]
    for i in range(2048, 2500):
        with pytest.raises(UnicodeDecodeError):
            grown.id_to_bytes[i].decode("utf-8")


def test_both_formats_hold_the_same_and_what_is_noted(tmp_path, tiny_hparams, tiny_arrays):
    small = tmp_path / "small"
    small.mkdir()
    write_small_files(small, tiny_hparams)
    write_safetensors(small / "model.safetensors", tiny_arrays)
    new = {"n_vocab": 265, "n_ctx": 20, "n_embd": 48, "n_head": 6, "n_layer": 3}
    kept = {}
    for name, write in (("a", full_size.write_safetensors), ("b", full_size.write_tensorflow)):
        full_size.grow_model(small, tmp_path / name, new, write)
        kept[name] = {}
        load_params(str(tmp_path / name), new, kept[name].setdefault)
        stand_in = load_hparams(tmp_path / name / "hparams.json")["stand_in"]
        assert stand_in == f"it computes what small does, at the shape and cost of {name}"
    grown = dict(full_size.grow(tiny_arrays, tiny_hparams, new))
    for arrays in kept.values():
        assert arrays.keys() == grown.keys()
        assert all(np.array_equal(arrays[name], grown[name]) for name in grown)
    assert (tmp_path / "b" / "model.ckpt.data-00000-of-00001").stat().st_size == 4 * parameter_count(new)

    with safe_open(tmp_path / "a" / "model.safetensors", "np") as f:  # whose library checks the file as it opens it
        assert {*f.keys()} == {*map(hugging_face_name, kept["a"])}
        assert np.array_equal(f.get_tensor("h.2.mlp.c_fc.weight"), kept["a"]["h2/mlp/c_fc/w"])


# ---- The command -----------------------------------------------------------------------------------------------------


def test_shapes_are_the_official_ones(tmp_path, capsys):
    noted = {}

    def grow(small, folder, new, write):
        noted[folder.name] = (small.name, 4 * parameter_count(new), write)
        folder.mkdir()

    full_size.main([str(tmp_path / "out"), "--format", "tensorflow"], grow)
    assert noted == {
        "124M": ("tiny-draft", WEIGHT_BYTES["124M"], full_size.write_tensorflow),
        "1558M": ("tiny-target", WEIGHT_BYTES["1558M"], full_size.write_tensorflow),
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"124M", "1558M"}
    assert "\n124M: 124,439,808 parameters in 0 s\n1558M: " in capsys.readouterr().out


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device"), UserError("no")])
def test_both_models_or_none(tmp_path, error):
    def grow(small, folder, new, write):
        folder.mkdir()
        (folder / "model.safetensors").write_text("half a model")
        if folder.name == "1558M":
            raise error

    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else UserError):
        full_size.main([str(tmp_path)], grow)
    assert not list(tmp_path.iterdir())


def test_a_disk_too_small_and_a_model_that_is_there_are_refused_beforehand(tmp_path):
    usage = shutil.disk_usage(tmp_path)._replace(free=6e9)
    line = refusal(full_size.main, [str(tmp_path)], disk_usage=lambda path: usage)
    assert "has 6.0 GB of disk left, and 6.8 are needed" in line
    (tmp_path / "1558M").mkdir()
    line = refusal(full_size.main, [str(tmp_path)])
    assert "1558M is there already: delete it, or name another folder" in line
    assert [path.name for path in tmp_path.iterdir()] == ["1558M"]
