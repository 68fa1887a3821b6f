"""The registry of everything that can be plugged in: built-ins, decorated classes and package entry points."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
import types
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from zenith_tune.errors import MissingPackageError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints


T = TypeVar("T")
A = TypeVar("A")
P = ParamSpec("P")


_IN_FILE = re.compile(r"(.+\.py)(?::([A-Za-z_]\w*))?", re.ASCII)
_OF_FILES = "zenithtune:"
"""Prefix of the module names of files of the user's own."""


_REASON_LENGTH = 300


class PluginWarning(UserWarning):
    """An installed plugin that cannot be loaded and is skipped."""


class Registry(Generic[T]):
    """Classes by name; a class is imported when its name is asked for, not before.

    >>> shapes: Registry[object] = Registry("shape", "my_package.shapes", {})
    >>> @shapes.register("round")
    ... class Circle: ...
    >>> shapes.get("round") is Circle
    True
    """

    def __init__(
        self,
        kind: str,
        entry_point_group: str,
        built_in: dict[str, str],
        *,
        contract: type[T] | None = None,
        siblings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`siblings` are in other packages of this project, each with the extra that installs it."""
        self.kind = kind
        self.contract = contract
        self.entry_point_group = entry_point_group
        self._built_in = built_in
        self._siblings = siblings
        self._classes: dict[str, type[T]] = {}
        self._broken: set[str] = set()

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a decorator that registers a class under `name`."""

        def decorate(cls: type[T]) -> type[T]:
            known = self._classes.get(name)
            if known is not None and known.__qualname__ != cls.__qualname__:
                raise UsageError(
                    f"{self.kind} {name!r} is registered by {known.__module__}", hint="choose another name"
                )
            self._classes[name] = cls
            return cls

        return decorate

    def get(self, name: str) -> type[T]:
        """Return the class registered under `name`, importing it if need be; `file.py:Class` is one of a file."""
        if name not in self._classes and (match := _IN_FILE.fullmatch(name)):
            self._classes[name] = self._load_file(Path(match[1]), match[2])
        if name not in self._classes and name in self._built_in:
            importlib.import_module(self._built_in[name])
        if name not in self._classes:
            self._load_plugin(name)
        if name not in self._classes and name in self._siblings and name not in self._broken:
            raise MissingPackageError(f"{self.kind} {name}", self._siblings[name])
        if name not in self._classes:
            raise UnknownNameError(self.kind, name, self.names())
        return self._classes[name]

    def names(self) -> list[str]:
        """Return every known name, built-ins and plugins alike, without importing any."""
        names = {*self._built_in, *self._classes, *entry_points(self.entry_point_group).names}
        return sorted(names - self._broken)

    def name_of(self, cls: type[T]) -> str:
        """Return the name that a class is registered under, or the class's own."""
        return next((name for name, known in self._classes.items() if known is cls), cls.__name__)

    def each_loadable(self) -> Iterator[tuple[str, type[T]]]:
        """Yield every class that can be imported, with its name, the particular before the general: x-y before x.

        Each is imported when it is its turn. A plugin that cannot be imported is named in a warning and skipped.
        """
        for name in sorted(self.names(), key=lambda name: f"{name}~"):
            try:
                yield name, self.get(name)
            except UnknownNameError:
                continue

    def _load_file(self, path: Path, name: str | None) -> type[T]:
        """Return a class of a file of the user's own, which is imported once."""
        what = f"{self.kind} {path}:{name}" if name else f"{self.kind} {path}"
        module = import_file(path, what)
        own = (value for value in vars(module).values() if isinstance(value, type))
        fit = [cls.__name__ for cls in own if cls.__module__ == module.__name__ and self._keeps_contract(cls)]
        hint = f"give {' or '.join(f'{path}:{each}' for each in fit)}" if fit else f"it has no {self.kind}"
        if name is None:
            raise UsageError(f"{path} must be given with a class in it", hint=hint)
        found = getattr(module, name, None)
        if not isinstance(found, type):
            raise UsageError(f"{path} has no class {name}", hint=hint)
        if problem := self._other_kind(found):
            raise UsageError(f"{name} of {path} is {problem}", hint=hint)
        return found

    def _other_kind(self, cls: type) -> str:
        """Say what a class is not; nothing where it is one of the kind."""
        base = self.contract.__name__ if self.contract else ""
        return "" if self._keeps_contract(cls) else f"no {self.kind} (a subclass of {base} or with its methods)"

    def _keeps_contract(self, cls: type) -> bool:
        """Tell whether a class is one of the kind, by its base or by having all that the base has."""
        if self.contract is None or self.contract in cls.__mro__:
            return True
        return all(hasattr(cls, name) for name in vars(self.contract) if not name.startswith("_"))

    def _load_plugin(self, name: str) -> None:
        for point in entry_points(self.entry_point_group):
            if point.name != name:
                continue
            try:
                loaded = point.load()
                if not isinstance(loaded, type):
                    raise TypeError(f"it is no class but of type {type(loaded).__name__}")
                if problem := self._other_kind(loaded):
                    raise TypeError(f"{loaded.__name__} is {problem}")
                self._classes[name] = loaded
            except (Exception, SystemExit) as error:  # a stranger's module may raise anything at import
                self._broken.add(name)
                package = point.dist.name if point.dist else point.value
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:_REASON_LENGTH]
                message = f"{self.kind} plugin {name!r} of package {package!r} cannot be loaded, skipped: {reason}"
                warnings.warn(PluginWarning(message), stacklevel=3)


def of_sibling(place: str, what: str, extra: str) -> Any:
    """Return what is at `module:name`, also of another package of this project, or say how to install that."""
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise MissingPackageError(what, extra) from None


