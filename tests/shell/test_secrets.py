"""Finds and masks secrets, and leaves the vocabulary of language models alone."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from zenith_tune.shell.secrets import find_secrets, mask, mask_environment, mask_file

HF = "hf_" + "aB3dE6gH9j" * 3
SECRET = "s3cr3t-v4lue"


@pytest.mark.parametrize(
    "text",
    [
        *(f"p --{name} {SECRET}" for name in ("hf-token", "hub_token", "token", "api-key", "wandb_key", "password")),
        *(f"p --{name}={SECRET}" for name in ("client-secret", "use_auth_token", "apikey", "db-passwd", "credentials")),
        *(f"p --{name} '{SECRET}'" for name in ("aws-access-key-id", "ssh-passphrase", "openai.api_key", "hftoken")),
        *(f"p --{name} {SECRET}" for name in ("pass", "pw", "pwd", "auth", "api-secret-id", "wandb_api_key_value")),
        *(
            f"p --{name} {SECRET}"
            for name in ("passphrase", "db.pass", "smtp-pw", "cookie", "hf-auth", "vault_secret_id")
        ),
        *(f"p --{name} user:{SECRET}" for name in ("login", "auth", "hub-login")),
        *(
            f"{name}={SECRET} python t.py"
            for name in ("MYSQL_PWD", "SSHPASS", "DB_PASS", "AUTH", "MY_PW", "PASSPHRASE")
        ),
        f"curl -H 'Cookie: {SECRET}' x | python t.py",
        f"HF_TOKEN={SECRET} python t.py",
        f'WANDB_API_KEY="{SECRET}" python t.py',
        f"A=1; export MY_TOKEN='{SECRET}'; python t.py",
        f"env A=1 CUSTOM_KEY={SECRET} python t.py",
        f"docker run -e HF_TOKEN={SECRET} image python t.py",
        f"bash -c 'HF_TOKEN={SECRET} python t.py'",
        f'bash -c "srun bash -c \\"python t.py --hub_token {SECRET}\\""',
        f"python t.py model.hub_token={SECRET}",
        f"python t.py --url https://user:{SECRET}@host/x",
        f"git clone https://x-access-token:{SECRET}@host && python t.py",
        f"python t.py --url 'https://host/x?api_key={SECRET}&a=1'",
        f"curl -H 'Authorization: Bearer {SECRET}' x | python t.py",
        f"curl -H 'X-Api-Key: {SECRET}' x | python t.py",
        f"python t.py --header 'Bearer {SECRET}'",
        f'python t.py --config \'{{"api_key": "{SECRET}"}}\'',
        f"python t.py --x $(cat --token {SECRET})",
        f"HF_TOKEN=${{HF_TOKEN:-{SECRET}}} python t.py",
        f'HF_TOKEN="{SECRET}$X" python t.py',
        f"cat > c <<E\napi_key: {SECRET}\nE\npython t.py",
        f"cat > c <<E\npython t.py --hub_token {SECRET}\nE\nbash c",
        f"python t.py # HF_TOKEN={SECRET}",
        f"python t.py 'never closed HF_TOKEN={SECRET}",
        "wandb login s3cr3tv4lues3cr3tv4lue && python t.py",
    ],
)
def test_a_secret_in_a_command_is_found_and_masked(text: str) -> None:
    found = find_secrets(text)
    assert found
    assert "s3cr3t" not in mask(text, found)
    assert "python" in mask(text, found) or text.startswith("p ")


def test_a_secret_within_quotes_that_are_nested_the_wrong_way_is_found() -> None:
    wrong = """bash -c "python -c 'import os; os.environ["HF_TOKEN"]="s3cr3t"'\""""
    assert "s3cr3t" not in mask(wrong, find_secrets(wrong))


@pytest.mark.parametrize(
    "token",
    [
        HF,
        "sk-proj-abcdefghij0123456789",
        "ghp_abcdefghijklmnop0123",
        "github_pat_11ABCDEFG0_abcdefghij",
        "glpat-abcdefghij0123456789",
        "xoxb-123456789-abcdef",
        "AKIAABCDEFGHIJKLMNOP",
    ],
)
@pytest.mark.parametrize("text", ["p {}", "p --x={}", "bash -c 'p --x \"{}\"'", "p https://host/{}/x", "echo a:{}"])
def test_a_well_known_token_is_found_wherever_it_stands(token: str, text: str) -> None:
    assert find_secrets(text.format(token)) == [token]


