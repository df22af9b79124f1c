"""Addresses of the site's pages, and the filters in them."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmark.errors import UsageError
from trainmark.pages.site.links import Links, words_of

LIVE, FILES = Links(), Links(static=True, root="../")
VALUES = st.text(min_size=1, max_size=20)
WORDS = st.one_of(
    st.builds("{}={}".format, st.sampled_from(["case", "device", "precision", "status"]), VALUES),
    st.builds("{}{}{}".format, st.sampled_from(["p_core", "env.torch", "text"]),
              st.sampled_from(["~", ">", "!=", "="]), VALUES),
)  # fmt: skip


@given(st.lists(WORDS, max_size=5))
def test_an_address_keeps_filters(words):
    query = urlsplit(LIVE.runs(words)).query
    pairs = parse_qsl(query, keep_blank_values=True, encoding="utf-8", errors="strict")
    assert sorted(words_of(pairs)) == sorted(words)


def test_the_query_of_a_form():
    given_ = [("q", "h100 p_core>450 'a b'"), ("case", "toy"), ("device", ""), ("sort", "case")]
    assert words_of(given_) == ["text~h100", "p_core>450", "text~a b", "case=toy"]
    with pytest.raises(UsageError, match="quotation"):
        words_of([("q", "it's")])


@pytest.mark.parametrize(
    ("most", "more"),
    [(("e " * 19, "toy"), ("e " * 20, "toy")), (("e" * 295, ""), ("e" * 296, "")),
     (("", "c" * 295), ("", "c" * 296))],
)  # fmt: skip
def test_a_search_has_at_most_20_filters_of_300_letters(most, more):
    assert words_of(zip(("q", "case"), most, strict=True))
    with pytest.raises(UsageError):
        words_of(zip(("q", "case"), more, strict=True))


def test_no_two_files_are_the_same_where_upper_and_lower_case_are_not_told_apart():
    ids = ["ab-1", "AB-1", "Ab-1", "20261122T173537Z-toy-1", "20261122t173537z-toy-1"]
    names = [FILES.run(one) for one in ids]
    assert len({name.lower() for name in names}) == len(ids)
    assert (names[0], names[3]) == ("../runs/ab-1.html", "../runs/20261122T173537Z-toy-1.html")


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        (LIVE, ["/", "/?sort=-p_core&page=3", "/cases/toy", "/runs/a%2Fb", "/compare?run=a&run=b",
                "/references", "/static/site.css",
                "/api/runs.csv?filter=kind%3Drecord&filter=case%3Dtoy",
                "/api/runs/a%2Fb/record.json"]),
        (Links(lang="zh", root="/team"),
         ["/team/?lang=zh", "/team/?sort=-p_core&page=3&lang=zh", "/team/cases/toy?lang=zh",
          "/team/runs/a%2Fb?lang=zh", "/team/compare?run=a&run=b&lang=zh",
          "/team/references?lang=zh", "/team/static/site.css",
          "/team/api/runs.csv?filter=kind%3Drecord&filter=case%3Dtoy",
          "/team/api/runs/a%2Fb/record.json"]),
        (FILES, ["../index.html", "../page-3.html", "../cases/toy.html",
                 "../runs/0a94e877dc84b50de8c5b21f.html", "../compare.html", "../references.html",
                 "../static/site.css", "../runs.csv", "../runs/0a94e877dc84b50de8c5b21f.json"]),
        (FILES.other, ["../zh/index.html", "../zh/page-3.html", "../zh/cases/toy.html",
                       "../zh/runs/0a94e877dc84b50de8c5b21f.html", "../zh/compare.html",
                       "../zh/references.html", "../static/site.css", "../runs.csv",
                       "../runs/0a94e877dc84b50de8c5b21f.json"]),
    ],
)  # fmt: skip
def test_addresses(links, expected):
    assert [
        links.runs(), links.runs([], "-p_core", 3), links.case("toy"), links.run("a/b"),
        links.compare(["a", "b"]), links.references(), links.file("site.css"),
        links.data("csv", ["case=toy"]), links.record("a/b"),
    ] == expected  # fmt: skip


@given(st.text(max_size=200))
def test_a_name_out_of_a_record_is_one_safe_file(name):
    file = FILES.name(name)
    assert "/" not in file
    assert file not in ("", ".", "..")
    assert len(file.encode()) <= 151
