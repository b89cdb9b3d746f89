"""What a plan depends on besides the configuration: fingerprints of code, and digests of files that the
configuration names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from erl_pipeline.config.plugins import Plugin, plugins
from erl_pipeline.config.policy import MessagesWarmStart
from erl_pipeline.plan.fingerprint import package_fingerprint
from erl_pipeline.plan.plugin_code import plugin_fingerprints
from erl_pipeline.policies.checkpoint_files import require_checkpoint, weights_digest
from erl_pipeline.policies.checkpoints import policy_traits
from storage.errors import InputError

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig
    from erl_pipeline.environments.interface import MixturePart

CodeOwner = Literal["environment", "examination", "method", "policy", "engine", "trainer", "objective"]
"""Whose code is part of recipes: the plug-ins whose code people write and edit. `examination` is all that an
environment offers, also what gives no bytes of a run, such as gold answers. `objective` has the functions
that give advantages and the loss."""

NO_CODE: Mapping[CodeOwner, Mapping[str, str]] = {owner: {} for owner in get_args(CodeOwner)}


@dataclass(frozen=True)
class Sources:
    """What was read of code and files.

    `code`: owner -> package -> fingerprint of its sources. `files`: path, as the configuration names it ->
    SHA-256 of its content. `weights`: digest of a pretrained policy's files.
    """

    code: Mapping[CodeOwner, Mapping[str, str]]
    files: Mapping[str, str] = field(default_factory=dict)
    weights: str | None = None
    model: str = ""
    """The folder or hub name of that policy."""
    models: Mapping[str, str] = field(default_factory=dict)
    """Further pretrained models of the method: folder or hub name -> digest of its files."""
    read: bool = True
    """False: nothing was read, so that only the shape of a plan has a meaning, and its ids do not."""

    def with_file(self, path: Path, sha256: str) -> Sources:
        """The same sources with one more file."""
        return replace(self, files={**self.files, str(path): sha256})

    @property
    def locations(self) -> dict[str, str]:
        """SHA-256 -> path of the files."""
        known = {sha256: path for path, sha256 in self.files.items()}
        if self.weights is not None:
            known[self.weights] = self.model
        return {**{digest: path for path, digest in self.models.items()}, **known}


def read_sources(config: RunConfig) -> Sources:
    """Read the code and the files that a configuration names.

    Raises InputError for a file or a checkpoint that cannot be read.
    """
    environment = environment_sources(config)
    model = policy_traits(config.policy).model
    return replace(
        environment,
        code={
            **environment.code,
            "method": plugin_fingerprints([plugins("methods")[config.method.type]]),
            **{
                owner: {each: package_fingerprint(each) for each in packages}
                for owner, packages in _packages_of_others(config).items()
            },
        },
        files={**environment.files, **_digests(_conversation_files(config))},
        weights=None if model is None else weights_digest(model),
        model=model or "",
        models={each: weights_digest(each) for each in _method_models(config)},
    )


def code_packages(config: RunConfig) -> Mapping[CodeOwner, Sequence[str]]:
    """The packages whose code is part of the recipes of a run."""
    method = plugins("methods")[config.method.type]
    return {
        "environment": environment_packages(config),
        "method": method.packages,
        **_packages_of_others(config),
    }


def environment_sources(config: RunConfig) -> Sources:
    """Read only the code and the files of the environment, for artifacts that depend on nothing else.

    Raises InputError for a file that cannot be read.
    """
    found = _environment_plugins(config)
    of_plugins = plugin_fingerprints(found)
    # What settings name, such as a scorer, counts whole.
    named = [each for each in environment_packages(config) if each not in of_plugins]
    return Sources(
        code={"environment": {**of_plugins, **{each: package_fingerprint(each) for each in named}}},
        files=_digests(_environment_files(config)),
    )


def examined_sources(config: RunConfig) -> Sources:
    """The same, and all code of the environment, for an examination of it."""
    sources = environment_sources(config)
    examined = plugin_fingerprints(_environment_plugins(config), whole=True)
    whole = {f"{package}, all of it": each for package, each in examined.items()}
    return replace(sources, code={**sources.code, "examination": whole})


def require_sources(config: RunConfig) -> None:
    """Raise InputError for a file or a checkpoint that a configuration names and that is not there.

    Weights are not read, and nothing is downloaded.
    """
    _digests({**_environment_files(config), **_conversation_files(config)})
    model = policy_traits(config.policy).model
    models = [] if model is None else [model]
    for model in (*models, *_method_models(config)):
        require_checkpoint(model)


def unread_sources(config: RunConfig) -> Sources:
    """Sources for which nothing was read, for plans whose artifacts are known from a ledger."""
    paths = [*_environment_files(config).values(), *_conversation_files(config).values()]
    return Sources(
        code=NO_CODE,
        files={str(path): "" for path in paths},
        weights=None if policy_traits(config.policy).model is None else "",
        models=dict.fromkeys(_method_models(config), ""),
        read=False,
    )


def environment_packages(config: RunConfig) -> Sequence[str]:
    """The packages with the code of a configuration's environment: its own, those that its settings bring in,
    and, for a mixture, those of its parts."""
    installed = plugins("environments")
    all_settings = [config.environment, *(part.settings for part in _parts(config))]
    found = [package for each in all_settings for package in installed[each.type].packages_for(each)]
    return tuple(dict.fromkeys(found))


def _environment_plugins(config: RunConfig) -> list[Plugin]:
    installed = plugins("environments")
    return [installed[config.environment.type], *(installed[part.settings.type] for part in _parts(config))]


def _parts(config: RunConfig) -> list[MixturePart]:
    """The parts of a mixture; none for any other environment."""
    return list(plugins("environments")[config.environment.type].value.parts(config.environment).values())


def _packages_of_others(config: RunConfig) -> dict[CodeOwner, list[str]]:
    """Packages of the kind of policy, the engine, the trainer and the objective; none of the project's own,
    whose code the versions of the stages guard."""
    objective = config.objective
    chosen: dict[CodeOwner, list[Plugin]] = {
        "policy": [plugins("policies")[config.policy.type]],
        "engine": [plugins("engines")[config.engine.type]],
        "trainer": [plugins("trainers")[config.trainer.type]],
        "objective": [
            plugins("advantages")[objective.advantage_normalization],
            plugins("surrogates")[objective.surrogate],
        ],
    }
    return {
        owner: [package for plugin in found if not plugin.is_own for package in plugin.packages]
        for owner, found in chosen.items()
    }


def _method_models(config: RunConfig) -> Sequence[str]:
    """The pretrained models of a run besides the policy's."""
    model = None if config.lessons is None else config.lessons.settings.extractor.model
    return () if model is None else (model,)


def _environment_files(config: RunConfig) -> dict[str, Path]:
    """Setting -> the file of the environment that it names."""
    plugin = plugins("environments")[config.environment.type].value
    return {
        f"environment.{name}": path for name, path in plugin.dependencies.files(config.environment).items()
    }


def _conversation_files(config: RunConfig) -> dict[str, Path]:
    """The same for the file that the policy's warm start trains on, if any."""
    warm_start = policy_traits(config.policy).warm_start
    if not isinstance(warm_start, MessagesWarmStart):
        return {}
    return {"policy.warm_start.file": Path(warm_start.file)}


def _digests(files: Mapping[str, Path]) -> dict[str, str]:
    """Path -> SHA-256 of the files, which are given by the settings that name them."""
    return {str(path): _sha256(setting, path) for setting, path in files.items()}


def _sha256(setting: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        relative = "" if path.is_absolute() else f"; the path begins at {Path.cwd()}"
        raise InputError(f"{setting}: {path} cannot be read: {error.strerror}{relative}") from error
