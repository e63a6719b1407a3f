"""The pictures in the README: a real run of main.py in colour, as SVG; and the workbench after three runs, as PNG,
for which Chromium and its chromedriver have to be installed.

python -m benchmarks.picture [docs/demo.svg] [flags of main.py; default: --demo --color]
python -m benchmarks.picture docs/workbench.png [flags of main.py; default: --demo]
"""

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from speculative.support.errors import UserError, guarded
from speculative.support.files import check_writable

ROOT = Path(__file__).parents[1]
MAIN = [sys.executable, str(ROOT / "main.py")]


def main(argv=None) -> None:
    path, *flags = (sys.argv[1:] if argv is None else argv) or ["docs/demo.svg"]
    if path in ("-h", "--help"):
        return print(__doc__)
    if path.startswith("-"):
        raise UserError(f"the picture's file comes first, and then main.py's flags: {path:.80} is none")
    check_writable(path)
    if path.endswith(".png"):
        return workbench(path, flags or ["--demo"])
    flags = flags or ["--demo", "--color"]
    run = subprocess.run(
        [*MAIN, *flags], stdout=subprocess.PIPE, encoding="utf-8", env=os.environ | {"FORCE_COLOR": "1"}
    )
    if run.returncode:  # what was wrong is on standard error by now
        raise UserError(f"main.py ended with status {run.returncode}, so there is nothing to draw")
    console = Console(record=True, width=100, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi(run.stdout.strip("\n")))
    console.save_svg(path, title="python main.py " + " ".join(flags))


def workbench(path: str, flags: list[str]) -> None:
    """Raises UserError where there is no browser, or no server."""
    from selenium import webdriver

    if not shutil.which("chromedriver"):
        raise UserError("a picture of the workbench needs chromium and chromedriver: install them")
    options = webdriver.ChromeOptions()
    for flag in ("headless=new", "no-sandbox", "hide-scrollbars", "window-size=1280,900"):
        options.add_argument(f"--{flag}")
    with (
        subprocess.Popen([*MAIN, *flags, "--serve", "0"], stdout=subprocess.PIPE, encoding="utf-8") as server,
        webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as driver,
    ):
        try:
            address = server.stdout.readline().strip()
            if not address:
                raise UserError("main.py --serve did not begin, so there is nothing to draw")
            driver.get(address)
            driver.set_script_timeout(600)
            for K in (8, 2, 4):
                driver.execute_async_script("byId('K').value = arguments[0]; decode().then(arguments[1])", str(K))
            height = driver.execute_script("return document.documentElement.offsetHeight")
            whole = {"x": 0, "y": 0, "width": 1280, "height": height, "scale": 1}
            shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": whole})
            Path(path).write_bytes(base64.b64decode(shot["data"]))
        finally:
            server.kill()


if __name__ == "__main__":
    guarded(main)
