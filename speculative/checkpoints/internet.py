"""What downloads from OpenAI and from the hub have in common: the certificates, and a line before gigabytes arrive."""

import os
import shutil
import sys

from speculative.support.errors import UserError
from speculative.support.files import bytes_in_words, with_parents
from speculative.support.terminal import one_line

# Variables that name the certificates to trust, those of a company for example. requests reads the first two, the hub's
# library the last; here each of them is enough for both.
VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")


def trust_certificates() -> None:
    """Let the libraries for HTTP trust the certificates that any of the variables names. Raises UserError."""
    for name in filter(os.environ.get, VARIABLES):
        path = os.environ[name]
        if not os.path.exists(path):
            raise UserError(f"{name} is {path}, which is not there: it should be a file of certificates, or be unset")
        os.environ.setdefault("REQUESTS_CA_BUNDLE", path)
        os.environ.setdefault("SSL_CERT_DIR" if os.path.isdir(path) else "SSL_CERT_FILE", path)


def certificate_advice(error: BaseException) -> str:
    """Return what helps if the certificate of a server was refused, else ""."""
    if "CERTIFICATE_VERIFY_FAILED" not in str(error):
        return ""
    return "if your network has a certificate of its own, name its file: SSL_CERT_FILE=company.pem"


def announce(name: str, n_bytes: int, folder: str, kept: str) -> None:
    """Print how much will be downloaded, where to, and what Ctrl-C keeps; no line for nothing. The folder may not exist
    yet. Raises UserError if the disk is too small."""
    if n_bytes <= 0:
        return
    existing = next(filter(os.path.exists, with_parents(os.path.abspath(folder))))
    n_free = shutil.disk_usage(existing).free
    where = f"{folder}, where {bytes_in_words(n_free)} are free"
    if n_bytes > n_free:
        raise UserError(f"{name} needs {bytes_in_words(n_bytes)} in {where}")
    line = f"downloading {name}: {bytes_in_words(n_bytes)} to {where}; {kept}"
    print(one_line(line), file=sys.stderr, flush=True)