@pytest.mark.parametrize(
    "text",
    [
        "p --tokenizer-type GPT2BPETokenizer --tokenizer-model /models/tokenizer_v2.model --tokenizer_name_or_path x1",
        "p --max-tokens 4096 --num-tokens 1000000 --max_new_tokens 128 --tokens 5000",
        "p --eos-token '<|im_end|>' --pad-token-id 151643 --image-token '<image>' --bos_token=abc123def456ghi789",
        "p --sort-key length --text-key content --image-key images --key messages --keys a,b,c",
        "p --num-key-value-heads 8 --key-value-dim 128 --moe-token-dispatcher-type alltoall",
        "TOKENIZERS_PARALLELISM=false MAX_TOKENS=4096 SORT_KEY=length KEY_VALUE_HEADS=8 p",
        "p --hf-token $HF_TOKEN --hub_token ${HUB_TOKEN} --token {token} --api-key $(cat key)",
        "p --use_auth_token True --token none --password '' --token-file /run/token --api-key-env NAME_OF_VARIABLE",
        "p --load ckpt/hf_qwen3_omni/release --task-name task-sk-learn --data-key dataset_v2_instruct",
        "p --url http://host:8080/x --address user@host --bearer no",
        "PWD=/home/me/run AUTHOR=somebody GIT_AUTHOR_NAME=somebody SSH_AUTH_SOCK=/run/agent GIT_ASKPASS=/bin/askpass p",
        "apptainer exec --pwd /workspace image p --num-pass 1000 --forward-pass fused --bypass all --compass north",
        "bash --login train.sh --login-shell bash --auth basic --no-auth data.bin --auth-type ldap --login http://host",
        "p --shared-key-value-heads 128 --key-value dict --secret-name name --pass-rate 0.95 --pass-at-k 1,10,100",
        "cat > notes <<E\nthe token will be read by the key holder\nE\np",
    ],
)
def test_the_vocabulary_of_language_models_is_no_secret(text: str) -> None:
    assert find_secrets(text) == []


def test_secrets_are_reported_once_each() -> None:
    assert find_secrets(f"HF_TOKEN={SECRET} p --hf-token {SECRET} --password other") == [SECRET, "other"]


def test_the_environment_is_masked_by_name_in_any_case_and_by_shape() -> None:
    names = ("HF_TOKEN", "wandb_api_key", "MY_SECRET", "DbPassword", "OLD_PASSWD", "GOOGLE_CREDENTIALS")
    masked = mask_environment({**dict.fromkeys(names, SECRET), "PATH": "/bin", "PIP_URL": f"https://u:{SECRET}@h/"})
    assert masked == {**dict.fromkeys(names, "***"), "PATH": "/bin", "PIP_URL": "https://u:***@h/"}


def test_the_environment_is_masked_by_the_names_that_commands_are_masked_by() -> None:
    names = ("MYSQL_PWD", "SSHPASS", "DB_PASS", "PASSPHRASE", "AUTH", "HF_AUTH", "COOKIE", "MY_PW", "pgpass")
    assert mask_environment(dict.fromkeys(names, "short")) == dict.fromkeys(names, "***")


def test_a_command_in_the_environment_is_masked_like_any_other() -> None:
    env = {"CMD": f"x --hf-token {SECRET} y", "RUN": f"bash -c 'DB_PASS={SECRET} x'", "LOGIN": f"me:{SECRET}"}
    env |= {"TORN": f"never 'closed --password {SECRET}", "DEEP": "$(" * 3000 + f" --password {SECRET}"}
    masked = mask_environment(env)
    assert masked["CMD"] == "x --hf-token *** y"
    assert masked["LOGIN"] == "me:***"
    assert not any("s3cr3t" in value for value in masked.values())


def test_what_only_sounds_like_a_secret_stays_in_the_environment() -> None:
    env = {
        "PWD": "/home/me/run",
        "OLDPWD": "/home/me",
        "AUTHOR": "somebody",
        "SSH_AUTH_SOCK": "/run/agent",
        "LOGNAME": "me",
    }
    env |= {"CMD": "x --eos-token abc123 --tokenizer-model m1", "SSH_ASKPASS": "/bin/ask", "APPTAINER_PWD": "/work"}
    assert mask_environment(env) == env


def test_the_longest_secret_is_masked_first() -> None:
    assert mask("abcdef abc", ["abc", "abcdef"]) == "*** ***"


def test_what_masking_itself_brings_together_is_masked_too() -> None:
    assert mask("aa***", ["a***"]) == "***"


