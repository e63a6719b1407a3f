"""Downloads: OpenAI's files over HTTP, models of the Hugging Face hub by its own library.

What has arrived of NAME is kept in NAME.part, so that the next attempt, or the next run, asks for the rest only. It
gets its name when its size agrees, and its sha256 if that is known. SHA256SUMS lists all of them, for sha256sum -c.
"""

import hashlib
import os
import shutil
import time
from pathlib import Path

from speculative.checkpoints.folders import INDEX, SAFETENSORS, SMALL_NAMES, missing_files, snapshot
from speculative.checkpoints.official import OPENAI, SHA256, SMALL_FILES, TF_DATA, TF_INDEX, WEIGHT_BYTES
from speculative.support.errors import UserError, first_line
from speculative.support.files import replacing
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
            receive(url, part, size)
            break
        except (requests.RequestException, ValueError) as error:  # a ValueError for headers that make no sense
            error.response = getattr(error, "response", None)
            status = getattr(error.response, "status_code", 500)
            failures = 1 if size_of(part) > arrived else failures + 1
            if failures == ATTEMPTS or (status < 500 and status not in (408, 425, 429)):  # busy: may pass
                hint = "run again to go on from here, or try another --source; python main.py --demo works without"
                raise UserError(f"cannot download {url} ({first_line(error)}): {hint}") from None
            time.sleep(2**failures - 2)  # 0, 2, 6, 14 seconds
    found = hashlib.sha256()
    with open(part, "rb") as f:
        while chunk := f.read(2**20):
            found.update(chunk)
    if (sha256 or found.hexdigest()) != found.hexdigest():
        os.remove(part)
        raise UserError(f"{url} is not the file: its sha256 is wrong; run again, or try another --source")
    sums = Path(path).with_name("SHA256SUMS")
    listed = sums.read_text(encoding="utf-8") if sums.is_file() else ""
    with replacing(sums) as unfinished:
        Path(unfinished).write_text(f"{listed}{found.hexdigest()}  {os.path.basename(path)}\n", encoding="utf-8")
    os.replace(part, path)


def receive(url: str, part: str, size: int) -> None:
    """Ask once for what is missing of a file. Raises requests.RequestException, or UserError if it is another file."""
    import requests

    with requests.head(url, headers=PLAIN, timeout=TIMEOUT, allow_redirects=True) as response:
        response.raise_for_status()
        length = int(response.headers.get("Content-Length", -1))
        if "text/html" in response.headers.get("Content-Type", "") or length < 0 or (size or length) != length:
            raise UserError(f"{url} is not the file: it is a web page or has {length:,} bytes, not {size:,}")
    # Not begun by a download, or of another version.
    if os.path.islink(part) or size_of(part) > length or (os.path.exists(part) and os.stat(part).st_nlink > 1):
        os.remove(part)
    have = size_of(part)
    check_disk(part, length - have)
    os.makedirs(os.path.dirname(part) or ".", exist_ok=True)
    if have < length:
        with requests.get(url, headers=PLAIN | {"Range": f"bytes={have}-"}, stream=True, timeout=TIMEOUT) as response:
            response.raise_for_status()
            goes_on = response.status_code == 206  # else the server sends all of it
            if goes_on and not response.headers.get("Content-Range", f"bytes {have}-").startswith(f"bytes {have}-"):
                raise UserError(f"{url}: the server sends another part of the file than is asked for")
            bar = working(f"downloading {part}", length, "B", initial=have * goes_on, unit_scale=True)
            with bar as bar, open(part, "ab" if goes_on else "wb") as f:
                for chunk in response.iter_content(2**16):
                    bar.update(f.write(chunk))
                    if f.tell() > length:
                        break
        if size_of(part) != length:
            raise requests.ConnectionError(f"it ended at byte {size_of(part):,} of {length:,}")


def size_of(path: str) -> int:
    """Return the bytes of a file, 0 if it does not exist."""
    return os.path.getsize(path) if os.path.isfile(path) else 0


def check_disk(path: str, n_bytes: int) -> None:
    """Raise UserError if a file of n_bytes does not fit on the disk that path will be on."""
    folder = next(parent for parent in Path(path).absolute().parents if parent.exists())
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise UserError(f"{path} needs {n_bytes / 1e9:.3f} GB of disk, and {free / 1e9:.3f} GB are free")


def download_from_hub(model_size: str, weights: bool = True) -> str:
    """Download the files of OWNER/NAME that are read here, to the cache of Hugging Face's library -> the folder.

    weights=False: only the small ones. Raises UserError.
    """
    folder = snapshot(model_size, allow_patterns=SMALL_NAMES)
    if weights:
        in_parts = os.path.isfile(os.path.join(folder, INDEX))
        names = "model-*.safetensors" if in_parts else SAFETENSORS
        folder = snapshot(model_size, allow_patterns=[*SMALL_NAMES, names])
        if missing := missing_files(folder):
            raise UserError(f"{model_size} is not a GPT-2 that can be read here: it lacks {', '.join(missing)}")
    return folder
