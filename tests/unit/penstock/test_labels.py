import pytest

from penstock.cluster.node_registry import labels_in, labels_text, parse_labels, published_labels
from penstock.errors import NeedsOperator


def test_labels_go_through_settings_and_status_unchanged() -> None:
    labels = parse_labels(["zone=a", " disk = fast "])
    assert labels == {"zone": "a", "disk": "fast"}
    assert published_labels(labels) == {"labels": {"zone": "a", "disk": "fast"}}
    assert labels_in(published_labels(labels)) == labels
    assert parse_labels(labels_text(labels).split(",")) == labels


def test_no_labels_are_published_as_tidb_binlog_does() -> None:
    assert published_labels({}) is None
    assert labels_in(None) == {}


@pytest.mark.parametrize("text", ["zone", "=a", "zone=", "zone=a=b", ""])
def test_what_is_no_label_says_what_one_looks_like(text: str) -> None:
    with pytest.raises(NeedsOperator, match=r"is not a label .write name=value: zone=a"):
        parse_labels([text])


def test_a_label_has_one_value() -> None:
    assert parse_labels(["zone=a", "zone=a"]) == {"zone": "a"}
    with pytest.raises(NeedsOperator, match="zone has two values"):
        parse_labels(["zone=a", "zone=b"])


def test_a_strange_field_of_another_program_bears_no_labels() -> None:
    assert labels_in({"labels": ["zone"]}) == {}
    assert labels_in({"labels": {"zone": 3, "disk": "fast"}}) == {"disk": "fast"}
    assert labels_in({"other": {}}) == {}
