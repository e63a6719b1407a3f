"""Texts that are decoded together are those that each would be alone, to the bit."""

import threading

import pytest

from speculative.engines.together import Closed, Strand


def counting(strand_of, events, faults=()):
    """A function that waits at these events, and returns the answers."""
    answers = []

    def function():
        for event in events:
            answers.append(strand_of[0].wait_at(event))
            if event in faults:
                raise ValueError(event)

    return function, answers


def test_a_strand_runs_in_turn_with_its_caller():
    strands = []
    function, answers = counting(strands, "abc")
    strands.append(Strand(function))
    seen = []
    strands[0].resume()
    while not strands[0].has_ended:
        seen.append(strands[0].event)
        strands[0].resume(strands[0].event.upper())
    assert (seen, answers) == (["a", "b", "c"], ["A", "B", "C"])


def test_an_error_is_raised_where_the_strand_is_resumed():
    strands = []
    strands.append(Strand(counting(strands, "ab", faults="a")[0]))
    strands[0].resume()
    with pytest.raises(ValueError, match="a"):
        strands[0].resume()
    assert strands[0].has_ended


def test_a_strand_that_is_closed_ends_where_it_waits_and_leaves_no_thread():
    before = threading.active_count()
    ended = []
    strands = []

    def function():
        try:
            strands[-1].wait_at("a")
        except Closed:
            ended.append(True)
            raise

    for begun in (True, False):
        strands.append(Strand(function))
        if begun:
            strands[-1].resume()
        strands[-1].close()
    assert ended == [True]
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    assert threading.active_count() <= before + 1
