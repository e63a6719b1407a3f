"""Models of the Hugging Face hub: what they are called, which of their files are needed, and where they are.

The download is our own, since huggingface_hub compares lengths, not hashes, and needs some ten packages.

A model is downloaded to models_dir/OWNER/NAME, at the commit that its branch has when the download begins. Its files
are fetched as any others, and each is compared with the hash that the hub has for it. One that is in the cache of
Hugging Face's own libraries is read from there. HF_TOKEN (or what `hf auth login` has kept), HF_ENDPOINT,
HF_HUB_OFFLINE, HF_HOME and HF_HUB_CACHE mean what they mean to these.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from plumbing import checksums
from plumbing.errors import UserError, first_line
from plumbing.patience import PATIENT, Limits

# The names without an owner that the hub still knows, and what they are now.
SHORT = {
    **{name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
    "distilgpt2": "distilbert/distilgpt2",
}
PART = r"[A-Za-z0-9](?:[A-Za-z0-9_-]|\.(?!\.)){0,95}"  # without two dots in a row
NAME = re.compile(rf"({PART}/{PART}|{'|'.join(map(re.escape, SHORT))})(?:@({PART}))?")
COMMIT = re.compile("[0-9a-f]{40}")
MOST_LISTED = 2**24  # bytes of the list of a model's files

WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
PART_OF_WEIGHTS = re.compile("model-[0-9]{5}-of-[0-9]{5}[.]safetensors")
OPTIONAL = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


class Hub(NamedTuple):
    """A model's name on the hub."""

    name: str  # "owner/name"
    revision: str = "main"

    def __str__(self):
        return self.name if self.revision == "main" else f"{self.name}@{self.revision}"


def hub_name(model_size: str) -> Hub | None:
    """ "owner/name", "owner/name@revision" or one of SHORT -> Hub; None for what is no such name."""
    match = NAME.fullmatch(model_size)
    if not match:
        return None
    name, revision = match.groups()
    return Hub(SHORT.get(name, name), revision or "main")


class Listed(NamedTuple):
    """A file, as the hub lists it."""

    size: int  # bytes
    sha256: str  # of a large file, else ""
    blob: str  # the hash by which git names a small one, else ""

    def check(self, path: str | Path) -> None:
        """Raises UserError where a small file is not this one."""
        if self.blob and git_hash(path) != self.blob:
            raise UserError("it is not the file that the hub lists")


def git_hash(path: str | Path) -> str:
    content = Path(path).read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


# ---- Where it is -----------------------------------------------------------------------------------------------------


def home() -> Path:
    """Where Hugging Face's libraries keep what they have."""
    default = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(os.environ.get("HF_HOME") or default).expanduser()


def cache() -> Path:
    """The cache of models of these libraries."""
    return Path(os.environ.get("HF_HUB_CACHE") or home() / "hub").expanduser()


def in_cache(folder: str | Path) -> bool:
    """Whether a folder is theirs, and nothing of ours is to be written to it."""
    return Path(folder).resolve().is_relative_to(cache().resolve())


def cached_folder(hub: Hub) -> str | None:
    """Where they keep this model, or as much of it as was downloaded; None where they have nothing of it."""
    model = cache() / f"models--{hub.name.replace('/', '--')}"
    commit = hub.revision
    with contextlib.suppress(OSError, ValueError):  # where it is no branch
        commit = (model / "refs" / hub.revision).read_text(encoding="ascii").strip()
    folder = model / "snapshots" / commit
    return str(folder) if COMMIT.fullmatch(commit) and folder.is_dir() else None


def endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def is_offline() -> bool:
    return (os.environ.get("HF_HUB_OFFLINE") or "").lower() in ("1", "true", "yes", "on")


def credentials() -> dict[str, str]:
    """The header that says who asks; {} where nobody has logged in. It does not follow a redirect to another host."""
    token = os.environ.get("HF_TOKEN") or ""
    if not token:
        with contextlib.suppress(OSError, ValueError):
            token = Path(os.environ.get("HF_TOKEN_PATH") or home() / "token").expanduser().read_text(encoding="ascii")
    token = token.strip()
    if not re.fullmatch("[!-~]+", token):
        return {}
    return {"Authorization": f"Bearer {token}"}


# ---- What is downloaded ----------------------------------------------------------------------------------------------


