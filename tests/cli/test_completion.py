"""Completion in a shell, whichever shell runs the command."""

from pathlib import Path

import pytest

from tests.cli.command import Command

# Where each shell looks for it, below the home folder.
INSTALLED = {
    "bash": ".bash_completions/treadle.sh",
    "zsh": ".zfunc/_treadle",
    "fish": ".config/fish/completions/treadle.fish",
}


@pytest.mark.parametrize("shell", INSTALLED)
def test_the_completion_of_a_named_shell_is_printed(alone: Command, shell: str) -> None:
    for current in ("/bin/sh", "/bin/bash", "/usr/bin/fish", ""):
        script = alone.bare("--show-completion", shell, SHELL=current).done().out
        assert f"_TREADLE_COMPLETE=complete_{shell}" in script


@pytest.mark.parametrize("shell", INSTALLED)
def test_the_completion_of_a_named_shell_is_installed(alone: Command, tmp_path: Path, shell: str) -> None:
    said = alone.bare("--install-completion", shell, HOME=str(tmp_path)).done().out
    file = tmp_path / INSTALLED[shell]
    assert said == f"completion for {shell} is in {file}; open a new terminal to use it\n"
    assert f"_TREADLE_COMPLETE=complete_{shell}" in file.read_text()


@pytest.mark.parametrize("option", ["--show-completion", "--install-completion"])
def test_a_shell_without_completion_is_refused_with_the_ones_that_have_it(alone: Command, option: str) -> None:
    assert alone.bare(option, "tcsh").refused(2) == f"{option}: 'tcsh' is not one of bash, zsh, fish"


def test_without_a_name_the_current_shell_counts(alone: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    import shellingham

    from treadle.cli import completion
    from treadle.model.errors import InvalidInput

    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("zsh", "/bin/zsh"))
    assert completion.with_shell(["--show-completion"]) == ["--show-completion", "zsh"]
    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("sh", "/bin/sh"))
    with pytest.raises(InvalidInput, match="sh has no completion; name one of bash, zsh, fish: treadle --show-com"):
        completion.with_shell(["--show-completion"])


def test_a_shell_gets_the_commands_that_fit(alone: Command) -> None:
    asked = {"_TREADLE_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    assert alone.from_shell(COMP_WORDS="treadle jo", **asked).out.split() == ["jobs"]
    asked["COMP_CWORD"] = "2"
    assert alone.from_shell(COMP_WORDS="treadle jobs re", **asked).out.split() == ["requeue"]
