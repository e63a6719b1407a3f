"""Files from the network: whole and checked under their names, or not there at all.

A file gathers in NAME.part, and its note NAME.part.json says of what that is the beginning. Both outlive whatever
interrupts the download, which goes on from there when it is run again. Once the file is whole and its hashes are right
it gets its name, by a rename, and that is the only thing that ever happens to NAME.
"""

import base64
import contextlib
import errno
import hashlib
import json
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit


class FetchError(Exception):
    """A download that has to be given up. Its message is one line: what went wrong, and what to do."""


class Retry(Exception):
    """A fault that may pass. A whole file that is wrong weighs more: the next copy will hardly be better."""

    def __init__(self, reason, after=0.0, answered=True, weight=1):
        super().__init__(reason)
        self.after, self.answered, self.weight = after, answered, weight


class File(NamedTuple):
    name: str
    url: str
    size: int = 0  # bytes, exactly; 0 if not known beforehand
    find_fault: Callable[[str], str | None] = lambda path: None  # what is wrong with the file that arrived in path


@dataclass(frozen=True)
class Patience:
    """How long to bear with a network, in seconds and in numbers of tries."""

    connect: float = 10.0  # until a server answers
    read: float = 30.0  # until the next byte, however long the whole file takes
    backoff: float = 0.5  # before the first retry; doubled for each further one,
    longest: float = 60.0  # but never more than this
    retry_after: float = 300.0  # the most that a server may ask us to wait
    retries: int = 7  # in a row that bring nothing new
    retries_unreached: int = 2  # while no server has answered at all, and there may be no network


PATIENCE = Patience()


def fetch_files(files, folder, patience=PATIENCE, title=""):
    """Downloads the files that the folder lacks, in this order, with one bar for all. Raises FetchError."""
    import requests
    from tqdm import tqdm

    try:
        os.makedirs(folder, exist_ok=True)
        with one_process_at_a_time(folder), requests.Session() as session:
            paths = {os.path.join(folder, file.name): file for file in files}
            lacking = {path: file for path, file in paths.items() if not os.path.exists(path)}
            for path in paths.keys() - lacking.keys():
                discard(f"{path}.part")  # what a crash just after the rename left
            have = sum(file_size(f"{path}.part") for path in lacking)
            total = sum(file.size for file in lacking.values())
            check_disk_space(folder, total - have)
            with tqdm(desc=title, total=total, initial=have, unit="B", unit_scale=True, disable=None) as bar:
                for path, file in lacking.items():
                    fetch(session, file, path, bar, patience)
    except OSError as error:
        remedy = "; free some space and run again to go on from here" if error.errno == errno.ENOSPC else ""
        raise FetchError(f"cannot write to {folder}: {error.strerror or error}{remedy}") from error


@contextlib.contextmanager
def one_process_at_a_time(folder):
    """Waits for any other process that is in here for the same folder. However one ends, the kernel drops its lock."""
    with open(os.path.join(folder, ".lock"), "a") as lock:
        if not try_lock(lock):
            print(f"another process is downloading to {folder}: waiting for it", file=sys.stderr)
            while not try_lock(lock):
                time.sleep(0.2)
        yield


