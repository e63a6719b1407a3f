"""Several texts at once: each has its own loop, caches and random numbers, and a call of a model computes the rows of
all texts that wait for it, to the bit those of each alone.

The loops take turns, each in a greenlet: where a loop needs rows of a network, it hands the request to the batch and
waits. If all loops wait for rows, the batch computes those of one network for all that asked it. So nothing here runs
in another thread, and a user's functions are called in the caller's own. A round of two texts:

    text A                    text B                    the batch
    asks for draft rows       asks for draft rows       one call of the draft: both go on
    (as often as they draft)
    asks for target rows      asks for target rows      one call of the target: both go on
    has a step                has a step                yields both steps, then both go on
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from threading import get_ident
from typing import Any, NamedTuple

from greenlet import GreenletExit, getcurrent, greenlet

from speculative.engines.contract import PlacedStep
from speculative.engines.model import Call, Model, new_log
from speculative.engines.network import LOCK, CachedNetwork, Rows, TextRows
from speculative.run.decode import Ids, Loaded, Setup, Text, new_loop, new_models
from speculative.run.observer import Observer
from speculative.run.steps import TextStep, Times
from speculative.sampling import Step
from speculative.support.errors import UserError


def decode_together(
    setup: Setup,
    decoder: str,
    inputs: Sequence[Ids],
    N: int,
    first_sample: int = 0,
    observer: Observer | None = None,
) -> Iterator[TextStep]:
    """Yield the steps of decode.decode for several texts, as many together as the plan's batch; text_index says whose
    each is. If the engine has loops on a device, these decode."""
    plan = setup.plan
    n_together = len(inputs) if plan.batch > 1 else 1  # a batch gives its seats to all texts in turn
    for first in range(0, len(inputs), n_together):
        group = inputs[first : first + n_together]
        texts = []
        for text_index in range(first, first + len(group)):
            texts.append(Text(setup, text_index, plan.rng(first_sample + text_index), observer))
        rngs = [text.rng for text in texts]

        def is_stopped(place: int, texts: Sequence[Text] = texts) -> bool:  # bound now: the loop goes on to others
            return texts[place].stream.stopped

        if setup.device:
            times = Times(setup.device.logs)
            rounds = setup.device.rounds(decoder, group, N, rngs, is_stopped)
        else:
            batch = Batch(setup, min(len(group), plan.batch))
            times = Times(batch.logs)
            rounds = batch.rounds(decoder, group, N, rngs, is_stopped)
        yield from steps_of_rounds(rounds, texts, times)


def steps_of_rounds(rounds: Iterator[Sequence[PlacedStep]], texts: Sequence[Text], times: Times) -> Iterator[TextStep]:
    """Yield each step of these rounds with its text. The first of a round has its times."""
    times.begin()
    for served in rounds:
        times.end()
        steps = [texts[place].add(step, chances) for place, step, chances in served]
        all_stopped = all(text.stream.stopped for text in texts)
        times.write_to(steps[0], all_stopped)
        yield from steps
        if all_stopped:
            break
        times.begin()
    for text in texts:
        yield from text.rest()


class Request(NamedTuple):
    """A call of a network, for which a text waits."""

    network: CachedNetwork  # the session's, whose weights all texts share
    feed: TextRows
    asked: float  # when, by time.perf_counter


class PassInTurn:
    """The forward pass of a text's network: it waits until the batch has computed its rows beside those of others."""

    def __init__(self, network: CachedNetwork):
        """network: of the session."""
        self.network = network

    def __call__(self, *arguments) -> Rows:
        feed = TextRows(*arguments)
        return getcurrent().parent.switch(Request(self.network, feed, time.perf_counter()))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.network.forward, name)


