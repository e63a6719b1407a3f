"""Requests to servers that may be slow, busy or wrong. They are repeated a few times, and never wait for long."""

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from tqdm import tqdm

from speculative.support.errors import UserError, first_line
from speculative.support.patience import AT_ONCE, SECONDS, notice
from speculative.support.terminal import one_line


class Limits(NamedTuple):
    """The limits of a download's patience. Times are in seconds."""

    connect: float = 10  # until a server answers
    read: float = 20  # until the next bytes arrive
    waiting: float = 100  # in a row in which nothing comes, pauses among them
    retries: int = 7  # after failures in a row
    retries_at_start: int = 2  # the same before any server has answered
    pause: float = 0.5  # 0, 1, 3, 7, ... times this between requests in vain
    silent: float = SECONDS  # until it is said that no answer comes
    sleep: Callable[[float], object] = time.sleep


PATIENT = Limits()


class TryAgain(requests.RequestException):
    """A fault that may be gone at the next request. response: the answer, which may say how long to wait."""


def check_url(url: str) -> str:
    """Returns url if it is https, or plain http on this machine. Raises UserError."""
    allowed = r"https://[^/?#]|http://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?(/|$)"
    with contextlib.suppress(ValueError):  # half an IPv6 address, or a port that is no number
        if re.match(allowed, url, re.IGNORECASE) and urlsplit(url).hostname and urlsplit(url).port != 0:
            return url
    raise UserError(f"{url!r:.200} is not an https address: downloads use https only")


def new_session(url):
    """A session that follows redirects to https, and to http only on the server of the url itself. Raises UserError."""
    session = requests.Session()
    del session.adapters["http://"]
    session.mount(urljoin(check_url(url), "/"), requests.adapters.HTTPAdapter())
    return session


def persist(attempt: Callable[[], Any], url: str, limits: Limits, arrived: Callable[[], int] = lambda: 0) -> Any:
    """Calls attempt(), which asks a server, until it succeeds -> its result. Raises UserError when it is given up.

    arrived(): the number of bytes that are there. As long as that grows, every failure is the first one.
    """
    best = arrived()
    waited = 0.0  # seconds since something came
    failures = 0
    while True:
        start = time.monotonic()
        try:
            return attempt()
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            response = error.response if isinstance(error, TryAgain) else None
            reason = reason_of(error)
        waited += time.monotonic() - start
        if arrived() > best:
            best = arrived()
            waited = 0.0
            failures = 0
        asked = pause_asked_for(response)
        if asked > AT_ONCE:
            reason += f", asks to wait {asked:.0f} s"
        pause = max(limits.pause * (2**failures - 1), asked)
        at_start = response is None and not arrived()
        failures += 1
        if failures > (limits.retries_at_start if at_start else limits.retries) or waited + pause > limits.waiting:
            hint = "check the network and run again, or try another --source; python main.py --demo works without"
            raise UserError(f"cannot download {url} ({reason}): {hint}")
        if waited + pause > AT_ONCE:
            tqdm.write(f"{reason}: {urlsplit(url).hostname} is asked again in {pause:.0f} s", file=sys.stderr)
        limits.sleep(pause)
        waited += pause


def reason_of(error):
    """The first of the errors behind this one, as a line: "Connection refused", for example."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return one_line(getattr(error, "strerror", None) or first_line(error))


def pause_asked_for(response):
    """The seconds of a Retry-After; 0 if there is none, or if it is neither a number nor a date."""
    with contextlib.suppress(urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return (response is not None and urllib3.Retry().get_retry_after(response.raw)) or 0
    return 0


@contextlib.contextmanager
def answer(
    session: requests.Session, url: str, headers: dict, limits: Limits, explain: Callable[[requests.Response], str]
) -> Iterator[requests.Response]:
    """The answer to a request. Its body has not been read yet.

    Raises TryAgain if the server is busy, and UserError if it refuses.
    """
    headers = {"Accept-Encoding": "identity", **headers}
    with notice(f"no answer from {urlsplit(url).hostname} yet, Ctrl-C ends it", limits.silent):
        response = session.get(url, headers=headers, stream=True, timeout=(limits.connect, limits.read))
    with response:
        status = response.status_code
        if status in (408, 425, 429) or status >= 500:
            raise TryAgain(f"status {status}", response=response)
        if status not in (200, 206, 416):
            raise UserError(explain(response) or f"cannot download {url} (status {status}): try another --source")
        yield response


def read(url: str, most: int, headers: dict, explain: Callable[[Any], str], limits: Limits = PATIENT) -> bytes:
    """The content under an address, which is not longer than `most` bytes. Raises UserError."""

    def attempt():
        start = time.monotonic()
        content = b""
        with answer(session, url, headers, limits, explain) as response:
            while chunk := response.raw.read1(2**20):
                content += chunk
                if len(content) > most:
                    raise UserError(f"{url} has more than {most:,} bytes")
                if time.monotonic() - start > limits.waiting:
                    raise UserError(f"{url} has not come in {limits.waiting:.0f} s: run again later")
        return content

    with new_session(url) as session:
        return persist(attempt, url, limits)