def files_of(hub: Hub, folder: str, check: Callable[[str, Path], None]) -> list:
    """The fetch.Files of a model, those that are read first in front. check(name, path) raises UserError for a file
    that cannot be what its name says. Raises UserError where the hub has no such model, or what is in the folder is
    not of it."""
    from plumbing.fetch import File

    if is_offline():
        raise UserError(f"{hub} is neither in {folder} nor in {home() / 'hub'}, and HF_HUB_OFFLINE is set")
    base = endpoint()
    commit, listed = listing(hub, base)
    files = []
    for name in wanted(hub, listed):
        path = Path(folder, name)
        if path.is_file() and not is_same(path, listed[name]):
            raise UserError(f"{path} is not that of {hub} at commit {commit[:7]}: delete {folder} and run again")

        def checked(path, name=name):
            listed[name].check(path)
            check(name, path)

        url = f"{base}/{hub.name}/resolve/{commit}/{name}"
        about = {"size": listed[name].size, "sha256": listed[name].sha256, "check": checked}
        files.append(File(name, url, **about, headers=tuple(credentials().items()), explain=partial(explain, hub)))
    return files


def is_same(path, listed):
    """Whether a file that is there is the one that is listed, as far as can be told without reading gigabytes."""
    noted = checksums.noted(path.parent).get(path.name, {}).get("sha256", listed.sha256)
    if path.stat().st_size != listed.size or noted != (listed.sha256 or noted):
        return False
    return not listed.blob or git_hash(path) == listed.blob


def wanted(hub: Hub, listed: dict[str, Listed]) -> list[str]:
    """Of all its files those that are read here."""
    vocabulary = ["tokenizer.json"] if "tokenizer.json" in listed else ["vocab.json", "merges.txt"]
    weights = next((name for name in WEIGHTS if name in listed), WEIGHTS[0])
    lacks = [name for name in ("config.json", *vocabulary, weights) if name not in listed]
    if lacks == [weights] and "pytorch_model.bin" in listed:
        raise UserError(f"{hub} has no {weights}, and reading its pytorch_model.bin could run a program that is in it")
    if lacks:
        raise UserError(f"{hub} is no GPT-2 as it is read here: it lacks {', '.join(lacks)}")
    parts = []
    if weights == WEIGHTS[1]:
        parts = sorted(name for name in listed if PART_OF_WEIGHTS.fullmatch(name))
    return [*(name for name in OPTIONAL if name in listed), *vocabulary, "config.json", weights, *parts]


@functools.cache  # so that one run sees one commit
def listing(hub: Hub, base: str, limits: Limits = PATIENT) -> tuple[str, dict[str, Listed]]:
    """(the commit of a revision, {name: Listed} of its files). Raises UserError."""
    import requests
    from urllib3 import Retry
    from urllib3.exceptions import HTTPError

    from plumbing.fetch import check_url

    url = f"{check_url(base)}/api/models/{hub.name}/revision/{hub.revision}?blobs=true"
    with requests.Session() as session:
        retries = Retry(3, **limits.pauses(), status_forcelist=[408, 425, 429, 500, 502, 503, 504])
        adapter = requests.adapters.HTTPAdapter(max_retries=retries)
        del session.adapters["http://"]
        session.mount("https://", adapter)
        session.mount(f"{base}/", adapter)
        try:
            timeout = (limits.connect, limits.read)
            with session.get(url, headers=credentials(), stream=True, timeout=timeout) as response:
                if response.status_code != 200:
                    raise UserError(explain(hub, response) or f"cannot read {url} (status {response.status_code})")
                text = response.raw.read(MOST_LISTED + 1, decode_content=True)
        except (requests.RequestException, HTTPError) as error:
            raise UserError(f"cannot read {url} ({first_line(error)}): check the network and run again") from error
    try:
        if len(text) > MOST_LISTED:
            raise ValueError("too long")
        about = json.loads(text)
        listed = {str(one["rfilename"]): as_listed(one) for one in about["siblings"]}
        if not COMMIT.fullmatch(about["sha"]):
            raise ValueError("no commit")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{url} is no list of the files of a model ({first_line(error)})") from error
    return about["sha"], listed


def as_listed(file: dict) -> Listed:
    size = file["size"]
    large = file.get("lfs") or {}
    sha256 = large.get("sha256", "")
    blob = "" if large else file["blobId"]
    if type(size) is not int or (not re.fullmatch("[0-9a-f]{64}", sha256) and not COMMIT.fullmatch(blob)):
        raise ValueError(f"{str(file['rfilename'])[:50]!r} without size or hash")
    return Listed(size, sha256, blob)


def explain(hub: Hub, response: Any) -> str:
    """What an answer other than the file means, in a line that says what to do; "" where that is not known."""
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
