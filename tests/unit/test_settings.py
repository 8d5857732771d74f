"""Settings: what the code says, then the environment, then the file, then the defaults."""

from pathlib import Path
from typing import Any

import pytest

from treadle.model.errors import InvalidInput
from treadle.model.settings import DAY_MS, Settings
from treadle.queue.own_settings import load


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "treadle.toml"


def test_the_defaults_are_those_of_the_design(tmp_path: Path) -> None:
    assert load({}, tmp_path) == Settings()
    assert Settings().slots == 10
    assert Settings().lease_ms == 5 * 60_000
    assert Settings().stale_after_ms == Settings().delete_after_ms == 7 * DAY_MS
    assert Settings().db == "sqlite:///jobs.db"


ENVIRONMENT = {
    "TREADLE_DB": ("postgresql://localhost/jobs", "db", "postgresql://localhost/jobs"),
    "TREADLE_SLOTS": ("4", "slots", 4),
    "TREADLE_LEASE": ("30s", "lease_ms", 30_000),
    "TREADLE_POLL_INTERVAL": ("1000ms", "poll_interval_ms", 1_000),
    "TREADLE_REAP_INTERVAL": ("5m", "reap_interval_ms", 300_000),
    "TREADLE_STALE_AFTER": ("1d", "stale_after_ms", DAY_MS),
    "TREADLE_DELETE_AFTER": ("0s", "delete_after_ms", 0),
    "TREADLE_RETENTION_INTERVAL": ("2h", "retention_interval_ms", 7_200_000),
    "TREADLE_CORS_ORIGINS": ("https://a.example, *", "cors_origins", "https://a.example, *"),
    "TREADLE_LOG_FORMAT": ("json", "log_format", "json"),
}


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_the_environment_counts(name: str, tmp_path: Path) -> None:
    text, field, value = ENVIRONMENT[name]
    assert getattr(load({name: text}, tmp_path), field) == value


def test_an_empty_variable_and_other_programs_variables_change_nothing(tmp_path: Path) -> None:
    assert load({"TREADLE_SLOTS": "", "TREADLE_LEASE": "", "SLOTS": "3", "TREADLE_OTHER": "x"}, tmp_path) == Settings()


def test_the_file_counts_less_than_the_environment_and_that_less_than_the_code(toml: Path) -> None:
    toml.write_text('slots = 3\nlease = "1m"\nlog_format = "json"  # é\n', encoding="utf-8")
    settings = load({"TREADLE_LEASE": "2m", "TREADLE_POLL_INTERVAL": "3s"}, toml.parent)
    assert settings == Settings(slots=3, lease_ms=120_000, poll_interval_ms=3_000, log_format="json")
    assert settings.override({"lease": "4m", "slots": None}).lease_ms == 240_000
    assert settings.override({"lease": "4m", "slots": None}).slots == 3


def test_origins_are_a_list_or_a_text(toml: Path) -> None:
    assert Settings().allowed_origins == ["*"]
    toml.write_text('cors_origins = ["https://a.example", "http://localhost:3000"]')
    assert load({}, toml.parent).allowed_origins == ["https://a.example", "http://localhost:3000"]
    nothing: list[str] = []
    for none in ("none", nothing):
        assert Settings().override({"cors_origins": none}).allowed_origins == []
    for bad in ("a.example", "https://a.example/path", "ftp://a.example", "https://"):
        with pytest.raises(InvalidInput, match="is not an origin"):
            Settings().override({"cors_origins": bad})


def test_by_default_the_process_is_asked(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml.write_text("slots = 3\n")
    monkeypatch.chdir(toml.parent)
    monkeypatch.setenv("TREADLE_LEASE", "1m")
    assert load() == Settings(slots=3, lease_ms=60_000)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"slots": "many"}, "slots"),
        ({"slots": "1.5"}, "slots"),
        ({"slots": 1.5}, "slots"),
        ({"slots": True}, "slots"),
        ({"slots": [1]}, "slots"),
        ({"slots": 0}, "slots"),
        ({"slots": -1}, "slots"),
        ({"slots": 10_001}, "slots"),
        ({"lease": "soon"}, "lease"),
        ({"lease": -1}, "lease"),
        ({"lease": True}, "lease"),
        ({"lease": 0}, "lease_ms"),
        ({"poll_interval": "0s"}, "poll_interval_ms"),
        ({"reap_interval": 0}, "reap_interval_ms"),
        ({"retention_interval": 0}, "retention_interval_ms"),
        ({"stale_after": "x"}, "stale_after"),
        ({"log_format": "xml"}, "log_format"),
        ({"colour": "red"}, "colour"),
        ({"lease_ms": 5}, "lease_ms"),
    ],
)
def test_nonsense_is_refused_with_the_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        Settings().override(values)
    assert refusal.value.data == {"field": field}


@pytest.mark.parametrize("text", ["slots =", "slots = 1\nslots = 2", "[jobs]\nx = 1", 'slots = "many"', "= 5"])
def test_a_file_with_nonsense_is_refused(toml: Path, text: str) -> None:
    toml.write_text(text)
    with pytest.raises(InvalidInput):
        load({}, toml.parent)


def test_a_file_that_cannot_be_read_is_refused_by_name(toml: Path) -> None:
    toml.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match=r"treadle\.toml"):
        load({}, toml.parent)
    toml.unlink()
    toml.mkdir()
    with pytest.raises(InvalidInput, match=r"treadle\.toml"):
        load({}, toml.parent)
