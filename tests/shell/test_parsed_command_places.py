"""Tells what a command is: whether it has a safe place for options, needs a shell, and which program it starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mentions import mentions
from zenith_tune.errors import CommandError
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.secrets import find_secrets, mask


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("for i in 1 2; do python t.py; done", "'for'"),
        ("while true; do python t.py; done", "'while'"),
        ("until false; do python t.py; done", "'until'"),
        ("if true; then python t.py; fi", "'if'"),
        ("case x in a) python t.py;; esac", "'case'"),
        ("function f { python t.py; }", "'function'"),
        ("f() { python t.py; }; f", "'f()'"),
        ("python t.py | while read x; do echo $x; done", "'while'"),
        ("python t.py &", "'python ... &'"),
        ("(python t.py) &", "'... &'"),
        ("nvidia-smi & python t.py", "'nvidia-smi ... &'"),
        ("python t.py <<EOF\nx\nEOF", "'<<EOF'"),
        ("python <<EOF\nprint(1)\nEOF", "'<<EOF'"),
        ("bash <<'EOF'\npython t.py\nEOF", "'<<EOF'"),
        ("eval python t.py", "'eval'"),
        ("echo 1 | xargs python t.py", "'xargs'"),
        ("parallel python t.py ::: 1 2", "'parallel'"),
        ("make train", "'make'"),
        ("$CMD", "'$CMD'"),
        ('bash -c "$CMD"', "'$CMD'"),
        ("python < t.py", "'python'"),
        ("python -", "'python'"),
        ("cat t.sh | bash", "'bash'"),
        ("bash", "'bash'"),
        ("python a.py && python b.py", "2 ('python a.py', 'python b.py')"),
        ("python a.py || python b.py", " 2 ("),
        ("bash -c 'python a.py; python b.py'", " 2 ("),
        ("cd x && ls", "('cd x', 'ls')"),
        ("A=1", "none"),
        ("cd 'a\nb'", "('cd a\\nb')"),
        ("bash -c ''", "none"),
        ("$(" + "x" * 99 + ") t.py", "x...'"),
        ("# nothing", "none"),
    ],
)
def test_without_a_safe_place_the_part_and_the_placeholders_are_named_in_one_line(command: str, part: str) -> None:
    line = ParsedCommand.of(command)
    with pytest.raises(CommandError) as caught:
        line.set({"--k": 1})
    message = str(caught.value)
    assert part in message and "\n" not in message
    assert ("leave the & out" in message) == part.endswith("&'")
    # Placeholders are no way out where the program that trains is itself in the background.
    assert mentions(message, "{tp}", "{mbs}") != command.endswith("&")
    for edit in (line.remove, line.add_flag):
        with pytest.raises(CommandError, match=re.escape(message)):
            edit("--k")


def test_a_command_without_a_safe_place_can_still_be_looked_at() -> None:
    line = ParsedCommand.of("for tp in 1 2; do python t.py --tp $tp; done")
    assert (line.get("--tp"), line.has("--tp"), line.program, line.warnings()) == (None, False, None, [])
    assert line.needs_shell


def test_the_words_of_programs_beyond_the_first_two_stay_out_of_messages() -> None:
    with pytest.raises(CommandError) as caught:
        ParsedCommand.of("A=hush python a.py --token hush; python b.py --token hush").set({"--k": 1})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("mytool --hf-token=hush; python b.py", "('mytool --hf-token=***', 'python b.py')"),
        ("env HF_TOKEN=hush python a.py; mysql -phush", "('env HF_TOKEN=***', 'mysql -p***')"),
        ("cd x; curl https://me:hush@host/x", "('cd x', 'curl https://me:***@host/x')"),
        ("bash -c 'echo hf_hushABCDEFGHIJKLMNOP'", "('echo ***')"),
    ],
)
def test_secrets_among_the_first_two_words_stay_out_of_messages(command: str, part: str) -> None:
    with pytest.raises(CommandError) as caught:
        ParsedCommand.of(command).set({"--k": 1})
    message = mask(str(caught.value), find_secrets(command))  # as the command line shows it
    assert "hush" not in message and part in message


@pytest.mark.parametrize("text", ["", "  ", "\n\t"])
def test_an_empty_command_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(CommandError, match=r"empty.* --$"):
        ParsedCommand.of(text)
    with pytest.raises(CommandError, match=r"empty.* --$"):
        ParsedCommand.from_argv([text])


def test_no_words_at_all_are_an_empty_command() -> None:
    with pytest.raises(CommandError, match=r"empty.* --$"):
        ParsedCommand.from_argv([])


@pytest.mark.parametrize("text", ["python 'a", 'python "a', "python $(a", "python t.py \\"])
def test_an_unbalanced_command_is_refused_at_once_in_one_line(text: str) -> None:
    with pytest.raises(CommandError) as caught:
        ParsedCommand.of(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "argv", "assignments"),
    [
        ("python t.py --k 1", ["python", "t.py", "--k", "1"], {}),
        ("A=1 B=\"x y\" C= python 't t.py'", ["python", "t t.py"], {"A": "1", "B": "x y", "C": ""}),
        ("bash -c 'a | b'", ["bash", "-c", "a | b"], {}),
        ("python \\\n t.py --x={tp}", ["python", "t.py", "--x={tp}"], {}),
        ("python t.py A=1", ["python", "t.py", "A=1"], {}),
    ],
)
def test_a_command_without_shell_syntax_runs_by_its_words(
    text: str, argv: list[str], assignments: dict[str, str]
) -> None:
    line = ParsedCommand.of(text)
    assert not line.needs_shell
    assert (line.argv(), line.assignments()) == (argv, assignments)


@pytest.mark.parametrize(
    "text",
    [
        *("a | b", "a && b", "a; b", "a &", "(a)", "a > f", "a 2>&1", "a < f", "a <<E\nE", "a # b", "a\nb"),
        *("a $X", 'a "$X"', "a `b`", "a $(b)", "a ${X}", "a ~/x", "a *.py", "a ?", "a [x]", "a {b,c}", "A=$X a"),
        *("A=~/x a", "if a; then b; fi", "time a", "! a", "{ a; }", "exec a", "cd x", "source x", ". x", "A=1"),
        *("A+=1 a", "A[0]=1 a", "A=(1 2) a", "[ -f x ]", "ulimit -n 1", "eval a"),
    ],
)
def test_shell_syntax_needs_a_shell(text: str) -> None:
    line = ParsedCommand.of(text)
    assert line.needs_shell
    for words in (line.argv, line.assignments):
        with pytest.raises(CommandError, match="bash -c"):
            words()


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("python t.py", "python"),
        ("A=1 /usr/bin/python t.py", "/usr/bin/python"),
        ("'my prog' x", "my prog"),
        ("cd x && python t.py | tee log", "python"),
        ("bash -c 'python t.py'", "bash"),
        ("(exec python t.py)", "python"),
        ("time -p python t.py", "python"),
        ("nohup python t.py", "nohup"),
        ("~/bin/python t.py", None),
        ("$CMD x", None),
    ],
)
def test_the_program_is_what_the_shell_will_look_for(text: str, program: str | None) -> None:
    assert ParsedCommand.of(text).program == program


def test_several_words_are_taken_literally() -> None:
    words = ["python", "my train.py", "--x", "$HOME", "a;b", "it's", "", "{tp}"]
    assert ParsedCommand.from_argv(words).argv() == words


def test_one_word_is_shell_text() -> None:
    assert ParsedCommand.from_argv(["cd x && python t.py"]).text == "cd x && python t.py"


def test_one_word_that_names_a_file_is_that_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my train.sh").touch()
    monkeypatch.chdir(tmp_path)
    assert ParsedCommand.from_argv(["my train.sh"]).argv() == ["my train.sh"]
    assert ParsedCommand.from_argv(["other train.sh"]).argv() == ["other", "train.sh"]


def test_options_for_words_from_the_command_line_go_inside_their_nested_command() -> None:
    line = ParsedCommand.from_argv(["bash", "-c", "python t.py --name 'a b'"]).set({"--k": 1})
    assert line.argv() == ["bash", "-c", "python t.py --name 'a b' --k 1"]


@pytest.mark.parametrize("command", ["bash {}", "sh -x {}", "sbatch -N 2 {}", "bash -c 'bash {}'", "srun bash {} a b"])
def test_a_script_that_ignores_its_arguments_is_remarked(command: str, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text('ARGS=(--lr 1)\npython t.py "${ARGS[@]}" $0\n')
    [warning] = ParsedCommand.of(command.format(script)).warnings()
    assert mentions(warning, script, '"$@"', "{tp}", "{mbs}")


@pytest.mark.parametrize("body", ['python t.py "$@"', "python t.py $*", "python t.py ${1:-4}", "python t.py ${@:2}"])
def test_a_script_that_passes_its_arguments_on_is_not_remarked(body: str, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(body)
    assert ParsedCommand.of(f"bash {script}").warnings() == []


@pytest.mark.parametrize("command", ["bash none.sh", "bash $S", "python t.py", "cd x && bash train.sh", "bash ."])
def test_what_cannot_be_read_is_not_remarked(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.sh").write_text("python t.py")
    monkeypatch.chdir(tmp_path)
    assert ParsedCommand.of(command).warnings() == []


@pytest.mark.timeout(300)
def test_a_script_that_is_a_pipe_or_a_device_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.sh")
    (tmp_path / "link.sh").symlink_to("fifo.sh")
    for name in ("fifo.sh", "link.sh", "/dev/zero"):
        assert ParsedCommand.of(f"bash {tmp_path / name}").warnings() == []


def test_a_script_behind_a_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("python t.py")
    link = tmp_path / "link.sh"
    link.symlink_to("train.sh")
    [warning] = ParsedCommand.of(f"bash {link}").warnings()
    assert mentions(warning, link)


def test_the_tuners_own_input_is_left_alone() -> None:
    program = "import sys; from zenith_tune.shell import ParsedCommand; "
    program += "print(ParsedCommand.of('bash /dev/stdin').warnings(), sys.stdin.read())"
    ran = subprocess.run([sys.executable, "-c", program], input="y", capture_output=True, text=True, check=True)
    assert ran.stdout == "[] y\n"


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("python t.py > run.log", "run.log"),
        ("python t.py --x 1 >>logs/run.log 2>&1", "logs/run.log"),
        ("python t.py &> run.log", "run.log"),
        ("bash -c 'python t.py > run.log'", "run.log"),
        ("python t.py 2> errors.log", None),
        ("python t.py 2>&1 | tee run.log", None),
        ("python t.py --expr 'a>b'", None),
    ],
)
def test_where_a_command_writes_its_output(command: str, path: str | None) -> None:
    assert ParsedCommand.of(command).output_file == path
