"""Installed plug-ins: environments, methods, kinds of policies, engines, trainers, runners and functions,
found by entry points.

Any package can add one: it names an object with a `settings` model in one of the entry-point groups below.
Configurations choose it by the `type` of these settings. Scorers, advantages and surrogates are functions,
which configurations choose by the names of their entry points. The project's own plug-ins are found in the
same way.
"""

import dataclasses
import functools
import importlib.metadata
import importlib.util
import operator
import pkgutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from erl_pipeline.config.base import PluginSettings, named
from storage.errors import ConfigError

SettingsModel = type[PluginSettings]
Group = Literal[
    "environments",
    "methods",
    "policies",
    "engines",
    "trainers",
    "runners",
    "scorers",
    "advantages",
    "surrogates",
]

_OWN = "erl-pipeline"

_INTERFACES: Mapping[Group, str] = {
    "environments": "erl_pipeline.environments.interface:EnvironmentPlugin",
    "methods": "erl_pipeline.methods.interface:Method",
    "policies": "erl_pipeline.stages.training.first_checkpoint:PolicyKind",
    "engines": "erl_pipeline.engines.interface:EnginePlugin",
    "trainers": "erl_pipeline.trainers.interface:TrainerPlugin",
    "runners": "erl_pipeline.plan.runner:RunnerPlugin",
}
"""Group -> the type of its objects; the other groups have functions. The types are imported when plug-ins are
looked up: each of them imports this package."""

NO_BYTES: Mapping[str, bool] = {"makes_bytes": False}
"""Metadata of a field of a plug-in's record whose code gives no byte of an artifact: it draws, explains,
checks or plans, so that an edit of it changes no id."""


def makes_bytes(field: dataclasses.Field[Any]) -> bool:
    """Whether a field of a plug-in's record counts in fingerprints: all do that do not deny it."""
    return bool(field.metadata.get("makes_bytes", True))


@dataclass(frozen=True)
class Plugin:
    """One plug-in that was found: its object, and the installed distribution that it comes from."""

    group: Group
    type: str
    distribution: str
    version: str
    target: str
    """`module:object`, as declared by the package."""
    value: Any

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages with the plug-in's code, and the further ones that it names, such as a scorer's.

        For a plug-in of another distribution this is its whole top package, since its modules may share code.
        If that is a namespace package, which several distributions may share, it is the first package below
        it that has sources.
        """
        module = self.target.partition(":")[0]
        own = module if self.distribution == _OWN else top_package(module)
        return (own, *getattr(self.value, "packages", ()))

    def packages_for(self, settings: PluginSettings) -> tuple[str, ...]:
        """The packages of an environment, and those that these settings add, such as that of the scorer that
        they name."""
        return tuple(dict.fromkeys((*self.packages, *self.value.dependencies.used_packages(settings))))

    @property
    def is_own(self) -> bool:
        """Whether it is one of the project's own plug-ins."""
        return self.distribution == _OWN

    @property
    def settings(self) -> SettingsModel:
        model: SettingsModel = self.value.settings
        return model


@dataclass(frozen=True)
class BrokenPlugin:
    """A plug-in that cannot be used, and why. It does not affect other plug-ins."""

    group: Group
    type: str
    distribution: str
    target: str
    problem: str


@dataclass(frozen=True)
class Plugins:
    """All plug-ins of a group, by `type`."""

    group: Group
    found: Mapping[str, Plugin]
    broken: tuple[BrokenPlugin, ...]

    def __getitem__(self, type_: str) -> Plugin:
        """The plug-in of a type. Raises ConfigError if it is broken (the message names its package) or
        unknown."""
        if type_ in self.found:
            return self.found[type_]
        self.require_usable(type_)
        raise ConfigError(f"{type_}: no such type of {self.group}; there are {', '.join(self.found)}")

    def require_usable(self, type_: str) -> None:
        """Raise ConfigError if a package offers this type, but it cannot be used."""
        for plugin in self.broken:
            if plugin.type == type_ and type_ not in self.found:
                raise ConfigError(
                    f"{plugin.type} of package {plugin.distribution} cannot be used: {plugin.problem}. "
                    "`erl-pipeline plugins` lists what is found"
                )


def plugins(group: Group) -> Plugins:
    """The installed plug-ins of a group; they are looked up once in a process."""
    return _find(group)


@cache
def _find(group: Group) -> Plugins:
    found: dict[str, Plugin] = {}
    broken: list[BrokenPlugin] = []
    points = importlib.metadata.entry_points(group=f"erl_pipeline.{group}")
    # The project's own come first, so that no other package can take their names.
    for point in sorted(
        points, key=lambda each: (_distribution(each) != _OWN, _distribution(each), each.name)
    ):
        name = _distribution(point)
        plugin, problem = _load(group, point)
        if plugin is not None and plugin.type in found:
            holder = found[plugin.type]
            if (holder.target, holder.distribution) == (plugin.target, plugin.distribution):
                continue
            problem = f"its type {plugin.type!r} is taken by package {holder.distribution}"
        if problem:
            broken.append(
                BrokenPlugin(group, plugin.type if plugin else point.name, name, point.value, problem)
            )
        elif plugin is not None:
            found[plugin.type] = plugin
    return Plugins(group, found, tuple(broken))


