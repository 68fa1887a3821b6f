"""One table of the forms in which people write secrets into a command, and what becomes of them."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from tests.study_tools import Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune.shell.secrets import find_secrets, mask, mask_environment, secrets_of_environment

SECRET = "Zq8vT2mLp9"
FORMS = [
    "python t.py +wandb.api_key=%",
    "python t.py ++hub.token=%",
    "srun --export=ALL,HF_TOKEN=% python t.py",
    "srun --export ALL,A=1,HF_TOKEN=% python t.py",
    "docker run --env=HF_TOKEN=% i python t.py",
    "docker run --env HF_TOKEN=% i python t.py",
    "docker run -eHF_TOKEN=% i python t.py",
    "mpirun -genv HF_TOKEN % python t.py",
    "mpirun -x HF_TOKEN=% python t.py",
    "mpiexec -env WANDB_API_KEY % python t.py",
    'cat <<< "token=%" | python t.py',
    "python t.py <<< token=%",
    'python t.py <<< \'{"api_key": "%"}\'',
    "A=%; B=$A; python t.py --hf-token $B",
    "python t.py --hf-token <(echo %)",
    "poetry config pypi-token.pypi % && python t.py",
    "gcloud config set auth/access_token %; python t.py",
    "conda config --set token %; python t.py",
    "dvc remote modify r password %; python t.py",
    "SECRETKEY=% MYTOKEN=1 python t.py",
    'python t.py --token Zq8"vT2"mLp9',
    "python t.py --token 'Zq8'vT2mLp9",
    "python t.py --token Zq8\\vT2mLp9",
    'HF_TOKEN=Zq8"vT2"mLp9 python t.py',
    "python t.py --hub_token=Zq8'vT2'mLp9",
    "python t.py --token $'%'",
    "python t.py --logger-args a=1,api_key=%",
    "python t.py --logger-args=a=1,api_key=%,b=2",
    "python t.py --db 'Server=x;Password=%;'",
    "python t.py --dsn 'Server=x;User Id=me;Password=%'",
    "python t.py --blob 'DefaultEndpointsProtocol=https;AccountName=a;AccountKey=%aa==;EndpointSuffix=core'",
    "python t.py --bus 'Endpoint=sb://x/;SharedAccessKeyName=n;SharedAccessKey=%'",
    "python t.py --data 'https://a.blob/x?sv=1&sig=%%3D'",
    "python t.py --data https://s3/x?X-Amz-Algorithm=a\\&X-Amz-Signature=%",
    "python t.py --data 'https://s3/x?X-Amz-Credential=%&X-Amz-Security-Token=%'",
    "curl -u me:% https://h/x && python t.py",
    "curl -ume:% https://h/x && python t.py",
    "curl --user me:% https://h/x && python t.py",
    "curl --proxy-user=me:% h && python t.py",
    "python t.py --jwt %",
    "python t.py --github-pat %",
    "GH_PAT=% python t.py",
    "python t.py --pat=%",
    "python t.py logger.wandb.key=%",
    "python t.py '+logger={api_key: %}'",
    "python t.py --set hub.token=%",
    "python t.py -o Password=%",
    "sshpass -p % ssh h python t.py",
    "sshpass -p% ssh h python t.py",
    "mysql -p% -e x; python t.py",
    "wget --http-password=% u; python t.py",
    "wget --header='Authorization: token %' u; python t.py",
    "kubectl create secret generic x --from-literal=token=%; python t.py",
    "docker login -u me -p % r; python t.py",
    "huggingface-cli login --token %; python t.py",
    "hf auth login --token=%; python t.py",
    "export HF_TOKEN=%; python t.py",
    "declare -x HF_TOKEN=%; python t.py",
    "env -S 'HF_TOKEN=% python t.py'",
    "env HF_TOKEN=% python t.py",
    "sbatch --export=NONE,WANDB_API_KEY=% --wrap 'python t.py'",
    "singularity exec --env A=1,HF_TOKEN=% i python t.py",
    "enroot start --env HF_TOKEN=% i python t.py",
    'ray job submit --runtime-env-json \'{"env_vars": {"HF_TOKEN": "%"}}\' -- python t.py',
    "python t.py --config.hub-token %",
    "python t.py --access-token=%",
    "python t.py --refresh_token %",
    "python t.py --sas-token %",
    "python t.py --client_secret=%",
    "AWS_SECRET_ACCESS_KEY=% python t.py",
    "AZURE_STORAGE_KEY=% python t.py",
    "python t.py --s3 s3://AK:%@bucket",
    "python t.py --redis redis://:%@h",
    "python t.py --webhook https://hooks.slack.com/services/T00000000/B00000000/%%",
    "printf 'machine h login me password %' > ~/.netrc; python t.py",
    "echo % | docker login --password-stdin; python t.py",
    "python t.py 'hub={token:%}'",
    "python t.py 'hub={name:a,api_key:%}'",
    "MINE=%; python t.py --token $MINE",
    'MINE=%\npython t.py --hub_token="${MINE}"',
    "export MINE='%' && HF_TOKEN=$MINE python t.py",
    "python -c \"import os; os.environ['HF_TOKEN']='%'\"; python t.py",
    "python -c \"login(token='%')\" && python t.py",
]
"""The commands, with % in place of the secret where it is written in one piece."""


NAMES = ["HF_TOKEN", "WANDB_API_KEY", "MYSQL_PWD", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "JWT"]
FORMS_OF_NAMES = [
    "@+=% python t.py",
    "@=$(echo %) python t.py",
    "@=$(printf %s '%') python t.py",
    "@=`echo %`; python t.py",
    "@=${X:=%} python t.py",
    "@=\\\n%; python t.py",
    "printf -v @ %s %; python t.py",
    "read -r @ <<< %; python t.py",
    "read @ <<E\n%\nE\npython t.py",
    "setenv @ %; python t.py",
    "cat > .env <<'E'\nexport @=\"%\"\nE\npython t.py",
    "echo '@: %' > c.yaml; python t.py",
    'ssh h "@=% python t.py"',
    "python -c \"os.putenv('@', '%')\"; python t.py",
    "arr=(@=%); env ${arr[@]} python t.py",
    "conda env config vars set @=%; python t.py",
    "git config --global @ %; python t.py",
    "python t.py --x --@ $(echo '%')",
]
FORMS_OF_PROGRAMS = [
    "python t.py --password '$tr0ng9%'",
    "curl -H 'authorization: ApiKey %' x; python t.py",
    "curl -b 'sid=%' x; python t.py",
    "aws configure set aws_secret_access_key %; python t.py",
    "aws configure set profile.x.aws_session_token %; python t.py",
    "gh auth login --with-token <<< %; python t.py",
    "echo % | gh auth login --with-token; python t.py",
    "docker login -u me --password-stdin <<< %; python t.py",
    "wandb login --relogin %; python t.py",
    "vault login %; python t.py",
    "npm config set //r/:_authToken %; python t.py",
    "pip config set global.password %; python t.py",
    "openssl enc -k % -in a; python t.py",
    "openssl enc -pass pass:% -in a; python t.py",
    "unzip -P % a.zip; python t.py",
    "7z x -p% a.7z; python t.py",
    "redis-cli -a % ping; python t.py",
    "kubectl create secret generic a --from-literal=k=%; python t.py",
    "python -c \"wandb.login(key='%')\"; python t.py",
    "python -c 'huggingface_hub.login(\"%\")'; python t.py",
    "echo % | sudo -S true; python t.py",
    "git clone https://%@h/x.git; python t.py",
    "DATABASE_URL=postgresql://u:%@h/d python t.py",
    "python t.py --db postgres://u:p@%@h/d",
    "HF_TOKEN_RO=% WANDB_API_KEY_TEAM=1 python t.py",
    "wandb login <<< %; python t.py",
    "echo % | huggingface-cli login; python t.py",
    "printf '%s\\n' % | docker login --password-stdin; python t.py",
]
VALUES = ["Zq8vT2mLp9", "correcthorsebattery", "8412907733"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("form", [*(f.replace("@", n) for f in FORMS_OF_NAMES for n in NAMES), *FORMS_OF_PROGRAMS])
def test_what_a_secret_name_is_set_to_is_masked_whatever_it_is(form: str, value: str) -> None:
    command = form.replace("%s", "\0").replace("%", value).replace("\0", "%s")
    shown = mask(command, find_secrets(command))
    assert value not in shown and "t.py" in shown


@pytest.mark.parametrize(
    "command",
    [
        "NCCL_IB_PKEY=0x8001 GOOGLE_APPLICATION_CREDENTIALS=/run/gcp.json MONKEY=banana python t.py",
        "python t.py --ssh-key ~/.ssh/id_ed25519 --private-key ./k.pem --credentials-path ./c.json --cookie-jar c.txt",
        "PRNG_KEY=100 JAX_RANDOM_KEY=3 python t.py --prng-key 42 --primary-key id --foreign_key x --public-key abc",
        "XDG_SESSION_ID=c2 SESSION=run1 KEYBOARD=us python t.py --hotkey a --turkey b --keyframe 8",
        "python t.py --token-dropout 0.1 --tokens-per-batch 4096 --token_type_ids 0 --token-level loss",
        "docker run --user 1000:1000 -p 8080:80 i python t.py; curl -u me http://h",
        'python t.py \'{"eos_token": "</s>", "max_tokens": 5, "text_key": "content"}\'',
        "HF_TOKEN=$HF_TOKEN API_KEY=$(cat /run/key) python t.py --token $(aws secretsmanager get-secret-value)",
        "cp my_secret.yaml run.yaml; python t.py --config run.yaml",
        "python t.py --run-name sk-ablation-larger-batch --model hf_mistral7binstructv02 --user-token '<|user|>'",
        "python t.py --data abfss://container-name@a.dfs/x --out hdfs://namenode-user01@h/y --ssh-key keys/id.pem",
        "python t.py --hf-tokens 4096 --session-tokens 4096 --system-token sys --router-token r1 --credentials c.json",
        "python t.py --db postgres://u:p@h/d --lr 1e-5",
    ],
)
def test_an_ordinary_command_is_shown_as_it_is(command: str) -> None:
    assert mask(command, find_secrets(command)) == command
    words = (word.partition("=") for word in command.split() if "=" in word)
    env = {name: value for name, _, value in words if name.isupper() and value[0] not in "$'"}
    assert mask_environment(env) == env and secrets_of_environment(env) == []


def test_inherited_secrets_are_found_by_name_and_in_urls_whatever_they_are() -> None:
    env = {"DB_PASSWORD": "correcthorsebattery", "MYSQL_PWD": "8412907733", "DATABASE_URL": "postgres://u:hunter2@h/d"}
    env |= {"EXTRA_ARGS": "--lr 1 --hf-token inargs1", "CONF": '{"api_key": "injson1"}'}
    assert secrets_of_environment(env) == ["correcthorsebattery", "8412907733", "hunter2", "inargs1", "injson1"]


def test_a_number_is_masked_as_a_number_and_not_within_another() -> None:
    assert mask("tokens/s: 98100.0, 0.100, key 100.", ["100"]) == "tokens/s: 98100.0, 0.100, key ***."


def test_the_value_is_what_the_program_printed_and_masking_is_for_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "s98100s")
    witness = Witness()
    command = "sh -c 'echo value: {x}98100; echo api $MY_API_KEY' x --password 98100"
    tune(tmp_path, command, ToyPreset([1, 2]), listener=witness, baseline=False).optimize()
    assert [trial.value for trial in witness.trials] == [198100, 298100]
    for log in (tmp_path / "out/s").rglob("log.txt"):
        assert "s98100s" not in log.read_text() and "value: " in log.read_text()


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_secret_is_shown(form: str) -> None:
    command = form.replace("%", SECRET)
    shown = mask(command, find_secrets(command))
    assert not any(piece in shown for piece in ("Zq8", "vT2", "mLp9"))
    assert "t.py" in shown


def test_no_file_of_a_study_has_a_secret_of_its_command_its_environment_or_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [form.partition("t.py ")[2] for form in FORMS if form.startswith("python t.py ") and "<<<" not in form]
    token = "ghp_" + "a1B2c3D4e5" * 3
    monkeypatch.setenv("WANDB_API_KEY", "inherited4321")
    command = f"sh -c 'echo value: {{x}}; echo $WANDB_API_KEY {token}' {' '.join(arguments)}".replace("%", SECRET)
    tune(tmp_path, command, ToyPreset([1, 2]), listener=Witness(), dump_env=True).optimize()
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {"studies.db", "study.json", "trials.csv", "best_command.sh", "log.txt"} <= {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        for secret in (SECRET.encode(), b"vT2", b"inherited4321", token.encode()):
            assert secret not in content, (path, secret)


def test_files_of_a_study_are_private_and_follow_the_rights_of_their_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    tune(tmp_path, preset=ToyPreset([1, 2, 3, 4]), baseline=False).optimize(n_trials=3)
    out = tmp_path / "out"
    for path in [out, *out.rglob("*")]:
        allowed = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) | allowed == allowed, path
    for path in (out / "s", out / "s" / "trials"):
        path.chmod(0o750)
    tune(tmp_path, preset=ToyPreset([1, 2, 3, 4]), baseline=False, resume=True).optimize()
    assert stat.S_IMODE((out / "s" / "study.json").stat().st_mode) == 0o640
    assert stat.S_IMODE((out / "s" / "trials" / "0003").stat().st_mode) == 0o750


def test_what_a_trial_writes_itself_keeps_the_users_own_umask(tmp_path: Path) -> None:
    tune(tmp_path, f"sh -c 'umask > {tmp_path}/seen; echo value: {{x}}'", ToyPreset([1]), baseline=False).optimize()
    status = Path("/proc/self/status").read_text().splitlines()
    own = next(line.split()[1] for line in status if line.startswith("Umask:"))
    assert int((tmp_path / "seen").read_text(), 8) == int(own, 8)


def test_the_search_for_secrets_takes_time_in_proportion_to_the_command() -> None:
    def searched_s(num_words: int) -> float:
        began = time.process_time()
        find_secrets("python t.py" + " a" * num_words)
        return time.process_time() - began

    small, large = (min(searched_s(num_words) for _ in range(3)) for num_words in (5_000, 20_000))
    assert large < 8 * small
