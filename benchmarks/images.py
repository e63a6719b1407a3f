"""The pictures of docs/, which python -m benchmarks pages makes: a run at a terminal, its page, the workbench, a sweep.

A PNG holds its words as its Description, with # for each number: a test compares them with today's. The pictures of the
browser need chromium and chromedriver.
"""

import base64
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import batches, grid, race, theory
from benchmarks.quiet import DOUBTED, trouble, undisturbed
from benchmarks.runs import PROMPTS
from benchmarks.tables import without_numbers
from speculative.report.document import read_run
from speculative.support.errors import UserError

ROOT = Path(__file__).parents[1]
MAIN = [sys.executable, "main.py", "--demo"]
MODELS = ["--models_dir", "models"]  # so that no picture and no page holds a path of this machine
WAITED = re.compile(f"{DOUBTED}|threads together waited")  # in what a run says of itself
# All that a page says outside the decoded texts, from the top of the page to a height.
WORDS = """const selector = "h1, h2, h3, p:not(.text, .command, #lanes p), li, label, button, summary, dt, th";
    return [...document.querySelectorAll(selector)]
    .filter((e) => e.checkVisibility() && e.getBoundingClientRect().bottom < arguments[0])
    .map((e) => e.innerText)"""


def terminal(path: Path) -> None:
    """main.py shows colours at a terminal, so it gets one."""
    import pty  # which Windows lacks

    from rich.console import Console
    from rich.text import Text

    written = []  # bytes
    run = Path(tempfile.mkdtemp(), "run.json")

    def keep(terminal: int) -> bytes:
        written.append(os.read(terminal, 2**16))
        return written[-1]

    def decode_there() -> Path:
        written.clear()
        command = shlex.join([*MAIN, *MODELS, "--json", str(run)])
        if status := pty.spawn(["sh", "-c", f"cd {ROOT} && {command} 2> /dev/null"], keep):
            raise UserError(f"main.py --demo ended with status {status}")
        return run

    os.environ["COLUMNS"] = "100"
    undisturbed(decode_there, trouble_of)
    shutil.rmtree(run.parent)
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    lines = b"".join(written).decode().strip().splitlines()
    shown = [line for line in lines if not line.startswith("Wrote ")]
    console.print(Text.from_ansi("\n".join(shown)))
    console.save_svg(str(path), title="python main.py --demo")


def moving(path: Path) -> None:
    """The race of both decoders."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run.json")
        undisturbed(partial(decode, run), trouble_of)
        race.main([str(run), str(path)])


def decode(run: Path, *words: str) -> Path:
    """Run the demo, and write its JSON to a file -> the file."""
    command = [*MAIN, *MODELS, "--json", os.path.relpath(run, ROOT), *words]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return run


def trouble_of(run: Path) -> str | None:
    """Return why the times of a run, in its JSON, cannot be shown."""
    return trouble(read_run(str(run)).figures)


@contextlib.contextmanager
def browser():
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    for flag in ("headless=new", "no-sandbox", "hide-scrollbars", "window-size=1280,900"):
        options.add_argument(f"--{flag}")
    # Without its path, selenium would ask the network for a driver.
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as driver:
        driver.set_script_timeout(600)
        yield driver


def photograph(driver, path: Path, end: str) -> None:
    """Write a picture of a page from its top to the end of the element with this selector."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    height = driver.execute_script("return document.querySelector(arguments[0]).getBoundingClientRect().bottom", end)
    part = {"x": 0, "y": 0, "width": 1280, "height": height, "scale": 1}
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": part})
    words = PngInfo()
    words.add_itxt("Description", "\n".join(map(without_numbers, driver.execute_script(WORDS, height))))
    Image.open(io.BytesIO(base64.b64decode(shot["data"]))).save(path, pnginfo=words, optimize=True)


def page(path: Path) -> None:
    """The upper half of a page. The run and the page are written beside it, as demo.json and demo.html."""
    html = path.with_name("demo.html")
    run = html.with_suffix(".json")
    undisturbed(partial(decode, run, "--temperature", "1", "--html", os.path.relpath(html, ROOT)), trouble_of)
    with browser() as driver:
        driver.get(html.as_uri())
        photograph(driver, path, "section:nth-of-type(2)")


def workbench(path: Path) -> None:
    """The workbench after three runs."""
    undisturbed(partial(three_runs, path), lambda shown: "a time is wrong" if WAITED.search(shown) else None)


def three_runs(path: Path) -> str:
    """Photograph the workbench after three runs -> the lines of the last one, and the table of all."""
    with subprocess.Popen([*MAIN, "--serve", "0"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            with browser() as driver:
                driver.get(server.stdout.readline().strip())
                for K in (8, 2, 4):
                    driver.execute_async_script("byId('K').value = arguments[0]; decode().then(arguments[1])", str(K))
                photograph(driver, path, "body")
                return driver.execute_script("return document.body.innerText")
        finally:
            server.kill()


def speedup(path: Path) -> None:
    """The speedup of the bundled pair against K."""
    with tempfile.TemporaryDirectory() as folder:
        grid.main("sweep", ["--repeats", "2", "--prompts", str(PROMPTS["prose"]), "--out", folder])
        shutil.move(f"{folder}/speedup.png", path)


def several_texts(path: Path) -> None:
    """The tokens a second of the bundled pair against the number of texts."""
    batches.main(["--target_model_size", "padded-target", "--out", str(path)])


def formulas(path: Path) -> None:
    """Leviathan's formulas, with a run of the bundled pair."""
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        words = ("--target_model_size", "tiny-target", "--temperature", "1", "-n", "190")
        run = undisturbed(partial(decode, Path(folder, "run.json"), *words), trouble_of)
        theory.main(["--run", str(run), "--out", str(path)])


PICTURES: dict[str, Callable[[Path], None]] = {
    "race.svg": moving,
    "demo.svg": terminal,
    "page.png": page,
    "workbench.png": workbench,
    "speedup.png": speedup,
    "batches.png": several_texts,
    "theory.png": formulas,
}
