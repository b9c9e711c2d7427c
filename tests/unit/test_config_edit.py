"""Adding a cluster to a configuration's text, or removing one, leaves everything else unchanged."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from haproc.config.edit import EditError, add_cluster, changed_as_meant, remove_cluster
from tests.unit.door_rig import make_config

CONF = Path(__file__).parents[2] / "conf"
NEW = {"name": "dora", "listen": "d:1", "peer": "d:2", "spark": {"url": "sc://d:3"}}
COMMENTED = """\
# head
ring: demo
clusters:   # three
  # the first
  - name: a
    spark: {url: "sc://h:1"}

  # the second
  - name: b
    spark:
      url: sc://h:2   # its port

# users
users: []
"""


def names(text: str) -> list[str]:
    return [cluster["name"] for cluster in yaml.safe_load(text)["clusters"]]


@pytest.mark.parametrize("file", ["ring.local.yaml", "ring.production.yaml"])
def test_added_and_removed_cluster_leaves_the_text_of_the_examples_unchanged(file: str) -> None:
    text = (CONF / file).read_text()
    more = add_cluster(text, NEW)
    assert names(more) == [*names(text), "dora"]
    assert yaml.safe_load(more)["clusters"][-1] == NEW
    assert remove_cluster(more, len(names(text))) == text


def test_edit_keeps_comments_and_all_other_lines() -> None:
    more = add_cluster(COMMENTED, NEW)
    assert [line for line in more.splitlines() if line not in COMMENTED.splitlines()] == [
        "  - name: dora",
        "    listen: d:1",
        "    peer: d:2",
        "      url: sc://d:3",
    ]
    for index, remaining in enumerate(["b", "a"]):
        less = remove_cluster(COMMENTED, index)
        assert names(less) == [remaining]
        comments = [line for line in COMMENTED.splitlines() if "#" in line]
        expected_comments = [
            line for line in comments if "its port" not in line or remaining == "b"
        ]
        assert [line for line in less.splitlines() if "#" in line] == expected_comments


@pytest.mark.parametrize(
    "text",
    [
        "ring: x\nclusters: [{name: a}]\n",
        "ring: x\nclusters: []\n",
        "ring: x\n",
        "[]",
        "clusters: 1",
    ],
)
def test_edit_of_another_form_of_text_is_refused(text: str) -> None:
    with pytest.raises(EditError, match="by hand"):
        add_cluster(text, NEW)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"name": st.text("abcxyz", min_size=1, max_size=3)},
            optional={"spark": st.fixed_dictionaries({"url": st.text(max_size=8)})},
        ),
        min_size=2,
        max_size=4,
    ),
    st.booleans(),
    st.data(),
)
def test_edit_of_any_block_list_changes_one_item(
    clusters: list[dict[str, object]], last: bool, data: st.DataObject
) -> None:
    tree = {"ring": "x", "clusters": clusters} if last else {"clusters": clusters, "ring": "x"}
    text = yaml.safe_dump(tree, sort_keys=False)
    assert yaml.safe_load(add_cluster(text, NEW)) == {**tree, "clusters": [*clusters, NEW]}
    at = data.draw(st.integers(0, len(clusters) - 1))
    remaining = clusters[:at] + clusters[at + 1 :]
    assert yaml.safe_load(remove_cluster(text, at)) == {**tree, "clusters": remaining}


def test_changed_as_meant_accepts_no_other_difference(tmp_path: Path) -> None:
    both = make_config(tmp_path)
    one = dataclasses.replace(both, clusters=both.clusters[:1])
    assert changed_as_meant(one, both, added="b") and changed_as_meant(both, one, removed="b")
    assert not changed_as_meant(one, both) and not changed_as_meant(both, both, removed="b")
    assert not changed_as_meant(one, dataclasses.replace(both, ring="other"), added="b")
