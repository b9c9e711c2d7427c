"""Tests of the search for an order: it accepts histories that have one, and explains the others."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.fault.torture.contradiction import contradiction
from tests.fault.torture.history import Verb
from tests.fault.torture.linearizability import Call, search
from tests.fault.torture.replay import held_after

NEVER = math.inf


def write(
    verb: Verb, value: int | None, invoked_s: float, completed_s: float = NEVER, label: str = ""
) -> Call:
    values = () if value is None else (value,)
    return Call(verb, values, invoked_s, completed_s, label or f"{verb} {value}")


def put(value: int, invoked_s: float, completed_s: float = NEVER) -> Call:
    return write(Verb.PUT, value, invoked_s, completed_s)


def read(values: Sequence[int], invoked_s: float, completed_s: float) -> Call:
    return Call(None, tuple(values), invoked_s, completed_s, f"read {list(values)}")


POSSIBLE = {
    "nothing": [],
    "empty at first": [read([], 0, 1)],
    "one after another": [put(1, 0, 1), read([1], 2, 3), put(2, 4, 5), read([2], 6, 7)],
    "a read beside a write sees the old": [put(1, 0, 1), put(2, 2, 9), read([1], 3, 4)],
    "a read beside a write sees the new": [put(1, 0, 1), put(2, 2, 9), read([2], 3, 4)],
    "two writes side by side in either order": [put(1, 0, 5), put(2, 0, 5), read([1], 6, 7)],
    "an unknown write appears late": [put(1, 0, 1), put(2, 2), read([1], 3, 4), read([2], 50, 51)],
    "an unknown write never appears": [put(1, 0, 1), put(2, 2), read([1], 3, 4), read([1], 50, 51)],
    "an unknown write appears after later ones": [
        put(1, 0),
        put(2, 2, 3),
        read([2], 4, 5),
        put(3, 6, 7),
        read([1], 8, 9),
    ],
    "an unknown put makes the row that an update needs": [
        put(1, 0),
        write(Verb.UPDATE, 2, 5, 6),
        read([2], 7, 8),
    ],
    "an update of a missing row does nothing": [write(Verb.UPDATE, 2, 5, 6), read([], 7, 8)],
    "an unknown delete": [put(1, 0, 1), write(Verb.DELETE, None, 2), read([], 8, 9)],
    "two rows after a delete that came never": [
        write(Verb.INSERT, 2, 0, 1),
        write(Verb.DELETE, None, 2),
        write(Verb.INSERT, 1, 4, 5),
        read([1, 2], 6, 7),
    ],
    "a list grows": [
        write(Verb.APPEND, 1, 0, 1),
        write(Verb.APPEND, 2, 2, 9),
        write(Verb.APPEND, 3, 2, 9),
        read([1, 3], 4, 5),
        read([1, 3, 2], 10, 11),
    ],
}
STALE = "it is stale: put 2 had taken effect 1.00 s before it began"
IMPOSSIBLE = {
    "a stale read": ([put(1, 0, 1), put(2, 2, 3), read([1], 4, 5)], STALE),
    "a lost update": (
        [put(1, 0, 1), write(Verb.UPDATE, 2, 2, 3), read([1], 4, 5)],
        "stale: update 2 had",
    ),
    "a value from the future": (
        [put(1, 0, 1), read([2], 2, 3), put(2, 4, 5)],
        "read [2]: it shows a value from the future, of put 2",
    ),
    "swapped reads": (
        [put(1, 0, 1), put(2, 2, 9), read([2], 3, 4), read([1], 5, 6)],
        STALE,
    ),
    "swapped reads of an unknown write": (
        [put(1, 0, 1), put(2, 2), read([2], 3, 4), read([1], 5, 6)],
        STALE,
    ),
    "an unknown write seen, gone and back": (
        [put(1, 0, 1), put(2, 2), read([2], 3, 4), put(3, 5, 6), read([3], 7, 8), read([2], 9, 10)],
        "stale: put 3 had",
    ),
    "an unknown write before its begin": (
        [put(1, 0, 1), read([2], 2, 3), put(2, 4)],
        "future",
    ),
    "an unknown put can't undo": (
        [put(1, 0, 1), put(9, 0), put(2, 2, 3), read([1], 4, 5)],
        STALE,
    ),
    "the empty key after a put": ([put(2, 0, 1), read([], 2, 3)], STALE),
    "a delete without effect": (
        [put(1, 0, 1), write(Verb.DELETE, None, 2, 3), read([1], 4, 5)],
        "stale: delete None had taken effect 1.00 s",
    ),
    "what nobody wrote": ([put(1, 0, 1), read([7], 2, 3)], "read [7]: nobody wrote 7"),
    "two readers who disagree": (
        [
            put(1, 0, 1),
            put(2, 2, 20),
            put(3, 2, 20),
            read([2], 3, 4),
            read([3], 5, 6),
            read([2], 7, 8),
        ],
        "no order of these operations explains it",
    ),
    "a list in another order": (
        [
            write(Verb.APPEND, 1, 0, 9),
            write(Verb.APPEND, 2, 0, 9),
            read([1], 2, 3),
            read([2, 1], 10, 11),
        ],
        "no order",
    ),
    "a list that lost its end": (
        [write(Verb.APPEND, 1, 0, 1), write(Verb.APPEND, 2, 2, 3), read([1], 4, 5)],
        "stale: append 2 had taken effect 1.00 s",
    ),
}


@pytest.mark.parametrize("name", POSSIBLE)
def test_search_of_a_history_with_an_order_is_possible(name: str) -> None:
    assert search(POSSIBLE[name]).possible is True


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_search_of_a_planted_fault_is_impossible_and_the_fault_is_described(name: str) -> None:
    calls, says = IMPOSSIBLE[name]
    answer = search(calls)
    assert answer.possible is False
    found = contradiction(calls)
    assert says in str(found), str(found)
    assert found.stuck in found.calls


def test_contradiction_of_a_long_history_shows_only_the_calls_that_it_needs() -> None:
    calls = []
    for n in range(200):
        calls += [put(n, 10.0 * n, 10.0 * n + 1), read([n], 10.0 * n + 2, 10.0 * n + 3)]
    calls += [put(5000, 1003), read([99], 1004, 1005)]
    answer = search(calls)
    assert answer.possible is False
    found = contradiction(calls)
    assert found.stuck is calls[-1]
    assert str(found) == (
        "read [99]: it is stale: put 100 had taken effect 3.00 s before it began\n"
        "       990.00 to  991.00 s: put 99\n"
        "      1000.00 to 1001.00 s: put 100\n"
        "      1004.00 to 1005.00 s: read [99]"
    )


# -- invented histories --------------------------------------------------------------------------

VERBS = (Verb.PUT, Verb.UPDATE, Verb.DELETE, Verb.INSERT, Verb.APPEND)


def invented(
    source: random.Random, length: int, clients: int, verbs: Sequence[Verb], reads: float = 0.5
) -> list[Call]:
    """Return the calls of clients of a linearizable key, each client doing one thing after another.

    A write of unknown outcome takes effect at its moment, or never; its client continues.
    """
    free_s = [0.0] * clients
    moments: list[tuple[float, Call]] = []
    for number in range(length):
        client = source.randrange(clients)
        begun = free_s[client] + source.expovariate(1)
        moment = begun + source.expovariate(1)
        ended = free_s[client] = moment + source.expovariate(1)
        if source.random() < reads:
            moments.append((moment, Call(None, (), begun, ended, f"read {number}")))
            continue
        verb = source.choice(verbs)
        call = write(verb, None if verb is Verb.DELETE else number, begun, ended)
        if source.random() < 0.1:
            call = replace(call, completed_s=NEVER)
            moment = source.choice((moment, NEVER, begun + source.expovariate(0.02)))
        moments.append((moment, call))
    held: tuple[int, ...] = ()
    calls = []
    for moment, call in sorted(moments, key=lambda each: each[0]):
        if call.verb is None:
            calls.append(replace(call, values=held))
            continue
        calls.append(call)
        if moment < NEVER:
            held = held_after(held, call.verb, call.values)
            held = tuple(sorted(held)) if call.verb is Verb.INSERT else held
    source.shuffle(calls)
    return calls


def explained(calls: Sequence[Call]) -> bool:
    """Try every order of every subset of the unknown writes."""
    unknown = [call for call in calls if call.completed_s == NEVER]
    sure = [call for call in calls if call.completed_s < NEVER]
    return any(
        fits(order)
        for count in range(len(unknown) + 1)
        for chosen in itertools.combinations(unknown, count)
        for order in itertools.permutations([*sure, *chosen])
    )


def fits(order: Sequence[Call]) -> bool:
    held: tuple[int, ...] = ()
    latest_begin_s = -NEVER
    for call in order:
        latest_begin_s = max(latest_begin_s, call.invoked_s)
        if call.completed_s < latest_begin_s:
            return False
        if call.verb is None:
            if call.values != held:
                return False
            continue
        held = held_after(held, call.verb, call.values)
        held = tuple(sorted(held)) if call.verb is Verb.INSERT else held
    return True


@settings(deadline=None)
@given(
    st.integers(0, 1 << 32),
    st.integers(0, 200),
    st.integers(1, 10),
    st.sampled_from([VERBS, (Verb.PUT, Verb.UPDATE, Verb.DELETE), (Verb.APPEND,)]),
)
def test_search_of_a_random_linearizable_history_is_never_impossible(
    seed: int, length: int, clients: int, verbs: Sequence[Verb]
) -> None:
    """One in thousands of histories as dense as these takes millions of steps: undecided."""
    history = invented(random.Random(seed), length, clients, verbs)
    answer = search(history, steps_max=5_000)
    assert answer.possible is True or (answer.possible is None and answer.steps == 5_000)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_search_of_a_small_history_agrees_with_trying_every_order(data: st.DataObject) -> None:
    verbs = st.sampled_from([None, None, None, *VERBS])
    calls = []
    for number in range(data.draw(st.integers(0, 6))):
        verb = data.draw(verbs)
        begun = data.draw(st.integers(0, 12))
        ended: float = begun + data.draw(st.integers(0, 6))
        values: tuple[int, ...] = () if verb is Verb.DELETE else (number,)
        if verb is None:
            values = tuple(data.draw(st.lists(st.integers(0, 5), max_size=2)))
        elif data.draw(st.booleans()):
            ended = NEVER
        calls.append(Call(verb, values, float(begun), float(ended), str(number)))
    answer = search(calls)
    assert answer.possible is explained(calls)
    if not answer.possible:
        found = contradiction(calls)
        assert not search(found.calls).possible
        assert str(found)


@settings(deadline=None)
@given(st.integers(0, 1 << 32))
def test_contradiction_of_a_corrupted_history_has_no_order_itself(seed: int) -> None:
    source = random.Random(seed)
    calls = invented(source, 60, 4, VERBS)
    reads = [at for at, call in enumerate(calls) if call.verb is None]
    assume(reads)
    spoiled, other = source.choice(reads), source.choice(reads)
    calls[spoiled] = replace(calls[spoiled], values=calls[other].values)
    assume(search(calls).possible is False)
    found = contradiction(calls)
    assert search(found.calls).possible is False
    end_s = found.stuck.completed_s
    earlier = [call for call in calls if call.completed_s < end_s]
    assert search(earlier + unknown_until(calls, end_s)).possible is True


def unknown_until(calls: Sequence[Call], end_s: float) -> list[Call]:
    """Return the writes that had begun and had not ended."""
    return [
        replace(call, completed_s=NEVER)
        for call in calls
        if call.verb is not None and call.invoked_s <= end_s <= call.completed_s
    ]


# -- how much work it is, counted ----------------------------------------------------------------


@pytest.mark.parametrize("reads", [0.9, 0.5])
@pytest.mark.parametrize("verbs", [(Verb.PUT, Verb.UPDATE, Verb.DELETE), (Verb.PUT,), VERBS[-1:]])
def test_search_of_thousands_of_operations_takes_few_steps(
    verbs: Sequence[Verb], reads: float
) -> None:
    # Lists are compared as a whole, so theirs are shorter.
    calls = invented(random.Random(5), 500 if Verb.APPEND in verbs else 4000, 10, verbs, reads)
    answer = search(calls)
    assert answer.possible is True
    assert answer.steps < 2 * len(calls)


@pytest.mark.parametrize("place", [0.3, 0.9])
def test_search_of_thousands_of_operations_with_one_stale_read_takes_few_steps(
    place: float,
) -> None:
    verbs = (Verb.PUT, Verb.UPDATE, Verb.DELETE)
    calls = sorted(invented(random.Random(6), 1000, 10, verbs), key=lambda call: call.invoked_s)
    reads = [at for at, call in enumerate(calls) if call.values and call.verb is None]
    at = int(len(reads) * place)
    calls[reads[at]] = replace(calls[reads[at]], values=calls[reads[at - 40]].values)
    answer = search(calls)
    assert answer.possible is False
    assert answer.steps < 100 * len(calls)
    found = contradiction(calls)
    assert found.stuck is calls[reads[at]]
    assert len(found.calls) <= 4, str(found)
