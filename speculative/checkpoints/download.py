"""Downloads of OpenAI's files over HTTP. Models of the Hugging Face hub are downloaded by its own library.

What has arrived of NAME is kept in NAME.part, so that the next attempt, or the next run, asks for the rest only. It
gets its name when its size agrees, and its sha256 if that is known. SHA256SUMS lists all of them, for sha256sum -c.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from speculative.checkpoints.official import HPARAMS, OPENAI, SHA256, SMALL_FILES, TF_DATA, TF_INDEX
from speculative.checkpoints.tensors import parameter_count
from speculative.support.errors import UserError, first_line
from speculative.support.files import replacing, size_of
from speculative.support.progress import working

RETRIES = 4  # of a request without an answer, after 0, 2, 4 and 8 seconds
NO_NETWORK = 2  # retries if no connection is made
BUSY = (408, 425, 429, 500, 502, 503, 504)  # answers that may be others the next time
TIMEOUT = 10, 20  # seconds until a server answers, and until the next bytes arrive


def download_gpt2_files(model_size: str, folder: str, source: str = "openai", weights: bool = True) -> None:
    """Download the files of an official model that the folder lacks. weights=False: only the small ones.

    source: "openai", or the URL of a mirror that has the same files at URL/model_size. Raises UserError.
    """
    base = OPENAI if source == "openai" else source.rstrip("/")
    for name in (*SMALL_FILES, TF_INDEX, TF_DATA) if weights else SMALL_FILES:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            sha256 = SHA256.get(name) or SHA256.get(f"{model_size}/{name}", "")
            size = 4 * parameter_count(HPARAMS[model_size]) if name == TF_DATA else 0
            download(f"{base}/{model_size}/{name}", path, sha256, size)


def download(url: str, path: str, sha256: str = "", size: int = 0) -> None:
    """Download one file, or the rest of it. sha256, size (bytes): "" and 0 if they are not known. Raises UserError."""
    part = f"{path}.part"
    try:
        receive(url, part, size)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a ValueError: headers that make no sense
        cause = getattr(error.args[0], "reason", error) if error.args else error  # urllib3's, the last of its tries
        hint = "run again to go on from here, or try another --source; python main.py --demo works without a download"
        raise UserError(f"cannot download {url} ({first_line(cause)}): {hint}") from None
    found = hashlib.sha256()
    with open(part, "rb") as f:
        while chunk := f.read(2**20):
            found.update(chunk)
    if (sha256 or found.hexdigest()) != found.hexdigest():
        os.remove(part)
        raise UserError(f"{url} is not the file: its sha256 is wrong; run again, or try another --source")
    sums = Path(path).with_name("SHA256SUMS")
    name = os.path.basename(path)
    lines = sums.read_text(encoding="utf-8", errors="replace").splitlines() if sums.is_file() else []
    listed = [line for line in lines if not line.endswith(f"  {name}")]
    with replacing(sums) as unfinished:
        Path(unfinished).write_text("\n".join([*listed, f"{found.hexdigest()}  {name}", ""]), encoding="utf-8")
    os.replace(part, path)


def receive(url: str, part: str, size: int) -> None:
    """Ask for the bytes that a file lacks, until it is complete. Raises UserError, RequestException."""
    import requests
    from urllib3 import Retry

    with requests.Session() as session:
        session.headers["Accept-Encoding"] = "identity"  # the bytes of the file as they are
        for adapter in session.adapters.values():
            retries = Retry(RETRIES, NO_NETWORK, backoff_factor=1, status_forcelist=BUSY, raise_on_status=False)
            adapter.max_retries = retries  # type: ignore[attr-defined]
        with ask(session.head, url, allow_redirects=True) as response:
            length = int(response.headers.get("Content-Length", 0))
        if length < 1 or length != (size or length):
            fault = f"it has {length:,} bytes, not {size:,}" if length > 0 else "its length is 0 or unknown"
            raise UserError(f"{url} is not the file: {fault}")
        os.makedirs(os.path.dirname(part), exist_ok=True)
        if os.path.islink(part) or size_of(part) > length:  # of a stranger, or of another version
            os.remove(part)
        while (n_received := size_of(part)) < length:
            with ask(session.get, url, headers={"Range": f"bytes={n_received}-"}, stream=True) as response:
                mode = "ab" if response.status_code == 206 else "wb"  # or the server sends all of it
                bar = working(f"downloading {part}", length, "B", initial=n_received * (mode == "ab"), unit_scale=True)
                with bar as bar, open(part, mode) as f, contextlib.suppress(requests.RequestException):
                    for chunk in response.iter_content(2**16):
                        bar.update(f.write(chunk))
                        if f.tell() > length:  # a server that never ends
                            break
            if not n_received < size_of(part) <= length:
                raise requests.ConnectionError(f"it ends at byte {size_of(part):,} of {length:,}")


@contextlib.contextmanager
def ask(method: Callable, url: str, **how: Any) -> Iterator[Any]:
    """Give the answer to a request. Raises UserError for a web page, such as a captive portal's login page."""
    with method(url, timeout=TIMEOUT, **how) as response:
        response.raise_for_status()
        if "text/html" in response.headers.get("Content-Type", ""):
            raise UserError(f"{url} is a web page, not the file")
        yield response
