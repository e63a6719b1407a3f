"""Resumable downloads; a file gets its name only once it is verified.

What has arrived of NAME is kept in NAME.part, and NAME.part.json notes which version of the file that is. Both survive
an interruption, so the next run asks for the rest only. Of a .part that is complete and verified, checksums.json notes
the sha256; then it is renamed to NAME.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import requests
from filelock import FileLock, Timeout
from tqdm import tqdm

from speculative.support import checksums
from speculative.support.errors import UserError
from speculative.support.files import MOST_SMALL, read_small
from speculative.support.http import PATIENT, Limits, TryAgain, answer, new_session, persist
from speculative.support.patience import lines


class File(NamedTuple):
    name: str
    url: str
    size: int = 0  # bytes; 0 if not known in advance
    most: int = MOST_SMALL  # bytes, where its size is not known
    sha256: str = ""  # "" if not known in advance
    blob: str = ""  # the hash that git would give it, "" if not known in advance
    check: Callable[[Path], object] = lambda path: None  # raises UserError if the content is wrong
    headers: Mapping[str, str] = MappingProxyType({})  # of the request
    explain: Callable[[requests.Response], str] = lambda response: ""  # the meaning of a refusal, "" if unknown


def fetch_files(files: list[File], folder: str, limits: Limits = PATIENT) -> None:
    """Downloads the files that the folder lacks, in this order. All are on one server. Raises UserError."""
    folder = Path(folder)
    try:
        with new_session(files[0].url) as session, lock(folder):
            missing = [(file, folder / f"{file.name}.part") for file in files if not (folder / file.name).is_file()]
            for _, part in missing:
                if part.is_symlink() or note_of(part).is_symlink():  # no download has made it, and it may lead anywhere
                    discard(part)
            check_disk_space(folder, sum(max(0, file.size - size(part)) for file, part in missing))
            for file, part in missing:
                name = f"{folder.name}/{file.name}"
                with lines(f"downloading {name}"), tqdm(desc=name, unit="B", unit_scale=True, disable=None) as bar:
                    persist(partial(complete, session, file, part, bar, limits), file.url, limits, partial(size, part))
            for file in files:
                discard(folder / f"{file.name}.part")  # it was renamed, but its note is left
                if file.name not in checksums.noted(folder):
                    note_found(folder / file.name, file)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; run again to go on from here") from error


def note_found(path, file):
    """Notes a file that was there before, perhaps from elsewhere. Raises UserError if it is another one."""
    about = checksums.describe(path)
    if file.sha256 and about["sha256"] != file.sha256:
        raise UserError(f"{path} is not the file that {file.url} is: delete it and run again")
    checksums.note(path.parent, {file.name: about})


def lock(folder):
    """Waits until no other process downloads to this folder. A lock ends with its process, even with a killed one."""
    folder.mkdir(parents=True, exist_ok=True)
    own = FileLock(folder / ".lock")
    try:
        return own.acquire(blocking=False)
    except Timeout:
        print(f"another process is downloading to {folder}: waiting for it", file=sys.stderr)
        return own.acquire()


def check_disk_space(folder, n_bytes):
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise UserError(f"the download needs {n_bytes / 1e9:.3f} GB more, {folder} has {free / 1e9:.3f} GB free")


def complete(session, file, part, bar, limits):
    """Makes one request. If that brings the rest of the file, verifies it and gives it its name."""
    note = receive(session, file, part, bar, limits)
    bar.set_postfix_str("verifying")
    about = checksums.describe(part)
    fault = find_fault(part, note, file, about["sha256"])
    if fault:
        discard(part)
        raise TryAgain(f"what came is not right: {fault.replace(str(part), file.name)}")
    checksums.note(part.parent, {file.name: about})
    part.replace(part.with_suffix(""))


def receive(session, file, part, bar, limits):
    """Appends the bytes of one request to a .part -> its note. Raises TryAgain if the file does not end there."""
    note = read_note(part, file.url)
    have = size(part)
    if have == note["length"] == (file.size or have):
        return note
    headers = dict(file.headers)
    if 0 < have < note["length"] and re.fullmatch('"[!#-~]+"', note["etag"]):  # W/"..." promises too little
        headers |= {"Range": f"bytes={have}-", "If-Range": note["etag"]}  # if the file has changed, all of it
    with answer(session, file.url, headers, limits, file.explain) as response:
        if response.status_code == 200:
            discard(part)
            note = write_note(part, file, response)
            have = 0
        expected = f"bytes {have}-{note['length'] - 1}/{note['length']}", note["etag"]
        found = response.headers.get("Content-Range"), response.headers.get("ETag")
        if response.status_code != 200 and found != expected:
            discard(part)
            raise TryAgain("the file on the server has changed")
        check_disk_space(part.parent, note["length"] - have)
        bar.reset(note["length"])
        bar.initial = have
        bar.n = have
        with open(part, "ab") as f:
            while chunk := response.raw.read1(2**20):
                bar.update(f.write(chunk))
            f.flush()
            os.fsync(f.fileno())
    if size(part) != note["length"]:
        raise TryAgain(f"it ended at byte {size(part):,} of {note['length']:,}")
    return note


def write_note(part, file, response):
    """Notes the length, the version and the hashes that a server gives. Raises TryAgain if it cannot be the file."""
    headers = response.headers
    length = headers.get("Content-Length", "")
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
    """The note of a .part that came from this URL. A length of -1 means that there is none."""
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        note = json.loads(read_small(note_of(part), checksums.MOST_BYTES))
        texts = [note[name] for name in ("etag", "md5", "sha256")]
        if note["url"] == url and type(note["length"]) is int and all(type(text) is str for text in texts):
            return note
    return {"length": -1, "etag": ""}


def find_fault(part, note, file, sha256):
    """The fault of a complete .part, None if it has none."""
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
    if file.blob and git_hash(part) != file.blob:
        return "it is not the file that the hub lists"
    try:
        file.check(part)
    except UserError as error:
        return str(error).partition("; ")[0]  # after which it says what to do


def git_hash(path: str | Path) -> str:
    content = Path(path).read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def note_of(part):
    return Path(f"{part}.json")


def discard(part):
    for path in (part, note_of(part)):
        path.unlink(missing_ok=True)


def size(path):
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size if path.is_file() else 0
    return 0
