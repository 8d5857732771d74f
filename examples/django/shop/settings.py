"""Settings: the two lines for Treadle are the app and the backend."""

import os
from pathlib import Path

BASE_DIR = Path(os.environ.get("SHOP_DATA", Path(__file__).parents[1]))
SECRET_KEY = "only for this example"
DEBUG = os.environ.get("SHOP_DEBUG") == "1"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "treadle.integrations.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

SQLITE = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": BASE_DIR / "shop.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 30},
    "TEST": {"NAME": BASE_DIR / "test.sqlite3"},  # a file: Django's default in memory belongs to one connection
}
POSTGRES = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": os.environ.get("PGDATABASE", "shop"),
    "USER": os.environ.get("PGUSER", ""),
    "PASSWORD": os.environ.get("PGPASSWORD", ""),
    "HOST": os.environ.get("PGHOST", ""),
    "PORT": os.environ.get("PGPORT", ""),
}
DATABASES = {"default": POSTGRES if "PGHOST" in os.environ else SQLITE}

TASKS = {
    "default": {
        "BACKEND": "treadle.integrations.django.TreadleBackend",
        "QUEUES": ["default", "media"],
    }
}
