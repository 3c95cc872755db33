"""Pseudonyms of an anonymised import."""

from __future__ import annotations

from purgatory_udf.sources.request_log.importing.import_options import anonymised, pseudonyms


def test_name_has_same_pseudonym_in_all_fields() -> None:
    rename = pseudonyms("secret")
    event = {
        "type": "join_group",
        "group": "billing",
        "client_id": "billing-1",
        "member_id": "",
        "assigned_member_id": "billing-1-7",
        "leader_member_id": "billing-1-7",
        "group_instance_id": None,
        "partitions": [{"topic": "orders", "partition": 3}, {"topic": "__consumer_offsets", "partition": 1}],
        "topic": "orders",
        "generation": 4,
    }
    changed = anonymised(event, rename)
    orders, member = rename("topic", "orders"), rename("member", "billing-1-7")
    assert changed == {
        "type": "join_group",
        "group": rename("group", "billing"),
        "client_id": rename("client", "billing-1"),
        "member_id": "",
        "assigned_member_id": member,
        "leader_member_id": member,
        "group_instance_id": None,
        "partitions": [{"topic": orders, "partition": 3}, {"topic": "__consumer_offsets", "partition": 1}],
        "topic": orders,
        "generation": 4,
    }
    assert len({orders, member, changed["group"], changed["client_id"]}) == 4
    assert not any(name in str(changed) for name in ("billing", "orders"))


def test_created_topics_have_pseudonyms() -> None:
    rename = pseudonyms("secret")
    event = {"type": "create_topics", "topics": [{"topic": "orders", "partitions": 3}], "timeout_ms": 5000}
    assert anonymised(event, rename)["topics"] == [{"topic": rename("topic", "orders"), "partitions": 3}]


def test_pseudonyms_depend_on_key() -> None:
    assert pseudonyms("a")("topic", "orders") == pseudonyms("a")("topic", "orders")
    assert pseudonyms("a")("topic", "orders") != pseudonyms("b")("topic", "orders")
    assert pseudonyms("a")("topic", "orders") != pseudonyms("a")("group", "orders")
