"""Pictures of every page of the dashboard, light, dark and 380 px wide, into docs/images."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
TREADLE = str(Path(sys.executable).with_name("treadle"))
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# The fonts of a desktop, where they are installed: a server's own are uglier than what people see.
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd"><fontconfig>
<include>/etc/fonts/fonts.conf</include>
<alias binding="strong"><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
<alias binding="strong"><family>sans-serif</family><prefer><family>Inter</family></prefer></alias>
<alias binding="strong"><family>ui-monospace</family><prefer><family>JetBrains Mono</family></prefer></alias>
</fontconfig>"""
# Long enough for jobs of every kind to have come, failed and been retried.
LIVELY_S = 75
LOOKS = (("light", 1440), ("dark", 1440), ("phone", 380))
# Pages with another address than their name.
ADDRESSES = {
    "overview": "",
    "schedule": "schedules/scheduled_report",
    "template": "templates/demo_long_task",
}
PAGES = (
    "overview jobs job flow waiting errors topics schedules schedule workers templates template system".split()
)  # or the ones that the command names

# Lists of jobs with steps; the first one is opened.
STEPS = {"flow": "jobs?topic=multi_step_pipeline&status=completed", "waiting": "jobs?status=waiting"}


@contextmanager
def demo() -> Iterator[tuple[str, str, str]]:
    """A demo that has been running for a while: address, e-mail and password."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([TREADLE, "demo", "--port", "8490"], cwd=folder, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        text = "".join(process.stdout.readline() for _ in range(4))
        found = re.search(r"(http://\S+)/_/\n\D*?(\S+@\S+)\nPassword +(\S+)", text)
        assert found, text
        print(f"waiting {LIVELY_S} s for the demo to become lively")
        time.sleep(LIVELY_S)
        try:
            yield found[1], found[2], found[3]
        finally:
            process.terminate()
            process.wait(30)


def sign_in(page: Page, url: str, email: str, password: str) -> None:
    page.goto(f"{url}/_/login")
    page.fill("#email", email)
    page.fill("#password", password)
    page.click("button[type=submit]")
    page.wait_for_url(f"{url}/_/")


def show(page: Page, url: str, name: str) -> None:
    if name == "job":
        page.goto(f"{url}/_/errors")
        page.click(".errors-table td:first-child a.topic >> nth=0")
    elif name in STEPS:
        page.goto(f"{url}/_/{STEPS[name]}")
        page.click("tbody[data-job] a.topic >> nth=0")
    else:
        page.goto(f"{url}/_/{ADDRESSES.get(name, name)}")
    page.wait_for_selector("html[data-ready]", state="attached")
    page.wait_for_timeout(800)  # the first patch has come


def shrink(picture: Path) -> None:
    """To a palette, a third of the size, where pngquant is installed."""
    if tool := shutil.which("pngquant"):
        subprocess.run([tool, "--force", "--skip-if-larger", "--output", picture, picture], check=False)


def take(browser: Browser, url: str, email: str, password: str) -> None:
    for look, width in LOOKS:
        height = 800 if width < 400 else 900
        scheme = "dark" if look == "dark" else "light"
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
        page = context.new_page()
        sign_in(page, url, email, password)
        for name in sys.argv[1:] or PAGES:
            show(page, url, name)
            page.screenshot(path=IMAGES / f"{name}-{look}.png")
            shrink(IMAGES / f"{name}-{look}.png")
            print(f"{name}-{look}.png")
        context.close()


@contextmanager
def desktop_fonts() -> Iterator[None]:
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(FONTS)
        file.flush()
        os.environ["FONTCONFIG_FILE"] = file.name
        yield


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with desktop_fonts(), demo() as (url, email, password), sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, CHROMIUM)), None)
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        take(browser, url, email, password)
        browser.close()


if __name__ == "__main__":
    main()