def entry_points(group: str) -> EntryPoints:
    """Return the entry points of a group; installed packages are read again only where a folder of them changed."""
    return _installed(group, tuple((folder, _changed(folder or ".")) for folder in sys.path))


@functools.lru_cache(maxsize=16)
def _installed(group: str, path: tuple[tuple[str, int], ...]) -> EntryPoints:
    from importlib import metadata  # not at the top: it costs more than the rest of this module

    return metadata.entry_points(group=group)


def _changed(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def import_file(path: Path, what: str) -> types.ModuleType:
    """Return the module that a file of the user's own is, which is imported once; `what` names it in errors."""
    if not path.is_file():
        raise UsageError(f"{what} cannot be loaded: there is no file {path}", hint="give its path as it is from here")
    name = f"{_OF_FILES}{path.resolve()}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # it ends in .py
        sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(sys.modules[name])
        except (Exception, SystemExit) as error:  # a stranger's module may raise anything at import
            del sys.modules[name]
            raise UsageError(f"{what} cannot be loaded: {type(error).__name__}: {error}") from error
    return sys.modules[name]


def raising_plug(error: BaseException) -> str | None:
    """Return which class and method of a file of the user's own an exception comes from, or None."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [frame.f_code for frame in frames if str(frame.f_globals.get("__name__")).startswith(_OF_FILES)]
    return f"{own[-1].co_qualname} of {Path(own[-1].co_filename).name}" if own else None


_BOOLS = {**dict.fromkeys(("true", "1", "yes", "on"), True), **dict.fromkeys(("false", "0", "no", "off"), False)}


def parse_pairs(text: str, option: str, example: str = "n_gpus=8,gbs=16") -> dict[str, str]:
    """Split `k=v,k=v`; a comma inside a value is written `\\,`.

    >>> parse_pairs("n_gpus=8,gbs=16", "--args")
    {'n_gpus': '8', 'gbs': '16'}
    """
    pairs: dict[str, str] = {}
    for part in re.split(r"(?<!\\),", text):
        key, equals, value = part.strip().replace("\\,", ",").partition("=")
        if not equals or not key or not value:
            raise UsageError(f"{option} takes k=v,k=v, but got {part.strip()!r}", hint=f"write e.g. {option} {example}")
        if key in pairs:
            raise UsageError(f"{option} gives {key!r} twice ({pairs[key]!r} and {value!r})", hint="give it once")
        pairs[key] = value
    return pairs


def keywords_of(kind: Callable[P, A]) -> Callable[[Callable[[Any, A], None]], Callable[Concatenate[Any, P], None]]:
    """Return a decorator by which a constructor takes the fields of a dataclass as its keyword arguments."""

    def decorate(init: Callable[[Any, A], None]) -> Callable[Concatenate[Any, P], None]:
        def taking(self: Any, /, *args: P.args, **fields: P.kwargs) -> None:
            init(self, kind(*args, **fields))

        own, *_ = inspect.signature(init).parameters.values()
        found = inspect.signature(kind)
        taking.__annotations__ = typing.get_type_hints(kind)
        taking.__signature__ = found.replace(parameters=[own, *found.parameters.values()])  # type: ignore[attr-defined]
        return taking

    return decorate


def construct(cls: type[T], args: Mapping[str, Any], what: str, *, defaults: Mapping[str, Any] | None = None) -> T:
    """Build `cls` from loosely typed arguments; an unknown or badly typed one lists the valid keys.

    `defaults` stand in for arguments that are not given, where the constructor knows them.
    """
    known = typed(cls, args, what, defaults=defaults)
    try:
        return cls(**known)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} does not take {known}: {error}") from error


def typed(
    cls: type[Any], args: Mapping[str, Any], what: str, *, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return arguments with the types of the constructor's signature."""
    hints, signature = typing.get_type_hints(cls.__init__), inspect.signature(cls).parameters.values()
    named = [p for p in signature if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    parameters = {p.name: (hints.get(p.name, str), p.default) for p in named}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature)
    known = {name: value for name, value in {**(defaults or {}), **args}.items() if name in parameters}
    unknown = [name for name in args if name not in parameters]
    if unknown and not takes_any:
        close = difflib.get_close_matches(unknown[0], parameters, n=1)
        guess = f" did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"{what} takes no argument {unknown[0]!r};{guess} {_valid(parameters)}")
    missing = [name for name, (_, default) in parameters.items() if default is inspect.Parameter.empty]
    missing = [name for name in missing if name not in known]
    if missing:
        raise UsageError(f"{what} needs {' and '.join(missing)}. {_valid(parameters)}")
    return {name: _convert(value, parameters[name][0], name, what, parameters) for name, value in known.items()}


def _convert(value: Any, hint: Any, name: str, what: str, parameters: dict[str, tuple[Any, Any]]) -> Any:
    if not isinstance(value, str):
        return value
    for kind in _scalar_types(hint):
        try:
            return _BOOLS[value.lower()] if kind is bool else kind(value)
        except (KeyError, ValueError):
            continue
    expected = " or ".join(kind.__name__ for kind in _scalar_types(hint))
    raise UsageError(f"{what}: {name} must be {expected}, but got {value!r}. {_valid(parameters)}")


def _scalar_types(hint: Any) -> list[type]:
    """Return the plain types in a hint, the most particular first: `int | None` gives [int]."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return [kind for kind in (bool, int, float, str) if kind in members] or [str]


def _valid(parameters: dict[str, tuple[Any, Any]]) -> str:
    if not parameters:
        return "It takes none."
    shown = []
    for name, (hint, default) in parameters.items():
        kind = "|".join(kind.__name__ for kind in _scalar_types(hint))
        required = default is inspect.Parameter.empty
        shown.append(f"{name}: {kind}" + (" (required)" if required else ""))
    return f"Valid: {', '.join(shown)}."
