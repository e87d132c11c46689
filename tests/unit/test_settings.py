from __future__ import annotations

import pytest

from semaphore_operator.settings import parse


def test_options_have_variables_and_options_win(monkeypatch):
    monkeypatch.setenv("SEMAPHORE_REDIS_URL", "redis://variable:6379/0")
    monkeypatch.setenv("SEMAPHORE_NAMESPACES", "a, b")
    monkeypatch.setenv("SEMAPHORE_SWEEP_SECONDS", "2.5")
    settings = parse(["--port", "9090"])
    assert settings.redis_url() == "redis://variable:6379/0"
    assert (settings.namespaces, settings.sweep, settings.port) == (("a", "b"), 2.5, 9090)
    assert parse(["--redis", "redis://option:6379/0"]).redis_url() == "redis://option:6379/0"


def test_a_mounted_address_wins_and_may_change(tmp_path):
    file = tmp_path / "url"
    file.write_text("redis://first:6379/0\n")
    settings = parse(["--redis-file", str(file), "--redis", "redis://option:6379/0"])
    assert settings.redis_url() == "redis://first:6379/0"
    file.write_text("redis://second:6379/0")
    assert settings.redis_url() == "redis://second:6379/0"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "which Redis"),
        (["--redis", "http://redis"], "not a Redis URL"),
        (["--redis-file", "/none"], "cannot be read"),
        (["--redis", "redis://redis:6379/0", "--sweep", "0"], "argument --sweep: 0.1 to 300, not 0"),
        (["--redis", "redis://redis:6379/0", "--lease", "operator"], "namespace/name of a Lease"),
        (["--redis", "redis://redis:6379/0", "--renew-deadline", "15"], "must be longer than --renew-deadline"),
    ],
)
def test_a_wrong_start_ends_with_what_to_change(arguments, said, capsys, monkeypatch):
    monkeypatch.delenv("SEMAPHORE_REDIS_URL", raising=False)
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_password_is_never_part_of_an_error(capsys):
    with pytest.raises(SystemExit):
        parse(["--redis", "redis://user:secret@:port/0"])
    assert "secret" not in capsys.readouterr().err
