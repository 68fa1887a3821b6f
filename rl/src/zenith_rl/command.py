"""`zenithtune plan --rl`: where a step that generates and trains runs best."""

from __future__ import annotations

from typing import Any

import click

from zenith_tune.cli.options import COUNT, SEQUENCE, echo_json, grouped_option, refuse_others, require

RL = "Reinforcement learning"
"""The heading of its options."""
ALGORITHMS = ("grpo", "dapo", "ppo")
OF_A_STEP = ("prompts", "group", "prompt_len", "response_len")
"""What a step must be given."""
PLANNED = (
    *("rl", *OF_A_STEP, "updates", "behind", "model", "cluster", "gpus", "framework", "precision", "risk"),
    *("calibration", "top", "as_json", "debug"),
)
"""What a plan with --rl takes."""


@click.command()
@grouped_option("--rl", type=click.Choice(ALGORITHMS), group=RL,
                help="Plan a step that generates answers and trains on them.")  # fmt: skip
@grouped_option("--prompts", type=COUNT, metavar="N", group=RL, help="Prompts of a step.")
@grouped_option("--group", type=COUNT, metavar="N", group=RL, help="Answers to each prompt.")
@grouped_option("--prompt-len", type=SEQUENCE, metavar="N", group=RL, help="Tokens of a prompt.")
@grouped_option("--response-len", metavar="LIMIT[:P50,P99]", group=RL,
                help="Most tokens of an answer, and of what half and 99% have less, e.g. 4096:900,3500.")  # fmt: skip
@grouped_option("--updates", type=COUNT, metavar="N", default=1, show_default=True, group=RL, is_rare=True,
                help="Updates of the policy in a step.")  # fmt: skip
@grouped_option("--behind", type=click.IntRange(0), metavar="N", default=0, show_default=True, group=RL,
                is_rare=True, help="Steps by which answers may be older than the weights.")  # fmt: skip
def rl(**options: Any) -> int:
    """Print the placements of a step, the fastest first."""
    refuse_others(PLANNED, "--rl plans steps that generate and train")
    require(options, ("model", "cluster", *OF_A_STEP))
    # Not before: a mistake is reported without the planner.
    from zenith_rl.plan import plan_rl

    taken = ("gpus", "framework", "precision", "risk", "calibration", "top", "updates", "behind", *OF_A_STEP)
    found = plan_rl(
        options["model"], options["cluster"], algorithm=options["rl"], **{name: options[name] for name in taken}
    )
    if not found and not options["as_json"]:
        click.echo(f"no placement of {options['model']} on {options['cluster']} fits, together or apart")
        return 1
    if options["as_json"]:
        from zenith_rl.report import placement_object

        echo_json({"placements": [placement_object(placed) for placed in found]})
    else:
        from rich.console import Console

        from zenith_rl.report import print_placements

        print_placements(found, Console(highlight=False))
    return 0 if found else 1
