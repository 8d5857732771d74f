"""What is built from a checkout: the wheel, the wheel of the extra `contract`, and the source distribution."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]
CONTRACT = ROOT / "contract"

THEIRS = """
import pytest
from tests.contract.relational import RelationalDatabase
from treadle.testing.contract import StoreContract

class TestTheirs(StoreContract):
    @pytest.fixture
    def database(self, tmp_path):
        return RelationalDatabase(f"sqlite:///{tmp_path / 'theirs.db'}")

def test_nothing_comes_from_the_checkout():
    from treadle.testing import contract, plugin, workbench
    assert all("installed" in module.__file__ for module in (contract, plugin, workbench))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return built(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def contract_wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return built(CONTRACT, tmp_path_factory.mktemp("contract"))


def built(folder: Path, into: Path) -> zipfile.ZipFile:
    [path] = WheelBuilder(str(folder)).build(directory=str(into), versions=["standard"])
    return zipfile.ZipFile(path)


def project(folder: Path) -> Any:
    return tomllib.loads((folder / "pyproject.toml").read_text())["project"]


def modules(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def sources(*places: str) -> set[str]:
    return {str(file.relative_to(ROOT / "src")) for place in places for file in (ROOT / "src").glob(place)}


def test_the_contract_suite_is_not_in_the_wheel(wheel: zipfile.ZipFile) -> None:
    names = modules(wheel)
    assert "treadle/testing/plugin.py" in names
    assert any(name.endswith("sqlite.sql") for name in names)
    assert not [name for name in names if "contract" in name or "workbench" in name]


def test_the_extra_has_what_the_wheel_leaves_out(wheel: zipfile.ZipFile, contract_wheel: zipfile.ZipFile) -> None:
    assert modules(contract_wheel) == sources("treadle/testing/contract/*.py", "treadle/testing/workbench.py")
    python = {name for name in modules(wheel) | modules(contract_wheel) if name.endswith(".py")}
    assert python == sources("treadle/**/*.py")


def test_the_extra_and_the_wheel_have_one_version() -> None:
    ours, theirs = project(ROOT), project(CONTRACT)
    assert ours["optional-dependencies"]["contract"] == [f"{theirs['name']}=={ours['version']}"]
    assert theirs["version"] == ours["version"]
    assert f"treadle=={ours['version']}" in theirs["dependencies"]


def test_the_extra_is_installed_from_a_checkout_without_a_registry() -> None:
    words = ["install", "--dry-run", "--no-index", "--no-build-isolation", f"{ROOT}[contract]", str(CONTRACT)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words], capture_output=True, encoding="utf-8", timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    version = project(ROOT)["version"]
    assert f"Would install treadle-{version} treadle-contract-{version}" in done.stdout


def test_a_store_is_tested_by_what_is_installed(
    wheel: zipfile.ZipFile, contract_wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    for one in (wheel, contract_wheel):
        one.extractall(tmp_path / "installed")
    (tmp_path / "test_theirs.py").write_text(THEIRS)
    words = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "TestLeader or nothing_comes"]
    # The installed copy would count as lines of the package that no test runs.
    uncounted = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-o", "asyncio_default_fixture_loop_scope=function"],
        cwd=tmp_path,
        env=uncounted | {"PYTHONPATH": f"{tmp_path / 'installed'}{os.pathsep}{ROOT}"},
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_source_distribution_has_what_a_checkout_has(tmp_path: Path) -> None:
    [archive] = SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert names >= {"Makefile", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml", "requirements/dev.txt"}
    assert names >= {"src/treadle/testing/workbench.py", "docs/guide.md", "tests/testing/test_distributions.py"}
    assert names >= {"contract/pyproject.toml", "contract/README.md"}
