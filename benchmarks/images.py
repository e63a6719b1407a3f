"""The README's pictures: a run of main.py in colour, as SVG, and the workbench after three runs, as PNG.

    python -m benchmarks images docs/demo.svg [options of main.py]
    python -m benchmarks images docs/workbench.png [options of main.py]

The options are --demo if none are given. The workbench needs chromium and chromedriver.
"""

import base64
import contextlib
import os
import subprocess
import sys
from pathlib import Path

from speculative.support.errors import UserError

MAIN = [sys.executable, str(Path(__file__).parents[1] / "main.py")]


def terminal(path: str, words: list[str]) -> None:
    """main.py shows colours at a terminal, so it gets one."""
    from rich.console import Console
    from rich.text import Text

    ours, its = os.openpty()
    run = subprocess.Popen([*MAIN, *words], stdout=its, stderr=subprocess.DEVNULL, env=os.environ | {"COLUMNS": "100"})
    os.close(its)
    shown = b""
    with contextlib.suppress(OSError):  # the end of the terminal
        while data := os.read(ours, 2**16):
            shown += data
    if run.wait():
        raise UserError(f"main.py {' '.join(words)} ended with status {run.returncode}")
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=100, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(shown.decode().replace("\r\n", "\n").strip("\n")))
    console.save_svg(path, title=" ".join(["python main.py", *words]))


def workbench(path: str, words: list[str]) -> None:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in ("headless=new", "no-sandbox", "hide-scrollbars", "window-size=1280,900"):
        options.add_argument(f"--{flag}")
    server = subprocess.Popen([*MAIN, *words, "--serve", "0"], stdout=subprocess.PIPE, encoding="utf-8")
    with server, webdriver.Chrome(options) as driver:
        try:
            driver.get(server.stdout.readline().strip())
            driver.set_script_timeout(600)
            for K in (8, 2, 4):
                driver.execute_async_script("byId('K').value = arguments[0]; decode().then(arguments[1])", str(K))
            height = driver.execute_script("return document.documentElement.offsetHeight")
            whole = {"x": 0, "y": 0, "width": 1280, "height": height, "scale": 1}
            shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": whole})
            Path(path).write_bytes(base64.b64decode(shot["data"]))
        finally:
            server.kill()


def main(argv: list[str]) -> None:
    path, *words = argv or ["--help"]
    if path in ("-h", "--help"):
        return print(__doc__)
    if not path.endswith((".svg", ".png")):
        raise UserError(f"the file of the picture comes first, an .svg or .png: {path:.80} is neither")
    (terminal if path.endswith(".svg") else workbench)(path, words or ["--demo"])
