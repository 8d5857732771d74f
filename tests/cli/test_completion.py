"""Completion in a shell, whichever shell runs the command."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import SECONDS, TREADLE, Command

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


def test_bash_completes_commands_and_options(alone: Command) -> None:
    """In a real bash, which calls the function with the words of the line."""
    script = """
        eval "$(treadle --show-completion bash)"
        complete -p treadle
        ask() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _treadle_completion treadle; echo "${COMPREPLY[@]}"; }
        ask treadle jo
        ask treadle jobs re
        ask treadle worker --ma
        ask treadle worker --mem
    """
    path = f"{Path(TREADLE).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=alone.folder,
        env=alone.environment({"PATH": path}),
        capture_output=True,
        encoding="utf-8",
        timeout=SECONDS,
        check=False,
    )
    registered, *answers = done.stdout.splitlines()
    assert registered == "complete -o default -F _treadle_completion treadle", done.stderr
    assert [sorted(answer.split()) for answer in answers] == [["jobs"], ["requeue"], ["--max-jobs", "--max-memory"], []]


@pytest.mark.parametrize(
    ("shell", "asked", "answer"),
    [
        ("zsh", "treadle jo", """_arguments '*: :(("jobs":"Look at jobs and steer them."))'"""),
        ("fish", "treadle jobs re", "requeue\tPut ended jobs back with all their attempts."),
    ],
)
def test_other_shells_get_the_commands_that_fit(alone: Command, shell: str, asked: str, answer: str) -> None:
    """In the way that their scripts ask."""
    line = {"_TYPER_COMPLETE_ARGS": asked, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert alone.from_shell(_TREADLE_COMPLETE=f"complete_{shell}", **line).out.rstrip() == answer
