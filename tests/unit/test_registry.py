from __future__ import annotations

from tests.unit.factories import resource

from semaphore_operator.registry import Registry, owner

EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def test_a_name_belongs_to_the_older_resource_then_to_the_lower_uid():
    young = resource("young", name="shared", created=LATE, uid="a")
    old = resource("old", name="shared", created=EARLY, uid="c")
    equal = resource("equal", name="shared", created=EARLY, uid="b")
    assert owner([young, old]) == old
    assert owner([young, old, equal]) == equal
    assert owner([]) is None


def test_a_resource_that_is_being_deleted_gives_its_name_up():
    registry = Registry()
    registry.put(resource("leaving", name="shared", created=EARLY))
    registry.put(heir := resource("heir", name="shared", created=LATE))
    assert registry.owner("payments/shared").name == "leaving"
    registry.put(resource("leaving", name="shared", created=EARLY, deleted=LATE, generation=2))
    assert registry.owner("payments/shared") == heir
    registry.remove(heir.uid)
    assert registry.owner("payments/shared") is None


def test_same_names_in_two_namespaces_never_meet():
    registry = Registry()
    registry.put(here := resource(created=LATE))
    registry.put(there := here.model_copy(update={"namespace": "billing", "uid": "other", "created": EARLY}))
    assert registry.owner("payments/licensed-api") == here
    assert registry.owner("billing/licensed-api") == there


def test_an_older_generation_does_not_replace_a_newer_one():
    registry = Registry()
    registry.put(resource(generation=2, limit=8))
    registry.put(resource(generation=1, limit=5))
    [known] = registry.all()
    assert known.spec.limit == 8


def test_a_listing_finds_what_the_watch_has_missed():
    registry = Registry()
    gone, stays, new = resource("gone"), resource("stays"), resource("new")
    registry.put(gone)
    registry.put(stays)
    assert registry.replace([stays, new], registry.uids()) == [gone]
    assert {known.name for known in registry.all()} == {"stays", "new"}


def test_a_listing_that_is_late_changes_nothing():
    registry = Registry()
    registry.put(old := resource("edited", limit=5))
    registry.put(deleted := resource("deleted"))
    before = registry.uids()
    registry.put(resource("edited", limit=8, generation=2))
    registry.put(fresh := resource("fresh"))
    registry.remove(deleted.uid)
    assert registry.replace([old, deleted], before) == []
    assert {known.name: known.spec.limit for known in registry.all()} == {"edited": 8, fresh.name: 2}


def test_it_remembers_what_redis_has_had():
    registry = Registry()
    fresh, known = resource("fresh"), resource("known", status={"observedGeneration": 3})
    assert not registry.was_written(fresh)
    assert registry.was_written(known)
    registry.note_written(fresh.uid)
    assert registry.was_written(fresh)
