"""Downloads of OpenAI's files over HTTP. Models of the Hugging Face hub are downloaded by its own library: see hub.py.

The first bytes of NAME are kept in NAME.part, so that the next attempt, or the next run, asks for the rest only. It
gets its name when its size agrees, and its sha256 if that is known. SHA256SUMS lists all of them, for sha256sum -c.
"""

import contextlib
import hashlib
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from speculative.checkpoints.disk import mapped
from speculative.checkpoints.names import HPARAMS, OPENAI, SHA256, SMALL_FILES, TF_DATA, TF_INDEX
from speculative.checkpoints.weights import parameter_count
from speculative.support.errors import Option, UserError, first_line
from speculative.support.files import bytes_in_words, existing_part, locked, replacing, size_of
from speculative.support.progress import working
from speculative.support.terminal import one_line

MOST_RETRIES = 4  # retries of a request, after 0, 2, 4 and 8 seconds
AGAIN = (408, 425, 429, 500, 502, 503, 504)  # answers that may be others the next time
TIMEOUT = 10, 20  # seconds until a server answers, and until the next bytes arrive
CHUNK = 2**16  # bytes that are written together
KEPT = "Ctrl-C keeps what has arrived, and the next run goes on from there"
DEMO = "; python main.py --demo works without a download"
HINT = "run again to go on from here, or try another ", Option("source"), DEMO

# Variables that name the certificates to trust, those of a company for example. requests reads the first two, the hub's
# library the last; here each of them is enough for both.
VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


def download_gpt2_files(model_size: str, folder: str, source: str = "openai", weights: bool = True) -> None:
    """Download the files of an official model that the folder lacks. weights=False: only the small ones.

    source: "openai", or the URL of a mirror that has the same files at URL/model_size. Raises UserError.
    """
    base = address(source)
    sizes = dict.fromkeys(SMALL_FILES, 0)  # bytes, 0 if they are not known
    if weights:
        sizes |= {TF_INDEX: 0, TF_DATA: weight_bytes(model_size)}
        announce(model_size, base, missing_bytes(model_size, folder), folder, KEPT)
    for name, size in sizes.items():
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            sha256 = SHA256.get(name) or SHA256.get(f"{model_size}/{name}", "")
            download(f"{base}/{model_size}/{name}", path, sha256, size)


def address(source: str) -> str:
    """Return the URL that has a folder for each official model."""
    return OPENAI if source == "openai" else source.rstrip("/")


def weight_bytes(model_size: str) -> int:
    """Return the bytes of an official model's weights in float32."""
    return 4 * parameter_count(HPARAMS[model_size])


def missing_bytes(model_size: str, folder: str) -> int:
    """Return the bytes of an official model's weights that its folder lacks."""
    data = os.path.join(folder, TF_DATA)
    return 0 if os.path.isfile(data) else weight_bytes(model_size) - size_of(f"{data}.part")


def announce_all(folders: Mapping[str, str], source: str) -> None:
    """Print how much all official models lack, before weights are downloaded, and how to do without; no line for
    nothing. folders: {model: its folder}."""
    n_bytes = sum(missing_bytes(name, folder) for name, folder in folders.items())
    if n_bytes:
        line = f"{bytes_in_words(n_bytes)} will be downloaded from {address(source)}: {' and '.join(folders)}{DEMO}"
        print(one_line(line), file=sys.stderr, flush=True)


def download(url: str, path: str, sha256: str = "", size: int = 0) -> None:
    """Download one file, or the rest of it, or wait for another process that does. sha256, size (bytes): "" and 0 if
    they are not known. Raises UserError."""
    folder = os.path.dirname(path)
    try:
        with new_session() as session:
            os.makedirs(folder, exist_ok=True)
            with locked(path, f"waiting for another program, which downloads {path} ..."):
                if not os.path.isfile(path):  # the other program has not
                    receive(session.get, url, f"{path}.part", size)
                    finish(url, path, sha256)
    except (OSError, ValueError) as error:  # requests' are OSErrors; a ValueError comes of headers that make no sense
        cause = cause_of(error)
        advice = certificate_advice(cause) or HINT
        raise UserError(f"cannot download {url} ({first_line(cause)})", hint=advice) from None
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # if nothing has come into it


def cause_of(error: Exception) -> Exception:
    """Return the error of the last try, if requests' error holds urllib3's, which holds that."""
    return getattr(error.args[0], "reason", error) if error.args else error


def new_session() -> Any:
    """Return a requests.Session that repeats a request without an answer."""
    import requests
    from urllib3 import Retry

    trust_certificates()
    retry = Retry(MOST_RETRIES, connect=2, status_forcelist=AGAIN, backoff_factor=1, raise_on_status=False)
    session = requests.Session()
    session.headers["Accept-Encoding"] = "identity"  # the bytes of the file as they are
    for adapter in session.adapters.values():
        adapter.max_retries = retry  # type: ignore[attr-defined]
    return session


