"""Loading configurations: what is accepted, and the error for every kind of mistake."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from erl_pipeline.config.loading import load_config
from erl_pipeline.config.policy import TinyPolicyConfig
from erl_pipeline.config.run import RunConfig
from erl_pipeline.environments.frozen_lake.settings import FrozenLakeConfig
from erl_pipeline.methods.erl.settings import ErlConfig
from storage.errors import ConfigError

SMALL = """\
name: small
iterations: 2
environment:
  type: frozen_lake
  rows: [4, 4]
policy:
  type: tiny
rollouts:
  group_size: 4
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


def erl(config: RunConfig) -> ErlConfig:
    assert isinstance(config.method, ErlConfig)
    return config.method


def lake(config: RunConfig) -> FrozenLakeConfig:
    assert isinstance(config.environment, FrozenLakeConfig)
    return config.environment


def message(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    return str(caught.value)


def test_values_of_the_file_and_defaults(small: Path) -> None:
    config = load_config(small)
    assert (config.name, config.iterations, config.rollouts.group_size) == ("small", 2, 4)
    assert config.seed == 0
    assert erl(config).memory is not None


def test_overrides_win_and_have_types(small: Path) -> None:
    config = load_config(small, ["seed=7", "method.memory=off", "environment.rows=[3, 3]"])
    assert config.seed == 7
    assert erl(config).memory is None
    assert lake(config).rows == (3, 3)


def test_the_last_override_of_a_key_wins(small: Path) -> None:
    assert load_config(small, ["seed=1", "seed=2"]).seed == 2


def test_a_group_that_is_on_can_be_set_into(small: Path) -> None:
    memory = erl(load_config(small, ["method.memory=on", "method.memory.top_k=3"])).memory
    assert memory is not None
    assert memory.top_k == 3


def test_a_group_that_is_off_cannot_be_set_into(small: Path) -> None:
    assert message(small, "method.memory=off", "method.memory.top_k=3") == (
        "--set method.memory.top_k: method.memory is off, which has no settings of its own"
    )


def test_numbers_are_read_as_people_write_them(small: Path) -> None:
    config = load_config(small, ["policy.cold_start.learning_rate=3e-4", "environment.training_boards=1_000"])
    assert isinstance(config.policy, TinyPolicyConfig)
    assert config.policy.cold_start.learning_rate == 0.0003
    assert lake(config).training_boards == 1000


def test_every_problem_is_named_with_key_value_and_what_is_allowed(small: Path) -> None:
    small.write_text(SMALL + "  groupsize: 3\nsampling:\n  temperature: -1\nmethod: ppo\n")
    assert message(small, "environment.max_steps=many").splitlines() == [
        f"{small}: 4 problems",
        "  line 13: method.type: 'ppo'; allowed: complementary, erl, prompt_evolution, rlvr (`erl-pipeline "
        "plugins` lists what is installed)",
        "  --set: environment.max_steps: 'many'; allowed: a whole number",
        "  line 12: sampling.temperature: -1; allowed: at least 0.01",
        "  line 10: rollouts.groupsize: unknown key; did you mean group_size?",
    ]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("iterations=on", "iterations: True; allowed: a whole number"),
        ("sampling.temperature=true", "sampling.temperature: True; allowed: a number"),
        ("environment.rows=[yes, 3]", "environment.rows: [True, 3]; allowed: a whole number"),
    ],
)
def test_a_switch_is_no_number(small: Path, setting: str, said: str) -> None:
    assert message(small, setting).endswith(f"--set: {said}")


def test_a_setting_is_named_once_also_by_its_own_check(small: Path) -> None:
    assert message(small, 'method.prompts.retry="{{ x }}"').endswith(
        "--set: method.prompts.retry: the template uses the unknown variable 'x'; known variables: feedback, "
        "instructions, notes, observation, reward, trace"
    )


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("optimizer.learning_rate=inf", "optimizer.learning_rate: 'inf'; allowed: a finite number"),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate: 'nan'; allowed: a finite number"),
        ("optimizer.learning_rate=1e400", "optimizer.learning_rate: '1e400'; allowed: a finite number"),
        ("update.epochs=1e30", "update.epochs: 1e+30; the number is too large"),
        ("environment.rows=[4,4,4]", "environment.rows: [4, 4, 4]; allowed: a list of at most 2 values"),
    ],
)
def test_numbers_and_lists_that_are_too_large_are_told_plainly(small: Path, setting: str, said: str) -> None:
    assert message(small, setting).endswith(f"--set: {said}")


def test_a_number_that_may_be_off_still_may(small: Path) -> None:
    replay = load_config(small, ["method=rlvr", "replay=on", "replay.shaping_beta=off"]).replay
    assert replay is not None
    assert replay.shaping_beta is None


def test_an_unknown_key_without_a_near_one_gets_the_list(small: Path) -> None:
    assert "rollouts.qqq: unknown key; allowed: tasks_per_iteration, refill, group_size, " in message(
        small, "rollouts.qqq=1"
    )


def test_an_unknown_type_gets_the_types(small: Path) -> None:
    assert message(small, "policy.type=huge").endswith(
        "--set: policy.type: 'huge'; allowed: pretrained, tiny"
    )


