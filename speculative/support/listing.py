"""The files of a model of the Hugging Face hub at one commit, with the size and the hash that the hub lists for each.

huggingface_hub gives the user's token (HF_TOKEN, or `hf auth login`) and says whether the network may be used
(HF_HUB_OFFLINE). The files themselves are downloaded by fetch.py, like OpenAI's: version 2.4 of huggingface_hub begins
an interrupted file anew, waits for as long as a server asks it to (Retry-After), and gives a file its name before its
hash can be compared.
"""

import functools
import json
import re
from pathlib import Path
from typing import Any

from speculative.support import checksums
from speculative.support.errors import UserError, first_line
from speculative.support.fetch import File, git_hash
from speculative.support.http import PATIENT, Limits, read
from speculative.support.hub import COMMIT, Hub
from speculative.support.official import endpoint

MOST_LISTED = 2**24  # bytes of a list
MOST_BYTES = 2**50  # of a file in it


def credentials(hub: Hub) -> dict[str, str]:
    """The header with the user's token, {} if there is none. A redirect to another host does not get it.

    Raises UserError if the network may not be used.
    """
    try:
        from huggingface_hub import get_token, is_offline_mode
    except ImportError as error:
        raise UserError(f"{hub} needs huggingface_hub: pip install huggingface_hub") from error
    if is_offline_mode():
        raise UserError(f"{hub} is neither downloaded nor in the cache of Hugging Face, and HF_HUB_OFFLINE is set")
    try:
        token = get_token() or ""
    except Exception as error:  # some tokens come from servers
        remedy = "`hf auth login` gives another, and so does HF_TOKEN"
        raise UserError(f"the token for the hub cannot be read ({first_line(error)}): {remedy}") from error
    return {"Authorization": f"Bearer {token}"} if re.fullmatch("[!-~]+", token) else {}


@functools.cache  # so that one run sees one commit
def listing(hub: Hub, hub_url: str, limits: Limits = PATIENT) -> tuple[str, dict[str, File]]:
    """(the commit of a revision, {name: File} of all its files). Raises UserError."""
    url = f"{hub_url}/api/models/{hub.name}/revision/{hub.revision}?blobs=true"
    headers = credentials(hub)
    explain_it = functools.partial(explain, hub)
    try:
        about = json.loads(read(url, MOST_LISTED, headers, explain_it, limits))
        commit = about["sha"]
        if not COMMIT.fullmatch(commit):
            raise ValueError("no commit")
        base = f"{hub_url}/{hub.name}/resolve/{commit}"
        files = [as_file(listed, base)._replace(headers=headers, explain=explain_it) for listed in about["siblings"]]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{url} is no list of the files of a model ({first_line(error)})") from error
    return commit, {file.name: file for file in files}


def as_file(listed: dict, base: str) -> File:
    """An entry of the hub's list -> File. Raises ValueError, TypeError or KeyError if it is none.

    listed: {"rfilename": name, "size": bytes, "lfs": {"sha256": digits}} for a large file, and "blobId" in place of
    "lfs" for a small one. base: the address under which the files are.
    """
    name = str(listed["rfilename"])
    size = listed["size"]
    large = listed.get("lfs") or {}
    sha256 = large.get("sha256", "")
    blob = "" if large else listed["blobId"]
    is_size = type(size) is int and 0 <= size < MOST_BYTES
    if not is_size or (not re.fullmatch("[0-9a-f]{64}", sha256) and not COMMIT.fullmatch(blob)):
        raise ValueError(f"{name[:50]!r} without size or hash")
    return File(name, f"{base}/{name}", size=size, sha256=sha256, blob=blob)


def check_same(folder: str, hub: Hub, commit: str, file: File) -> None:
    """Raises UserError if the folder has another file of that name. Of large files the noted sha256 is compared."""
    path = Path(folder, file.name)
    if not path.is_file():
        return
    sha256 = checksums.noted(folder).get(file.name, {}).get("sha256", file.sha256)
    is_same = path.stat().st_size == file.size and sha256 == (file.sha256 or sha256)
    if not is_same or (file.blob and git_hash(path) != file.blob):
        raise UserError(f"{path} is not that of {hub} at commit {commit[:7]}: delete {folder} and run again")


def explain(hub: Hub, response: Any) -> str:
    """The line for a refusal, which says what to do; "" if its meaning is not known."""
    status = response.status_code
    code = response.headers.get("X-Error-Code", "")
    if status in (401, 403) and code == "GatedRepo":
        conditions = f"accept its conditions at {endpoint()}/{hub.name}"
        return f"{hub} is gated: {conditions}, and set HF_TOKEN to a token of the account that did"
    if status in (401, 403):
        return f"{hub} is private, or there is none of that name: check the name; for a private one set HF_TOKEN"
    if code == "EntryNotFound":
        return f"{hub} has lost a file that it listed, {response.url}: run again"
    if status == 404 and code == "RevisionNotFound":
        return f"{hub.name} has no revision {hub.revision}: a branch, a tag or a commit follows the @"
    if status == 404:
        return f"the hub has no {hub}: check the name, owner/name"
    return ""
