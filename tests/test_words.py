"""The words about things that take long and things that are no command, and how much they quote."""

import numpy as np
import pytest

from speculative import load_pair


def test_an_empty_text_from_python_is_told_how_to_begin():
    pair = load_pair("tiny-draft", "tiny-target", K=4, temperature=0).pair
    for decode in (pair.autoregressive, pair.speculative):
        with pytest.raises(ValueError, match=r"an empty text begins with <.endoftext.>"):
            list(decode(pair.encoder.encode(""), 5, np.random.default_rng(0)))
