"""Ends a decoding at a stop text.

A stop text may begin in the middle of one token and end in the middle of another, so it is looked for in the bytes of
the new tokens, each time one is added. "<|endoftext|>" is the token of that name, and not the characters.

Decoding ends with the first token that completes the stop text, the same token for both decoders. That token counts;
what the same window gave after it does not, anywhere: see cut. The text ends before the stop text (StreamDecoder).
"""

from speculative.blog.encoder import StreamDecoder
from speculative.sampling import Proposal, Step
from speculative.support import arguments
from speculative.support.arguments import Flag
from speculative.trees import Tree, cut_tree


def read(text: StreamDecoder, step: Step) -> tuple[Step, list[str]]:
    """The step up to the token that completes the stop text, all of it where none does; and the text of each token."""
    pieces = []
    for token in step.tokens:
        pieces.append(text.push([token]))
        if text.stopped:
            break
    return cut(step, len(pieces)), pieces


def cut(step: Step, n: int) -> Step:
    """The step's first n tokens, as if the draft had proposed no more than those.

    If any are cut, the n that stay are all accepted drafts: the target's own token is the last of a step.
    """
    if n == len(step.tokens):
        return step
    if isinstance(step.proposal, Tree):
        return cut_tree(step, n)
    return Step(
        step.tokens[:n],
        Proposal(*(column[:n] for column in step.proposal)),
        step.q[:n],
        step.tests[:n],
        stopped=True,
    )


FLAGS = (Flag("stop", arguments.text, "end before this text, which may be <|endoftext|>", live=True),)
