"""The example's settings, with further databases."""

from shop.settings import *  # noqa: F403
from shop.settings import BASE_DIR, DATABASES

_SQLITE = "django.db.backends.sqlite3"
DATABASES = {
    **DATABASES,
    "other": {
        "ENGINE": _SQLITE,
        "NAME": BASE_DIR / "other.sqlite3",
        "TEST": {"NAME": BASE_DIR / "test_other.sqlite3"},
    },
    "memory": {"ENGINE": _SQLITE, "NAME": ":memory:"},
}
