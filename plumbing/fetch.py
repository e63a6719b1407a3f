"""Resumable downloads; a file gets its name only once it is verified.

What has arrived of NAME is kept in NAME.part, and NAME.part.json notes which version of the file that is. Both survive
an interruption, so the next run asks for the rest only. Of a .part that is complete and verified, checksums.json notes
the sha256; then it is renamed to NAME. Where nothing arrives, nothing is left behind.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import requests
import urllib3
from filelock import FileLock, Timeout
from tqdm import tqdm

from plumbing import checksums
from plumbing.errors import UserError, first_line
from plumbing.patience import PATIENT, VERIFYING, Limits, lines, patience
from plumbing.terminal import one_line


class TryAgain(requests.RequestException):
    """A fault that the next request may not meet. response: the answer, if that may say how long to wait."""


class File(NamedTuple):
    name: str
    url: str
    size: int = 0  # bytes; 0 if not known in advance
    most: int = checksums.MOST_SMALL  # bytes, where its size is not known
    sha256: str = ""  # "" if not known in advance
    check: Callable[[Path], object] = lambda path: None  # raises UserError if the content is wrong
    headers: tuple[tuple[str, str], ...] = ()  # what is said to the server, (name, value) each
    explain: Callable[[requests.Response], str] = lambda answer: ""  # what another answer than the file means, if known


def fetch_files(files: list[File], folder: str, limits: Limits = PATIENT) -> None:
    """Downloads those of the files, all of one server, that the folder lacks, in this order. Raises UserError."""
    folder = Path(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with lock(folder), requests.Session() as session, leaving_nothing(folder, made):
            del session.adapters["http://"]  # so that no redirect leads to http, except on the files' own server
            session.mount(urljoin(check_url(files[0].url), "/"), requests.adapters.HTTPAdapter())
            parts = {file: folder / f"{file.name}.part" for file in files if not (folder / file.name).is_file()}
            for part in parts.values():
                if part.is_symlink() or note_of(part).is_symlink():  # no download has made it, and it may lead anywhere
                    discard(part)
            check_disk_space(folder, sum(max(0, file.size - size(part)) for file, part in parts.items()))
            for file, part in parts.items():
                name = f"{folder.name}/{file.name}"
                bar = tqdm(desc=name, unit="B", unit_scale=True, disable=None)
                bar.postfix = None  # as tqdm sets it only where a bar is shown
                waited_for = patience(urlsplit(file.url).hostname, bar, limits)
                with lines(f"downloading {name}"), bar, waited_for as waiting, leaving_no_empty_part(part):
                    fetch(session, file, part, bar, waiting)
            for file in files:
                discard(folder / f"{file.name}.part")  # it was renamed, but its note is left
                if file.name not in checksums.noted(folder):  # it was there before, perhaps from elsewhere
                    checksums.note(folder, {file.name: checksums.describe(folder / file.name)})
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; run again to go on from here") from error


def lock(folder):
    """Waits until no other process downloads to this folder. A lock ends with its process, even if that is killed."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # the process that had the lock has removed the folder
            try:
                return FileLock(folder / ".lock").acquire(blocking=False)
            except Timeout:
                print(f"another process is downloading to {folder}: waiting for it", file=sys.stderr)
                return FileLock(folder / ".lock").acquire()


@contextlib.contextmanager
def leaving_nothing(folder, made):
    """Removes a folder, and those above it that were made for it, if nothing but the lock has come into it."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # there is something in it
            if [path.name for path in folder.iterdir()] == [".lock"]:
                (folder / ".lock").unlink()
            for path in made:
                path.rmdir()


@contextlib.contextmanager
def leaving_no_empty_part(part):
    try:
        yield
    finally:
        if not size(part):
            discard(part)


def check_url(url: str) -> str:
    """Returns url if it is https, or plain http on this machine. Raises UserError."""
    allowed = r"https://[^/?#]|http://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?(/|$)"
    with contextlib.suppress(ValueError):  # half an IPv6 address, or a port that is no number
        if re.match(allowed, url, re.IGNORECASE) and urlsplit(url).hostname and urlsplit(url).port != 0:
            return url
    raise UserError(f"{url!r:.200} is not an https address: downloads use https only")


def check_disk_space(folder, n_bytes):
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise UserError(f"the download needs {n_bytes / 1e9:.3f} GB more, {folder} has {free / 1e9:.3f} GB free")


def fetch(session, file, part, bar, waiting):
    """Completes a .part, as long as requests bring something new, verifies it and gives it its name."""
    limits = waiting.limits
    best = size(part)
    retry = urllib3.Retry(None, **limits.pauses())
    while True:
        try:
            return complete(session, file, part, bar, waiting)
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            answer = error.response if isinstance(error, TryAgain) else None
            reason = reason_of(error)
        if size(part) > best:
            best = size(part)
            retry = urllib3.Retry(None, **limits.pauses())
        at_start = answer is None and not size(part)
        too_often = len(retry.history) >= (limits.retries_at_start if at_start else limits.retries)
        retry = retry.increment()
        pause = max(retry.get_backoff_time(), pause_asked_for(answer, retry))
        if too_often or pause >= waiting.left:
            hint = "check the network and run again, or try another --source; python main.py --demo works without"
            raise UserError(f"cannot download {file.url} ({reason}): {hint}")
        bar.set_postfix_str(f"retrying: {reason}")
        limits.sleep(pause)


def complete(session, file, part, bar, waiting):
    """One request, and what follows where it brings the rest of the file."""
    note = receive(session, file, part, bar, waiting)
    bar.set_postfix_str(VERIFYING)
    about = checksums.describe(part)
    fault = find_fault(part, note, file, about["sha256"])
    waiting.since = time.monotonic()  # none of this was waiting
    if fault:
        discard(part)
        raise TryAgain(f"what came is not right: {fault.replace(str(part), file.name)}")
    checksums.note(part.parent, {file.name: about})
    part.replace(part.with_suffix(""))


def reason_of(error):
    """In a line what went wrong first: "Connection refused", for example."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return one_line(getattr(error, "strerror", None) or first_line(error))


