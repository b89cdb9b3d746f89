"""One iteration of experiential reinforcement learning (ERL, arXiv 2602.13949), from top to bottom.

`python examples/erl_in_one_file.py` needs torch and nothing else, and takes less than a minute on a CPU.
Task, prompts, network and numbers are those of the pipeline's tiny policy on FrozenLake (smaller boards, no
memory), and a test holds both against each other. The method is `play_episodes` and `learn`.

A policy moves over boards with four words (a, b, c, d), and is not told which word moves where. It
1. makes a first attempt at each task, several times (`play_episodes`);
2. where that failed, reads what happened and reflects: which word moves up, right, down, left;
3. makes a second attempt, with the reflection in its prompt;
4. is reinforced in all three, each compared with its like (`policy_loss`);
5. is trained to give the second attempts that succeeded on the prompt of the first (`supervised_loss`), so
   that later it does without a reflection what the reflection made it do.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from statistics import mean, stdev

import torch
from torch.optim import Optimizer

SIZE, MAX_STEPS, MAX_NEW_TOKENS = 3, 4, 8  # cells of a side; moves of an attempt; tokens of a turn
TASKS, GROUP = 32, 8  # tasks of an iteration; episodes of each task
WIDTH, LAYERS, HEADS = 64, 2, 2
SUCCESS = 1.0  # the gate: an attempt with a smaller reward is reflected on and tried again
CLIP_LOW, CLIP_HIGH = 0.2, 0.2  # how far the ratio may leave 1
LEARNING_RATE, BETAS, MAX_GRAD_NORM = 3e-4, (0.9, 0.95), 1.0
STD_EPSILON = 1e-6  # nearly equal rewards must not give huge advantages

# The vocabulary: one token for each word.
OFFSETS = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}
DIRECTIONS, ACTIONS = tuple(OFFSETS), ("a", "b", "c", "d")
SYMBOLS = {"S": "@", "F": "#", "H": "$", "G": "&"}  # start (the player), frozen, hole, goal
SPECIAL = ("<pad>", "<bos>", "<end>", "<user>", "<assistant>")
OTHERS = (".", "?", "notes", "trace", "memory", "reflect", *DIRECTIONS, "bump", "bad", "goal", "fell", "lost")
CELLS = tuple(f"c{cell}" for cell in range(SIZE * SIZE))
WORDS = (*SPECIAL, *OTHERS, *CELLS, *SYMBOLS.values(), *ACTIONS)
ID = {word: number for number, word in enumerate(WORDS)}
END = ID["<end>"]
POSITIONS = SIZE * SIZE + 8 + 13 * MAX_STEPS  # tokens of the longest sequence


def ids(text: str) -> list[int]:
    return [ID[word] for word in text.split()]


@dataclass(frozen=True)
class Task:
    """A board as the letters S, F, H, G of its cells, and the direction that each action word moves in."""

    board: str
    moves: dict[str, str]

    def neighbour(self, cell: int, direction: str) -> int:
        """The cell that a move leads to; the same cell at the edge."""
        row, column = cell // SIZE + OFFSETS[direction][0], cell % SIZE + OFFSETS[direction][1]
        return row * SIZE + column if 0 <= row < SIZE and 0 <= column < SIZE else cell

    def way(self, cell: int) -> list[str]:
        """The directions of a shortest way from a cell to the goal; empty where there is none."""
        ways: dict[int, list[str]] = {cell: []}
        waiting = [cell]
        for here in waiting:
            for direction in DIRECTIONS:
                there = self.neighbour(here, direction)
                if there not in ways and self.board[there] != "H":
                    ways[there] = [*ways[here], direction]
                    waiting.append(there)
        return ways.get(self.board.index("G"), [])


def make_task(stream: random.Random, moves: dict[str, str]) -> Task:
    """A random board with one or two holes and a way of at most three moves to the goal."""
    while True:
        holes = stream.randint(1, 2)
        cells = stream.sample("SG" + "H" * holes + "F" * (SIZE * SIZE - 2 - holes), SIZE * SIZE)
        task = Task("".join(cells), moves)
        if 1 <= len(task.way(task.board.index("S"))) <= 3:
            return task


@dataclass
class Game:
    """One attempt at a task. `trace` has the aim, action, outcome and cell of each step."""

    task: Task
    trace: list[str] = field(default_factory=list)
    ending: str = ""  # goal, fell or lost, once it is over

    def step(self, said: Sequence[str]) -> str:
        """Do what a turn says, `aim action`; return what came of it. Only the action moves: the aim is a
        thought of one word. Anything else that is said moves nothing and costs a step."""
        here = int(self.trace[-1][1:]) if self.trace else self.task.board.index("S")
        aim, action, outcome, cell = ".", ".", "bad", here
        if len(said) == 2 and said[0] in DIRECTIONS and said[1] in ACTIONS:
            aim, action = said
            cell = self.task.neighbour(here, self.task.moves[action])
            outcome = {"H": "fell", "G": "goal"}.get(self.task.board[cell], self.task.moves[action])
            outcome = "bump" if cell == here else outcome
        self.trace += [aim, action, outcome, f"c{cell}"]
        if outcome in ("fell", "goal"):
            self.ending = outcome
        elif len(self.trace) == 4 * MAX_STEPS:
            self.ending = "lost"
        return f"{outcome} c{cell}"


def attempt_prompt(task: Task, notes: Sequence[str]) -> list[int]:
    """The board, and the notes of a reflection: for each direction the word that moves there, or `?`."""
    board = " ".join(SYMBOLS[letter] for letter in task.board)
    return ids(f"<bos> <user> {board} notes {' '.join(notes)} <assistant>")


def reflection_prompt(game: Game) -> list[int]:
    """The board, what was tried and what came of it, and the feedback: how it ended."""
    board = " ".join(SYMBOLS[letter] for letter in game.task.board)
    trace = " ".join(game.trace + ["."] * (4 * MAX_STEPS - len(game.trace)))
    return ids(f"<bos> <user> {board} trace {trace} {game.ending} memory ? ? ? ? reflect <assistant>")


Weights = dict[str, torch.Tensor]  # of a small GPT-2 with ReLU and an untied head, named as in transformers


def new_weights(seed: int) -> Weights:
    """Random weights."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {"transformer.wte": (len(WORDS), WIDTH), "transformer.wpe": (POSITIONS, WIDTH)}
    shapes["lm_head"] = (len(WORDS), WIDTH)
    norms = ["transformer.ln_f"]
    for at in (f"transformer.h.{layer}" for layer in range(LAYERS)):
        shapes |= {f"{at}.attn.c_attn": (WIDTH, 3 * WIDTH), f"{at}.attn.c_proj": (WIDTH, WIDTH)}
        shapes |= {f"{at}.mlp.c_fc": (WIDTH, 4 * WIDTH), f"{at}.mlp.c_proj": (4 * WIDTH, WIDTH)}
        norms += [f"{at}.ln_1", f"{at}.ln_2"]
    weights = {f"{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    for name, weight in weights.items():
        weight *= 0.5 if name.startswith("transformer.w") else 0.02  # words and positions begin apart
    weights |= {f"{name}.weight": torch.ones(WIDTH) for name in norms}
    biases = dict.fromkeys(norms, WIDTH) | {name: shape[1] for name, shape in shapes.items() if ".h." in name}
    weights |= {f"{name}.bias": torch.zeros(size) for name, size in biases.items()}
    return {name: weight.requires_grad_() for name, weight in weights.items()}


def logits(weights: Weights, tokens: torch.Tensor) -> torch.Tensor:
    """Logits `[rows, time, vocabulary]` of the token after each of `tokens`, `[rows, time]`."""

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return centred * scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    rows, time = tokens.shape
    future = torch.ones(time, time, dtype=torch.bool).triu(1)
    x = weights["transformer.wte.weight"][tokens] + weights["transformer.wpe.weight"][:time]
    for at in (f"transformer.h.{layer}." for layer in range(LAYERS)):
        mixed = linear(norm(x, f"{at}ln_1"), f"{at}attn.c_attn").view(rows, time, 3, HEADS, WIDTH // HEADS)
        queries, keys, values = mixed.permute(2, 0, 3, 1, 4)  # each [rows, heads, time, width of a head]
        scores = queries @ keys.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5
        seen = scores.masked_fill(future, -torch.inf).softmax(-1) @ values
        x = x + linear(seen.transpose(1, 2).reshape(rows, time, WIDTH), f"{at}attn.c_proj")
        x = x + linear(linear(norm(x, f"{at}ln_2"), f"{at}mlp.c_fc").relu(), f"{at}mlp.c_proj")
    return norm(x, "transformer.ln_f") @ weights["lm_head.weight"].T


def padded(sequences: Sequence[Sequence[int]]) -> torch.Tensor:
    """`[rows, time]`, padded on the right, where no token that counts looks."""
    longest = max(map(len, sequences))
    return torch.tensor([[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences])


Contexts = Sequence[Sequence[int]]  # what was said so far in each of some conversations
Turn = tuple[list[int], list[float]]  # sampled tokens, and the log-probability of each in nats
Speak = Callable[[Contexts, Sequence[str]], list[Turn]]  # a turn for each context; the texts name the turns


@torch.no_grad()
def sample(weights: Weights, seed: int, contexts: Contexts, names: Sequence[str]) -> list[Turn]:
    """Draw turns at temperature 1. Each has a stream of its own, so that what is said depends on the seed and
    the turn's name, and not on who else speaks at the same time."""
    streams = [random.Random(f"{seed}/{name}") for name in names]
    turns: list[Turn] = [([], []) for _ in contexts]
    running = list(range(len(contexts)))
    while running and len(turns[running[0]][0]) < MAX_NEW_TOKENS:
        rows = [[*contexts[i], *turns[i][0]] for i in running]
        last = torch.tensor([len(row) - 1 for row in rows])
        logprobs = logits(weights, padded(rows))[torch.arange(len(rows)), last].log_softmax(-1)
        for i, row in zip(running, logprobs, strict=True):
            place = int(torch.searchsorted(row.double().exp().cumsum(0), streams[i].random()))
            turns[i][0].append(min(place, len(WORDS) - 1))
            turns[i][1].append(float(row[turns[i][0][-1]]))
        running = [i for i in running if turns[i][0][-1] != END]
    return turns


@dataclass
class Trajectory:
    """A prompt and what followed. `mask` is 1 on tokens of the policy and 0 on those of the game, which are
    not trained; `logprobs` are those of the policy that sampled."""

    task: int
    number: int  # of the episode among those of its task
    role: str  # first_attempt, reflection or second_attempt
    prompt: list[int]
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reward: float = 0.0
    truncated: bool = False  # whether a turn was cut off

    def add_turn(self, turn: Turn) -> list[str]:
        """Append what the policy said; return its words."""
        self.response, self.logprobs = self.response + turn[0], self.logprobs + turn[1]
        self.mask = self.mask + [1] * len(turn[0])
        self.truncated = self.truncated or turn[0][-1] != END
        return [WORDS[token] for token in turn[0] if WORDS[token] not in SPECIAL]

    def add_answer(self, text: str) -> None:
        """Append what the game said."""
        answer = ids(f"{'' if self.response[-1] == END else '<end>'} <user> {text} <assistant>")
        self.response, self.logprobs = self.response + answer, self.logprobs + [0.0] * len(answer)
        self.mask = self.mask + [0] * len(answer)


def attempt(speak: Speak, tasks: Sequence[Task], rows: Sequence[Trajectory]) -> list[Game]:
    """Play each row's task to its end, all in step. The reward is 1 for the goal, else 0."""
    games = [Game(tasks[row.task]) for row in rows]
    for turn in range(MAX_STEPS):
        playing = [(game, row) for game, row in zip(games, rows, strict=True) if not game.ending]
        names = [f"{row.task}/{row.number}/{row.role}/{turn}" for _, row in playing]
        turns = speak([row.prompt + row.response for _, row in playing], names)
        for (game, row), said in zip(playing, turns, strict=True):
            answer = game.step(row.add_turn(said))
            row.reward = 1.0 if game.ending == "goal" else 0.0
            if not game.ending:
                row.add_answer(answer)
    return games


def play_episodes(speak: Speak, tasks: Sequence[Task], group: int = GROUP) -> list[Trajectory]:
    """First attempts; where they failed, reflections and second attempts."""
    places = product(range(len(tasks)), range(group))
    firsts = [Trajectory(i, j, "first_attempt", attempt_prompt(tasks[i], "????")) for i, j in places]
    games = attempt(speak, tasks, firsts)
    failed = [(row, game) for row, game in zip(firsts, games, strict=True) if row.reward < SUCCESS]
    reflections = [Trajectory(r.task, r.number, "reflection", reflection_prompt(g)) for r, g in failed]
    seconds = []
    said = speak([r.prompt for r in reflections], [f"{r.task}/{r.number}/reflection/0" for r in reflections])
    for row, turn in zip(reflections, said, strict=True):
        notes = row.add_turn(turn)
        if len(notes) == 4 and set(notes) <= {"?", *ACTIONS}:  # an ill-formed reflection ends its episode
            prompt = attempt_prompt(tasks[row.task], notes)
            seconds.append(Trajectory(row.task, row.number, "second_attempt", prompt))
    attempt(speak, tasks, seconds)
    led_to = {(row.task, row.number): row.reward for row in seconds}
    for row in reflections:
        row.reward = led_to.get((row.task, row.number), 0.0)  # it is worth what it led to
    return [*firsts, *reflections, *seconds]


def advantages(rows: Sequence[Trajectory]) -> list[float]:
    """Rewards less the mean of their group, over its standard deviation (GRPO, arXiv 2402.03300). A group is
    a task and a role: first and second attempts are never compared. Equal rewards tell nothing."""
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        groups[row.task, row.role].append(row.reward)
    of_rows = [(row.reward, groups[row.task, row.role]) for row in rows]
    return [(r - mean(g)) / (stdev(g) + STD_EPSILON) if len(set(g)) > 1 else 0.0 for r, g in of_rows]


def logprobs_of(weights: Weights, rows: Sequence[Trajectory]) -> torch.Tensor:
    """Log-probabilities `[tokens]` of the tokens with mask 1, row by row."""
    tokens = padded([row.prompt + row.response for row in rows])
    trained = padded([[0] * len(row.prompt) + row.mask for row in rows])[:, 1:].bool()
    every = logits(weights, tokens[:, :-1]).log_softmax(-1)
    return every.gather(-1, tokens[:, 1:, None])[..., 0][trained]


def policy_loss(weights: Weights, rows: Sequence[Trajectory], found: Sequence[float]) -> torch.Tensor:
    """The clipped policy-gradient loss (PPO, arXiv 1707.06347, eq. 7), the mean over all tokens of the rows
    that have an advantage."""
    live = [(row, advantage) for row, advantage in zip(rows, found, strict=True) if advantage != 0.0]
    values = torch.tensor([advantage for row, advantage in live for _ in range(sum(row.mask))])
    old = torch.tensor([p for row, _ in live for p, bit in zip(row.logprobs, row.mask, strict=True) if bit])
    ratio = (logprobs_of(weights, [row for row, _ in live]) - old).exp()
    return -torch.minimum(ratio * values, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * values).mean()


def distilled(rows: Sequence[Trajectory]) -> list[Trajectory]:
    """Second attempts that succeeded, on the prompt of the first attempt, which has no notes."""
    prompts = {(row.task, row.number): row.prompt for row in rows if row.role == "first_attempt"}
    good = [r for r in rows if r.role == "second_attempt" and r.reward >= SUCCESS and not r.truncated]
    return [replace(row, role="distilled", prompt=prompts[row.task, row.number]) for row in good]


def supervised_loss(weights: Weights, rows: Sequence[Trajectory]) -> torch.Tensor:
    """Cross-entropy in nats, the mean over all trained tokens."""
    return -logprobs_of(weights, rows).mean()


def new_optimizer(weights: Weights) -> Optimizer:
    return torch.optim.AdamW(weights.values(), lr=LEARNING_RATE, betas=BETAS, weight_decay=0.0)


def take_step(weights: Weights, optimizer: Optimizer, loss: torch.Tensor) -> float:
    """One optimizer step; return the loss."""
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights.values(), MAX_GRAD_NORM)
    optimizer.step()
    return loss.item()


def learn(weights: Weights, optimizer: Optimizer, rows: Sequence[Trajectory]) -> tuple[float, float]:
    """What ERL learns from an iteration: a step of reinforcement, a supervised step. Return both losses."""
    found, good = advantages(rows), distilled(rows)
    reinforced = take_step(weights, optimizer, policy_loss(weights, rows, found)) if any(found) else 0.0
    return reinforced, take_step(weights, optimizer, supervised_loss(weights, good)) if good else 0.0


def demonstrate(stream: random.Random, contexts: Contexts, _: Sequence[str]) -> list[Turn]:
    """What a scripted player says, who sees what the policy sees: it aims along a shortest way, guesses the
    words that its notes leave open, and reflects on what its moves have shown."""
    turns: list[Turn] = []
    letters = {symbol: letter for letter, symbol in SYMBOLS.items()}
    for told in ([WORDS[token] for token in context] for context in contexts):
        board = "".join(letters[symbol] for symbol in told[2 : 2 + SIZE * SIZE])
        rest = told[3 + SIZE * SIZE :]
        if told[-2] == "reflect":
            shown = dict(zip(rest[2 : 4 * MAX_STEPS : 4], rest[1 : 4 * MAX_STEPS : 4], strict=True))
            said = [shown.get(direction, "?") for direction in DIRECTIONS]
        else:
            cell = next((int(word[1:]) for word in reversed(rest) if word in CELLS), board.index("S"))
            aim = Task(board, {}).way(cell)[0]
            note = rest[DIRECTIONS.index(aim)]
            said = [aim, stream.choice(ACTIONS) if note == "?" else note]
        turns.append(([*ids(" ".join(said)), END], [0.0] * (len(said) + 1)))
    return turns


def cold_start(seed: int, steps: int = 200) -> Weights:
    """The policy to begin with, trained on demonstrations. In each of them the action words move elsewhere:
    so it learns to plan, to reflect and to use notes, but cannot know what the words mean."""
    weights, stream = new_weights(seed), random.Random(f"{seed}/cold start")
    matrices = {name: weight for name, weight in weights.items() if ".h." in name and weight.ndim == 2}
    others = [weight for name, weight in weights.items() if name not in matrices]
    muon = torch.optim.Muon(matrices.values(), weight_decay=0.0)
    adamw = torch.optim.AdamW(others, betas=BETAS, weight_decay=0.0)
    speak = partial(demonstrate, stream)
    for step in range(steps):
        orders = [stream.sample(ACTIONS, 4) for _ in range(24)]  # words that move up, right, down, left
        tasks = [make_task(stream, dict(zip(order, DIRECTIONS, strict=True))) for order in orders]
        informed = [Trajectory(i, 0, "informed", attempt_prompt(tasks[i], orders[i])) for i in range(8, 24)]
        attempt(speak, tasks, informed)
        rate = min(0.01, 0.025 * (1 - step / steps))
        adamw.param_groups[0]["lr"], muon.param_groups[0]["lr"] = rate, 2 * rate
        muon.zero_grad()
        take_step(weights, adamw, supervised_loss(weights, informed + play_episodes(speak, tasks[:8], 1)))
        muon.step()
    return weights


def main(seed: int = 0) -> None:
    """One iteration, and an account of it."""
    torch.set_num_threads(1)  # a network as small as this is slower on several
    print("A policy learns from demonstrations to plan, to reflect and to use notes ...")
    weights, stream = cold_start(seed), random.Random(f"{seed}/tasks")
    secret = dict(zip(ACTIONS, stream.sample(DIRECTIONS, 4), strict=True))
    print(f"... but not that here {', '.join(f'{word} moves {way}' for word, way in secret.items())}.\n")
    rows = play_episodes(partial(sample, weights, seed), [make_task(stream, secret) for _ in range(TASKS)])
    shown = next(row for row in rows if row.role == "second_attempt" and row.reward >= SUCCESS)
    print(f"{GROUP} episodes of {TASKS} tasks. One of them (* said by the policy; only that is trained):")
    for row in (each for each in rows if (each.task, each.number) == (shown.task, shown.number)):
        bits = [0] * len(row.prompt) + row.mask
        text = " ".join(WORDS[i] + "*" * bit for i, bit in zip(row.prompt + row.response, bits, strict=True))
        print(f"- {row.role}, reward {row.reward:g}: {text}")
    for role in ("first_attempt", "reflection", "second_attempt"):
        mine = [(row.reward, a) for row, a in zip(rows, advantages(rows), strict=True) if row.role == role]
        rate, live = mean(reward for reward, _ in mine), sum(a != 0.0 for _, a in mine)
        print(f"{role:14} {len(mine):4} rows, mean reward {rate:.3f}, {live} with an advantage")
    print("(second attempts are at the harder tasks: the others succeeded at once)\n")
    good = distilled(rows)
    before = supervised_loss(weights, good).item()
    loss, _ = learn(weights, new_optimizer(weights), rows)
    print(
        f"A step of reinforcement (loss {loss:+.4f}), then a supervised one: {len(good)} second attempts had"
    )
    print(f"{before:.4f} nats a token without notes, and have {supervised_loss(weights, good).item():.4f}.")


if __name__ == "__main__":
    main()
