"""What a plan depends on besides the configuration: fingerprints of code, and digests of files that the
configuration names."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from erl_pipeline.config.plugins.installed import plugins
from erl_pipeline.config.policy import PretrainedPolicyConfig
from erl_pipeline.config.warm_start import MessagesWarmStart
from erl_pipeline.plan.fingerprint import package_fingerprint
from erl_pipeline.policies.checkpoint_files import require_checkpoint, weights_digest
from storage.errors import InputError

if TYPE_CHECKING:
    from erl_pipeline.config.run import RunConfig

CodeOwner = Literal["environment", "method", "trainer", "objective"]
"""Whose code is part of recipes: the plug-ins whose code people write and edit. `objective` has the functions
that give advantages and the loss."""


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
    model = config.policy.model if isinstance(config.policy, PretrainedPolicyConfig) else None
    return replace(
        environment,
        code={
            owner: {each: package_fingerprint(each) for each in packages}
            for owner, packages in code_packages(config).items()
        },
        files={**environment.files, **_digests(_conversation_files(config))},
        weights=None if model is None else weights_digest(model),
        model=model or "",
        models={each: weights_digest(each) for each in _method_models(config)},
    )


def code_packages(config: RunConfig) -> Mapping[CodeOwner, Sequence[str]]:
    """The packages whose code is part of the recipes of a run."""
    method = plugins("methods")[config.method.type]
    trainer = plugins("trainers")[config.trainer.type]
    return {
        "environment": environment_packages(config),
        "method": method.packages,
        # The project's own trainer and objectives are guarded by the versions of the stages that train.
        "trainer": [each for each in trainer.packages if not trainer.is_own],
        "objective": [
            package
            for function in (
                plugins("advantages")[config.objective.advantage_normalization],
                plugins("surrogates")[config.objective.surrogate],
            )
            if not function.is_own
            for package in function.packages
        ],
    }


def environment_sources(config: RunConfig) -> Sources:
    """Read only the code and the files of the environment, for artifacts that depend on nothing else.

    Raises InputError for a file that cannot be read.
    """
    return Sources(
        code={"environment": {each: package_fingerprint(each) for each in environment_packages(config)}},
        files=_digests(_environment_files(config)),
    )


def require_sources(config: RunConfig) -> None:
    """Raise InputError for a file or a checkpoint that a configuration names and that is not there.

    Weights are not read, and nothing is downloaded.
    """
    _digests({**_environment_files(config), **_conversation_files(config)})
    policy = config.policy
    models = [policy.model] if isinstance(policy, PretrainedPolicyConfig) else []
    for model in (*models, *_method_models(config)):
        require_checkpoint(model)


def unread_sources(config: RunConfig) -> Sources:
    """Sources for which nothing was read, for plans whose artifacts are known from a ledger."""
    paths = [*_environment_files(config).values(), *_conversation_files(config).values()]
    return Sources(
        code={"environment": {}, "method": {}, "trainer": {}, "objective": {}},
        files={str(path): "" for path in paths},
        weights="" if isinstance(config.policy, PretrainedPolicyConfig) else None,
        models=dict.fromkeys(_method_models(config), ""),
        read=False,
    )


def environment_packages(config: RunConfig) -> Sequence[str]:
    """The packages with the code of a configuration's environment: its own, those that its settings bring in,
    and, for a mixture, those of its parts."""
    installed = plugins("environments")
    environment = installed[config.environment.type]
    parts = environment.value.parts(config.environment).values()
    of_parts = [
        package for part in parts for package in installed[part.settings.type].packages_for(part.settings)
    ]
    return tuple(dict.fromkeys([*environment.packages_for(config.environment), *of_parts]))


def _method_models(config: RunConfig) -> Sequence[str]:
    models: Sequence[str] = plugins("methods")[config.method.type].value.pretrained_models(config.method)
    return models


def _environment_files(config: RunConfig) -> dict[str, Path]:
    """Setting -> the file of the environment that it names."""
    plugin = plugins("environments")[config.environment.type].value
    return {f"environment.{name}": path for name, path in plugin.files(config.environment).items()}


def _conversation_files(config: RunConfig) -> dict[str, Path]:
    """The same for the file that the policy's warm start trains on, if any."""
    policy = config.policy
    warm_start = policy.warm_start if isinstance(policy, PretrainedPolicyConfig) else None
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
