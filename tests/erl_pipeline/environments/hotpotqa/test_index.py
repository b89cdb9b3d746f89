"""Searching a small index: by words, by vectors and by both."""

from pathlib import Path

import pytest

from erl_pipeline.environments.hotpotqa import index
from erl_pipeline.environments.hotpotqa.index import SearchIndex, build_index, passages_of
from erl_pipeline.environments.hotpotqa.settings import HotpotQAConfig, SearchMode
from erl_pipeline.environments.hotpotqa.tasks import Passage
from storage.errors import InputError
from tests.embedders import WordEmbedder
from tests.erl_pipeline.environments.hotpotqa.small_file import MAYOR, write

PAGES = [
    Passage("River Ode", "It flows past the town of Bragg."),
    Passage("Bragg", "A small town. Its mayor is Anna Holm."),
    Passage("Holm Castle", "It stands on a hill in Sudland."),
]


BOTH: tuple[SearchMode, ...] = ("vector", "full_text")


class OtherEmbedder(WordEmbedder):
    embedding_model = "words@2"


@pytest.fixture
def built(tmp_path: Path) -> SearchIndex:
    """An index of the three pages, with vectors of their first 20 characters."""
    assert build_index(PAGES, tmp_path, WordEmbedder(), 20) == {"passages": 3, "embedded": 3}
    return SearchIndex(tmp_path, WordEmbedder())


def titles(found: list[Passage]) -> list[str]:
    return [page.title for page in found]


def test_full_text_finds_pages_by_their_words_and_gives_them_whole(built: SearchIndex) -> None:
    assert built.search("Who is the mayor?", 3, "full_text") == [PAGES[1]]
    assert titles(built.search("standing on hills", 2, "full_text")) == ["Holm Castle"]
    assert built.search("xyz", 3, "full_text") == []
    assert built.search('") OR title:"', 3, "full_text") == []


def test_vectors_are_of_the_beginning_of_a_page(built: SearchIndex) -> None:
    assert titles(built.search("River Ode It flows", 3, "vector"))[0] == "River Ode"
    # "mayor" stands beyond the 20th character, so that full text alone sees it.
    assert titles(built.search("mayor Holm Castle", 1, "vector")) == ["Holm Castle"]


def test_hybrid_search_fuses_both_by_rank(built: SearchIndex) -> None:
    """A page at rank r of a search gains 1 / (60 + r); of equal sums the first in the files wins."""
    query = "Castle mayor Anna"
    rankings = [titles(built.search(query, 3, mode)) for mode in BOTH]
    sums = {
        page.title: sum(1 / (61 + each.index(page.title)) for each in rankings if page.title in each)
        for page in PAGES
    }
    assert titles(built.search(query, 3, "hybrid")) == sorted(sums, key=lambda title: -round(sums[title], 6))


def test_equal_scores_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    twins = [Passage(f"Page {name}", "the same words") for name in ("red", "blue", "green")]
    build_index(twins, tmp_path, None, 20)
    assert titles(SearchIndex(tmp_path, None).search("same words", 2, "full_text")) == [
        "Page red",
        "Page blue",
    ]


def test_of_equally_near_pages_the_first_in_the_files_are_found(tmp_path: Path) -> None:
    twins = [Passage("Page", text) for text in ("far away", "the same", "the same", "the same")]
    build_index(twins, tmp_path, WordEmbedder(), 20)
    (vector,) = WordEmbedder().embed(["Page\nthe same"])
    assert SearchIndex(tmp_path, WordEmbedder()).by_vector(vector, 2) == [1, 2]


def test_vectors_of_another_model_are_refused(tmp_path: Path) -> None:
    build_index(PAGES, tmp_path, WordEmbedder(), 20)
    with pytest.raises(
        InputError, match="has vectors of words@1, but queries would be embedded with words@2"
    ):
        SearchIndex(tmp_path, OtherEmbedder())


def test_many_vectors_are_searched_by_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "INDEXED_PASSAGES", 256)
    pages = [Passage(f"Title {number}", f"word{number} and word{number + 1}") for number in range(300)]
    build_index(pages, tmp_path, WordEmbedder(), 100)
    built = SearchIndex(tmp_path, WordEmbedder())
    assert built.search("Title 123 word123 and word124", 1, "vector") == [pages[123]]


def test_the_index_follows_from_few_settings_and_holds_the_pages_of_all_questions(tmp_path: Path) -> None:
    config = HotpotQAConfig(task_file=write(tmp_path), search="vector", passages=2, split_seed=4, max_turns=9)
    chosen = index.index_settings(config)
    assert chosen == HotpotQAConfig(task_file=config.task_file, search="hybrid")
    words = config.model_copy(update={"search": "full_text", "embedded_characters": 50})
    assert index.index_settings(words) == HotpotQAConfig(task_file=config.task_file, search="full_text")
    assert len(passages_of(config)) == len(MAYOR["context"]) + 9 * 2
