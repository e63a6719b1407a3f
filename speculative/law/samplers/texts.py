"""The law of the texts of a decoder."""

import contextlib
import sys
from collections.abc import Callable, Iterator

from speculative.law.generators import NoDistribution
from speculative.law.paths import law_of
from speculative.law.samplers.cases import Case
from speculative.law.samplers.guard import as_user_errors, quietly
from speculative.law.samplers.places import replaced
from speculative.law.samplers.stand_ins import StandIns, UnknownStandIns
from speculative.law.walks import WALK

MOST_PATHS = 2_000  # of a case


@contextlib.contextmanager
def stand_ins_in(function: Callable, stand_ins: StandIns | None = None) -> Iterator[None]:
    """Within, the function's random numbers are those of the stand-ins, by default unknown ones; and it is quiet."""
    stand_ins = stand_ins or UnknownStandIns()
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced(function, stand_ins))
        if "torch" in sys.modules:
            stack.enter_context(stand_ins.in_torch())
        stack.enter_context(quietly())
        yield


def program_of(decode: Callable, case: Case) -> Callable:
    """program(rng) -> the text, () if a draw is impossible. Raises UserError.

    decode(draft, target, case, rng) -> the tokens after the prompt; somebody's code needs `stand_ins_in` around it.
    """

    def counted(model):
        def rows(*args, **options):
            WALK.count()
            return model(*args, **options)

        return rows

    draft, target = map(counted, case.models())

    def program(rng):
        try:
            with as_user_errors():
                return tuple(map(int, decode(draft, target, case, rng)))
        except NoDistribution:
            return ()

    return program


def law_of_texts(decode: Callable, case: Case, most: int = MOST_PATHS, reseeds: bool = True) -> dict:
    """The exact law of the texts. Raises UserError."""
    return law_of(program_of(decode, case), most, reseeds)
