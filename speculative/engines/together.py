"""Several texts at a time: each is decoded by its own loop, and the calls of their models meet here in one call.

A loop is a plain function, such as sampling.speculative_sampling, which calls models in its midst. So each loop runs in
a thread of its own, a strand, that waits at each call of a model and at each step. Only one strand runs at a time, like
a generator. When all of them wait for a model, the calls that ask for the same network become one call.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

from speculative.engines.cached_network import CachedNetwork
from speculative.engines.contract import PlacedStep
from speculative.support.errors import UserError

Networks = Mapping[str, Any]  # by role


class Request(NamedTuple):
    """A call of a model, for which a strand waits."""

    network: CachedNetwork  # of the text
    rows: Any  # of the text, as the network's pass takes them
    asked: float  # when, by time.perf_counter


class Closed(BaseException):
    """Raised in a strand that is to end."""


class Strand:
    """A function in a thread of its own, in turn with the thread that made it: while one runs, the other waits.

    Whose turn it is stands in is_running; the queues only wake who waits for that. So Ctrl-C, which may come anywhere
    in the caller, loses nothing.
    """

    def __init__(self, function: Callable[[], None]):
        self.event: Any = None  # that it waits at
        self.answer: Any = None
        self.error: BaseException | None = None
        self.process = 0  # the number of the process in which its thread runs; 0 before it has begun
        self.has_ended = False
        self.is_running = False
        self.function = function
        self.wakes_strand: SimpleQueue = SimpleQueue()
        self.wakes_caller: SimpleQueue = SimpleQueue()

    def run(self) -> None:
        try:
            self.function()
        except Closed:
            pass
        except BaseException as error:  # it is raised where the strand is resumed
            self.error = error
        self.has_ended = True
        self.is_running = False
        self.wakes_caller.put(None)

    def wait_at(self, event: Any) -> Any:
        """In its thread: wait at an event -> the answer."""
        self.event = event
        self.is_running = False
        self.wakes_caller.put(None)
        while not self.is_running:
            self.wakes_strand.get()
        if isinstance(self.answer, Closed):
            raise self.answer
        return self.answer

    def resume(self, answer: Any = None) -> None:
        """Let it run to its next event, or to its end. Raises what its function raises."""
        self.answer = answer
        self.event = None
        self.is_running = True
        if not self.process:
            threading.Thread(target=self.run, daemon=True).start()
            self.process = os.getpid()
        elif self.process != os.getpid():  # a fork copies no thread but its own
            raise UserError("a batch that began before a fork cannot go on in the new process: begin it again there")
        self.join()
        if self.error:
            raise self.error

    def join(self) -> None:
        """Wake the strand, and wait until it stops at an event or ends."""
        self.wakes_strand.put(None)
        while self.is_running:
            self.wakes_caller.get()

    def close(self) -> None:
        """Let it end where it waits."""
        if self.process == os.getpid():
            self.join()
            if not self.has_ended:
                self.resume(Closed())


class Seat:
    """The networks of one text at a time: their weights are those of all texts, their caches its own."""

    def __init__(self, networks: Networks):
        """networks: of the session, by role, the target before its copies."""
        self.strand = Strand(lambda: None)
        self.networks = dict(networks)
        self.own: list[CachedNetwork] = []
        of_cache: dict[int, CachedNetwork] = {}  # by the identity of the session's cache: the first network with it
        for role, network in networks.items():
            if isinstance(network, CachedNetwork):
                own = network.of_another_text(self.ask)
                own.share_cache(of_cache.setdefault(id(network.contents), own), network.rank)
                self.networks[role] = own
                self.own.append(own)

    def ask(self, network: CachedNetwork, rows: Any) -> Any:
        """In the strand: the result of these rows, which are computed together with those of other texts."""
        return self.strand.wait_at(Request(network, rows, time.perf_counter()))

    @property
    def is_free(self) -> bool:
        return self.strand.has_ended or not self.strand.process

    def start(self, place: int, loop: Callable[[Networks], Iterator]) -> None:
        """Begin a text. place: its number. loop(networks) -> its steps."""
        for network in self.own:
            network.forget()

        def run() -> None:
            for step in loop(self.networks):
                self.strand.wait_at(PlacedStep(place, step))

        self.strand = Strand(run)
        self.strand.resume()


class Meeting:
    """Texts that are decoded together, each in a seat. A text that ends makes room for the next."""

    def __init__(self, networks: Networks, n_seats: int):
        """networks: of the session, by role: the target, then what drafts for it, then what drafts for that."""
        self.networks = [*networks.values()]
        self.seats = [Seat(networks) for _ in range(n_seats)]

    def rounds(self, loops: Iterable[Any], is_stopped: Callable[[int], bool]) -> Iterator[list[PlacedStep]]:
        """Yield for each call of the target the steps that it gave the texts. loops: of each text, see Seat.start.
        is_stopped(place): True if nobody needs more steps of this text."""
        waiting = enumerate(loops)
        try:
            while self.take_seats(waiting):
                at_step = self.waiting_at(PlacedStep)
                if at_step:
                    steps = [strand.event for strand in at_step]
                    yield steps
                    for strand, step in zip(at_step, steps, strict=True):
                        if is_stopped(step.place):
                            strand.close()
                        else:
                            strand.resume()
                else:
                    self.call(self.waiting_at(Request))
        finally:
            for seat in self.seats:
                seat.strand.close()

    def take_seats(self, waiting: Iterator[tuple[int, Any]]) -> bool:
        """Let texts take the seats of those that have ended. Return False if there are no texts any more."""
        free = [seat for seat in self.seats if seat.is_free]
        for seat, (place, loop) in zip(free, waiting, strict=False):
            seat.start(place, loop)
        return not all(seat.is_free for seat in self.seats)

    def waiting_at(self, kind: type) -> list[Strand]:
        """The strands that wait at an event of this kind."""
        return [seat.strand for seat in self.seats if isinstance(seat.strand.event, kind)]

    def call(self, strands: Sequence[Strand]) -> None:
        """Of the networks that are waited for, call the innermost drafter's: the target waits until every text has its
        drafts."""
        wanted = [strand.event.network.batch_network for strand in strands]
        network = max(wanted, key=self.networks.index)
        asking = [strand for strand in strands if strand.event.network.batch_network is network]
        rows = [strand.event.rows for strand in asking]
        began = time.perf_counter()
        results = network.together(rows)
        for strand, result in zip(asking, results, strict=True):
            request = strand.event
            request.network.seconds_for_others += began - request.asked
            strand.resume(result)
