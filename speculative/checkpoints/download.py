"""Downloads: OpenAI's files over HTTP, models of the Hugging Face hub by its own library (hub.py).

What has arrived of NAME is kept in NAME.part, so that the next attempt, or the next run, asks for the rest only. It
gets its name when its size agrees, and its hash if one is known. SHA256SUMS has the hashes of all: sha256sum -c
"""

import base64
import hashlib
import os
import shutil
import time
from pathlib import Path

from speculative.checkpoints.folders import OPTIONAL, SETTINGS, VOCABULARIES, missing_files
from speculative.checkpoints.hub import snapshot
from speculative.checkpoints.hugging_face import INDEX, SAFETENSORS
from speculative.checkpoints.official import OPENAI, SHA256, SMALL_FILES, TF_DATA, TF_INDEX, WEIGHT_BYTES
from speculative.support.errors import UserError
from speculative.support.files import read_small, replacing
from speculative.support.progress import working

ATTEMPTS = 5  # in a row that bring nothing
TIMEOUT = 10, 20  # seconds until a server answers, and until the next bytes arrive
PLAIN = {"Accept-Encoding": "identity"}  # the bytes of the file as they are


def download_gpt2_files(model_size: str, folder: str, source: str = "openai", weights: bool = True) -> None:
    """Download the files of an official model that the folder lacks. weights=False: only the small ones.

    source: "openai", or the URL of a mirror that has the same files at URL/model_size. Raises UserError.
    """
    base = OPENAI if source == "openai" else source.rstrip("/")
    for name in (*SMALL_FILES, TF_INDEX, TF_DATA) if weights else SMALL_FILES:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            sha256 = SHA256.get(name) or SHA256.get(f"{model_size}/{name}", "")
            size = WEIGHT_BYTES[model_size] if name == TF_DATA else 0
            download(f"{base}/{model_size}/{name}", path, sha256, size)


def download(url: str, path: str, sha256: str = "", size: int = 0) -> None:
    """Download one file. sha256, size (bytes): "" and 0 if they are not known. Raises UserError."""
    import requests

    part = f"{path}.part"
    failures = 0
    while True:
        arrived = size_of(part)
        try:
            return attempt(url, path, part, sha256, size)
        except requests.RequestException as error:
            failures = 1 if size_of(part) > arrived else failures + 1
            if failures == ATTEMPTS:
                hint = "run again to go on from here, or try another --source; python main.py --demo works without"
                raise UserError(f"cannot download {url} ({error}): {hint}") from None
            time.sleep(2**failures - 2)  # 0, 2, 6, 14 seconds


def attempt(url: str, path: str, part: str, sha256: str, size: int) -> None:
    """Ask for what is missing of a file; verify and name it if it is complete.

    Raises requests.RequestException for a fault that may pass, and UserError for one that stays.
    """
    import requests

    with requests.head(url, headers=PLAIN, timeout=TIMEOUT, allow_redirects=True) as response:
        about = check_answer(url, response).headers
    length = int(about.get("Content-Length", -1))
    if about.get("Content-Type", "").startswith("text/html") or length < 0 or (size and size != length):
        raise UserError(f"{url} is not the file: it is a web page or has {length:,} bytes, not {size:,}")
    if os.path.islink(part) or size_of(part) > length:  # not begun by a download, or of another version
        os.remove(part)
    check_disk(path, length - size_of(part))
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    have = size_of(part)
    if have < length:
        with requests.get(url, headers=PLAIN | {"Range": f"bytes={have}-"}, stream=True, timeout=TIMEOUT) as response:
            check_answer(url, response)
            goes_on = response.status_code == 206  # else the server sends all of it
            bar = working(f"downloading {path}", length, "B", initial=have * goes_on, unit_scale=True)
            with bar as bar, open(part, "ab" if goes_on else "wb") as f:
                for chunk in response.iter_content(2**16):
                    bar.update(f.write(chunk))
    if size_of(part) != length:
        raise requests.ConnectionError(f"it ended at byte {size_of(part):,} of {length:,}")
    found, md5 = digests(part)
    if (sha256 or found) != found or about.get("Content-MD5", md5) != md5:
        os.remove(part)
        raise UserError(f"{url} is not the file: its sha256 or MD5 is wrong; run again, or try another --source")
    note_sha256(path, found)
    os.replace(part, path)


def check_answer(url, response):
    """Return the response. Raises requests.HTTPError if the server is busy, UserError if it refuses."""
    if response.status_code in (408, 425, 429) or response.status_code >= 500:
        response.raise_for_status()
    if not response.ok:
        raise UserError(f"cannot download {url} (status {response.status_code}): try another --source")
    return response


def check_disk(path: str, n_bytes: int) -> None:
    """Raise UserError if a file of n_bytes does not fit on the disk that path will be on."""
    folder = next(parent for parent in Path(path).absolute().parents if parent.exists())
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise UserError(f"{path} needs {n_bytes / 1e9:.3f} GB of disk, and {free / 1e9:.3f} GB are free")


def digests(path: str) -> tuple[str, str]:
    """Return the sha256 of a file, in hexadecimal, and its MD5, in base64 as servers send it."""
    sha256 = hashlib.sha256()
    md5 = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as f:
        while chunk := f.read(2**20):
            sha256.update(chunk)
            md5.update(chunk)
    return sha256.hexdigest(), base64.b64encode(md5.digest()).decode()


def note_sha256(path: str, sha256: str) -> None:
    """Add a line to SHA256SUMS beside the file."""
    sums = os.path.join(os.path.dirname(path), "SHA256SUMS")
    before = read_small(sums) if os.path.isfile(sums) else ""
    with replacing(sums) as unfinished:
        Path(unfinished).write_text(f"{before}{sha256}  {os.path.basename(path)}\n", encoding="utf-8")


def size_of(path: str) -> int:
    """Return the bytes of a file, 0 if it does not exist."""
    return os.path.getsize(path) if os.path.isfile(path) else 0


def download_from_hub(model_size: str, weights: bool = True) -> str:
    """Download the files of OWNER/NAME that are read here, to the cache of Hugging Face's library -> the folder.

    weights=False: only the small ones. Raises UserError.
    """
    names = [name for form in (*SETTINGS, *VOCABULARIES) for name in form] + [*OPTIONAL, INDEX]
    folder = snapshot(model_size, allow_patterns=names)
    if weights:
        in_parts = os.path.isfile(os.path.join(folder, INDEX))
        folder = snapshot(model_size, allow_patterns=[*names, "model-*.safetensors" if in_parts else SAFETENSORS])
        missing = missing_files(folder)
        if missing:
            raise UserError(f"{model_size} is not a GPT-2 that can be read here: it lacks {', '.join(missing)}")
    return folder