def test_a_bare_name_stands_for_a_plug_in_and_can_be_set_into(small: Path) -> None:
    assert load_config(small, ["method=rlvr"]).method.type == "rlvr"
    assert erl(load_config(small, ["method=erl", "method.max_revisions=2"])).max_revisions == 2
    assert erl(load_config(small, ["method.max_revisions=2"])).max_revisions == 2
    assert "--set: method.max_revisions: unknown key" in message(
        small, "method=rlvr", "method.max_revisions=2"
    )


def test_a_group_that_can_be_off_says_so(small: Path) -> None:
    assert message(small, "method.memory=maybe").endswith(
        "--set: method.memory: 'maybe'; allowed: on, off, and a group of settings, `key: value`"
    )


def test_a_setting_that_an_option_gave_is_told_by_its_option(small: Path) -> None:
    with pytest.raises(ConfigError, match=r"\n  --name: name: 'a/b'; allowed: text that matches"):
        load_config(small, ["name=c"], {"--name": ("name", "a/b")})


def test_a_problem_inside_a_chosen_type_is_named_as_the_file_writes_it(small: Path) -> None:
    assert "policy.cold_start.steps: 0; allowed: at least 1" in message(small, "policy.cold_start.steps=0")


def test_a_problem_in_a_group_that_the_user_named_is_told_as_any_other(small: Path) -> None:
    told = message(small, "objective.roles={reflection: {clip_lw: 0.1}, second_attempt: {clip_low: 7}}")
    assert "objective.roles.reflection.clip_lw: unknown key; did you mean clip_low?" in told
    assert "objective.roles.second_attempt.clip_low: 7; allowed: less than 1.0" in told


def test_impossible_combinations_name_their_keys(small: Path) -> None:
    problem = message(small, "environment.max_steps=3")
    assert "line 3: environment.path_length: [2, 6]: allowed is at most 3" in problem


def test_missing_settings_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.yaml"
    empty.write_text("")
    assert "iterations: missing; it must be set" in message(empty)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- 1\n", "holds [1]; allowed is a mapping of settings"),
        ("seed: 1\nseed: 2\n", "line 2: seed is set twice (first on line 1); keep one"),
        (
            "rollouts:\n  group_size: 1\n  group_size: 1\n",
            "line 3: rollouts.group_size is set twice",
        ),
        ("name: [\n", "line 2: not YAML"),
        ("seed: \x00\n", "not YAML: character"),
        ("seed: .inf\n", "line 1: '.inf' is read as YAML's float"),
        ("name: 2026-01-01\n", "line 1: '2026-01-01' is read as YAML's timestamp"),
        ("name: &a x\nb: *a\n", "line 2: not YAML: aliases are not supported"),
        ("? [1]\n: 2\n", "line 1: a key must be a word"),
        ("[" * 5000, "nested too deeply"),
    ],
)
def test_what_is_no_configuration_is_refused_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    assert problem in message(path)


def test_a_missing_file_a_folder_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    assert message(tmp_path / "none.yaml").endswith(
        "none.yaml: no such file; ready configurations are in configs/"
    )
    assert "cannot be read" in message(tmp_path)
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xff")
    assert message(tmp_path / "bytes.yaml").endswith("cannot be read: not UTF-8 text")


def test_a_group_that_is_given_anew_has_nothing_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text("name: small\nengine:\n  type: vllm\n")
    assert "\n  --set: engine.type: missing" in message(path, "engine={type:vllm}")


@pytest.mark.parametrize(
    ("warm_start", "problem"),
    [
        ("{type: demos}", "policy.warm_start.type: 'demos'; allowed: demonstrations, messages"),
        ("{type: demonstrations, step: 3}", "policy.warm_start.step: unknown key; did you mean steps?"),
        ("{type: messages}", "policy.warm_start.file: missing"),
    ],
)
def test_what_is_wrong_with_a_warm_start_says_what_is_allowed(
    small: Path, warm_start: str, problem: str
) -> None:
    assert problem in message(small, f"policy={{type: pretrained, model: m, warm_start: {warm_start}}}")


@pytest.mark.parametrize("override", ["seed", "=1", ".seed=1", "a..b=1"])
def test_an_override_without_key_or_value_is_refused(small: Path, override: str) -> None:
    assert "allowed is a dotted key and a value" in message(small, override)


def test_a_bad_value_of_an_override_names_the_override(small: Path) -> None:
    assert message(small, "environment.rows=[1").startswith("--set environment.rows=[1 line 1: not YAML")


def test_importing_the_loader_does_not_import_torch() -> None:
    code = "import sys, erl_pipeline.config.loading; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    [
        "name",
        "seed",
        "iterations",
        "method",
        "environment",
        "policy",
        "rollouts",
        "memory",
        "objective",
        "type",
        "x",
    ]
)


def never_a_strange_error(path: Path, text: bytes, overrides: list[str]) -> None:
    path.write_bytes(text)
    with suppress(ConfigError):
        load_config(path, overrides)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_give_a_configuration_or_a_config_error(tmp_path: Path, text: bytes) -> None:
    never_a_strange_error(tmp_path / "any.yaml", text, [])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    values=st.dictionaries(keys, json_values, max_size=5),
    overrides=st.lists(st.text(max_size=20), max_size=3),
)
def test_any_mapping_gives_a_configuration_or_a_config_error(
    tmp_path: Path, values: dict[str, object], overrides: list[str]
) -> None:
    text = yaml.safe_dump({**yaml.safe_load(SMALL), **values}, allow_unicode=True)
    never_a_strange_error(tmp_path / "any.yaml", text.encode("utf-8", "replace"), overrides)