def receive(get: Callable, url: str, part: str, size: int) -> None:
    """Ask for the bytes that a file lacks, until it is complete. get: a session's. size: the bytes that it should have,
    or 0: then an earlier run's are not used. Raises UserError, RequestException."""
    import requests

    if os.path.lexists(part) and (not is_ours(part) or size_of(part) > size):  # a stranger's file, or another version's
        os.remove(part)
    length = size  # bytes of the whole file; 0 until an answer tells them
    n_received = size_of(part)
    while n_received < length or not length:
        begin = n_received
        ranges = {"Range": f"bytes={begin}-"}
        with get(url, headers=ranges, stream=True, timeout=TIMEOUT) as answer:
            answer.raise_for_status()
            if answer.status_code != 206:  # the server sends all of it
                begin = 0
            first_byte = re.match("bytes ([0-9]+)-", answer.headers.get("Content-Range", f"bytes {begin}-"))
            if begin and (first_byte is None or int(first_byte[1]) != begin):
                raise UserError(f"{url} is not the file: the server sends other bytes than were asked for")
            length = begin + n_bytes_of(answer.url, answer.headers)
            if size not in (0, length):
                raise UserError(f"{url} is not the file: it has {length:,} bytes, not {size:,}")
            write(answer.iter_content(CHUNK), part, begin, length)
        if size_of(part) <= n_received:
            raise requests.ConnectionError(f"it ends at byte {size_of(part):,} of {length:,}")
        n_received = size_of(part)


def n_bytes_of(url: str, headers: Mapping[str, str]) -> int:
    """Return the bytes of an answer with these headers. Raises UserError for a web page, such as a captive portal's
    login page, and for an answer that does not tell its length."""
    if "text/html" in headers.get("Content-Type", ""):
        raise UserError(f"{url} is a web page, not the file")
    n_bytes = int(headers.get("Content-Length", 0))
    if n_bytes < 1:
        raise UserError(f"{url} is not the file: its length is 0 or unknown")
    return n_bytes


def is_ours(part: str) -> bool:
    """Return True for a file without other names, not a link or the like."""
    about = os.lstat(part)
    return stat.S_ISREG(about.st_mode) and about.st_nlink == 1


def write(chunks: Iterable[bytes], part: str, begin: int, length: int) -> None:
    """Write the bytes of an answer to the file from `begin` on, as far as they come: its size says how much is
    missing."""
    import requests

    bar = working(f"downloading {part}", length, "B", initial=begin, unit_scale=True)
    with bar as bar, open(part, "ab") as f, contextlib.suppress(requests.RequestException):
        f.truncate(begin)
        for chunk in chunks:
            bar.update(f.write(chunk))


def finish(url: str, path: str, sha256: str) -> None:
    """Give a file that has arrived its name, and note its sha256 in SHA256SUMS, in the place of an older one. Raises
    UserError if it is wrong."""
    part = f"{path}.part"
    received = hashlib.sha256(mapped(part).content).hexdigest()
    if sha256 not in ("", received):
        os.remove(part)
        raise UserError(
            f"{url} is not the file: its sha256 is wrong", hint=("run again, or try another ", Option("source"))
        )
    note_sum(path, received)
    os.replace(part, path)


def note_sum(path: str, received: str) -> None:
    """Write the sha256 of a file into SHA256SUMS, in the place of an older one."""
    folder, name = os.path.split(path)
    sums = Path(folder, "SHA256SUMS")
    noted = sums.read_text(encoding="utf-8", errors="replace") if sums.is_file() else ""
    others = re.sub(f".*  {re.escape(name)}\n", "", noted)
    with replacing(sums) as unfinished:
        Path(unfinished).write_text(f"{others}{received}  {name}\n", encoding="utf-8")


# ---- Downloads from OpenAI and from the hub --------------------------------------------------------------------------


def trust_certificates() -> None:
    """Let the libraries for HTTP trust the certificates that any of the variables names. Raises UserError."""
    for name in filter(os.environ.get, VARIABLES):
        path = os.environ[name]
        if not os.path.exists(path):
            raise UserError(f"{name} is {path}, which is not there: it should be a file of certificates, or be unset")
        os.environ.setdefault("REQUESTS_CA_BUNDLE", path)
        os.environ.setdefault("SSL_CERT_DIR" if os.path.isdir(path) else "SSL_CERT_FILE", path)


def certificate_advice(error: BaseException) -> str:
    """Return a remedy if the certificate of a server was refused, else ""."""
    if "CERTIFICATE_VERIFY_FAILED" not in str(error):
        return ""
    return "if your network has a certificate of its own, name its file: SSL_CERT_FILE=company.pem"


def announce(name: str, source: str, n_bytes: int, folder: str, kept: str) -> None:
    """Print how much will be downloaded, from where and to where, and that Ctrl-C keeps it; if nothing will be, print
    nothing. The folder may not exist yet. Raises UserError if the disk is too small."""
    if n_bytes <= 0:
        return
    n_free = shutil.disk_usage(existing_part(folder)).free
    where = f"{folder}, where {bytes_in_words(n_free)} are free"
    if n_bytes > n_free:
        raise UserError(f"{name} needs {bytes_in_words(n_bytes)} in {where}")
    line = f"downloading {name} from {source}: {bytes_in_words(n_bytes)} to {where}; {kept}"
    print(one_line(line), file=sys.stderr, flush=True)
