"""Options: frozen, with each default once; and each flag about models and decoding reaches a decode."""

import pytest
from speculative.support.arguments import Flag
from tiny import decoded

from speculative import filters
from speculative.filters import Filters
from speculative.options import model_flags, parse_options
from speculative.session import Session
from speculative.support import arguments

# A session is given the prompt and N by who asks it for a text; --demo has become other values; the rest is JAX's.
NOT_READ = {"prompt", "n_tokens_to_generate", "demo", "mesh", "data_parallel"}


class Watched:
    """Options that note which flags are read."""

    def __init__(self, options):
        self.options = options
        self.read = set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self.options, name)

    def taken(self, names):
        return {name: getattr(self, name) for name in names}


def flags_that_reach_no_decode(flags, given):
    o = Watched(parse_options(flags, given))
    session = Session(o, given, parse_options)
    assert len(decoded(session.texts(session.pair.speculative, ["the"], 4))) == 4
    return {*flags} - o.read - NOT_READ


@pytest.fixture
def given(tiny_pair):
    """Of a decode that asks every drafter with flags of its own."""
    names = {"draft_model_size": "draft", "target_model_size": "target", "models_dir": str(tiny_pair), "threads": 1}
    return names | {"drafter": "self/model+ngram", "stop": "no such text"}


def test_every_flag_about_models_and_decoding_reaches_a_decode(given):
    assert flags_that_reach_no_decode(model_flags(), given) == set()


def test_a_flag_that_is_declared_and_not_carried_through_is_named(given):
    toy = Flag("toy_filter", arguments.share, "keeps half of the tokens", live=True)
    flags = model_flags() | {"toy_filter": toy}
    assert flags_that_reach_no_decode(flags, given | {"toy_filter": "0.5"}) == {"toy_filter"}


def test_a_filter_is_a_field_and_a_flag():
    assert {"temperature", *(flag.name for flag in filters.FLAGS)} == {*Filters._fields}


def test_options_are_frozen_and_equal_where_their_values_are():
    o = parse_options(model_flags(), {"K": 8})
    assert o == parse_options(model_flags(), {}).replaced(K=8)
    with pytest.raises(AttributeError):
        o.K = 4
