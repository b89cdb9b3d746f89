"""Routing of requests to replicas. Blocks have 16 tokens; a prompt of 48 tokens has three."""

from erl_pipeline.engines.vllm.replica import PrefixRouter


def prompt(first: int, tokens: int = 48) -> tuple[int, ...]:
    return tuple(range(first, first + tokens))


def test_a_group_goes_to_the_replica_that_has_its_prompt() -> None:
    router = PrefixRouter()
    assert router.choose(prompt(0), {0: 0, 1: 0}) == 0
    assert router.choose(prompt(0), {0: 1, 1: 0}) == 0
    assert router.choose(prompt(100), {0: 2, 1: 0}) == 1
    assert router.choose(prompt(0), {0: 2, 1: 1}) == 0
    assert router.choose(prompt(100), {0: 3, 1: 1}) == 1


def test_a_later_turn_follows_its_conversation() -> None:
    router = PrefixRouter()
    router.choose(prompt(0), {0: 1, 1: 0})
    # The replica has three of the five blocks.
    assert router.choose((*prompt(0), *prompt(500, 32)), {0: 0, 1: 1}) == 1


def test_less_than_half_of_a_prompt_is_not_worth_a_busier_replica() -> None:
    router = PrefixRouter()
    router.choose(prompt(0, 16), {0: 0, 1: 0})
    # One block of three, then one of two.
    assert router.choose((*prompt(0, 16), *prompt(500, 32)), {0: 1, 1: 0}) == 1
    assert router.choose((*prompt(0, 16), *prompt(700, 16)), {0: 1, 1: 1}) == 0


def test_a_replica_with_far_more_requests_is_passed_over() -> None:
    router = PrefixRouter()
    router.choose(prompt(0), {0: 0, 1: 0})
    # Twice the load of the idlest and 8 more are allowed: 2 * 3 + 8 = 14.
    assert router.choose(prompt(0), {0: 14, 1: 3}) == 0
    assert router.choose(prompt(0), {0: 15, 1: 3}) == 1
    # Now both have it.
    assert router.choose(prompt(0), {0: 9, 1: 4}) == 1


def test_prompts_shorter_than_a_block_go_to_the_idlest() -> None:
    router = PrefixRouter()
    assert router.choose((1, 2, 3), {0: 1, 1: 0, 2: 0}) == 1
    assert router.choose((1, 2, 3), {0: 1, 1: 1, 2: 0}) == 2


def test_a_replica_that_was_away_has_nothing() -> None:
    router = PrefixRouter()
    router.choose(prompt(0), {0: 0, 1: 0})
    router.forget(0)
    assert router.choose(prompt(0), {0: 1, 1: 0}) == 1
    router.forget()
    assert router.choose(prompt(0), {0: 0, 1: 1}) == 0


def test_the_beginnings_that_were_used_longest_ago_are_forgotten() -> None:
    router = PrefixRouter(most_blocks=4)
    router.choose(prompt(0), {0: 0, 1: 1})
    router.choose(prompt(100, 32), {0: 1, 1: 0})
    # Four of five blocks are kept: the first block of the first prompt is dropped, and with it the whole
    # prompt.
    assert router.choose(prompt(0), {0: 1, 1: 0}) == 1