def pause_asked_for(answer, retry):
    """The seconds of a Retry-After; 0 where there is none, or one that is neither a number nor a date."""
    with contextlib.suppress(urllib3.exceptions.InvalidHeader, ValueError, OverflowError):
        return (answer is not None and retry.get_retry_after(answer.raw)) or 0
    return 0


def receive(session, file, part, bar, waiting):
    """Appends to a .part what one request brings. Returns its note, or raises TryAgain if that is not the end of it."""
    note = read_note(part, file.url)
    have = size(part)
    if have == note["length"]:
        return note
    headers = {"Accept-Encoding": "identity", **dict(file.headers)}
    resume = 0 < have < note["length"] and note["etag"].startswith('"')  # W/"..." promises too little
    if resume:
        headers |= {"Range": f"bytes={have}-", "If-Range": note["etag"]}  # if the file has changed, all of it
    left = max(1, waiting.left)
    timeout = (min(waiting.limits.connect, left), min(waiting.limits.read, left))
    with session.get(file.url, headers=headers, stream=True, timeout=timeout) as response:
        status = response.status_code
        if status in (408, 425, 429) or status >= 500:
            raise TryAgain(f"status {status}", response=response)
        if resume and status in (206, 416):
            expected = f"bytes {have}-{note['length'] - 1}/{note['length']}", note["etag"]
            if (response.headers.get("Content-Range"), response.headers.get("ETag")) != expected:
                discard(part)
                raise TryAgain("the file on the server has changed")
        elif status == 200:
            discard(part)
            note = write_note(part, file, response)
            have = 0
        else:
            unknown = f"cannot download {file.url} (status {status}): try another --source"
            raise UserError(file.explain(response) or unknown)
        check_disk_space(part.parent, note["length"] - have)
        bar.reset(note["length"])
        bar.initial = have
        bar.n = have
        bar.postfix = None
        with open(part, "ab") as f:
            while chunk := response.raw.read1(2**20):
                bar.update(f.write(chunk))
                waiting.since = time.monotonic()
            f.flush()
            os.fsync(f.fileno())
    if size(part) != note["length"]:
        raise TryAgain(f"it ended at byte {size(part):,} of {note['length']:,}")
    return note


def write_note(part, file, response):
    """Notes what a server says of the file that it sends. Raises TryAgain if it cannot be the file."""
    headers = response.headers
    length = response.headers.get("Content-Length", "")
    if headers.get("Content-Encoding", "identity") != "identity" or not re.fullmatch("[0-9]{1,15}", length):
        raise TryAgain("the server compresses the file or does not say how long it is")
    if file.size and int(length) != file.size:
        raise TryAgain(f"the server has {length} bytes, the file is {file.size}")
    if int(length) > (file.size or file.most):
        raise UserError(f"{file.url} has {int(length):,} bytes, more than {file.most:,}: try another --source")
    note = {"url": file.url, "length": int(length), "etag": headers.get("ETag", "")}
    note["md5"] = headers.get("Content-MD5", "")
    # Hugging Face names the hash of a large file where it redirects to the file itself.
    linked = "".join(hop.headers.get("X-Linked-ETag", "") for hop in response.history)
    note["sha256"] = linked.strip('"') if re.fullmatch('"[0-9a-f]{64}"', linked) else ""
    note_of(part).write_text(json.dumps(note), encoding="utf-8")
    return note


def read_note(part, url):
    """The note of a .part that came from this URL; or that nothing is known."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        if not 0 < size(note_of(part)) < checksums.MOST_BYTES:
            raise ValueError("no note")
        note = json.loads(note_of(part).read_text(encoding="utf-8"))
        if note["url"] == url and note.keys() >= {"length", "etag", "md5", "sha256"}:
            return note
    return {"length": -1, "etag": ""}


def find_fault(part, note, file, sha256):
    """What is wrong with a complete .part, or None."""
    md5 = hashlib.md5(usedforsecurity=False)
    with open(part, "rb") as f:
        if re.match(rb"\s*<(!doctype )?html", f.read(100), re.IGNORECASE):
            return "it is a web page"
        f.seek(0)
        if note["md5"]:
            while chunk := f.read(2**20):
                md5.update(chunk)
    if {note["md5"], note["sha256"], file.sha256} - {"", base64.b64encode(md5.digest()).decode(), sha256}:
        return "its md5 or sha256 is not that of the file"
    try:
        file.check(part)
    except UserError as error:
        return str(error).partition("; ")[0]  # after which it says what to do


def note_of(part):
    return Path(f"{part}.json")


def discard(part):
    for path in (part, note_of(part)):
        path.unlink(missing_ok=True)


def size(path):
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size if path.is_file() else 0
    return 0
