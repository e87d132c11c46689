"""What the benchmarks make of the moments that workers note, and that the page says what the results files say."""

from itertools import pairwise

import pytest
from benchmarks import docs
from benchmarks.__main__ import NAMES
from benchmarks.load import WAIT_EDGES, Job, LoadRun, max_holders, most_overtaken, waits_histogram
from benchmarks.occupancy import held_over_time, mean_held
from benchmarks.order import count_overtakes
from benchmarks.outcome import Column, Outcome, at_least, at_most


def test_page_is_made_from_the_results():
    page = docs.PAGE.read_text()
    assert docs.render(page) == page, "run `python -m benchmarks.docs`"


def test_every_benchmark_has_its_place_on_the_page():
    assert {place["name"] for place in docs.PLACE.finditer(docs.PAGE.read_text())} >= set(NAMES)


def test_overtakes_count_who_asked_later_and_was_served_before():
    jobs = [Job(0.0, 9.0, 10.0), Job(1.0, 2.0, 3.0), Job(2.0, 4.0, 5.0), Job(0.01, 5.0, 6.0)]
    assert most_overtaken(jobs, margin=0.5) == 2  # the fourth was under way together with the first
    assert most_overtaken(jobs[1:3], margin=0.5) == 0


def test_overtakes_agree_with_the_definition():
    jobs = [Job((n * 7 % 50) / 10, (n * 11 % 50) / 10 + 5, 11.0) for n in range(50)]
    margin = 0.3
    expected = max(sum(o.asked > j.asked + margin and o.got < j.got for o in jobs) for j in jobs)
    assert most_overtaken(jobs, margin) == expected > 0


def test_most_held_does_not_count_a_slot_given_back_in_the_instant_of_a_grant():
    assert max_holders([Job(0, 1, 2), Job(0, 2, 3), Job(0, 2.5, 4)]) == 2


def test_mean_held_is_the_area_under_the_steps():
    steps = held_over_time([(0.0, 4.0), (1.0, 2.0), (1.0, 3.0)])
    assert steps[-1] == (4.0, 0)
    assert mean_held(steps, 0, 4) == pytest.approx(7 / 4)
    assert mean_held(steps, 1.5, 2.5) == pytest.approx(2.5)
    assert mean_held(steps, 4, 8) == 0


def test_an_overtake_is_a_ticket_granted_after_a_higher_one():
    assert count_overtakes([1, 2, 5, 6]) == 0
    assert count_overtakes([1, 5, 2, 3, 6]) == 2


def test_histogram_keeps_every_wait_the_shortest_and_the_longest_too():
    waits = [0.0, 0.0005, 0.02, 0.02, 60.0]
    counts = waits_histogram(LoadRun(1, 1, waits, 1, 0, 0, 0, 0))
    assert sum(counts) == len(waits)
    assert counts[0] == counts[-1] == 1
    assert all(low < high for low, high in pairwise(WAIT_EDGES))


def test_a_bar_is_kept_at_its_very_value_and_not_beyond():
    assert at_most("x", 2.0, 2).kept
    assert not at_most("x", 2.01, 2).kept
    assert at_least("x", 95.0, 95, " %") == ("x", "95.00 %", True)
    assert not at_least("x", 94.99, 95).kept


def test_results_file_says_what_was_found(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.outcome.RESULTS", tmp_path)
    found = Outcome(
        load="a load",
        columns={"what": Column("what"), "p50_ms": Column("p50 ms", 1)},
        rows=[{"what": "ours", "p50_ms": 1234.56}, {"what": "theirs", "p50_ms": None}],
        bars=[at_most("fast", 2, 1)],
        machine="a machine",
    )
    found.write("some")
    assert Outcome.read("some") == found
    assert not found.kept
    assert found.cells() == [["ours", "1,234.6"], ["theirs", "never"]]
    assert Outcome.read("other") is None
