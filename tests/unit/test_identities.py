from __future__ import annotations

from semaphore_operator.identities import cut, fitted, identified

POD = {"pod": "p" * 253, "namespace": "n" * 63}
REST = {"node": "n" * 63, "app": "a" * 63, "host": "h" * 63, "pid": "4194304"}


def test_an_identity_is_shown_in_bounds_whatever_a_client_has_written():
    assert identified(["not", "an", "identity"]) == {}
    shown = identified({"pod": "p" * 1000, "host": "\x1b[2J", "pid": 12345678901234, "secret": "s", "app": None})
    assert shown == {"pod": "p" * 253, "pid": "1234567890"}
    assert identified({"app": "ö" * 63, "host": '<a href="x">'}) == {"app": "ö" * 31, "host": "?a href=?x??"}
    assert identified({"pod": "\ud800"}) == {}


def test_ten_usual_processes_are_shown_as_they_are():
    usual = {"pod": "licensed-api-worker-7c9d8f5b6c-x2x4z", "namespace": "payments", "node": "node-1", "app": "billing"}
    whole = [{**usual, "host": usual["pod"], "pid": str(number)} for number in range(10)]
    assert fitted(whole) == whole


def test_ten_pods_keep_the_longest_names_whole_and_lose_what_tells_less():
    assert fitted([POD | REST] * 10) == [POD] * 10
    some = fitted([POD | REST] * 8)
    assert some == [POD | {"node": REST["node"]}] * 8
    assert fitted([POD | REST] * 3) == [POD | REST] * 3


def test_processes_without_a_pod_keep_the_names_they_have_and_the_last_go():
    long = {name: text * 20 for name, text in REST.items()}
    left = fitted([{**long, "pid": str(number)} for number in range(10)])
    assert 0 < len(left) < 10
    assert [each["pid"] for each in left] == [str(number) for number in range(len(left))]


def test_a_text_is_cut_in_bytes_and_never_within_a_letter():
    assert (cut("äöü", 4), cut("äöü", 5), cut("abc", 9)) == ("äö", "äö", "abc")
