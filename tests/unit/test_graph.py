"""Steps that come after others than the one before, and how they are drawn."""

import itertools
from random import Random

import pytest

from treadle.dashboard.step_graph import GAP_X, NODE_W, Drawing, Shown, step_graph, template_graph
from treadle.model.errors import InvalidInput, TooManySteps
from treadle.model.lazy_list import PAGE, LazyList
from treadle.model.steps import StepSpec
from treadle.policy.graph import checked_after, comes_before, depending, ends, links, whole_result
from treadle.policy.mapping import checked_items, keys_of, may_fail

DIAMOND = [
    StepSpec("fetch"),
    StepSpec("embed"),
    StepSpec("tag", after=("fetch",)),
    StepSpec("publish", after=("embed", "tag")),
    StepSpec("alone", after=()),
]


def test_links_ends_and_what_depends_on_a_step() -> None:
    assert links(DIAMOND) == {
        "fetch": (),
        "embed": ("fetch",),
        "tag": ("fetch",),
        "publish": ("embed", "tag"),
        "alone": (),
    }
    assert ends(DIAMOND) == ["publish", "alone"]
    assert depending(DIAMOND, "tag") == {"tag", "publish"}
    assert depending(DIAMOND, "fetch") == {"fetch", "embed", "tag", "publish"}
    assert comes_before(DIAMOND, "fetch", ["publish"])
    assert not comes_before(DIAMOND, "tag", ["embed", "alone"])


def test_the_result_of_a_graph() -> None:
    assert whole_result({"a": "1", "b": None}, ["a"]) == "1"
    assert whole_result({"a": "1", "b": None}, ["b"]) is None
    assert whole_result({"a": "1", "b": None, 'c"': '"x"'}, ["a", "b", 'c"']) == '{"a":1,"b":null,"c\\"":"x"}'


def test_what_a_step_can_come_after() -> None:
    assert checked_after("c", ["a", "b"], ["a", "b"]) == ("a", "b")
    for after, message in ((["c"], "cycle"), (["d"], "cycle"), (["a", "a"], "twice")):
        with pytest.raises(InvalidInput, match=message):
            checked_after("c", after, ["a", "b"])


def test_keys_of_items() -> None:
    assert keys_of("m", ["x", "y"], None) == ["0", "1"]
    assert keys_of("m", [{"id": 7}, {"id": "a"}], "id") == ["7", "a"]
    assert keys_of("m", ["x", "y"], str.upper) == ["X", "Y"]
    assert [may_fail(most, 150) for most in (0, 3, "2%", "100%", "0.5%")] == [0, 3, 3, 150, 0]
    assert checked_items("m", (one for one in "ab")) == ["a", "b"]
    with pytest.raises(TooManySteps, match="100,001"):
        checked_items("m", [0] * 100_001)


def test_a_lazy_list_reads_pages() -> None:
    read: list[tuple[int, int]] = []

    def page(first: int, last: int) -> list[int]:
        read.append((first, last))
        return list(range(first, last))

    lazy = LazyList(PAGE * 2 + 5, page)
    assert (lazy[0], lazy[1], lazy[-1], lazy[PAGE - 1 : PAGE + 1]) == (0, 1, PAGE * 2 + 4, [PAGE - 1, PAGE])
    assert read == [(0, PAGE), (PAGE * 2, PAGE * 2 + 5), (0, PAGE), (PAGE, PAGE * 2)]
    assert list(lazy) == list(range(PAGE * 2 + 5))
    assert lazy == list(lazy)
    assert lazy != [1]
    assert lazy != "text"
    assert [0, *lazy] == [0] + lazy  # noqa: RUF005
    with pytest.raises(IndexError, match="no value 405"):
        lazy[PAGE * 2 + 5]


# -- drawings ----------------------------------------------------------------------------------------


def test_ranks_and_rails() -> None:
    graph = template_graph(DIAMOND)
    assert graph
    assert graph.wide
    at = {node.id: (node.x, node.y) for node in graph.wide.nodes}
    assert at["fetch"][1] == at["alone"][1] < at["embed"][1] == at["tag"][1] < at["publish"][1]
    assert len(graph.wide.lines) == len(graph.tall.lines) == 4
    assert [node.id for node in graph.tall.nodes] == [step.name for step in DIAMOND]
    assert template_graph([StepSpec("a"), StepSpec("b")]) is None
    empty = step_graph([], {})
    assert empty.wide
    assert empty.wide.nodes == []


@pytest.mark.parametrize("seed", range(20))
def test_no_drawing_has_nodes_on_top_of_each_other(seed: int) -> None:
    random = Random(seed)
    specs = [
        StepSpec(
            f"s{n}", after=tuple(f"s{one}" for one in sorted(random.sample(range(n), min(n, random.randrange(3)))))
        )
        for n in range(random.randrange(2, 24))
    ]
    graph = step_graph(specs, {spec.name: Shown("completed", "x" * 99, "1 s", items=None) for spec in specs})
    assert graph.wide
    _apart(graph.wide)
    lanes = {(node.x, node.y) for node in graph.tall.nodes}
    assert len(lanes) == len(specs)


def _apart(drawing: Drawing) -> None:
    ranks: dict[float, list[float]] = {}
    for node in drawing.nodes:
        assert 0 <= node.x <= drawing.width - NODE_W + 0.2
        assert len(node.fact) <= 24
        ranks.setdefault(node.y, []).append(node.x)
    for row in ranks.values():
        row.sort()
        assert all(right - left >= NODE_W + GAP_X - 0.2 for left, right in itertools.pairwise(row))


def test_many_steps_are_a_list() -> None:
    graph = template_graph([StepSpec(f"s{n}", after=() if n % 7 else None) for n in range(40)])
    assert graph
    assert graph.wide is None
    assert len(graph.tall.nodes) == 40