class Seat:
    """The networks of one text at a time: their weights are those of all texts, their caches its own."""

    def __init__(self, loaded: Loaded):
        """loaded: of the session, by role."""
        self.loaded = dict(loaded)
        for role, network in loaded.items():
            if isinstance(network, CachedNetwork):
                self.loaded[role] = network.with_own_cache(PassInTurn(network))
        self.loop: greenlet | None = None  # greenlet in which the text's loop runs
        self.thread = 0  # the thread of the loop
        self.request: Request | None = None  # rows that the loop waits for
        self.step: PlacedStep | None = None  # step that the loop has yielded

    @property
    def is_free(self) -> bool:
        return self.loop is None or self.loop.dead

    def start(self, place: int, new_steps: Callable[[int, Loaded], Iterator[Step]]) -> None:
        """Begin a text. place: of the text in the group that is decoded. new_steps(place, loaded): its loop."""
        for network in self.loaded.values():
            if isinstance(network, CachedNetwork):
                network.forget()

        def run() -> None:
            for step in new_steps(place, self.loaded):
                getcurrent().parent.switch(PlacedStep(place, step))

        self.loop = greenlet(run)
        self.thread = get_ident()
        self.resume()

    def resume(self, answer: Rows | None = None) -> None:
        """Let the loop run to its next event, or to its end. Raises the loop's errors."""
        assert self.loop is not None
        if self.thread != get_ident():
            raise UserError("a batch goes on in the thread that began it: begin it again in this one")
        self.request = self.step = None
        self.loop.parent = getcurrent()
        copy_context()  # a thread that has used no context variable has no context yet: this makes it one
        self.loop.gr_context = getcurrent().gr_context  # a user's functions see the caller's, and may change it
        answers = [] if answer is None else [answer]  # a loop that begins, or goes on after a step, gets none
        event = self.loop.switch(*answers)
        if isinstance(event, Request):
            self.request = event
        else:
            self.step = event  # None if the loop has ended

    def close(self) -> None:
        """Let the loop end where it waits. (In another thread, it ends when that of the batch does.)"""
        if self.loop is not None and not self.loop.dead and self.thread == get_ident():
            self.loop.throw(GreenletExit)
        self.loop = self.request = self.step = None


class Batch:
    """Texts that are decoded together, each in a seat. A text that ends makes room for the next."""

    def __init__(self, setup: Setup, n_seats: int):
        self.setup = setup
        # The target comes first, then its drafter's model, then the model that drafts for that one.
        self.loaded = {role: setup.loaded[role] for role in setup.plan.roles}
        self.seats = [Seat(self.loaded) for _ in range(n_seats)]
        self.logs = {role: new_log() for role in setup.plan.filters}  # logs of the calls for all texts

    def rounds(
        self, decoder: str, inputs: Sequence, N: int, rngs: Sequence, is_stopped: Callable[[int], bool]
    ) -> Iterator[list[PlacedStep]]:
        """Yield for each call of the target the steps that it gave the texts. is_stopped(place): True if nobody needs
        more steps of this text."""

        def new_steps(place: int, loaded: Loaded) -> Iterator[Step]:
            models = new_models(self.setup, loaded)
            for role, model in models.items():
                if isinstance(model, Model) and not isinstance(loaded[role], CachedNetwork):
                    model.log = self.logs[role]  # its calls are not made together
            return new_loop(self.setup, models, decoder, inputs[place], N, rngs[place])

        waiting = iter(range(len(inputs)))
        try:
            while self.take_seats(waiting, new_steps):  # now each text that has a seat waits for rows, or has a step
                with_steps = [(seat, seat.step) for seat in self.seats if seat.step]
                if not with_steps:
                    self.call()
                    continue
                yield [placed for _, placed in with_steps]
                for seat, placed in with_steps:
                    if is_stopped(placed.place):
                        seat.close()
                    else:
                        seat.resume()
        finally:
            for seat in self.seats:
                seat.close()

    def take_seats(self, waiting: Iterable[int], new_steps: Callable) -> bool:
        """Let texts take the seats of those that have ended. Return False if there are no texts any more."""
        free = [seat for seat in self.seats if seat.is_free]
        for seat, place in zip(free, waiting, strict=False):
            seat.start(place, new_steps)
        return not all(seat.is_free for seat in self.seats)

    def call(self) -> None:
        """Call a network for which texts wait, the innermost drafter's if there are several: the target waits until
        every text has its drafts."""
        networks = [*self.loaded.values()]
        waiting = [(seat, seat.request) for seat in self.seats if seat.request]
        network = max((request.network for _, request in waiting), key=networks.index)
        asking = [(seat, request) for seat, request in waiting if request.network is network]
        feeds = [request.feed for _, request in asking]
        began = time.perf_counter()
        with LOCK:
            results = network.forward.together(feeds)
        seconds = time.perf_counter() - began
        role = [*self.loaded][networks.index(network)]
        n_read = sum(len(of_text.tokens) for of_text in feeds)
        n_rows = sum(of_text.n_last for of_text in feeds)
        self.logs[role].append(Call(began, seconds, n_read, n_rows, n_texts=len(feeds)))
        for (seat, request), outputs in zip(asking, results, strict=True):
            seat.resume(outputs._replace(waited=began - request.asked))