def _distribution(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # A package above it is missing.
        return False


def top_package(module: str) -> str:
    """The outermost package of a module that has sources; the module itself where there is none."""
    parts = module.split(".")
    names = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
    with suppress(ModuleNotFoundError, ValueError):  # One above it is missing, or it is `__main__`.
        for name in names:
            spec = importlib.util.find_spec(name)
            if spec is not None and spec.origin is not None:
                return name
    return module


def _load(group: Group, point: importlib.metadata.EntryPoint) -> tuple[Plugin | None, str]:
    """The plug-in of an entry point, or what is wrong with it."""
    try:
        value = point.load()
    # Nothing that another package does at import may stop other work, not even an exit.
    except (Exception, SystemExit) as error:
        return None, f"its import fails with {type(error).__name__}: {error}"
    problem = _type_problem(group, value, point)
    if problem:
        return None, problem
    absent = [name for name in getattr(value, "packages", ()) if not _is_installed(name)]
    if absent:
        how = f": {value.install}" if getattr(value, "install", "") else ""
        return None, f"{point.value}.packages names {', '.join(absent)}, which is not installed{how}"
    version = point.dist.version if point.dist is not None else "unknown"
    return Plugin(group, point.name, _distribution(point), version, point.value, value), ""


def _type_problem(group: Group, value: Any, point: importlib.metadata.EntryPoint) -> str:
    """Why an object is no plug-in of a group; empty if it is one."""
    if group not in _INTERFACES:
        return "" if callable(value) else f"{point.value} is no function"
    interface = pkgutil.resolve_name(_INTERFACES[group])
    if not isinstance(value, interface):
        return f"{point.value} is no {interface.__name__} ({interface.__module__})"
    return _settings_problem(value, point)


def _settings_problem(value: Any, point: importlib.metadata.EntryPoint) -> str:
    """What is wrong with the settings model of a plug-in; empty if nothing is."""
    settings = value.settings
    if not (isinstance(settings, type) and issubclass(settings, PluginSettings)):
        return f"{point.value}.settings is no subclass of erl_pipeline.config.base.PluginSettings"
    field = settings.model_fields.get("type")
    types = get_args(field.annotation) if field is not None else ()
    if len(types) != 1 or not isinstance(types[0], str):
        return f'{settings.__name__} needs a field `type: Literal["..."]`'
    if types[0] != point.name:
        return f"its entry point is named {point.name!r}, but its settings have type {types[0]!r}"
    return ""


def settings_of(group: Group) -> Any:
    """The type of a setting that accepts the settings of any plug-in of a group. A bare name means the
    plug-in with its default settings. Raises ConfigError if no plug-in of the group can be used."""
    known = plugins(group)
    if not known.found:
        problems = "; ".join(f"{each.type}: {each.problem}" for each in known.broken)
        raise ConfigError(f"no plug-in of {group} can be used ({problems or 'none is installed'})")
    found: list[type[PluginSettings]] = [plugin.settings for plugin in known.found.values()]
    union = functools.reduce(operator.or_, found)
    by_type = Annotated[union, Field(discriminator="type")] if len(found) > 1 else union
    return Annotated[by_type, BeforeValidator(named)]


def function_of(group: Group) -> AfterValidator:
    """What a setting that names a function of a group is checked by: there must be one of this name."""

    def known(name: str) -> str:
        try:
            plugins(group)[name]
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return name

    return AfterValidator(known)


Operated = Literal["engines", "trainers"]


def operational_names(group: Operated, type_: str) -> frozenset[str]:
    """Names of the settings of this plug-in that no artifact depends on. None for one that is not
    installed."""
    plugin = plugins(group).found.get(type_)
    if plugin is None or plugin.value.in_recipes is None:
        return frozenset()
    return frozenset(plugin.settings.model_fields.keys() - plugin.value.in_recipes.model_fields.keys())


def as_in_recipes(group: Operated, settings: PluginSettings) -> PluginSettings:
    names = operational_names(group, settings.type)
    if not names & type(settings).model_fields.keys():
        return settings
    model: type[PluginSettings] = plugins(group)[settings.type].value.in_recipes
    return model.model_validate(settings.model_dump(exclude=set(names)))


def operational_part(group: Operated, settings: PluginSettings) -> dict[str, Any]:
    """The settings that a worker is given besides the recipe."""
    return settings.model_dump(mode="json", include=set(operational_names(group, settings.type)))


def with_operational(
    group: Operated, settings: PluginSettings, operational: dict[str, Any]
) -> PluginSettings:
    """The settings of a recipe with those of this worker."""
    return plugins(group)[settings.type].settings.model_validate({**settings.model_dump(), **operational})
