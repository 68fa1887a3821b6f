"""Ends a trial's processes on a machine where nothing but a shell can be counted on."""

from __future__ import annotations

from zenith_tune.runners.launch.process_tree import MARK

# $1 is the variable with its value that every process of the trial carries in its environment; $2 the tenths of a
# second between SIGTERM and SIGKILL. A session is the trial's where its leader carries the mark, also for those of its
# processes that shed it.
END_MARKED = """
mark=$1 tenths=$2
members() {
    found=' ' sessions=' '
    for file in $(grep -lzxFe "$mark" /proc/[0-9]*/environ 2>/dev/null); do
        pid=${file#/proc/}; found="$found${pid%/environ} "
    done
    [ "$found" = ' ' ] && return
    for stat in /proc/[0-9]*/stat; do
        { IFS= read -r line < "$stat"; } 2>/dev/null || continue
        pid=${line%% *}
        set -- ${line##*) }
        case "$1" in Z|X) continue;; esac
        case "$found" in *" $4 "*) [ "$pid" = $$ ] || sessions="$sessions$pid ";; esac
    done
    found="$found$sessions"
}
members
[ "$found" = ' ' ] && exit 0
kill -TERM $found 2>/dev/null
while [ "$tenths" -gt 0 ]; do
    members
    [ "$found" = ' ' ] && exit 0
    sleep 0.1; tenths=$((tenths - 1))
done
tries=0
while [ "$tries" -lt 100 ]; do
    members
    [ "$found" = ' ' ] && exit 0
    kill -KILL $found 2>/dev/null
    sleep 0.1; tries=$((tries + 1))
done
exit 1
"""


def end_arguments(value: str, grace_s: float, variable: str = MARK) -> list[str]:
    """Return what END_MARKED is started with.

    >>> end_arguments("trial-1", 5.0)
    ['ZENITHTUNE_TRIAL_FOLDER=trial-1', '50']
    """
    return [f"{variable}={value}", str(round(grace_s * 10))]
