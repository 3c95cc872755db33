"""The configuration: its documented files, and the messages for invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from purgatory_udf.common.configuration import Config, Override, load_config
from purgatory_udf.common.errors import UserError
from purgatory_udf.contract.overrides import READER_THREADS_HINT, apply_override

CONF = Path(__file__).resolve().parents[2] / "conf"


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        nested = field.annotation
        if isinstance(nested, type) and issubclass(nested, BaseModel):
            keys += _keys(nested, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


def _flat(values: dict[str, Any], prefix: str = "") -> list[str]:
    return [
        key
        for name, value in values.items()
        for key in (_flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [prefix + name])
    ]


@pytest.mark.parametrize("name", ["local.yaml", "cluster.yaml"])
def test_every_key_has_a_comment(name: str) -> None:
    text = (CONF / name).read_text(encoding="utf-8")
    assert sorted(_flat(yaml.safe_load(text))) == sorted(_keys(Config))
    lines = text.splitlines()
    described = {"max_session_timeout_ms"}  # Shares the comment of min_session_timeout_ms.
    for at, line in enumerate(lines):
        key = line.strip().partition(":")[0]
        if line.strip() and not line.lstrip().startswith("#") and not line.endswith(":") and key not in described:
            assert lines[at - 1].lstrip().startswith("#"), f"{name}: {key} has no comment"


def test_local_file_equals_defaults() -> None:
    assert load_config(CONF / "local.yaml") == Config()


def test_cluster_file_changes_only_sizes() -> None:
    default = Config().model_dump()
    changed = {key for key, value in load_config(CONF / "cluster.yaml").model_dump().items() if value != default[key]}
    assert changed == {"grouping_shards", "batch_events"}


@pytest.mark.parametrize("file", sorted(CONF.glob("what-if-*.yaml")), ids=lambda file: file.stem)
def test_what_if_examples_differ_from_defaults(file: Path) -> None:
    assert load_config(file) != Config()


def test_later_settings_override_earlier_and_file(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("produce.timeout_ms: 5000\nfetch:\n  min_bytes: 1\n  max_wait_ms: x2\ndrain: no\n")
    config = load_config(file, ["fetch.max_wait_ms=100", "fetch.max_wait_ms=x0.5", "fetch.min_bytes="])
    assert config.produce.timeout_ms == 5000
    assert config.fetch.max_wait_ms == "x0.5"
    assert config.fetch.min_bytes is None
    assert not config.drain


@pytest.mark.parametrize(
    ("recorded", "setting", "replayed"),
    [
        (500, None, 500),
        (500, 20, 20),
        (500, "x0.5", 250),
        (501, "x0.5", 250),
        (500, "x0", 0),
        (2**31 - 1, "x2", 2**31 - 1),
    ],
)
def test_override_replaces_or_scales(recorded: int, setting: Override, replayed: int) -> None:
    assert apply_override(recorded, setting) == replayed


NOT_WHOLE = "batch_events: Input should be a valid integer, got a number with a fractional part (got 1.5)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "produce:\n  timeout: 5\n",
            "produce.timeout: unknown key; did you mean produce.timeout_ms? conf/local.yaml lists all keys",
        ),
        ("nonsense: 5\n", "nonsense: unknown key; conf/local.yaml lists all keys"),
        ("batch_events: 1.5\n", NOT_WHOLE),
        ("fetch.max_bytes: 0\n", "fetch.max_bytes: Input should be greater than or equal to 1 (got 0)"),
        ("fetch.min_bytes: half\n", "fetch.min_bytes: expected a whole number, or a factor such as x0.5 (got 'half')"),
        ("produce.timeout_ms: -1\n", "produce.timeout_ms: expected 0 to 2147483647 (got -1)"),
        ("grouping: topic\n", "grouping: Input should be 'auto', 'partition', 'shard' or 'broker' (got 'topic')"),
        ("max_rejected: 101\n", "max_rejected: Input should be less than or equal to 100 (got 101)"),
        ("drain: perhaps\n", "drain: Input should be a valid boolean, unable to interpret input (got 'perhaps')"),
        (
            "grouping:\n  shards: 4\n",
            "grouping: Input should be 'auto', 'partition', 'shard' or 'broker' (got {'shards': 4})",
        ),
        (
            "drain: true\ndrain.now: true\n",
            "drain.now: drain already has a value, so it cannot be a section; remove one of the two",
        ),
        ("- a\n- b\n", "expected a mapping of keys to values, got list"),
        ("fetch.min.bytes: 5\n", "fetch.min.bytes: unknown key; the key of Kafka's fetch.min.bytes is "
         "fetch.consumer.min_bytes"),
        ("linger.ms: 5\n", "linger.ms: unknown key; the key of Kafka's linger.ms is producer.linger_ms"),
        ("a: &a [*a]\n", "nested too deeply, or an alias contains itself"),
        ("5: 6\n", "key 5 is not text; put it in quotes or remove it"),
    ],
)  # fmt: skip
def test_invalid_file_is_reported_with_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as raised:
        load_config(file)
    assert str(raised.value) == f"{file}: {message}"


def test_alias_bomb_is_refused(tmp_path: Path) -> None:
    """Ten levels of ten aliases each, as a list and as nested sections."""
    for bomb in ("[{}]", "{{{}}}"):
        levels = [f"a0: &a0 {bomb.format('x: 1' if bomb[0] == '{' else 1)}"]
        for level in range(1, 10):
            aliases = (f"{f'k{n}: ' if bomb[0] == '{' else ''}*a{level - 1}" for n in range(10))
            levels.append(f"a{level}: &a{level} {bomb.format(', '.join(aliases))}")
        file = tmp_path / "bomb.yaml"
        file.write_text("\n".join(levels))
        with pytest.raises(UserError) as raised:
            load_config(file)
        assert str(raised.value) == f"{file}: its aliases expand to more than 1,000,000 values"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "min.insync.replicas=1",
            "--set min.insync.replicas=1: min.insync.replicas: unknown key; in-sync sets are as recorded, and so are "
            "the errors of produces that they refused; to compare values of min.insync.replicas, edit topics.min_isr "
            "of a scenario for `what-if --closed-loop SCENARIO`",
        ),
        (
            "remote.log.reader.threads=5",
            f"--set remote.log.reader.threads=5: remote.log.reader.threads: unknown key; {READER_THREADS_HINT}",
        ),
        (
            "group.consumer.session.timeout.ms=5",
            "--set group.consumer.session.timeout.ms=5: group.consumer.session.timeout.ms: unknown key; the key of "
            "Kafka's group.consumer.session.timeout.ms is group.consumer.session_timeout_ms",
        ),
        ("fetch.min_bytes", "--set fetch.min_bytes: expected key=value"),
        ("=5", "--set =5: expected key=value"),
        (
            "fetch.minbytes=5",
            "--set fetch.minbytes=5: fetch.minbytes: unknown key; did you mean fetch.min_bytes? "
            "conf/local.yaml lists all keys",
        ),
        (
            "fetch.min_bytes=x",
            "--set fetch.min_bytes=x: fetch.min_bytes: expected a whole number, or a factor such as x0.5 (got 'x')",
        ),
    ],
)
def test_invalid_setting_is_reported(setting: str, message: str) -> None:
    with pytest.raises(UserError) as raised:
        load_config(None, [setting])
    assert str(raised.value) == message


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.yaml: cannot be read: No such file or directory"):
        load_config(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1,\n")
    with pytest.raises(UserError, match=r"broken\.yaml: not YAML: "):
        load_config(broken)