@pytest.mark.parametrize("secret", ['a"b', "a'b", "a\\b", "a b$c", "é\n", "`x`"])
def test_a_secret_is_masked_however_it_is_escaped(secret: str) -> None:
    for written in (secret, shlex.quote(secret), json.dumps(secret), json.dumps(shlex.quote(secret))):
        masked = mask(f"<{written}>", [secret])
        assert "***" in masked and secret.strip() not in masked.replace("***", "")


@pytest.mark.parametrize("secret", ["p@ss/w0rd+x=", "a b&c", "é%ü", "it's", 'say "it\'s"', "tab\there", "back\\slash"])
@pytest.mark.parametrize(
    "write",
    [
        repr,
        lambda secret: repr([f"--x={secret}", "\"'"]),
        lambda secret: repr(f'he\'s "{secret}"'),
        lambda secret: repr(shlex.join(["p", "--x", secret])),
        quote,
        quote_plus,
        lambda secret: quote(secret, safe=""),
        lambda secret: quote(secret, safe="").lower(),
        lambda secret: "https://host/?" + urlencode({"x": secret}),
    ],
)
def test_a_secret_is_masked_as_python_and_urls_write_it(
    secret: str, write: Callable[[str], str], tmp_path: Path
) -> None:
    written = write(secret)
    path = tmp_path / "log"
    path.write_text(f"<{written}>")
    assert mask_file(path, [secret]) == 1
    assert "***" in mask(f"<{written}>", [secret])


def test_a_secret_that_is_no_valid_text_is_masked(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"<pass\xffword>")
    assert mask_file(path, ["pass\udcffword"]) == 1
    assert path.read_bytes() == b"<*********>"


NASTY = st.text(alphabet="ab*'\"\\ $é", min_size=1, max_size=6).filter(lambda text: text.strip("*"))


@settings(max_examples=examples(500), deadline=None, derandomize=True)
@given(found=st.lists(NASTY, max_size=4), pieces=st.lists(st.one_of(NASTY, st.integers(0, 3)), max_size=8))
def test_a_masked_text_never_holds_a_secret(found: list[str], pieces: list[str | int]) -> None:
    text = "".join(piece if isinstance(piece, str) else found[piece] if piece < len(found) else "." for piece in pieces)
    masked = mask(text, found)
    assert not any(secret in masked for secret in found)
    if not any(secret in text for secret in found) and not {"'", '"', "\\", "$", "é"} & set("".join(found)):
        assert masked == text


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(data=st.data())
def test_a_file_is_masked_in_place(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = data.draw(st.lists(st.text(alphabet="abé", min_size=1, max_size=5), min_size=1, max_size=3))
    text = data.draw(st.text(alphabet="abcé\n", max_size=80))
    path = tmp_path_factory.getbasetemp() / "log"
    path.write_text(text)
    count = mask_file(path, found)
    before, after = text.encode(), path.read_bytes()
    assert len(after) == len(before)
    assert all(new in (old, ord("*")) for old, new in zip(before, after, strict=True))
    assert not any(secret.encode() in after for secret in found)
    assert (count > 0) is any(secret in text for secret in found) is (before != after)


def test_a_large_file_without_newlines_is_masked(tmp_path: Path) -> None:
    path = tmp_path / "log"
    filler = b"x" * ((1 << 20) - 10)
    path.write_bytes(filler + SECRET.encode() + filler + SECRET.encode() * 2)
    assert mask_file(path, [SECRET, "absent"]) == 3
    stars = b"*" * len(SECRET)
    assert path.read_bytes() == filler + stars + filler + stars * 2


def test_a_file_without_secrets_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("plain")
    before = path.stat().st_mtime_ns
    assert mask_file(path, [SECRET]) == mask_file(path, []) == 0
    assert path.stat().st_mtime_ns == before


@pytest.mark.timeout(300)
def test_only_a_regular_file_is_masked(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text(f"somebody else's {SECRET}")
    (tmp_path / "link").symlink_to(other)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name in ("link", "folder", "fifo", "missing", "other/below", "/dev/zero"):
        assert mask_file(tmp_path / name, [SECRET]) == 0
    assert SECRET in other.read_text()


@pytest.mark.timeout(300)
def test_a_file_that_grows_while_it_is_masked_is_read_up_to_its_size_at_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_text(f"{SECRET} ")
    size_at = os.fstat

    def grow(descriptor: int) -> os.stat_result:
        result = size_at(descriptor)
        with path.open("a") as file:
            file.write(f"{SECRET} ")
        return result

    monkeypatch.setattr(os, "fstat", grow)
    path_size = path.stat().st_size
    mask_file(path, [SECRET])
    monkeypatch.undo()
    assert path.stat().st_size > path_size
    assert path.read_text().endswith(f"{SECRET} ")
