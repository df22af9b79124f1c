"""Make the README's pictures from a run: what the terminal shows of it, and its page.

usage: python -m tools.pictures FOLDER

Runs `trainmark run distilbert_sst2` as `make demo` does, in a terminal of its own, and writes
terminal.svg and report-LANGUAGE-THEME.png into FOLDER. Chromium draws the page.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.chromium import start_chromium

CASE = "distilbert_sst2"
COLUMNS = 96
SIZE = {"width": 1280, "height": 980}  # CSS pixels of the page that are shown
SCALE = 1.5
COLOURS = 128
# rich's own has the address of a font on another server.
FONT = "ui-monospace, 'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace"
ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def run_in_terminal(folder: Path, *arguments: str) -> str:
    """Run the program in ``folder`` and return what it wrote to its terminal.

    Raises:
        CalledProcessError: it did not pass.
    """
    ours, theirs = pty.openpty()
    env = os.environ | {"COLUMNS": str(COLUMNS), "LINES": "50", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "trainmark", *arguments]
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(command, cwd=folder, env=env, **streams)
    os.close(theirs)
    output = bytearray()
    try:
        while data := os.read(ours, 1 << 16):
            output += data
    except OSError:  # EIO: nobody holds the other end any more
        pass
    finally:
        os.close(ours)
    if process.wait():
        raise subprocess.CalledProcessError(process.returncode, command, bytes(output))
    return output.decode()


def draw_terminal(command: str, output: str) -> str:
    """Return a picture of a terminal after a command; lines that were overwritten are gone."""
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    console.print(Text.assemble(("$ ", "bold green"), command))
    for line in output.replace("\r\n", "\n").rstrip().split("\n"):
        last_part = next((part for part in reversed(line.split("\r")) if part.strip()), "")
        console.print(Text.from_ansi(last_part.rstrip()))
    console.print()  # letters below the last line would be cut
    drawn = console.export_svg(title="trainmark", unique_id="terminal")
    return ELSEWHERE.sub("", drawn).replace("Fira Code, monospace", FONT).replace("Fira Code", FONT)


def report_pictures(page: Path, folder: Path) -> list[Path]:
    """Write what the page shows first, in both languages and themes; return the files."""
    made = []
    with start_chromium() as browser:
        for lang, locale in (("en", "en-GB"), ("zh", "zh-CN")):
            for theme in ("light", "dark"):
                window = browser.new_page(
                    viewport=SIZE, device_scale_factor=SCALE, color_scheme=theme, locale=locale
                )
                window.goto(page.resolve().as_uri())
                window.locator(f"label[for=lang-{lang}]").click()
                made.append(folder / f"report-{lang}-{theme}.png")
                made[-1].write_bytes(shrink_png(window.screenshot()))
                window.close()
    return made


def shrink_png(png: bytes) -> bytes:
    """Return a PNG of few colours, which is a fraction of the size."""
    from PIL import Image

    out = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS).save(out, "PNG", optimize=True)
    return out.getvalue()


def main(arguments: list[str]) -> int:
    """Make all pictures; return the exit code."""
    if len(arguments) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        output = run_in_terminal(Path(place), "run", CASE)
        drawn = draw_terminal(f"trainmark run {CASE}", output)
        (folder / "terminal.svg").write_text(drawn, encoding="utf-8")
        (run,) = (Path(place) / "runs").iterdir()
        made = report_pictures(run / "page.html", folder)
    for path in [folder / "terminal.svg", *made]:
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
