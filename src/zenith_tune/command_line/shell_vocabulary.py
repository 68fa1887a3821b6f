"""The words that a shell knows by itself, and the programs that never train."""

from __future__ import annotations


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


KEYWORDS = _names("! { } time")
"""What may stand in front of a command and leave it a simple one."""

CONTROL_FLOW = _names("for while until if then elif else fi do done case esac select function coproc")

FOLDER_CHANGES = _names("cd pushd popd")

BUILTINS = CONTROL_FLOW | _names(
    """
    . : [ [[ alias bg bind break builtin cd command compgen complete continue declare dirs disown enable eval exec exit
    export fc fg getopts hash help history jobs let local logout mapfile popd pushd read readarray readonly return set
    shift shopt source suspend test times trap type typeset ulimit umask unalias unset wait
    """
)
"""What only a shell can run."""

TRIVIAL = FOLDER_CHANGES | _names(
    """
    . : [ [[ alias awk cat chmod clear cp curl cut date declare df du echo exit export false free getopts git grep gzip
    hash head hostname kill ln local logger ls mkdir ml module mv nvidia-smi pip pip3 pkill printf ps pwd read readonly
    return rm rmdir rocm-smi rsync sed set shift shopt sleep sort source spack sync tail tar tee test touch tr trap true
    type typeset ulimit umask uname uniq unset unzip wait wc wget which whoami
    """
)
"""What prepares, cleans up or shows, and is passed over in search of the program that trains."""

TRIVIAL_ALONE = _names("conda mamba micromamba exec env time command")
"""What is trivial only without arguments, such as an `exec` that redirects the rest of the script."""