def try_lock(file):
    """Locks a file until it is closed; False if another process has locked it."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def check_disk_space(folder, n_bytes):
    """Refuses to begin what cannot be finished."""
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise FetchError(f"the download needs {n_bytes / 1e9:.3f} GB more, {folder} has {free / 1e9:.3f} GB free")


def fetch(session, file, path, bar, patience):
    """One file, with as many tries as it takes and patience allows."""
    part = f"{path}.part"
    best, failures, answered = file_size(part), 0, False
    bar_start, bar_total = bar.n - best, bar.total - file.size

    def show(have, length):
        bar.set_postfix_str("", refresh=False)
        bar.total = bar_total + length
        bar.update(bar_start + have - bar.n)

    while True:
        try:
            note = receive(session, file, part, show, patience)
            check_part(part, note, file)
            break
        except Retry as fault:
            failures = 0 if file_size(part) > best else failures + fault.weight
            best, answered = max(best, file_size(part)), answered or fault.answered
            if not answered and failures > patience.retries_unreached:
                hint = "check the network and its proxy; python main.py --demo works without one"
                raise FetchError(f"cannot reach {urlsplit(file.url).hostname} ({fault}): {hint}") from fault
            if failures > patience.retries or fault.after > patience.retry_after:
                hint = "run again later, which goes on from here, or try another --source"
                raise FetchError(f"cannot download {file.url} ({fault}): {hint}") from fault
            bar.set_postfix_str(f"retrying: {fault}")
            pause = min(patience.backoff * 2**failures, patience.longest) * random.uniform(0.5, 1)
            time.sleep(max(fault.after, pause))
    os.replace(part, path)
    os.remove(f"{part}.json")


def receive(session, file, part, show, patience):
    """Brings a .part to its full length, from where it stands if the server allows that. Returns its note."""
    import urllib3

    note = read_note(part, file.url)
    have = file_size(part) if note else 0
    if note and have == note["length"]:
        return note
    headers = {"Accept-Encoding": "identity"}
    if note and note["validator"] and 0 < have < note["length"]:
        # If-Range, since a new file's end must not be put to an old one's beginning.
        headers |= {"Range": f"bytes={have}-", "If-Range": note["validator"]}
    response, sha256 = open_url(session, file.url, headers, patience)
    with response:
        check_status(response, part, resumed="Range" in headers)
        if response.status_code == 206:
            check_same_file(response, part, note, have)
        else:  # the whole file: there was nothing to resume, or the server cannot or will not
            discard(part)
            have, note = 0, write_note(part, file, response, sha256)
        check_disk_space(os.path.dirname(part), note["length"] - have)
        show(have, note["length"])
        with open(part, "ab") as f:
            try:
                while chunk := response.raw.read1(2**20):
                    f.write(chunk)
                    have += len(chunk)
                    show(have, note["length"])
            except urllib3.exceptions.HTTPError as error:
                raise Retry(root_cause(error)) from error
            f.flush()
            os.fsync(f.fileno())
    if have != note["length"]:
        raise Retry(f"it ended at byte {have:,} of {note['length']:,}")
    return note


# ---- What is asked of the server -------------------------------------------------------------------------------------


def open_url(session, url, headers, patience):
    """GET, with each redirect checked before it is followed -> (response, sha256 of the file, "" if unknown).

    Hugging Face's front server names the hash of a large file while redirecting to where it lies.
    """
    import requests
    import urllib3

    sha256 = ""
    for _ in range(6):
        timeout = (patience.connect, patience.read)
        try:
            response = session.get(url, headers=headers, stream=True, allow_redirects=False, timeout=timeout)
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError) as error:
            raise Retry(root_cause(error), answered=False) from error
        if not response.is_redirect:
            return response, sha256
        response.close()
        if match := re.fullmatch(r'"([0-9a-f]{64})"', response.headers.get("X-Linked-ETag", "")):
            sha256 = match[1]
        url = check_url(response.headers["Location"], came_from=url)
    raise Retry("it redirects in a circle")


def check_url(url, came_from=None):
    """Returns an address that may be asked: https, or plain http from this machine to itself. Raises FetchError."""

    def is_loopback(url):
        return bool(re.fullmatch(r"localhost|127(\.\d{1,3}){3}|::1", urlsplit(url).hostname or ""))

    try:
        full = urljoin(came_from or "", url)
        parts = urlsplit(full)
        safe = parts.scheme == "https" and parts.hostname
        safe = safe or (parts.scheme == "http" and is_loopback(full) and is_loopback(came_from or full))
    except ValueError:
        safe = False
    if not safe:
        origin = f"{came_from} redirects to " if came_from else ""
        raise FetchError(f"{origin}{url!r:.200}, which is not an https address: downloads use https only")
    return full


# ---- What is believed of its answer ----------------------------------------------------------------------------------


def check_status(response, part, resumed):
    """Tells the answers that bring the file from those that may do so later (Retry) and those that never will."""
    status = response.status_code
    if status in (408, 425, 429) or status >= 500:
        raise Retry(f"status {status}", after=retry_after(response.headers.get("Retry-After", "")))
    if status == 416 and resumed:
        discard(part)
        raise Retry("the file on the server has become shorter")
    if status != 200 and not (status == 206 and resumed):
        raise FetchError(f"{response.url:.200}: status {status}; is the source right, and does it have this model?")
    if response.headers.get("Content-Type", "").startswith("text/html"):
        raise Retry("a web page came instead of the file")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise Retry("the server insists on compressing the file")


def retry_after(value):
    """A Retry-After header, a number or a date -> seconds."""
    if re.fullmatch(r"[0-9]{1,9}", value):
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def check_same_file(response, part, note, have):
    """Whether the rest that a server sends is that of the file whose beginning we hold."""
    same_range = response.headers.get("Content-Range", "") == f"bytes {have}-{note['length'] - 1}/{note['length']}"
    etag = response.headers.get("ETag", note["validator"])
    if not same_range or (note["validator"].startswith('"') and etag != note["validator"]):
        discard(part)
        raise Retry("the file on the server has changed")


def check_part(part, note, file):
    """Checks a .part that has its full length, and throws it away if it is not what it should be."""
    fault = None
    with open(part, "rb") as f:
        if f.read(100).lstrip().lower().startswith((b"<!doctype html", b"<html")):
            fault = "it is a web page"
    for algorithm in ("md5", "sha256"):
        if note[algorithm] and file_hash(part, algorithm) != note[algorithm]:
            fault = f"its {algorithm} is not the one that the server announced"
    fault = fault or file.find_fault(part)
    if fault:
        discard(part)
        raise Retry(f"what came is not right: {fault}", weight=4)


# ---- The .part and its note ------------------------------------------------------------------------------------------


def write_note(part, file, response, sha256):
    """Notes what a file that begins to arrive will be: its length, its hashes, and what marks this version of it."""
    headers = response.headers
    if not re.fullmatch(r"[0-9]{1,15}", headers.get("Content-Length", "")):
        raise Retry("the server does not say how long the file is")
    length = int(headers["Content-Length"])
    if file.size and length != file.size:
        raise Retry(f"the server has {length:,} bytes, the file is {file.size:,}", weight=4)
    try:
        md5 = base64.b64decode(headers.get("Content-MD5", ""), validate=True).hex()
    except ValueError:
        md5 = ""
    etag = headers.get("ETag", "")
    validator = etag if etag.startswith('"') else headers.get("Last-Modified", "")  # W/"..." promises too little
    note = {"url": file.url, "length": length, "validator": validator, "md5": md5, "sha256": sha256}
    with open(f"{part}.json", "w", encoding="utf-8") as f:
        json.dump(note, f)
    return note


def read_note(part, url):
    """The note of a .part that can be resumed from this URL, else None."""
    try:
        with open(f"{part}.json", encoding="utf-8") as f:
            note = json.load(f)
        kinds = {"url": str, "length": int, "validator": str, "md5": str, "sha256": str}
        usable = all(type(note[name]) is kind for name, kind in kinds.items()) and note["url"] == url
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return note if usable and os.path.isfile(part) else None


def discard(part):
    """Forgets what has arrived: at the beginning of another version of the file, before a note says of what."""
    for path in (part, f"{part}.json"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)


def file_size(path):
    """In bytes; 0 where there is no file."""
    return os.path.getsize(path) if os.path.isfile(path) else 0


def file_hash(path, algorithm):
    """The hash of a file of any size, in hexadecimal."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open(path, "rb") as f:
        while chunk := f.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def root_cause(error):
    """What went wrong underneath the layers that wrapped it: "Connection refused", say."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).splitlines()[0][:150]
