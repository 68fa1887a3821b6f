"""The `accelerate launch` inside a command: which options it has, and the same command with a trial's own file."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.errors import CommandError
from zenith_tune.presets.shared.accelerate_settings import BACKEND_SWITCHES, ONLY_AS_OPTIONS, SECTION_OF, TOP
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import ACCELERATE, LauncherOption

PRESET = "preset accelerate"
FILE_NAME = "accelerate_config.yaml"
TRIAL_PATH = f"{{trial_folder}}/{FILE_NAME}"
"""Where a trial's own configuration lies; the tuner fills the folder in."""
HOOK_FOLDER = "hook"
HOOK_PATH = f"{{trial_folder}}/{HOOK_FOLDER}"
ACCUMULATION_VARIABLE = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""What Accelerator() takes the steps of accumulation from, before its own argument."""


class Launch:
    """Read the launcher's options, by their names with underscores, and write the command anew.

    >>> launch = Launch("srun accelerate launch --zero_stage=2 train.py --lr 1")
    >>> launch.values
    {'zero_stage': '2'}
    >>> launch.written()
    'srun accelerate launch --config_file {trial_folder}/accelerate_config.yaml train.py --lr 1'
    """

    def __init__(self, command: str) -> None:
        parsed = ParsedCommand.of(command)
        launcher = parsed.launcher if parsed.target else None  # says what is wrong where there is no target
        if launcher is None or launcher.kind != ACCELERATE:
            problem = f"{PRESET} reads its job from `accelerate launch`, but the command starts something else"
            hint = "choose another --preset, or write `accelerate launch` where it can be seen"
            raise CommandError(problem, hint=hint)
        self._command, self._launcher = command, launcher
        known = [each for each in launcher.options if each.is_static]
        self.values = {_key(each): True if each.value is None else each.value for each in known}
        """What the options say, the last of a name; those aside whose value only the shell knows."""
        self.unknown_names = {_key(each) for each in launcher.options if not each.is_static}
        """The options whose value only the shell knows."""

    def written(self, more_options: Mapping[str, str] | None = None, variables: Mapping[str, str] | None = None) -> str:
        """Return the command with the trial's own file in place of what the file says; then `variables` and options."""
        gone = [each.name for each in self._launcher.options if each.is_static and _is_kept_in_file(_key(each))]
        options = {"config_file": TRIAL_PATH, **(more_options or {})}
        named = {f"--{name}": value for name, value in options.items()}
        return self._launcher.with_options(named, without=gone, variables=variables)

    def watched(self) -> str:
        """Return the command as it is, with the hook that notes what it runs as."""
        return self._command if HOOK_PATH in self._command else self._launcher.with_path("PYTHONPATH", HOOK_PATH)


def starts_accelerate(command: str) -> bool:
    """Tell whether a command comes down to `accelerate launch`.

    >>> starts_accelerate("accelerate launch train.py"), starts_accelerate("accelerate config")
    (True, False)
    """
    try:
        Launch(command)
    except CommandError:
        return False
    return True


def _key(option: LauncherOption) -> str:
    return option.name.lstrip("-").replace("-", "_")


def _is_kept_in_file(name: str) -> bool:
    """Tell whether the file can say the same as an option, which has to go then: it would win over the file."""
    in_file = name in SECTION_OF or name in TOP or name in BACKEND_SWITCHES or name == "use_parallelism_config"
    return in_file and name not in ONLY_AS_OPTIONS
