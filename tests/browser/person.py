"""A person at a browser."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from tests.browser.site import Site
from tests.http.api import PASSWORD
from tests.http.served import ROOT


class Person:
    def __init__(self, page: Page, site: Site) -> None:
        self.page = page
        self.site = site
        self.troubles: list[str] = []
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("console", lambda message: self._heard(message.type, message.text))

    def _heard(self, kind: str, text: str) -> None:
        if kind == "error" and "Failed to load resource" not in text and "ERR_" not in text:
            self.troubles.append(text)

    def sign_in(self) -> None:
        self.page.goto(f"{self.site.url}/_/login")
        self.page.get_by_label("Email").fill(ROOT)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{self.site.url}/_/")

    def enter(self) -> None:
        """Signed in as by the form, which other tests fill in, without drawing its page."""
        form: dict[str, str | float | bool] = {"identity": ROOT, "password": PASSWORD}
        headers = {"Origin": self.site.url}
        address = f"{self.site.url}/_/login"
        answer = self.page.context.request.post(address, form=form, headers=headers, max_redirects=0)
        assert answer.status == 303, answer.text()
        self.page.goto(f"{self.site.url}/_/")

    def open(self, path: str) -> None:
        self.page.goto(f"{self.site.url}/_{path}")
        self.ready()

    def ready(self) -> None:
        """The modules have run."""
        expect(self.page.locator("html[data-ready]")).to_be_attached()

    def live(self) -> None:
        """The stream is open."""
        expect(self.page.locator("[data-live-word]")).to_have_text("Live")
        expect(self.page.locator("html[data-live]")).to_be_attached()

    def row(self, id: str) -> Locator:
        return self.page.locator(f"#job-{id}")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    @property
    def dialog(self) -> Locator:
        return self.page.locator("dialog[open]")
