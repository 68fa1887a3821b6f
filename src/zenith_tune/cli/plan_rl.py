"""`zenithtune plan --rl`: where a step that generates and trains runs best."""

from __future__ import annotations

import click
from click.core import ParameterSource
from click.decorators import FC

from zenith_tune.cli.options import COUNT, RL, SEQUENCE, Options, echo_json, grouped_option, refuse_others, require
from zenith_tune.errors import UsageError

ALGORITHMS = ("grpo", "dapo", "ppo")
OF_A_STEP = ("prompts", "group", "prompt_len", "response_len")
"""What a step must be given."""
PLANNED = (
    *("rl", *OF_A_STEP, "updates", "behind", "model", "cluster", "gpus", "framework", "precision", "risk"),
    *("calibration", "top", "as_json", "debug"),
)
"""What a plan with --rl takes."""


def rl_options(command: FC) -> FC:
    """Add the options of a step that generates and trains."""
    length = "LIMIT[:P50,P99]"
    for option in (
        grouped_option("--behind", type=click.IntRange(0), metavar="N", default=0, show_default=True, group=RL,
                       is_rare=True, help="Steps by which answers may be older than the weights."),
        grouped_option("--updates", type=COUNT, metavar="N", default=1, show_default=True, group=RL, is_rare=True,
                       help="Updates of the policy in a step."),
        grouped_option("--response-len", metavar=length, group=RL,
                       help="Most tokens of an answer, and of what half and 99% have less, e.g. 4096:900,3500."),
        grouped_option("--prompt-len", type=SEQUENCE, metavar="N", group=RL, help="Tokens of a prompt."),
        grouped_option("--group", type=COUNT, metavar="N", group=RL, help="Answers to each prompt."),
        grouped_option("--prompts", type=COUNT, metavar="N", group=RL, help="Prompts of a step."),
        grouped_option("--rl", type=click.Choice(ALGORITHMS), group=RL,
                       help="Plan a step that generates answers and trains on them."),
    ):  # fmt: skip
        command = option(command)
    return command


def run_rl(options: Options) -> int:
    """Print the placements of a step, the fastest first."""
    refuse_others(PLANNED, "--rl plans steps that generate and train")
    require(options, ("model", "cluster", *OF_A_STEP))
    # Not before: a mistake is reported without the planner.
    from zenith_tune.api.plan_rl import plan_rl

    taken = ("gpus", "framework", "precision", "risk", "calibration", "top", "updates", "behind", *OF_A_STEP)
    found = plan_rl(
        options["model"], options["cluster"], algorithm=options["rl"], **{name: options[name] for name in taken}
    )
    if not found and not options["as_json"]:
        click.echo(f"no placement of {options['model']} on {options['cluster']} fits, together or apart")
        return 1
    if options["as_json"]:
        from zenith_tune.report.plan.rl import placement_object

        echo_json({"placements": [placement_object(placed) for placed in found]})
    else:
        from rich.console import Console

        from zenith_tune.report.plan.rl import print_placements

        print_placements(found, Console(highlight=False))
    return 0 if found else 1


def refuse_alone(options: Options) -> None:
    """Refuse options of a step that generates where none is planned."""
    source = click.get_current_context().get_parameter_source
    for name in (*OF_A_STEP, "updates", "behind"):
        if source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name.replace('_', '-')} belongs to --rl", hint="give --rl grpo too, or leave it out")
